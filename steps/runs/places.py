"""Locations of a run's outputs: folders on this machine, MLflow artifacts, pages of the UI."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from grpo.base.files import read_json
from steps.runs.index import TrackedRun, TrackedStep
from steps.runtime.commands import pasteable
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PRETRAINED_STEP
from steps.step_io.names import FINDINGS
from steps.step_io.results import Results
from steps.store.outputs import Store
from steps.tracking.addresses import run_address
from steps.tracking.tags import HELD_BY

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 5000
"""The port of `chess-grpo ui`."""


def output_folder(machine: Machine, step: TrackedStep | None) -> Path | None:
    """Return the folder of a step's output on this machine, or None. Its hashes are not checked."""
    if step is None:
        return None
    folder = Store(machine.home).folder(step.name, step.version)
    return folder if folder.is_dir() else None


def policy_name(run: TrackedRun, role: str) -> str | None:
    """Return the name of a run's `champion` or `peak` for `chess-grpo match`, or None if it has none."""
    if (policy := run.policy(role)) is None:
        return None
    return role if role in policy.aliases else f"v{policy.version.number}"


def places(run: TrackedRun, machine: Machine) -> list[tuple[str, str]]:
    """Return (name, location) of a run's champion, games (PGN, and a page to click through), report, card, training output and MLflow."""
    from steps.step_io.names import GAMES_PAGE, PGN, REPORT_PAGE

    selected, reported, finetuned = (run.output_of(name) for name in ("select", "report", "finetune"))
    rows = []
    if selected is not None:
        policy = run.policy(CHAMPION)
        is_start = policy is not None and policy.version.policy_step == PRETRAINED_STEP
        is_registered = policy is not None and CHAMPION in policy.aliases
        notes = [*(["the start: step 0"] if is_start else []), *(["`chess-grpo uci` plays it"] if is_registered else [])]
        rows.append(("champion", _place(machine, selected, CHAMPION) + (f" ({'; '.join(notes)})" if notes else "")))
        rows += [("games", _place(machine, selected, PGN)), ("viewer", _place(machine, selected, GAMES_PAGE))]
    if reported is not None:
        rows += [
            ("report", _place(machine, reported, REPORT_PAGE)),
            ("card", pasteable(f"chess-grpo card {run.metaflow_run}")),
        ]
    if finetuned is not None:
        rows.append(("training", _place(machine, finetuned, "")))
    return [*rows, ("UI", run_page(run, machine))]


def findings(run: TrackedRun, document: Results | None, machine: Machine) -> list[Mapping[str, Any]]:
    """Return the findings of the diagnosis: by the run's document, else by the output of `finetune` on this machine."""
    if document is not None:
        found = document["findings"]
    else:
        folder = output_folder(machine, run.output_of("finetune"))
        found = None if folder is None or not (folder / FINDINGS).is_file() else read_json(folder / FINDINGS)
    return [] if found is None else list(found["findings"])


def _place(machine: Machine, step: TrackedStep, part: str) -> str:
    if (folder := output_folder(machine, step)) is not None:
        return str(folder / part)
    holder = step.tags.get(HELD_BY, step.mlflow_run)
    return f"not on this machine; in the tracking store: mlflow artifacts download --run-id {holder}" + (
        f" --artifact-path {part}" if part else ""
    )


def run_page(run: TrackedRun, machine: Machine) -> str:
    """Return the address of a run's page in MLflow."""
    if urlsplit(machine.tracking_uri).scheme in ("http", "https"):
        return run_address(machine.shown_uri, run.experiment, run.mlflow_run)
    address = run_address(f"http://{HOST}:{DEFAULT_PORT}", run.experiment, run.mlflow_run)
    return f"{address} (or the port that the UI was started with; `chess-grpo ui` starts it)"

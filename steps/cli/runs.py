"""The command `chess-grpo runs`: what the flow runs of the tracking store were, how they ended, and what came out."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from steps.cli.parser import count
from steps.cli.tables import duration, when, wrapped
from steps.runtime.machine import Machine

if TYPE_CHECKING:
    from steps.runs.index import TrackedRun

_DEFAULT: Final = 10


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `runs`."""
    runs = commands.add_parser(
        "runs",
        description="The flow runs of the tracking store (MLFLOW_TRACKING_URI, or the one in CHESS_GRPO_HOME), the newest first: Metaflow's"
        " run id, when it began, how it ended, the preset it is nearest to, the verdict with the candidate's score against its own"
        " pretrained policy, what the diagnosis found, and the registry's aliases that its policies have. Nothing is written.",
    )
    runs.add_argument("--last", type=count, default=_DEFAULT, metavar="N", help=f"so many of the newest (default {_DEFAULT})")
    runs.add_argument("--json", action="store_true", help="all of it as JSON")
    runs.set_defaults(run=_runs)


def _runs(given: argparse.Namespace) -> int:
    from steps.runs.index import read_runs

    machine = Machine.here()
    found = read_runs(machine, last=given.last + 1)
    runs, has_more = found[: given.last], len(found) > given.last
    if given.json:
        print(json.dumps([listed_run(run) for run in runs], indent=2))
        return 0
    if not runs:
        print(wrapped(f"no runs in {machine.tracking_uri} yet: `make run CONFIG=smoke` makes one in 3 minutes"))
        return 0
    print("\n".join(_lines(run) for run in runs))
    more = f" (earlier ones: --last {2 * given.last})" if has_more else ""
    print(wrapped(f"{len(runs)} of {machine.tracking_uri}{more}; `chess-grpo show RUN` tells more of one"))
    return 0


def listed_run(run: "TrackedRun") -> dict[str, Any]:
    """Return what the list says of a run, as plain data."""
    from steps.runs.results import headline
    from steps.runs.settings import from_preset
    from steps.tracking.tags import FOUND, VERDICT

    preset, score = from_preset(run.params), headline(run)
    return {
        "run": run.metaflow_run,
        "mlflow_run": run.mlflow_run,
        "started": run.started,
        "status": run.status,
        "seconds": run.seconds,
        "preset": preset.preset,
        "changed": {name: value for name, (_, value) in preset.changed.items()},
        "settings": str(preset),
        "verdict": run.tags.get(VERDICT),
        "score": None if score is None else {"counted": score.name.rpartition(", ")[2], "text": str(score), **asdict(score.estimate)},
        "findings": run.tags.get(FOUND),
        "aliases": list(run.aliases),
    }


def _lines(run: "TrackedRun") -> str:
    """Return two or three lines: who and when, what it was, what came out."""
    facts = listed_run(run)
    took = f" after {duration(run.seconds)}" if run.seconds is not None else ""
    aliases = f"  = {', '.join(run.aliases)}" if run.aliases else ""
    lines = [
        f"{facts['run']}  {when(run.started)}  {run.status}{took}{aliases}",
        wrapped(facts["settings"], "    settings  "),
    ]
    if facts["verdict"] is not None:
        score = (
            "" if facts["score"] is None else f": {facts['score']['text']} against its pretrained policy, games {facts['score']['counted']}"
        )
        lines.append(wrapped(f"{facts['verdict']}{score}", "    verdict   "))
    if facts["findings"] is not None:
        lines.append(wrapped(", ".join(name.strip() for name in facts["findings"].split(",")), "    findings  "))
    return "\n".join(lines)

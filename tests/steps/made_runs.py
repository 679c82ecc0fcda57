"""Runs in a store without any computation: records, and small made-up outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.base.files import sha256_json, write_json, write_manifest
from grpo.policy.files import WEIGHTS, write_facts
from grpo.settings.tree import read_settings
from steps import STEPS
from steps.names import CHAMPION, CHECKPOINTS, PEAK, REPORT
from steps.run.launch import launch_of
from steps.run.machine import Machine
from steps.run.records import Run, RunFacts, Runs, Status
from steps.run.step import StepOutput
from steps.run.store import Store

PEAK_AT, CHAMPION_AT = KEPT = (2, 6)
"""Steps of the checkpoints that retention left."""
JOINED = {
    "rows": 3_300,
    "used_games": 421,
    "splits": {"train": 3_000, "validation": 210, "heldout": 90},
    "natural_phases": {"opening": 7_001, "middlegame": 7_002, "endgame": 7_003},
    "phases": {"opening": 1_100, "middlegame": 1_101, "endgame": 1_099},
    "sources": {"engine": 3_300},
    "labels": {"game": 3_300},
}
"""The report of `join_boards`."""
FIRST = 1_700_000_000.0
"""When the first run started, in seconds since 1970."""


def machine_of(home: Path, tracking: str | None = None, store: Path | str = "") -> Machine:
    uri = tracking or f"sqlite:///{home / 'mlflow.db'}"
    return Machine(stockfish="none", home=home, tracking_uri=uri, device="cpu", num_threads=1, store=str(store))


@dataclass(kw_only=True)
class MadeRun:
    name: str
    settings: str = "smoke"
    until: str = "end"
    """The last step that was begun."""
    ends: Status = "finished"
    """How that one ended; `running` if it has not."""
    error: str = ""
    origin: Mapping[str, Any] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Step -> name -> content of further files: text, or JSON."""
    launcher: str = ""


def make_run(machine: Machine, made: MadeRun) -> Run:
    store = Store.of(machine)
    runs = Runs(store)
    of_run = {"tags": dict(made.tags), "origin": made.origin, "launcher": made.launcher}
    runs.begin_run(facts_of(made.name, machine, made.settings, **of_run, started=FIRST + len(list(runs.all()))))
    for step in STEPS[: STEPS.index(made.until) + 1]:
        part = "1 of 2" if step in ("build_boards", "confirm") else ""
        attempt = runs.begin(made.name, step, part, version_of(step, made.name))
        if step == made.until and made.ends != "finished":
            if made.ends != "running":
                attempt.end(made.ends, error=made.error)
            break
        attempt.end("finished", output=None if step in ("start", "end") else _made(store, step, made))
    found = runs.get(made.name)
    assert found is not None
    return found


def version_of(step: str, run: str) -> str:
    return sha256_json({"step": step, "run": run})[:24]


def weights_at(step: int) -> bytes:
    return b"weights of step %d" % step


def write_policy(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(weights_at(step))
    write_facts(folder, {"kind": "network", "network": "replies", "width": 64}, [WEIGHTS])


def write_step(folder: Path, step: str) -> None:
    """Write the files of a step's output that others look at."""
    if step == "join_boards":
        write_json(folder / REPORT, JOINED)
    if step == "pretrain":
        write_policy(folder, 0)
    if step == "finetune":
        for at in KEPT:
            place = folder / CHECKPOINTS / f"step-{at:08d}"
            write_policy(place, at)
            write_manifest(place, {"kind": "checkpoint", "step": at})
    if step == "select":
        write_json(folder / REPORT, {"peak_step": PEAK_AT, "champion_step": CHAMPION_AT})
        write_policy(folder / PEAK, PEAK_AT)
        write_policy(folder / CHAMPION, CHAMPION_AT)


def _made(store: Store, step: str, made: MadeRun) -> StepOutput:
    settings = read_settings(made.settings).model_dump(mode="json")
    with store.making(step, version_of(step, made.name)) as making:
        if making.output is None:
            with making.filling({"parts": {"step": step, "settings": settings, "run": made.name}}) as folder:
                write_step(folder, step)
                for name, content in made.files.get(step, {}).items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_text(content) if isinstance(content, str) else write_json(folder / name, content)
        assert making.output is not None
        return making.output


def facts_of(run: str, machine: Machine, text: str = "smoke", **more: Any) -> RunFacts:
    plain = read_settings(text).model_dump(mode="json")
    launch = launch_of(plain)
    begun = RunFacts(
        run=run,
        preset=launch.preset,
        settings=plain,
        code={"commit": "0123456789abcdef", "is_dirty": False, "lock": "l"},
        tracking=machine.shown_uri,
        command=launch.command(),
        label=launch.label,
        tags={"git.commit": "c" * 40},
        head="## Configuration",
        texts={"settings.json": "{}\n"},
        origin=None,
        started=FIRST,
        launcher="",
    )
    return RunFacts(**begun | more)  # type: ignore[typeddict-item]

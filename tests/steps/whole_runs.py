"""Whole runs, done step by step by `run_step`, with bodies that write small files in place of computing anything."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.base.files import write_json, write_manifest
from grpo.engine.identity import EngineIdentity
from grpo.policy.files import ACTION_TABLE_HASH
from grpo.settings.roles import settings_read_by
from grpo.settings.tree import Settings
from steps.pipeline.job import Job
from steps.pipeline.run_step import run_step
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work
from steps.store import external_inputs
from steps.store.outputs import StepOutput
from steps.tracking.child_run import ChildRun
from steps.tracking.registry import Choice, Chosen
from steps.tracking.tracker import Tracker

ENGINE = EngineIdentity(name="Scripted 1", sha256="0" * 64)
CODE = {"commit": "abc", "is_dirty": False, "lock": "l"}
PEAK_AT, CHAMPION_AT = KEPT = (2, 6)
"""Steps of the checkpoints that retention left."""


@dataclass
class WholeRun:
    """A run whose steps are done."""

    job: Job
    outputs: dict[str, StepOutput] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.job["metaflow_run"]


def do_run(machine: Machine, settings: Settings, name: str, until: str = "", **bodies: Callable[[Work], None]) -> WholeRun:
    """Do all steps of a run, up to the named one; its first peak and champion get the aliases."""
    tracker = Tracker(machine)
    parent = tracker.start_flow_run(metaflow_run=name, settings={}, tags={}, note="")
    # The lock is this run's own, so that no other's outputs are found.
    code = {**CODE, "lock": name}
    job = Job(settings=settings.model_dump(mode="json"), code=code, metaflow_run=name, mlflow_run=parent, is_fresh=False, origin=None)
    made = WholeRun(job)
    by_engine = {"engine": str(ENGINE)}
    steps: list[tuple[str, dict[str, Any], Mapping[str, str], Callable[[Work], None]]] = [
        ("join_boards", settings_read_by("build_boards", settings), external_inputs.source_inputs(settings, ENGINE), write_boards),
        ("check_boards", settings_read_by("check_boards", settings), {}, write_checks),
        ("pretrain", settings_read_by("pretrain", settings), {"device": "cpu a"}, lambda work: write_policy(work.folder, 0)),
        ("calibrate", settings_read_by("calibrate", settings), by_engine, write_report),
        ("baseline", settings_read_by("baseline", settings), by_engine, write_report),
        ("finetune", settings_read_by("finetune", settings), by_engine, write_checkpoints),
        ("select", settings_read_by("select", settings), {}, write_selection),
    ]

    def register(folder: Path, child: ChildRun) -> None:
        if folder.parent.name == "select":
            peak, champion = (Choice(policy_step=step, initial_weights="w", low=0.6) for step in KEPT)
            child.choose(Chosen(flow_run=parent, description="", peak=peak, champion=champion, is_beaten=False, seen=None))

    for step, sliced, inputs, body in steps:
        spec = StepSpec(name=step, body="steps.step_io.work")
        made.outputs[step] = run_step(job, machine, spec, settings=sliced, inputs=inputs, work=bodies.get(step, body), publish=register)
        if step == until:
            return made
    tracker.end_flow_run(parent, {})
    return made


def write_boards(work: Work) -> None:
    (work.folder / "boards.parquet").write_bytes(bytes(range(256)) * 40)
    (work.folder / "nothing.txt").write_text("")


def write_checks(work: Work) -> None:
    (work.folder / "docs" / "aside").mkdir(parents=True)
    (work.folder / "docs" / "aside" / "page.html").write_text("made at noon")


def weights_at(step: int) -> bytes:
    return b"weights of step %d" % step


def write_policy(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights.safetensors").write_bytes(weights_at(step))
    write_json(folder / "policy.json", {"action_table": ACTION_TABLE_HASH, "policy": {"kind": "network"}})


def write_report(work: Work) -> None:
    write_json(work.folder / "report.json", {})


def write_checkpoints(work: Work) -> None:
    for step in KEPT:
        folder = work.folder / "checkpoints" / f"step-{step:08d}"
        write_policy(folder, step)
        (folder / "optimiser.safetensors").write_bytes(b"%d" % step * 1000)
        write_manifest(folder, {"kind": "checkpoint", "step": step})


def write_selection(work: Work) -> None:
    write_json(work.folder / "report.json", {"peak_step": PEAK_AT, "champion_step": CHAMPION_AT})
    write_policy(work.folder / PEAK, PEAK_AT)
    write_policy(work.folder / CHAMPION, CHAMPION_AT)

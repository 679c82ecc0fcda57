"""Reads a run's training history from a folder, this machine's outputs, or the tracking store's artifacts or metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.base.files import MANIFEST, read_json
from grpo.diagnosis.history import Evaluation, History
from grpo.metrics.table import METRICS, Record
from steps.runs.files import output_file, output_manifest
from steps.runs.index import TrackedRun, find_run, step_metric
from steps.runs.names import NotFoundError, is_folder
from steps.runtime.machine import Machine
from steps.step_io.aliases import PRETRAINED_STEP
from steps.step_io.names import HISTORY, REPORT
from steps.step_io.work import read_journal
from steps.tracking.outages import ArtifactError


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHistory:
    """The history of a run's fine-tuning."""

    name: str
    """Name of the run or folder."""
    history: History
    settings: Mapping[str, Any] | None
    """Settings of the step `finetune`; None where they were not found."""


def run_history(run: str, machine: Machine) -> RunHistory:
    """Return the history of GRPO in a run.

    Args:
        run: a folder with a history (an output of `finetune`, or the folder of one in progress), or one of `RUN_NAMES`.
        machine: says where outputs and the tracking store are.

    Raises NotFoundError, TrackingAwayError, and what `output_file` raises.
    """
    if is_folder(run):
        return _in_folder(Path(run))
    found = find_run(run, machine)
    finetuned = found.output_of("finetune")
    if finetuned is None:
        records, settings = _logged(found, machine), None
    else:
        with output_file(machine, finetuned.output, HISTORY) as path:
            records, settings = read_journal(path.parent), output_manifest(machine, finetuned.output)["parts"]["settings"]
    if not records:
        raise NotFoundError(f"run {found.metaflow_run} has no history of GRPO: it has not completed the first step of finetune")
    history = History.of_records(records)
    history.evaluations = _evaluations(found, machine)
    return RunHistory(name=f"run {found.metaflow_run}", history=history, settings=settings)


def _in_folder(folder: Path) -> RunHistory:
    records = read_journal(folder)
    if not records:
        raise NotFoundError(f"{folder} has no {HISTORY} with records in it; give an output of finetune, or a run's id")
    manifest = folder / MANIFEST
    settings = read_json(manifest)["parts"]["settings"] if manifest.exists() else None
    return RunHistory(name=str(folder), history=History.of_records(records), settings=settings)


def _logged(run: TrackedRun, machine: Machine) -> list[Record]:
    """Return the metrics that were logged to MLflow by a step that is running or has failed."""
    rows: dict[int, dict[str, float]] = {}
    for step in run.steps:
        for name in step.metrics.keys() & METRICS.keys() if step.name == "finetune" else ():
            for at, value in step_metric(machine, step, name).items():
                rows.setdefault(at, {})[name] = value
    return [Record(step, rows[step]) for step in sorted(rows)]


def _evaluations(run: TrackedRun, machine: Machine) -> tuple[Evaluation, ...]:
    if (selected := run.output_of("select")) is None:
        return ()
    try:
        with output_file(machine, selected.output, REPORT) as path:
            return evaluations_of(read_json(path))
    except ArtifactError:  # The history can be judged without the games.
        return ()


def evaluations_of(report: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    """Return the confirmation by fresh games from a report of `select`.

    The candidate's score is against the pretrained policy, which scores 0.5 against itself.
    """
    games = report["confirmation_best_moves"]
    return (
        Evaluation(step=PRETRAINED_STEP, score=0.5, games=None, low=0.5, high=0.5),
        Evaluation(
            step=report["candidate_step"],
            score=games["score"],
            games=2 * games["num_pairs"],
            low=games["low"],
            high=games["high"],
        ),
    )

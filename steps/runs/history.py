"""Reads a run's training history from a folder, this machine's outputs, or the tracking store's artifacts or metrics."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, CorruptError, read_json, sha256_file
from grpo.diagnosis.history import Evaluation, History
from grpo.metrics.table import METRICS, Record
from steps.runs.index import TrackedRun, find_run
from steps.runtime.machine import Machine
from steps.step_io.aliases import PRETRAINED_STEP
from steps.step_io.names import HISTORY, REPORT
from steps.step_io.work import read_journal
from steps.store.outputs import StepOutput, Store
from steps.tracking.tracker import Tracker


class RunError(PlainError, ValueError):
    """There is no such run, or it has no history of GRPO; the message says where it was searched."""


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
        run: a folder with a history (an output of `finetune`, or the folder of one in progress), or a run as `chess-grpo show` takes it.
        machine: says where outputs and the tracking store are.

    Raises RunError; NoRunError when there is none of that name; RegistryError or TrackingAwayError when the tracking store does not answer.
    """
    folder = Path(run)
    if folder.is_dir():
        return _in_folder(folder)
    found = find_run(run, machine)
    tracker, store = Tracker(machine), Store.of(machine)
    finetuned = _output_of(found, "finetune")
    records, settings = (_tracked(found, tracker), None) if finetuned is None else _output(finetuned, tracker, store)
    if not records:
        raise RunError(f"run {found.metaflow_run} has no history of GRPO: it has not completed the first step of finetune")
    history = History.of_records(records)
    history.evaluations = _evaluations(found, tracker, store)
    return RunHistory(name=f"run {found.metaflow_run}", history=history, settings=settings)


def _output_of(run: TrackedRun, step: str) -> StepOutput | None:
    made = run.output_of(step)
    return None if made is None else StepOutput(step=step, version=made.version, output_hash=made.output_hash, reused=made.is_reused)


def _in_folder(folder: Path) -> RunHistory:
    records = read_journal(folder)
    if not records:
        raise RunError(f"{folder} has no {HISTORY} with records in it; give an output of finetune, or a run's id")
    manifest = folder / MANIFEST
    settings = read_json(manifest)["parts"]["settings"] if manifest.exists() else None
    return RunHistory(name=str(folder), history=History.of_records(records), settings=settings)


def _output(output: StepOutput, tracker: Tracker, store: Store) -> tuple[list[Record], Mapping[str, Any]]:
    from steps.tracking.archive import output_manifest

    manifest = output_manifest(tracker, store, output)
    here = store.folder(output["step"], output["version"])
    digest = manifest["files"].get(HISTORY)
    if (here / HISTORY).is_file() and sha256_file(here / HISTORY) == digest:
        return read_journal(here), manifest["parts"]["settings"]
    holder = tracker.holder(output)
    if holder is None:
        raise RunError(f"the history of finetune {output['version']} is neither in {here} nor among the artifacts in {tracker.uri}")
    with tempfile.TemporaryDirectory() as made:
        path = tracker.download(holder, HISTORY, Path(made))
        if sha256_file(path) != digest:
            raise CorruptError(f"{HISTORY} of MLflow run {holder} has changed: its hash differs from the manifest's")
        return read_journal(Path(made)), manifest["parts"]["settings"]


def _tracked(run: TrackedRun, tracker: Tracker) -> list[Record]:
    """Return the metrics that were logged to MLflow by a step that is running or has failed."""
    rows: dict[int, dict[str, float]] = {}
    for step in run.steps:
        for name in step.metrics.keys() & METRICS.keys() if step.name == "finetune" else ():
            for point in tracker.asked(partial(tracker.client.get_metric_history, step.mlflow_run, name)):
                rows.setdefault(point.step, {})[name] = point.value
    return [Record(step, rows[step]) for step in sorted(rows)]


def _evaluations(run: TrackedRun, tracker: Tracker, store: Store) -> tuple[Evaluation, ...]:
    selected = _output_of(run, "select")
    if selected is None:
        return ()
    try:
        return evaluations_of(read_json(store.open(selected) / REPORT))
    except CorruptError:
        holder = tracker.holder(selected)
    if holder is None:
        return ()
    with tempfile.TemporaryDirectory() as made:
        return evaluations_of(read_json(tracker.download(holder, REPORT, Path(made))))


def evaluations_of(report: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    """Return the confirmation by fresh games from a report of `select`, scored as the selection scores it.

    The candidate's score is against the pretrained policy, which scores 0.5 against itself.
    """
    games = report["confirmation_best_moves"]
    counted = games["adjudicated"] if report["scored_by"] == "adjudicated" else games
    return (
        Evaluation(step=PRETRAINED_STEP, score=0.5, games=None, low=0.5, high=0.5),
        Evaluation(
            step=report["candidate_step"],
            score=counted["score"],
            games=2 * games["num_pairs"],
            low=counted["low"],
            high=counted["high"],
        ),
    )

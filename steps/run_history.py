"""The history of a run of ours, wherever it is: a folder, this machine's outputs, the tracking store's files, or its metrics."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from grpo.content import MANIFEST, CorruptError, read_json, sha256_file
from grpo.diagnosis import Evaluation, History
from grpo.errors import PlainError
from grpo.metrics import METRICS, Record
from steps.aliases import ALIASES
from steps.machine import Machine
from steps.registry import Registry
from steps.selecting import PRETRAINED_STEP, REPORT
from steps.store import StepOutput, Store
from steps.tracking import FLOW, PARENT, STEP, FlowRun, Tracker
from steps.work import HISTORY, read_journal

LAST: Final = "last"


class RunError(PlainError, ValueError):
    """There is no such run, or it has no history of GRPO; the message says what was looked for, and where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunHistory:
    """What is known of how a run's fine-tuning went."""

    name: str
    """Of the run or folder."""
    history: History
    settings: Mapping[str, Any] | None
    """Of the step `finetune`; None where they were not found."""


def run_history(run: str, machine: Machine) -> RunHistory:
    """Return the history of GRPO in a run.

    Args:
        run: a folder with a history in it (an output of `finetune`, or what one in progress keeps), `last`, `peak`, `champion`, or the id
            of a run in Metaflow or MLflow.
        machine: which knows where outputs and the tracking store are.

    Raises RunError; TrackingAwayError when the tracking store is needed and does not answer.
    """
    folder = Path(run)
    if folder.is_dir():
        return _in_folder(folder)
    tracker = Tracker(machine, must_answer=False)
    found = _flow_run(run, tracker)
    finetuned = found.outputs.get("finetune")
    store = Store.of(machine)
    if finetuned is None:
        records = _tracked(found, tracker)
        settings = None
    else:
        records, settings = _output(finetuned, tracker, store)
    if not records:
        raise RunError(f"run {found.metaflow_run} has no history of GRPO: it ended, or still is, before the first step of finetune")
    history = History.of_records(records)
    history.evaluations = _evaluations(found, tracker, store)
    return RunHistory(name=f"run {found.metaflow_run}", history=history, settings=settings)


def _in_folder(folder: Path) -> RunHistory:
    records = read_journal(folder)
    if not records:
        raise RunError(f"{folder} has no {HISTORY} with records in it; give an output of finetune, or a run's id")
    manifest = folder / MANIFEST
    settings = read_json(manifest)["parts"]["settings"] if manifest.exists() else None
    return RunHistory(name=str(folder), history=History.of_records(records), settings=settings)


def _flow_run(run: str, tracker: Tracker) -> FlowRun:
    if run == LAST:
        found = tracker.search(f"tags.`{STEP}` = '{FLOW}'")
        if not found:
            raise RunError(f"there is no run in {tracker.uri} yet: `make run CONFIG=smoke` makes one in some minutes")
        run = found[-1].info.run_id
    elif run in ALIASES:
        version = Registry(tracker).named(run)
        if version is None:
            raise RunError(f"no policy has the alias {run!r} in {tracker.uri}; let a run finish first")
        run = version.flow_run
    flow_run = tracker.flow_run(run)
    if flow_run is None:
        raise RunError(
            f"{run}: no such run in {tracker.uri}, and no such folder; give `last`, `peak`, `champion`, a run's id as `chess-grpo runs`"
            " lists them, or a folder with a history"
        )
    return flow_run


def _output(output: StepOutput, tracker: Tracker, store: Store) -> tuple[list[Record], Mapping[str, Any]]:
    from steps.archive import output_manifest

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
            raise CorruptError(f"{HISTORY} of MLflow run {holder} is not as it was written: its hash is not that of the manifest")
        return read_journal(Path(made)), manifest["parts"]["settings"]


def _tracked(run: FlowRun, tracker: Tracker) -> list[Record]:
    """Return what the tracking store was told of a step that is under way, or has failed."""
    children = [child for child in tracker.search(f"tags.`{PARENT}` = '{run.mlflow_run}'") if child.data.tags.get(STEP) == "finetune"]
    rows: dict[int, dict[str, float]] = {}
    for child in children:
        for name in child.data.metrics.keys() & METRICS.keys():
            ask = partial(tracker.client.get_metric_history, child.info.run_id, name)
            for point in tracker.asked(ask):
                rows.setdefault(point.step, {})[name] = point.value
    return [Record(step, rows[step]) for step in sorted(rows)]


def _evaluations(run: FlowRun, tracker: Tracker, store: Store) -> tuple[Evaluation, ...]:
    """Return the confirmation by fresh games, of the candidate against the policy it began with, which scores a half by itself."""
    selected = run.outputs.get("select")
    if selected is None:
        return ()
    try:
        report = read_json(store.open(selected) / REPORT)
    except CorruptError:
        holder = tracker.holder(selected)
        if holder is None:
            return ()
        with tempfile.TemporaryDirectory() as made:
            report = read_json(tracker.download(holder, REPORT, Path(made)))
    games = report["confirmation_best_moves"]
    return (
        Evaluation(step=PRETRAINED_STEP, score=0.5, games=None, low=0.5, high=0.5),
        Evaluation(step=report["candidate_step"], score=games["score"], games=2 * games["num_pairs"], low=games["low"], high=games["high"]),
    )

"""A sweep in MLflow: one run with the means over seeds and the table, and the flow runs of the sweep as its children.

It needs no journal: `chess-grpo sweep` logs all of it again after every run and at each call, which changes nothing that is there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpo.metrics.table import Record
from steps.runtime.machine import Machine
from steps.tracking.client import TrackingStore
from steps.tracking.outages import RetryPolicy, failures, first_line
from steps.tracking.tags import CHILD, COMMAND, NOTE, PARENT, STEP, SWEEP

# isort: split
# After `steps.tracking.client`, which sets environment variables that MLflow reads at import.
from mlflow.entities import Metric, RunStatus, RunTag

SWEEP_STEP: Final = "sweep"
"""Value of the step tag on a sweep's run."""
_MAX_NOTE: Final = 7_500


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRecord:
    """What MLflow is told of a sweep."""

    sweep: str
    """Id of the sweep."""
    name: str
    command: str
    runs: Sequence[str]
    """MLflow's ids of its finished flow runs."""
    started: float
    """When the first of them was started, in seconds since 1970."""
    ended: float
    """When the last of them ended. Metrics have this time, so that logging them again is logging them once."""
    records: Sequence[Record]
    page: str
    """Markdown."""
    files: Sequence[Path]
    status: str
    """MLflow's: `RUNNING`, `FINISHED` or `FAILED`."""


def log_sweep(record: SweepRecord, machine: Machine) -> str:
    """Log a sweep as it is now, and return why that was not possible, or an empty string."""
    store = TrackingStore(machine, RetryPolicy().between_asks)
    try:
        store.asked(lambda: _log(record, store))
    except failures() as error:
        return first_line(error.__cause__ or error)
    return ""


def _log(record: SweepRecord, store: TrackingStore) -> None:
    client, key = store.client, f"{SWEEP_STEP}/{record.sweep}"
    tags = {STEP: SWEEP_STEP, SWEEP: record.sweep, CHILD: key, COMMAND: record.command}
    started, ended = round(1_000 * record.started), round(1_000 * record.ended)
    found = client.search_runs([store.experiment], f"tags.`{CHILD}` = '{key}'")
    sweep_run = found[0] if found else client.create_run(store.experiment, start_time=started, run_name=record.name, tags=tags)
    run_id = sweep_run.info.run_id
    note = record.page if len(record.page) <= _MAX_NOTE else f"`{record.command}`: the table is among the artifacts."
    metrics = [Metric(name, value, ended, each.step) for each in record.records for name, value in each.metrics.items()]
    client.log_batch(run_id, metrics=metrics, tags=[RunTag(NOTE, note)])
    for run in record.runs:
        client.log_batch(run, tags=[RunTag(SWEEP, record.sweep), RunTag(PARENT, run_id)])
    for path in record.files:
        client.log_artifact(run_id, str(path))
    if record.status == RunStatus.to_string(RunStatus.RUNNING):
        client.update_run(run_id, status=record.status)
    else:
        client.set_terminated(run_id, status=record.status, end_time=ended)

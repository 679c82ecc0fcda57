"""Delivers journals to MLflow, record by record and idempotently: logging a record twice has the same result as once.

Runs and model versions are found again by their `CHILD` tag. MLflow stores a metric with the same name, time, step and value once. For
tags, parameters, artifacts and run status the last write counts.
"""

import base64
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo.base.files import CorruptError, sha256_file
from steps.store.outputs import StepOutput, Store
from steps.tracking.client import TrackingStore, seconds_for_a_file, waiting
from steps.tracking.journal import DAMAGED, Journal, JournalEntry
from steps.tracking.outages import failures, first_line, is_refusal
from steps.tracking.registry import Chosen, Registry
from steps.tracking.step_notes import run_name
from steps.tracking.tags import CHILD, HELD_BY, HOLDS, NOTE, NOTE_TIME, OUTPUT_HASH, PARENT, STEP, VERSION

# isort: split
# After `steps.tracking.client`, which sets what MLflow reads once.
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunStatus, RunTag

_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms whether it carries one or many.
_PARAMS_PER_CALL: Final = 100


class LostFileError(Exception):
    """A file that a journal names is gone or changed."""


class Delivery:
    """The delivery of one journal to the tracking store."""

    def __init__(self, journal: Journal, store: TrackingStore, outputs: Store) -> None:
        self._journal = journal
        self._store = store
        self._outputs = outputs
        self._progress = journal.progress()

    def run(self, *, is_left: bool) -> None:
        """Log all pending records; progress is saved after each batch, so no record is logged again after a failure.

        Args:
            is_left: its writer is gone, so a child run that has not ended was killed.

        Raises one of `failures()` when the store does not answer. A record that the store rejects is set aside with a warning.
        """
        for batch in _batches(self._journal.waiting()):
            self._log_or_set_aside(batch)
            self._progress.offset = batch[-1].end
            self._journal.save(self._progress)
        if is_left and self._progress.run_id and not self._progress.has_ended:
            self._store.client.set_terminated(self._progress.run_id, status=RunStatus.to_string(RunStatus.KILLED))

    def _log_or_set_aside(self, batch: Sequence[JournalEntry]) -> None:
        records = [line.record for line in batch]
        if records[0]["kind"] == DAMAGED:
            self._set_aside(records, "it is damaged")
            return
        try:
            self._log(records)
        except (LostFileError, CorruptError) as error:
            self._set_aside(records, first_line(error))
        except failures() as error:
            if not is_refusal(error):
                raise
            if len(batch) == 1:
                self._set_aside(records, first_line(error))
                return
            for line in batch:  # One bad record is no reason to lose the others.
                self._log_or_set_aside([line])

    def _set_aside(self, records: Sequence[Mapping[str, Any]], why: str) -> None:
        for record in records:
            self._journal.refuse(record, why)
        print(
            f"tracking: WARNING: {self._store.uri} rejected a record of kind {records[0]['kind']!r} ({why}); it is saved in"
            f" {self._journal.path.with_suffix('.refused')}",
            flush=True,
        )

    def _log(self, records: Sequence[Mapping[str, Any]]) -> None:
        record, run = records[0], self._progress.run_id
        client, parent = self._store.client, self._journal.parent
        match record["kind"]:
            case "child":
                self._find_or_create_run(record)
            case "metrics":
                rows = [row for each in records for row in each["rows"]]
                for start in range(0, len(rows), _METRICS_PER_CALL):
                    client.log_batch(run, metrics=[Metric(*row) for row in rows[start : start + _METRICS_PER_CALL]])
            case "tags":
                client.log_batch(run, tags=_tags(record["tags"]))
            case "dataset":
                data = Dataset(
                    name="boards",
                    digest=record["digest"][:32],
                    source_type="local",
                    source=json.dumps({"uri": record["source"]}),
                    schema=json.dumps({"mlflow_colspec": record["schema"]}) if record.get("schema") else None,
                    profile=json.dumps(record["profile"]),
                )
                for each in (run, parent):
                    client.log_inputs(each, [DatasetInput(data, [InputTag("mlflow.data.context", "training")])])
            case "file":
                self._send(record)
            case "holding":
                self._progress.holder = self._store.holder(record["output"]) or run
            case "held_file":
                if self._progress.holder == run:
                    self._send(record)
            case "held":
                if self._progress.holder == run:
                    output = record["output"]
                    client.log_batch(run, tags=_tags({HOLDS: True, VERSION: output["version"], OUTPUT_HASH: output["output_hash"]}))
                client.log_batch(run, tags=_tags({HELD_BY: self._progress.holder}))
            case "chosen":
                self._register(Chosen.from_plain(record["chosen"]), record["key"])
            case "ended":
                client.set_terminated(run, status=record["status"], end_time=record["time"])
                self._delete_duplicates(record["key"])
                self._progress.has_ended = True
            case kind if str(kind).startswith("parent_"):
                self._log_to_parent(record)
            case unknown:
                raise AssertionError(f"{self._journal.path}: no such kind of record: {unknown}")

    def _log_to_parent(self, record: Mapping[str, Any]) -> None:
        client, parent = self._store.client, self._journal.parent
        match record["kind"]:
            case "parent_status":
                if record["status"] == RunStatus.to_string(RunStatus.RUNNING):
                    client.update_run(parent, status=record["status"])
                else:
                    client.set_terminated(parent, status=record["status"], end_time=record["time"])
            case "parent_tags":
                client.log_batch(parent, tags=_tags(record["tags"]))
            case "parent_story":
                if int(client.get_run(parent).data.tags.get(NOTE_TIME, 0)) <= record["time"]:
                    client.log_batch(parent, tags=_tags({NOTE: record["note"], NOTE_TIME: record["time"]}))
            case "parent_metrics":
                known = client.get_run(parent).data.metrics
                # Compared as strings, because NaN does not equal itself.
                new = {name: value for name, value in record["metrics"].items() if str(known.get(name)) != str(float(value))}
                client.log_batch(parent, metrics=[Metric(name, value, record["time"], 0) for name, value in new.items()])
            case "parent_file":
                with tempfile.TemporaryDirectory() as made:
                    client.log_artifact(parent, str(self._found(record, Path(made))), record["folder"])
            case "parent_params":
                params = [Param(name, value) for name, value in record["params"].items()]
                for start in range(0, len(params), _PARAMS_PER_CALL):
                    client.log_batch(parent, params=params[start : start + _PARAMS_PER_CALL])
            case unknown:
                raise AssertionError(f"{self._journal.path}: no such kind of record: {unknown}")

    def _find_or_create_run(self, record: Mapping[str, Any]) -> None:
        found = self._store.search(f"tags.`{CHILD}` = '{record['key']}'")
        if not found:
            tags = {PARENT: self._journal.parent, STEP: record["step"], CHILD: record["key"], **record["tags"]}
            name = run_name(record["step"])
            found = [self._store.client.create_run(self._store.experiment, start_time=record["time"], run_name=name, tags=tags)]
        self._progress.run_id = str(found[0].info.run_id)

    def _delete_duplicates(self, key: str) -> None:
        """Delete duplicate runs, created by calls whose responses came too late; nothing was logged to them."""
        for run in self._store.search(f"tags.`{CHILD}` = '{key}'"):
            if run.info.run_id != self._progress.run_id:
                self._store.client.delete_run(run.info.run_id)

    def _send(self, record: Mapping[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as made:
            path = self._found(record, Path(made))
            with waiting(seconds_for_a_file(path.stat().st_size)):
                self._store.client.log_artifact(self._progress.run_id, str(path), record["folder"])

    def _found(self, record: Mapping[str, Any], made: Path) -> Path:
        """Return the path of the file that a record names, with the same hash; its output may have been set aside since."""
        name = str(record["name"])
        if "content" in record:
            (made / name).write_bytes(base64.b64decode(record["content"]))
            return made / name
        output: StepOutput = record["output"]
        place = self._outputs.folder(output["step"], output["version"])
        for folder in (place, *sorted(place.parent.glob(f"{place.name}.set-aside-*"))):
            if (folder / name).is_file() and sha256_file(folder / name) == record["sha256"]:
                return folder / name
        path = self._outputs.open(output) / name  # The store may fetch it from the shared store.
        if sha256_file(path) != record["sha256"]:
            raise LostFileError(f"{path} has changed: its sha256 is not {record['sha256'][:12]}")
        return path

    def _register(self, chosen: Chosen, key: str) -> None:
        peak, champion = Registry(self._store).enter(chosen, holder=self._progress.holder or self._progress.run_id, key=key)
        print(f"select: {peak}\nselect: {champion}", flush=True)
        tags = {"chess_grpo.peak": peak, "chess_grpo.champion": champion}
        self._store.client.log_batch(self._journal.parent, tags=_tags(tags))


def _tags(tags: Mapping[str, Any]) -> list[RunTag]:
    return [RunTag(name, str(value)) for name, value in tags.items()]


def _batches(lines: Sequence[JournalEntry]) -> Iterator[list[JournalEntry]]:
    """Yield the records in order; consecutive metric records are batched into one call."""
    batch: list[JournalEntry] = []
    num_rows = 0
    for line in lines:
        rows = len(line.record["rows"]) if line.record["kind"] == "metrics" else 0
        if batch and (not rows or not num_rows or num_rows + rows > _METRICS_PER_CALL):
            yield batch
            batch, num_rows = [], 0
        batch.append(line)
        num_rows += rows
    if batch:
        yield batch

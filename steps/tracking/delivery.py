"""Delivers journals to MLflow, record by record and idempotently: logging a record twice has the same result as once.

Runs and model versions are found again by their `CHILD` tag. MLflow stores a metric with the same name, time, step and value once. For
tags, parameters, artifacts and run status the last write counts. `DeliveryThread` does so while the step works.
"""

import base64
import json
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any, Final

from grpo.base.files import MANIFEST, CorruptError, JsonLine, StorageError, verified_manifest
from grpo.metrics.table import MAIN_CURVES, declared_name, tracked_name
from steps.runtime.machine import Machine
from steps.step_io.names import HISTORY
from steps.store.objects import SharedStoreError
from steps.store.outputs import StepOutput, Store
from steps.tracking.client import TrackingStore, seconds_for_a_file, waiting
from steps.tracking.journal import DAMAGED, Journal, JournalFolder, Reader
from steps.tracking.outages import RetryPolicy, failures, first_line, is_refusal
from steps.tracking.registry import Chosen, PolicySource, Registry
from steps.tracking.step_notes import headlines, run_name
from steps.tracking.tags import CHILD, HELD_BY, HOLDS, NOTE, NOTE_TIME, OUTPUT_HASH, PARENT, STEP, VERSION

# isort: split
# After `steps.tracking.client`, which sets what MLflow reads once.
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunStatus, RunTag

_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms whether it carries one or many.
_RECORDS_PER_CALL: Final = 50
_PARAMS_PER_CALL: Final = 100
_MEBIBYTE: Final = 2**20
_RUNNING, _FAILED, _KILLED = (RunStatus.to_string(each) for each in (RunStatus.RUNNING, RunStatus.FAILED, RunStatus.KILLED))


class ForeignRecordError(Exception):
    """A record of a kind or with fields that this version does not know."""


@dataclass(slots=True)
class DeliveryProgress:
    """How far a journal was delivered, and MLflow's ids that are known since: what the reader `mlflow` remembers."""

    offset: int = 0
    """Delivered bytes."""
    run_id: str = ""
    """MLflow's id of the child run; empty until it is created."""
    step: str = ""
    """Its step; empty until it is created."""
    holder: str = ""
    """The run that has the step's output among its artifacts, or will; empty until known."""
    num_files: int = 0
    """Logged files of the output that is being logged."""
    has_ended: bool = False
    """Whether the child run's final status was logged."""


class Delivery:
    """The delivery of one journal to the tracking store."""

    def __init__(self, journal: Journal, store: TrackingStore, outputs: Store) -> None:
        self._journal = journal
        self._store = store
        self._outputs = outputs
        try:
            self._progress = DeliveryProgress(**journal.state(Reader.MLFLOW) or {})
        except TypeError:
            self._progress = DeliveryProgress()

    def run(self, *, is_over: bool) -> None:
        """Log all pending records; progress is saved after each batch, so no record is logged again after a failure.

        Args:
            is_over: its writer appends no more, so a child run that has not ended was killed.

        Raises one of `failures()` when the store does not answer. A record that the store rejects is set aside with a warning.
        """
        for has_metrics, entries in groupby(self._journal.entries(self._progress.offset), lambda entry: bool(_metrics(entry.row))):
            while batch := list(islice(entries, _RECORDS_PER_CALL if has_metrics else 1)):
                self._log_or_set_aside(batch)
                self._progress.offset = batch[-1].end
                self._save()
        if is_over:
            if self._progress.run_id and not self._progress.has_ended and not self._is_overtaken():
                self._store.client.set_terminated(self._progress.run_id, status=_KILLED)
            self._journal.done(Reader.MLFLOW)

    def _save(self) -> None:
        self._journal.save(Reader.MLFLOW, asdict(self._progress))

    def _log_or_set_aside(self, batch: Sequence[JsonLine]) -> None:
        try:
            self._log([entry.row for entry in batch])
        except (ForeignRecordError, CorruptError) as error:
            self._set_aside(batch[0].row, first_line(error))
        except failures() as error:
            if not is_refusal(error):
                raise
            if self._is_overtaken():
                return
            if len(batch) == 1:
                self._set_aside(batch[0].row, first_line(error))
                return
            for entry in batch:  # One bad record is no reason to lose the others.
                self._log_or_set_aside([entry])

    def _is_overtaken(self) -> bool:
        """Return whether the child run is deleted: another process has logged the same records to one of its own."""
        run = self._progress.run_id
        return bool(run) and self._store.client.get_run(run).info.lifecycle_stage == "deleted"

    def _set_aside(self, record: Mapping[str, Any], why: str) -> None:
        kind, path = record["kind"], self._journal.refuse(record, why)
        print(f"tracking: WARNING: {self._store.uri} rejected a record of kind {kind!r} ({why}); it is saved in {path}", flush=True)

    def _log(self, records: Sequence[Mapping[str, Any]]) -> None:
        client, parent, run = self._store.client, self._journal.parent, self._progress.run_id
        if metrics := [metric for record in records for metric in _metrics(record)]:
            for start in range(0, len(metrics), _METRICS_PER_CALL):
                client.log_batch(run, metrics=metrics[start : start + _METRICS_PER_CALL])
            if self._progress.step == "finetune" and (curves := [metric for metric in metrics if declared_name(metric.key) in MAIN_CURVES]):
                client.log_batch(parent, metrics=curves)
            return
        match records[0]:
            case {"kind": "begin", "key": key, "step": step, "tags": tags, "time": time}:
                client.update_run(parent, status=_RUNNING)
                found = self._store.search(f"tags.`{CHILD}` = '{key}'")
                if not found:
                    tags = {PARENT: parent, STEP: step, CHILD: key, **tags}
                    name = run_name(step, records[0].get("part", ""))
                    found = [client.create_run(self._store.experiment, start_time=time, run_name=name, tags=tags)]
                self._progress.run_id, self._progress.step = str(found[0].info.run_id), step
            case {"kind": "log", "is_parent": is_parent, "tags": tags, "params": params}:
                named = [Param(name, value) for name, value in params.items()]
                for start in range(0, max(len(named), 1), _PARAMS_PER_CALL):
                    client.log_batch(parent if is_parent else run, params=named[start : start + _PARAMS_PER_CALL], tags=_tags(tags))
            case {"kind": "story", "note": note, "time": time}:
                if int(client.get_run(parent).data.tags.get(NOTE_TIME, 0)) <= time:
                    client.log_batch(parent, tags=_tags({NOTE: note, NOTE_TIME: time}))
            case {"kind": "dataset", "name": name, "digest": digest, "source": source, "profile": profile}:
                data = Dataset(name, digest[:32], "local", json.dumps({"uri": source}), profile=json.dumps(profile))
                for each in (run, parent):
                    client.log_inputs(each, [DatasetInput(data, [InputTag("mlflow.data.context", "training")])])
            case {"kind": "file", "is_parent": is_parent, "name": name, "folder": folder, "content": content}:
                with tempfile.TemporaryDirectory() as made:
                    (path := Path(made) / name).write_bytes(base64.b64decode(content))
                    self._send(path, folder, parent if is_parent else run)
            case {"kind": "output", "output": output, "is_archived": is_archived, "published": published, "time": time}:
                self._log_output(output, published, is_archived=is_archived, time=time)
            case {"kind": "chosen", "key": key, "chosen": chosen}:
                peak, champion = Registry(self._store).enter(
                    Chosen.from_plain(chosen),
                    holder=self._progress.holder or run,
                    key=key,
                    source=self._policy_source(records[0]["output"]),
                )
                print(f"select: {peak}\nselect: {champion}", flush=True)
                client.log_batch(parent, tags=_tags({"chess_grpo.peak": peak, "chess_grpo.champion": champion}))
            case {"kind": "ended", "is_parent": is_parent, "status": status, "time": time}:
                if is_parent or status == _FAILED:
                    client.set_terminated(parent, status=status, end_time=time)
                if not is_parent:
                    client.set_terminated(run, status=status, end_time=time)
                    key = client.get_run(run).data.tags[CHILD]
                    for each in self._store.search(f"tags.`{CHILD}` = '{key}'"):
                        # Created by a call whose response came too late; or by another process that delivers the same records: if both
                        # are whole, the one with the smaller id stays.
                        if each.info.run_id > run or (each.info.run_id != run and each.info.status == _RUNNING):
                            client.delete_run(each.info.run_id)
                    self._progress.has_ended = True
            case record:
                raise ForeignRecordError("it is damaged" if record["kind"] == DAMAGED else "no such kind of record")

    def _log_output(self, output: StepOutput, published: Sequence[str], *, is_archived: bool, time: int) -> None:
        """Log an output: its files, whole unless another run has the same output already, its hash, and its headlines on the parent."""
        client, parent, progress = self._store.client, self._journal.parent, self._progress
        folder = self._found(output)
        if is_archived and not progress.holder:
            progress.holder = self._store.holder(output) or progress.run_id
        files = {name: folder / name for name in (MANIFEST, HISTORY)}
        if progress.holder == progress.run_id:
            files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*"))}
        files |= {PurePosixPath(name).name: folder / name for name in published}
        for number, (name, path) in enumerate(files.items()):
            if number >= progress.num_files and path.is_file():
                self._send(path, None if (below := str(PurePosixPath(name).parent)) == "." else below, progress.run_id)
                progress.num_files = number + 1
                self._save()
        progress.num_files = 0
        if is_archived:
            is_whole = progress.holder == progress.run_id
            held = {HOLDS: True, VERSION: output["version"], OUTPUT_HASH: output["output_hash"]} if is_whole else {}
            client.log_batch(progress.run_id, tags=_tags(held | {HELD_BY: progress.holder}))
        known = client.get_run(parent).data.metrics
        # One value each, however often the step is retried. Compared as strings, because NaN does not equal itself.
        new = {name: value for name, value in headlines(output["step"], folder).items() if str(known.get(name)) != str(float(value))}
        if new:
            client.log_batch(parent, metrics=[Metric(name, value, time, 0) for name, value in new.items()])

    def _policy_source(self, output: StepOutput | None) -> PolicySource | None:
        try:
            return None if output is None else PolicySource(run=self._progress.run_id, output=output, folder=self._found(output))
        except CorruptError as error:  # The run has the policies among its artifacts, or another has.
            print(f"tracking: WARNING: the registered policies are no models that MLflow loads: {first_line(error)}", flush=True)
            return None

    def _send(self, path: Path, folder: str | None, run: str) -> None:
        with waiting(seconds_for_a_file(path.stat().st_size)):
            self._store.client.log_artifact(run, str(path), folder)

    def _found(self, output: StepOutput) -> Path:
        """Return the folder of an output, which may have been set aside since; raises CorruptError when no undamaged one is left."""
        try:
            return self._outputs.open(output)  # The store may fetch it from the shared store.
        except CorruptError:
            place = self._outputs.folder(output["step"], output["version"])
            for folder in sorted(place.parent.glob(f"{place.name}.set-aside-*")):
                with suppress(CorruptError):
                    if verified_manifest(folder)["output_hash"] == output["output_hash"]:
                        return folder
            raise


def _metrics(record: Mapping[str, Any]) -> list[Metric]:
    """Return the metrics of a record of the history; none of another record."""
    match record:
        case {"kind": "record", "time": int(time), "record": {"step": int(step), **row}}:
            return [
                Metric(tracked_name(str(name)), float(value), time, step) for name, value in row.items() if isinstance(value, int | float)
            ]
    return []


def _tags(tags: Mapping[str, Any]) -> list[RunTag]:
    return [RunTag(name, str(value)) for name, value in tags.items()]


class DeliveryThread(threading.Thread):
    """Delivers now and then until `finish`; a server that is slow or down does not delay training."""

    def __init__(self, machine: Machine, policy: RetryPolicy, parent: str, journal: Journal | None = None) -> None:
        """Prepare to deliver the pending journals of the run `parent`, and then this process's own journal, if it has one."""
        super().__init__(name="tracking", daemon=True)
        self._journals = JournalFolder.of(machine)
        self._store = TrackingStore(machine, ())  # Without retries: the thread itself retries.
        self._outputs = Store.of(machine)
        self._policy = policy
        self._parent = parent
        self._journal = journal
        self._is_over = threading.Event()
        self._is_left = False
        self._error: StorageError | None = None
        self.reason = ""
        """Why the last delivery failed; empty when it succeeded."""

    def check(self) -> None:
        """Raise StorageError when the tracking store's disk is full."""
        if self._error is not None:
            raise self._error

    def finish(self, seconds: float, num_bytes: int = 0) -> bool:
        """Deliver everything, to which nothing is appended any more; return False when the time is over or the store is away.

        `num_bytes` is the size of the artifacts, which get more time. Raises StorageError when the store's disk is full.
        """
        self._is_over.set()
        if self.ident is None:
            self.start()
        self.join(seconds + self._policy.per_mebibyte * num_bytes / _MEBIBYTE)
        self.check()
        if self.is_alive():
            self.reason = f"it did not finish within {seconds:.0f} s"
        return not self.reason

    def leave(self) -> None:
        """Release the journal: now, or when the running delivery ends. Raises SharedStoreError as `JournalFolder.leave` does."""
        self._is_left = True
        if self._journal is None:
            return
        if self.is_alive():
            for reader in Reader:
                self._journals.share(self._journal, reader)  # The process may end first; logging a record twice is harmless.
        else:
            self._journals.leave(self._journal)

    def run(self) -> None:
        """Deliver until `finish` was called and everything is delivered, or the last attempt has failed."""
        policy, pause, num_outages = self._policy, 0.0, 0
        while self._error is None and not self._is_over.wait(pause):
            self.reason = self._deliver(is_over=False)
            pause = min(policy.after_outage * 2**num_outages, policy.longest) if self.reason else policy.between_deliveries
            num_outages = num_outages + 1 if self.reason else 0
        # A store that was already away gets one attempt; otherwise a single call may have failed, so it is retried.
        for wait in (*(() if self.reason else policy.between_tries), 0.0) if self._error is None else ():
            self.reason = self._deliver(is_over=True)
            if not self.reason:
                break
            time.sleep(wait)
        if self._is_left and self._journal is not None:
            with suppress(SharedStoreError):  # `leave` has shared it already.
                self._journals.leave(self._journal)

    def _deliver(self, *, is_over: bool) -> str:
        """Deliver what is there, and return why that failed, or an empty string."""
        try:
            # A step leaves the shared store to `end`: parallel tasks would all take the same journals from there.
            with closing(self._journals.pending(Reader.MLFLOW, self._parent, only_here=self._journal is not None)) as left:
                for journal in left:
                    Delivery(journal, self._store, self._outputs).run(is_over=True)
            if self._journal is not None:
                Delivery(self._journal, self._store, self._outputs).run(is_over=is_over)
        except StorageError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - No error of the delivery may end the run; it is reported as not delivered.
            return f"{type(error).__name__}: {first_line(error)}"
        return ""

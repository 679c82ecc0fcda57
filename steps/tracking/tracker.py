"""Logging to MLflow: a parent run per flow run, a child run per step, and step outputs as artifacts that can be downloaded again.

Everything is written to a journal first and logged from there (`steps.tracking.journal`, `steps.tracking.delivery`). So an outage only
delays logging: to the step's end, the next step, `end`, the next run's `start`, or the command `chess-grpo track`. Only `start` needs the
server, because MLflow assigns the run id.
"""

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from steps.runtime.machine import Machine
from steps.store.objects import SharedStoreError, objects_at
from steps.store.outputs import StepOutput, Store
from steps.tracking import notes
from steps.tracking.client import EXPERIMENT, TABLES_LOCK, ArtifactError, TrackingStore
from steps.tracking.launch import FLOW_FILE, compared_settings
from steps.tracking.step_notes import step_note
from steps.tracking.tags import CHILD, FLOW, NOTE, OUTPUT_HASH, PARENT, PEAK_STEP, PRESET, RUN, STEP, VERDICT, VERSION

# isort: split
# After `steps.tracking.client`, which sets environment variables that MLflow reads at import.
from mlflow.entities import RunStatus

from steps.tracking.child_run import ChildRun, now, plain
from steps.tracking.delivery_thread import DeliveryThread
from steps.tracking.journal import Journal, JournalFolder
from steps.tracking.outages import RetryPolicy, TrackingAwayError, failures, is_refusal

__all__ = [
    "EXPERIMENT",
    "FLOW",
    "OUTPUT_HASH",
    "PARENT",
    "PEAK_STEP",
    "PRESET",
    "RUN",
    "STEP",
    "TABLES_LOCK",
    "VERDICT",
    "VERSION",
    "ArtifactError",
    "ChildRun",
    "Tracker",
    "TrackingAwayError",
]

_MAX_REASON_LENGTH: Final = 1_500
_RUNNING, _FINISHED, _FAILED = (RunStatus.to_string(each) for each in (RunStatus.RUNNING, RunStatus.FINISHED, RunStatus.FAILED))


class Tracker(TrackingStore):
    """The MLflow tracking store as a run uses it: reads with retries, and writes through journals."""

    def __init__(self, machine: Machine, *, must_answer: bool = True, retry_policy: RetryPolicy | None = None) -> None:
        """Connect.

        Args:
            machine: says where the store is.
            must_answer: raise the store's error when it does not answer now; of the steps only `start` does.
            retry_policy: how often to retry, and how long to wait.
        """
        self.retry_policy = RetryPolicy() if retry_policy is None else retry_policy
        super().__init__(machine, self.retry_policy.between_asks)
        self.journals = JournalFolder(machine.home, objects_at(machine.shared) if machine.shared else None)
        self._outputs = Store.of(machine)
        if must_answer:
            self._connect()

    def _connect(self) -> None:
        for pause in (*self.retry_policy.between_tries, None):
            try:
                _ = self.experiment
                return
            except failures() as error:
                if pause is None or is_refusal(error):
                    raise
                time.sleep(pause)

    def start_flow_run(
        self, *, metaflow_run: str, settings: Mapping[str, Any], tags: Mapping[str, Any], note: str, files: Mapping[str, str] | None = None
    ) -> str:
        """Create a parent run and return its id; raises TrackingAwayError when the store is away.

        Args:
            metaflow_run: Metaflow's run id.
            settings: settings of the run; those by which runs are compared become parameters.
            tags: tags to set on it.
            note: its description, in Markdown.
            files: artifacts: name -> text.
        """
        # A retry of the flow's first task finds the run of the previous attempt.
        key = f"{self._machine.task}/{FLOW}" if self._machine.task else _key(metaflow_run, FLOW)
        wanted = {STEP: FLOW, RUN: metaflow_run, CHILD: key, NOTE: note, **plain(tags)}
        name = f"{tags[PRESET]} {metaflow_run}" if PRESET in tags else metaflow_run

        def found_or_made() -> str:
            runs = self.client.search_runs([self.experiment], f"tags.`{CHILD}` = '{key}'")
            return str((runs[0] if runs else self.client.create_run(self.experiment, run_name=name, tags=wanted)).info.run_id)

        run_id = self.asked(found_or_made)
        self.asked(self.describe_experiment)
        encoded = [(name, base64.b64encode(text.encode()).decode()) for name, text in (files or {}).items()]
        records: list[tuple[str, dict[str, Any]]] = [("parent_params", {"params": compared_settings(settings)})]
        records += [("parent_file", {"name": name, "folder": None, "content": content}) for name, content in encoded]
        self._log(run_id, "start", records)
        return run_id

    def tag_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._log(run_id, "tags", [("parent_tags", {"tags": plain(tags)})])

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any], note: str = "") -> int:
        """End the parent run, and return how many records of the whole run are not logged yet.

        Args:
            run_id: MLflow's id of the parent run.
            tags: tags to set on it.
            note: its final description; empty leaves it unchanged.
        """
        time_of_now = now()
        records: list[tuple[str, dict[str, Any]]] = [("parent_tags", {"tags": plain(tags)})]
        records += [("parent_story", {"note": note, "time": time_of_now})] if note else []
        self._log(run_id, "end", [*records, ("parent_status", {"status": _FINISHED, "time": time_of_now})])
        return self.journals.num_waiting(run_id)

    def deliver(self, run_id: str, seconds: float) -> str:
        """Deliver the pending journals of a run within a time limit; return why some are left, or an empty string."""
        delivery = self._delivery_thread(run_id, None)
        delivery.finish(seconds)
        return delivery.reason

    def deliver_left(self) -> None:
        """Deliver the pending journals of earlier runs of this home, within a time limit for each run."""
        for run_id in self.journals.parents():
            if reason := self.deliver(run_id, self.retry_policy.at_end):
                waiting = self.journals.num_waiting(run_id)
                print(f"tracking: WARNING: {waiting:,} records of run {run_id} are not logged to {self.uri} yet ({reason})", flush=True)
                return

    @contextmanager
    def child(self, parent: str, step: str, tags: Mapping[str, Any], head: str = "") -> Iterator[ChildRun]:
        """Yield a child run that ends as finished or failed; the status of a resumed parent becomes running again.

        Args:
            parent: MLflow's id of the parent run.
            step: name of the step.
            tags: tags to set on the child.
            head: constant part of the parent's description (`notes.head`); empty leaves that description unchanged.
        """
        run = tags.get(RUN, parent)
        key, note = _key(run, step), step_note(step)
        with self._journal(parent, step) as (journal, delivery):
            child = ChildRun(journal, delivery, self._outputs.folder("", ""), key, self.retry_policy)
            journal.append("parent_status", status=_RUNNING)
            journal.append("child", key=key, step=step, tags=plain({NOTE: note, **tags} if note else tags), time=now())
            if head:
                journal.append("parent_story", note=notes.begun(head, metaflow_run=run, step=step), time=now())
            delivery.poke()
            seconds, is_well = self.retry_policy.at_failure, False
            try:
                yield child
                seconds, is_well = self.retry_policy.at_end, True
            except BaseException as error:
                why = _why(error, step, run)
                child.note("\n\n".join([f"**Failed**: {why}", note]).strip())
                if head:
                    journal.append("parent_story", note=notes.failed(head, metaflow_run=run, step=step, why=why), time=now())
                raise
            finally:
                status = _FINISHED if is_well else _FAILED
                journal.append("ended", key=key, status=status, time=now())
                if not is_well:
                    journal.append("parent_status", status=_FAILED, time=now())
                self._finish(delivery, journal, step, seconds, child.num_bytes)

    def archive(self, child: ChildRun, output: StepOutput, folder: Path) -> None:
        """See `ChildRun.archive`."""
        child.archive(output, folder)

    def _log(self, parent: str, name: str, records: list[tuple[str, dict[str, Any]]]) -> None:
        with self._journal(parent, name) as (journal, delivery):
            for kind, facts in records:
                journal.append(kind, **facts)
            self._finish(delivery, journal, name, self.retry_policy.at_end, 0)

    @contextmanager
    def _journal(self, parent: str, name: str) -> Iterator[tuple[Journal, DeliveryThread]]:
        journal = self.journals.begin(parent, name)
        delivery = self._delivery_thread(parent, journal)
        try:
            yield journal, delivery
        finally:
            try:
                delivery.leave()
            except SharedStoreError as error:
                print(f"{name}: WARNING: records that are not logged to {self.uri} yet stay in {journal.path}: {error}", flush=True)

    def _finish(self, delivery: DeliveryThread, journal: Journal, name: str, seconds: float, num_bytes: int) -> None:
        if not delivery.finish(seconds, num_bytes):
            num_waiting = len(journal.waiting())
            print(
                f"{name}: WARNING: the tracking store {self.uri} is away ({delivery.reason}): the run continues, and {num_waiting:,}"
                f" records wait in {journal.path} for a later step, the next run's start, or `chess-grpo track`",
                flush=True,
            )

    def _delivery_thread(self, parent: str, journal: Journal | None) -> DeliveryThread:
        # The thread has a store of its own, without retries: the thread itself retries.
        store = TrackingStore(self._machine, ())
        return DeliveryThread(
            parent, journals=self.journals, store=store, outputs=self._outputs, retry_policy=self.retry_policy, journal=journal
        )


def _key(run: str, step: str) -> str:
    return f"{run}/{step}/{uuid.uuid4().hex[:12]}"


def _why(error: BaseException, step: str, metaflow_run: str) -> str:
    """Return an error's text for the run's page: the message of a PlainError; of others, which may hold secrets, only the type."""
    if isinstance(error, PlainError):
        return str(error)[:_MAX_REASON_LENGTH]
    return f"{type(error).__name__}; the task's log has the message: `python {FLOW_FILE} logs {metaflow_run}/{step}`"

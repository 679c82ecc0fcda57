"""Logging to MLflow: a parent run per flow run, a child run per step, and step outputs as artifacts that can be downloaded again.

Everything is written to a journal first and logged from there (`steps.tracking.journal`, `steps.tracking.delivery`). So an outage only
delays logging: to the step's end, the next step, `end`, the next run's `start`, or the command `chess-grpo track`. Only `start` needs the
server, because MLflow assigns the run id.
"""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from grpo.base.errors import PlainError
from steps.runtime.machine import Machine
from steps.store.objects import SharedStoreError
from steps.store.outputs import Store
from steps.tracking import notes
from steps.tracking.client import TrackingStore
from steps.tracking.launch import FLOW_FILE, compared_settings, flat
from steps.tracking.step_notes import step_note
from steps.tracking.tags import CHILD, FLOW, NOTE, PRESET, RUN, STEP
from steps.tracking.wandb_mirror import StepMirror, readers_of

# isort: split
# After `steps.tracking.client`, which sets environment variables that MLflow reads at import.
from mlflow.entities import RunStatus

from steps.tracking.child_run import ChildRun, log, log_file, now, plain
from steps.tracking.delivery_thread import DeliveryThread
from steps.tracking.journal import Journal, JournalFolder, Reader
from steps.tracking.outages import RetryPolicy, failures, is_refusal

_MAX_REASON_LENGTH: Final = 1_500
_FINISHED, _FAILED = (RunStatus.to_string(each) for each in (RunStatus.FINISHED, RunStatus.FAILED))


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
        self.journals = JournalFolder.of(machine)
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
        with self._journal(run_id, "start") as journal:
            log(journal, is_parent=True, tags={}, params=compared_settings(settings))
            for name, text in (files or {}).items():
                log_file(journal, name, text.encode(), is_parent=True)
        return run_id

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any], note: str = "") -> int:
        """End the parent run, and return how many records of the whole run are not logged yet.

        Args:
            run_id: MLflow's id of the parent run.
            tags: tags to set on it.
            note: its final description; empty leaves it unchanged.
        """
        with self._journal(run_id, "end") as journal:
            log(journal, is_parent=True, tags=tags)
            if note:
                journal.append("story", note=note, time=now())
            journal.append("ended", is_parent=True, status=_FINISHED, time=now())
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
    def child(
        self, parent: str, step: str, tags: Mapping[str, Any], head: str = "", settings: Mapping[str, Any] | None = None
    ) -> Iterator[ChildRun]:
        """Yield a child run that ends as finished or failed; the status of a resumed parent becomes running again.

        Args:
            parent: MLflow's id of the parent run.
            step: name of the step.
            tags: tags to set on the child.
            head: constant part of the parent's description (`notes.head`); empty leaves that description unchanged.
            settings: the run's, for W&B; None when W&B is not told of this step.
        """
        run = tags.get(RUN, parent)
        key, note = _key(run, step), step_note(step)
        readers = [Reader.MLFLOW] if settings is None else readers_of(self._machine, step)
        with self._opened(parent, step, readers) as (journal, delivery):
            child = ChildRun(journal, delivery, key)
            told = {} if settings is None else {"settings": flat(settings), "task": self._machine.task}
            journal.append("begin", key=key, step=step, tags=plain({NOTE: note, **tags} if note else tags), time=now(), **told)
            if head:
                journal.append("story", note=notes.begun(head, metaflow_run=run, step=step), time=now())
            mirror = StepMirror(self._machine, step, journal)
            delivery.poke()
            is_well = False
            try:
                yield child
                is_well = True
            except BaseException as error:
                why = _why(error, step, run)
                child.note("\n\n".join([f"**Failed**: {why}", note]).strip())
                if head:
                    journal.append("story", note=notes.failed(head, metaflow_run=run, step=step, why=why), time=now())
                raise
            finally:
                try:
                    journal.append("ended", is_parent=False, status=_FINISHED if is_well else _FAILED, time=now())
                    seconds = self.retry_policy.at_end if is_well else self.retry_policy.at_failure
                    self._finish(delivery, journal, step, seconds, child.num_bytes)
                finally:
                    mirror.finish(is_well=is_well)

    @contextmanager
    def _journal(self, parent: str, name: str) -> Iterator[Journal]:
        """Yield a journal that is delivered at the end of the block."""
        with self._opened(parent, name, [Reader.MLFLOW]) as (journal, delivery):
            yield journal
            self._finish(delivery, journal, name, self.retry_policy.at_end, 0)

    @contextmanager
    def _opened(self, parent: str, name: str, readers: Sequence[Reader]) -> Iterator[tuple[Journal, DeliveryThread]]:
        journal = self.journals.begin(parent, name, readers)
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
        store, outputs = TrackingStore(self._machine, ()), Store.of(self._machine)
        return DeliveryThread(parent, journal, journals=self.journals, store=store, outputs=outputs, policy=self.retry_policy)


def _key(run: str, step: str) -> str:
    return f"{run}/{step}/{uuid.uuid4().hex[:12]}"


def _why(error: BaseException, step: str, metaflow_run: str) -> str:
    """Return an error's text for the run's page: the message of a PlainError; of others, which may hold secrets, only the type."""
    if isinstance(error, PlainError):
        return str(error)[:_MAX_REASON_LENGTH]
    return f"{type(error).__name__}; the task's log has the message: `python {FLOW_FILE} logs {metaflow_run}/{step}`"

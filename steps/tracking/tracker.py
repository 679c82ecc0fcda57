"""MLflow: a parent run for the flow run, a child run a step, and outputs of steps as artifacts that can be fetched back.

Whatever a run has to say is written to its outbox first and told to the store from there (`steps.tracking.journal`,
`steps.tracking.delivery`). So an outage costs nothing but that it is told later: at the step's end, with the next step, in `end`, with the
next run's `start`, or by the command `chess-grpo track`. Only `start` needs the store, for a run's id is the store's to give.
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
from steps.tracking.client import EXPERIMENT, TABLES_LOCK, ArtifactError, FlowRun, TrackingStore
from steps.tracking.launch import FLOW_FILE, compared_settings
from steps.tracking.step_notes import chapter_note
from steps.tracking.tags import CHILD, FLOW, NOTE, OUTPUT_HASH, PARENT, PEAK_STEP, PRESET, RUN, STEP, VERDICT, VERSION

# isort: split
# After `steps.tracking.client`, which sets what MLflow reads once.
from mlflow.entities import RunStatus

from steps.tracking.child_run import ChildRun, now, plain
from steps.tracking.delivery_thread import Courier
from steps.tracking.journal import Journal, Outbox
from steps.tracking.outages import Patience, TrackingAwayError, failures, is_refusal

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
    "FlowRun",
    "Tracker",
    "TrackingAwayError",
]

_MAX_REASON_LENGTH: Final = 1_500
_RUNNING, _FINISHED, _FAILED = (RunStatus.to_string(each) for each in (RunStatus.RUNNING, RunStatus.FINISHED, RunStatus.FAILED))


class Tracker(TrackingStore):
    """The tracking store as a run uses it: what it reads is asked for with patience, what it says is kept until it can be told."""

    def __init__(self, machine: Machine, *, must_answer: bool = True, patience: Patience | None = None) -> None:
        """Connect.

        Args:
            machine: which knows where the store is.
            must_answer: raise what the store raises when it does not answer now; of steps at work only `start` does.
            patience: how long is waited for it.
        """
        self.patience = Patience() if patience is None else patience
        super().__init__(machine, self.patience.between_asks)
        self.outbox = Outbox(machine.home, objects_at(machine.shared) if machine.shared else None)
        self._outputs = Store.of(machine)
        if must_answer:
            self._connect()

    def _connect(self) -> None:
        for pause in (*self.patience.between_tries, None):
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
        """Return the id of a new parent run; raises TrackingAwayError when the store is away.

        Args:
            metaflow_run: its id in Metaflow.
            settings: the run's; those that people compare are its parameters.
            tags: to set on it.
            note: what its page says, in Markdown.
            files: artifacts of its own: name -> text.
        """
        # Another try of a flow's first task finds the run that the one before has made.
        key = f"{self._machine.task}/{FLOW}" if self._machine.task else _key(metaflow_run, FLOW)
        wanted = {STEP: FLOW, RUN: metaflow_run, CHILD: key, NOTE: note, **plain(tags)}
        name = f"{tags[PRESET]} {metaflow_run}" if PRESET in tags else metaflow_run

        def found_or_made() -> str:
            runs = self.client.search_runs([self.experiment], f"tags.`{CHILD}` = '{key}'")
            return str((runs[0] if runs else self.client.create_run(self.experiment, run_name=name, tags=wanted)).info.run_id)

        run_id = self.asked(found_or_made)
        self.asked(self.describe_experiment)
        kept = [(name, base64.b64encode(text.encode()).decode()) for name, text in (files or {}).items()]
        records: list[tuple[str, dict[str, Any]]] = [("parent_params", {"params": compared_settings(settings)})]
        records += [("parent_file", {"name": name, "folder": None, "content": content}) for name, content in kept]
        self._tell(run_id, "start", records)
        return run_id

    def tag_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._tell(run_id, "tags", [("parent_tags", {"tags": plain(tags)})])

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any], note: str = "") -> int:
        """Close the parent run, and return how many records of all that the run said still wait to be told.

        Args:
            run_id: MLflow's id of it.
            tags: to set on it.
            note: what its page says from now on; empty leaves it as it is.
        """
        time_of_now = now()
        records: list[tuple[str, dict[str, Any]]] = [("parent_tags", {"tags": plain(tags)})]
        records += [("parent_story", {"note": note, "time": time_of_now})] if note else []
        self._tell(run_id, "end", [*records, ("parent_status", {"status": _FINISHED, "time": time_of_now})])
        return self.outbox.num_waiting(run_id)

    def deliver(self, run_id: str, seconds: float) -> str:
        """Tell what steps of a run left untold, as far as the store answers and the time is enough; return why not all, or nothing."""
        courier = self._courier(run_id, None)
        courier.finish(seconds)
        return courier.reason

    def deliver_left(self) -> None:
        """Tell what earlier runs of this home left untold, for a little while; who will not wait for that is none of this run's steps."""
        for run_id in self.outbox.parents():
            if reason := self.deliver(run_id, self.patience.at_end):
                waiting = self.outbox.num_waiting(run_id)
                print(f"tracking: WARNING: {waiting:,} records of run {run_id} still wait to be told to {self.uri} ({reason})", flush=True)
                return

    @contextmanager
    def child(self, parent: str, step: str, tags: Mapping[str, Any], head: str = "") -> Iterator[ChildRun]:
        """Give a child run that ends as finished or failed; a parent that had failed (and is resumed) runs again.

        Args:
            parent: MLflow's id of it.
            step: name of the step.
            tags: to set on the child.
            head: what the parent's page says below how it is going (`story.head`); empty leaves that page alone.
        """
        run = tags.get(RUN, parent)
        key, note = _key(run, step), chapter_note(step)
        with self._journal(parent, step) as (journal, courier):
            child = ChildRun(journal, courier, self._outputs.folder("", ""), key, self.patience)
            journal.append("parent_status", status=_RUNNING)
            journal.append("child", key=key, step=step, tags=plain({NOTE: note, **tags} if note else tags), time=now())
            if head:
                journal.append("parent_story", note=notes.begun(head, metaflow_run=run, step=step), time=now())
            courier.poke()
            seconds, is_well = self.patience.at_failure, False
            try:
                yield child
                seconds, is_well = self.patience.at_end, True
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
                self._finish(courier, journal, step, seconds, child.num_bytes)

    def archive(self, child: ChildRun, output: StepOutput, folder: Path) -> None:
        """See `ChildRun.archive`."""
        child.archive(output, folder)

    def _tell(self, parent: str, name: str, records: list[tuple[str, dict[str, Any]]]) -> None:
        with self._journal(parent, name) as (journal, courier):
            for kind, facts in records:
                journal.append(kind, **facts)
            self._finish(courier, journal, name, self.patience.at_end, 0)

    @contextmanager
    def _journal(self, parent: str, name: str) -> Iterator[tuple[Journal, Courier]]:
        journal = self.outbox.begin(parent, name)
        courier = self._courier(parent, journal)
        try:
            yield journal, courier
        finally:
            try:
                courier.leave()
            except SharedStoreError as error:
                print(f"{name}: WARNING: what was not told to {self.uri} stays on this machine, in {journal.path}: {error}", flush=True)

    def _finish(self, courier: Courier, journal: Journal, name: str, seconds: float, num_bytes: int) -> None:
        if not courier.finish(seconds, num_bytes):
            num_waiting = len(journal.waiting())
            print(
                f"{name}: WARNING: the tracking store {self.uri} is away ({courier.reason}): the run goes on, and {num_waiting:,} records"
                f" wait in {journal.path} for a later step, the next run's start, or `chess-grpo track`",
                flush=True,
            )

    def _courier(self, parent: str, journal: Journal | None) -> Courier:
        # The store for its thread alone; it waits for nothing, since it will be tried again.
        store = TrackingStore(self._machine, ())
        return Courier(parent, outbox=self.outbox, store=store, outputs=self._outputs, patience=self.patience, journal=journal)


def _key(run: str, step: str) -> str:
    return f"{run}/{step}/{uuid.uuid4().hex[:12]}"


def _why(error: BaseException, step: str, metaflow_run: str) -> str:
    """Return what a page says of an error: an error for people whole, of another its kind, since nobody knows what its message holds."""
    if isinstance(error, PlainError):
        return str(error)[:_MAX_REASON_LENGTH]
    return f"{type(error).__name__}; what it said is in the task's log: `python {FLOW_FILE} logs {metaflow_run}/{step}`"

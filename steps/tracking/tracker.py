"""Logging to MLflow: a parent run per flow run, a child run per step, and step outputs as artifacts that can be downloaded again.

Everything is written to a journal first and logged from there (`steps.tracking.journal`, `steps.tracking.delivery`). So an outage only
delays logging: to the step's end, the next step, `end`, the next run's `start`, or the command `chess-grpo track`. Only `start` needs the
server, because MLflow assigns the run id.
"""

import json
import uuid
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.policy.files import NETWORK
from grpo.settings.roles import compared_settings, flattened, is_main
from steps.runtime.commands import FLOW_FILE
from steps.runtime.machine import Machine
from steps.store.objects import SharedStoreError
from steps.tracking import notes
from steps.tracking.client import TrackingStore
from steps.tracking.step_notes import step_note
from steps.tracking.tags import CHILD, FLOW, NOTE, RUN, RUN_NAME, SETTINGS, STEP
from steps.tracking.wandb_mirror import mirrored, readers_of

# isort: split
# After `steps.tracking.client`, which sets environment variables that MLflow reads at import.
from mlflow.entities import RunStatus

from steps.tracking.child_run import ChildRun, now, plain
from steps.tracking.delivery import DeliveryThread
from steps.tracking.journal import JournalFolder, Reader
from steps.tracking.outages import RetryPolicy

_MAX_REASON_LENGTH: Final = 1_500
_FINISHED, _FAILED = (RunStatus.to_string(each) for each in (RunStatus.FINISHED, RunStatus.FAILED))


class Tracker(TrackingStore):
    """The MLflow tracking store as a run uses it: reads with retries, and writes through journals."""

    def __init__(self, machine: Machine, retry_policy: RetryPolicy | None = None) -> None:
        """Store the address, which the first use connects to, and how often to retry."""
        self.retry_policy = RetryPolicy() if retry_policy is None else retry_policy
        super().__init__(machine, self.retry_policy.between_asks)
        self.journals = JournalFolder.of(machine)

    def start_flow_run(
        self,
        *,
        metaflow_run: str,
        settings: Mapping[str, Any],
        tags: Mapping[str, Any],
        note: str,
        changed: Container[str] = (),
        files: Mapping[str, str] | None = None,
    ) -> str:
        """Create a parent run and return its id; raises TrackingAwayError when the store is away.

        Args:
            metaflow_run: Metaflow's run id.
            settings: settings of the run; the main ones become parameters.
            changed: dotted names of further settings that become parameters: those that differ from the preset.
            tags: tags to set on it; `RUN_NAME` is its name, else Metaflow's run id is.
            note: its description, in Markdown.
            files: artifacts: name -> text.
        """
        # A retry of the flow's first task finds the run of the previous attempt.
        key = f"{self._machine.task}/{FLOW}" if self._machine.task else _key(metaflow_run, FLOW)
        wanted = {STEP: FLOW, RUN: metaflow_run, CHILD: key, NOTE: note, **plain(tags)}
        name = tags.get(RUN_NAME, metaflow_run)

        def found_or_made() -> str:
            runs = self.client.search_runs([self.experiment], f"tags.`{CHILD}` = '{key}'")
            return str((runs[0] if runs else self.client.create_run(self.experiment, run_name=name, tags=wanted)).info.run_id)

        run_id = self.asked(found_or_made)
        self.asked(self.describe_experiment)
        with self._writing(run_id, "start") as parent:
            compared = compared_settings(settings)
            # Those of language models are no part of a network's run, though its settings have their defaults.
            is_network = settings.get("policy", {}).get("kind") == NETWORK
            main = {name for name in compared if is_main(name) and not (is_network and name.startswith("language."))}
            params = {name: value for name, value in compared.items() if name in main or name in changed}
            parent.tag_flow_run({SETTINGS: json.dumps(compared, separators=(",", ":"))}, params)
            for name, text in (files or {}).items():
                parent.content(name, text.encode())
        return run_id

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any], note: str = "", *, files: Mapping[str, str] | None = None) -> int:
        """End the parent run, and return of how many steps of the run something is not logged yet.

        Args:
            run_id: MLflow's id of the parent run.
            tags: tags to set on it.
            note: its final description; empty leaves it unchanged.
            files: artifacts: name -> text.
        """
        self.deliver(run_id, self.retry_policy.at_end)
        with self._writing(run_id, "end") as parent:
            parent.tag_flow_run(tags)
            if note:
                parent.note_flow_run(note)
            for name, text in (files or {}).items():
                parent.content(name, text.encode())
            parent.ended(_FINISHED)
        return len(self.journals.left(Reader.MLFLOW, run_id))

    def deliver(self, run_id: str, seconds: float) -> str:
        """Deliver the pending journals of a run within a time limit; return why some are left, or an empty string."""
        delivery = DeliveryThread(self._machine, self.retry_policy, run_id)
        delivery.finish(seconds)
        return delivery.reason

    def runs_left(self) -> dict[str, int]:
        """Return the parent runs that are not logged completely, each with the number of its pending journals."""
        return Counter(name.partition("/")[0] for name in self.journals.left(Reader.MLFLOW))

    def deliver_left(self) -> None:
        """Deliver the pending journals of earlier runs of this home, within a time limit for each run."""
        for run_id, num_left in self.runs_left().items():
            if reason := self.deliver(run_id, self.retry_policy.at_end):
                print(f"tracking: WARNING: {num_left:,} steps of run {run_id} are not logged to {self.uri} yet ({reason})", flush=True)
                return

    @contextmanager
    def child(
        self,
        parent: str,
        step: str,
        tags: Mapping[str, Any],
        head: str = "",
        settings: Mapping[str, Any] | None = None,
        *,
        part: str = "",
    ) -> Iterator[ChildRun]:
        """Yield a child run that ends as finished or failed; the status of a resumed parent becomes running again.

        Args:
            parent: MLflow's id of the parent run.
            step: name of the step.
            tags: tags to set on the child.
            head: constant part of the parent's description (`notes.head`); empty leaves that description unchanged.
            settings: the run's, for W&B; None when W&B is not told of this step.
            part: which of a step's parallel tasks it is, such as "1 of 2"; empty for a step of one task.
        """
        run = tags.get(RUN, parent)
        key, note = _key(run, step), step_note(step)
        readers = [Reader.MLFLOW] if settings is None else readers_of(self._machine, step)
        first = {"key": key, "step": step, "part": part, "tags": plain({NOTE: note, **tags} if note else tags), "time": now()}
        if settings is not None:
            first |= {"settings": flattened(settings), "task": self._machine.task}
        with self._writing(parent, step, key, readers, first) as child:
            if head:
                child.note_flow_run(notes.begun(head, metaflow_run=run, step=step))
            try:
                yield child
            except BaseException as error:
                why = _failure_text(error, step, run)
                child.note("\n\n".join([f"**Failed**: {why}", note]).strip())
                if head:
                    child.note_flow_run(notes.failed(head, metaflow_run=run, step=step, why=why))
                child.ended(_FAILED)
                raise
            child.ended(_FINISHED)

    @contextmanager
    def _writing(
        self,
        parent: str,
        name: str,
        key: str = "",
        readers: Sequence[Reader] = (Reader.MLFLOW,),
        first: Mapping[str, Any] | None = None,
    ) -> Iterator[ChildRun]:
        """Yield what writes to a new journal, which is delivered while the block lasts and at its end."""
        journal = self.journals.begin(parent, name, readers)
        delivery, seconds = DeliveryThread(self._machine, self.retry_policy, parent, journal), self.retry_policy.at_failure
        child = ChildRun(journal, delivery, key)
        try:
            if first is not None:
                journal.append("begin", **first)
                delivery.start()
            with mirrored(self._machine, name, journal):
                try:
                    yield child
                    seconds = self.retry_policy.at_end
                finally:
                    if not delivery.finish(seconds, child.num_bytes):
                        print(
                            f"{name}: WARNING: the tracking store {self.uri} is away ({delivery.reason}): the run continues, and"
                            f" {journal.path} waits for a later step, the next run's start, or `chess-grpo track`",
                            flush=True,
                        )
        finally:
            try:
                delivery.leave()
            except SharedStoreError as error:
                print(f"{name}: WARNING: records that are not logged to {self.uri} yet stay in {journal.path}: {error}", flush=True)


def _key(run: str, step: str) -> str:
    return f"{run}/{step}/{uuid.uuid4().hex[:12]}"


def _failure_text(error: BaseException, step: str, metaflow_run: str) -> str:
    """Return an error's text for pages: the message of a PlainError; of others, which may hold secrets, only the type."""
    if isinstance(error, PlainError):
        return str(error)[:_MAX_REASON_LENGTH]
    return f"{type(error).__name__}; the task's log has the message: `python {FLOW_FILE} logs {metaflow_run}/{step}`"

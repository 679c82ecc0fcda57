"""Sends an attempt (one try of a step's task) to MLflow and W&B while the step works."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from steps.run.machine import Machine
from steps.run.records import Attempt, Run
from steps.run.store import Store
from steps.track.sender import Sender
from steps.track.wandb import mirror_of

if TYPE_CHECKING:
    from steps.track.publish import Known


def publisher_of(machine: Machine, attempt: Attempt) -> Sender:
    known: Known = {}
    store = Store.of(machine)

    def send(run: Run, attempt: Attempt) -> str:
        from steps.track.publish import publish  # In the sender's thread, because MLflow takes seconds to import.

        reason = publish(run, store, machine, task=(attempt.step, attempt.part), known=known)
        if reason:  # The call may have succeeded without its response, so the next call reads the stored rows.
            known.clear()
        return reason

    return Sender("MLflow", "a later step, the next run or `chess-grpo track` logs it", attempt, store, send)


@contextmanager
def sending(machine: Machine, attempt: Attempt) -> Iterator[None]:
    senders = [sender for sender in (publisher_of(machine, attempt), mirror_of(machine, attempt)) if sender is not None]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        for sender in senders:  # All at once, before the first `finish` waits.
            sender.is_over.set()
        for sender in senders:
            sender.finish()

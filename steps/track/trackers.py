"""Sends attempts (tries of a run's tasks) to MLflow and W&B while the tasks work.

A task sends its own attempt. If all tasks work on this machine, the launcher (process of `run` or `resume`) sends all attempts to
MLflow, because MLflow's import takes 4 CPU seconds.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from grpo.base.errors import PlainError
from grpo.settings.types import S3_SCHEME
from steps import STEPS
from steps.run.machine import Machine
from steps.run.processes import LAUNCHER
from steps.run.records import Attempt, Run, Runs
from steps.run.store import Store
from steps.track.sender import Sender
from steps.track.wandb import mirror_of

if TYPE_CHECKING:
    from steps.track.publish import Known

_BY_LAUNCHER: Final = "_CHESS_GRPO_LAUNCHER_SENDS"  # Environment variable of the launcher and its tasks.
_SECONDS_BETWEEN: Final = 2.0
_SECONDS_AT_END: Final = 30.0  # For all senders together.


def publisher_of(machine: Machine, attempt: Attempt) -> Sender:
    known: Known = {}
    store = Store.of(machine)

    def send(run: Run, attempt: Attempt) -> str:
        from steps.track.publish import publish  # In the sender's thread, because MLflow takes seconds to import.

        reason = publish(run, store, machine, task=(attempt.step, attempt.part), known=known)
        if reason:  # The call may have succeeded, so the next call reads the stored rows.
            known.clear()
        return reason

    return Sender("MLflow", "a later step, the next run or `chess-grpo track` logs it", attempt, store, send)


@contextmanager
def sending(machine: Machine, attempt: Attempt) -> Iterator[None]:
    """Send the attempt from its task's process."""
    publisher = None if _BY_LAUNCHER in os.environ else publisher_of(machine, attempt)
    senders = [sender for sender in (publisher, mirror_of(machine, attempt)) if sender is not None]
    for sender in senders:
        sender.start()
    try:
        yield
    finally:
        _finish(senders)


@contextmanager
def launcher_sending(machine: Machine, run_id: Callable[[], str | None]) -> Iterator[None]:
    """Send all attempts of the launched run to MLflow from this process. `run_id` returns None until the run begins."""
    # With a store in S3, journals may be on other machines, so each task sends its own.
    if machine.store.startswith(S3_SCHEME):
        yield
        return
    os.environ[_BY_LAUNCHER] = "yes"
    sender = _LauncherSender(machine, run_id)
    sender.start()
    try:
        yield
    finally:
        sender.finish()


class _LauncherSender(threading.Thread):
    def __init__(self, machine: Machine, run_id: Callable[[], str | None]) -> None:
        super().__init__(name="senders", daemon=True)
        self._machine, self._run_id, self._runs = machine, run_id, Runs(Store.of(machine))
        self._is_over = threading.Event()
        self._senders: dict[int, Sender] = {}  # By the attempts' numbers.

    def finish(self) -> None:
        self._is_over.set()
        self.join()
        _finish(self._senders.values(), time.monotonic() + _SECONDS_AT_END)

    def run(self) -> None:
        while not self._is_over.wait(_SECONDS_BETWEEN):
            self._look()
        self._look()

    def _look(self) -> None:
        attempts: tuple[Attempt, ...] = ()
        with suppress(PlainError):  # The next look reads records that are unreadable now.
            run = self._runs.get(self._run_id() or "")
            attempts = () if run is None else run.attempts
        for attempt in attempts:
            # Not earlier launchers' attempts; `start` and `end` log no metrics.
            if attempt.launcher != os.environ.get(LAUNCHER) or attempt.step in (STEPS[0], STEPS[-1]):
                continue
            if (sender := self._senders.get(attempt.number)) is None:
                sender = self._senders[attempt.number] = publisher_of(self._machine, attempt)
                sender.start()
            if attempt.ended is not None:
                sender.is_over.set()


def _finish(senders: Collection[Sender], deadline: float = math.inf) -> None:
    for sender in senders:  # All at once, before the first `finish` waits.
        sender.is_over.set()
    for sender in senders:
        sender.finish(deadline)

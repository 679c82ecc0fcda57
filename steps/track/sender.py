"""Sends a step's journal to a tracker while the step works. A tracker that is away or slow costs the step at most 30 s at its end."""

import threading
from collections.abc import Callable
from typing import Any, Final

from steps.run.records import Attempt, Run, Runs
from steps.run.store import Store
from steps.run.work import JOURNAL, read_journal

_SECONDS_BETWEEN: Final = 5.0
_SECONDS_AFTER_FAILURE: Final = 30.0


def journal_of(attempt: Attempt, store: Store) -> list[dict[str, Any]]:
    """Return the lines of an attempt's journal: of its output, or of its progress as far as this machine has that."""
    if attempt.output is not None:
        try:
            return read_journal(store.file(attempt.output, JOURNAL).parents[1])
        except FileNotFoundError:  # It had nothing to say.
            return []
    # Another run may go on from the progress of a killed one: its lines are not this one's.
    return read_journal(store.progress(attempt.step, attempt.version))[: attempt.num_lines]


class Sender(threading.Thread):
    """Sends an attempt again and again until it is over, and then once more."""

    def __init__(self, tracker: str, later: str, attempt: Attempt, store: Store, send: Callable[[Run, Attempt], str]) -> None:
        """Prepare; `start` begins.

        Args:
            tracker: its name.
            later: what becomes of what is not sent.
            attempt: what is sent.
            store: has its records and its journal.
            send: sends what there is of the run's attempt, and returns why something is not sent yet; empty when everything is. It may
                raise what it likes.
        """
        super().__init__(name=tracker, daemon=True)
        self.is_over = threading.Event()
        self.seconds_at_end = 30.0
        """How long the step waits for what is not sent yet."""
        self._later, self._send, self._attempt, self._store = later, send, attempt, store
        self._has_warned = False

    def finish(self) -> None:
        """Send the attempt as it ended, within a time limit, and warn if that was not possible; each outage is warned of once."""
        self.is_over.set()
        self.join(self.seconds_at_end)
        if self.is_alive():
            self._warn(f"it did not finish within {self.seconds_at_end:.0f} s")

    def run(self) -> None:
        """Send until `finish` was called, and then once more."""
        pause = 0.0
        while not self.is_over.wait(pause):
            pause = _SECONDS_BETWEEN if self._try_send() else _SECONDS_AFTER_FAILURE
        self._try_send()

    def _try_send(self) -> bool:
        try:
            run = Runs(self._store).get(self._attempt.run)
            assert run is not None
            reason = self._send(run, run.latest()[self._attempt.step, self._attempt.part])
        except Exception as error:  # noqa: BLE001 - No error of a tracker may end a step; it is reported as not logged.
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if reason:
            self._warn(reason)
        else:
            self._has_warned = False
        return not reason

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warning = f"WARNING: not logged to {self.name} yet ({reason}): the run goes on, and {self._later}"
            print(f"{self._attempt.step}: {warning}", flush=True)

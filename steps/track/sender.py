"""Sends a step's journal to a tracker while the step works: neither its failures nor its slowness affect the step."""

import threading
from typing import Any, ClassVar, Final

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
    rows = read_journal(store.progress(attempt.step, attempt.version))
    return [row for row in rows if attempt.ended is None or row["time"] <= 1_000 * attempt.ended]


class Sender(threading.Thread):
    """Sends again and again until the attempt is over, and then once more."""

    tracker: ClassVar[str]
    later: ClassVar[str]
    """What becomes of what is not sent."""

    def __init__(self, attempt: Attempt, store: Store, *, seconds_at_end: float = 30.0) -> None:
        """Prepare; `start` begins. At the end the step waits so long."""
        super().__init__(name=self.tracker, daemon=True)
        self.attempt, self.store, self.seconds_at_end = attempt, store, seconds_at_end
        self.is_over = threading.Event()
        self._has_warned = False

    def send(self, *, is_last: bool) -> str:
        """Send what there is, and return why something is not sent yet; empty when everything is. It may raise what it likes."""
        raise NotImplementedError

    def finish(self) -> None:
        """Send the attempt as it ended, within a time limit, and warn if that was not possible."""
        self.is_over.set()
        self.join(self.seconds_at_end)
        if self.is_alive():
            self._warn(f"it did not finish within {self.seconds_at_end:.0f} s")

    def run(self) -> None:
        """Send until `finish` was called, and then once more."""
        pause = 0.0
        while not self.is_over.wait(pause):
            pause = _SECONDS_BETWEEN if self._sent(is_last=False) else _SECONDS_AFTER_FAILURE
        self._sent(is_last=True)

    def flow_run(self) -> Run:
        """Return the attempt's run as it is now."""
        run = Runs(self.store).get(self.attempt.run)
        assert run is not None
        return run

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"{self.attempt.step}: {text}", flush=True)

    def _sent(self, *, is_last: bool) -> bool:
        try:
            reason = self.send(is_last=is_last)
        except Exception as error:  # noqa: BLE001 - No error of a tracker may end a step; it is reported as not logged.
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        if reason:
            self._warn(reason)
        return not reason

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self.say(f"WARNING: not logged to {self.tracker} yet ({reason}): the run goes on, and {self.later}")

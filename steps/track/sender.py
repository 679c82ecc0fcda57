"""Sends a step's journal (one line per record of metrics) to a tracker, MLflow or W&B, while the step works.

An attempt is one try of a step's task.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from steps.run.records import Attempt, Run, Runs
from steps.run.store import Store
from steps.run.work import JOURNAL, read_journal

_SECONDS_BETWEEN: Final = 5.0
_SECONDS_AFTER_FAILURE: Final = 30.0


def journal_of(attempt: Attempt, store: Store) -> list[dict[str, Any]]:
    if attempt.output is not None:
        try:
            return read_journal(store.file(attempt.output, JOURNAL).parents[1])
        except FileNotFoundError:  # The step logged no line.
            return []
    # Lines after `num_lines` belong to a later attempt that continued the progress.
    return read_journal(store.progress(attempt.step, attempt.version))[: attempt.num_lines]


class Sender(threading.Thread):
    """Calls `send` for an attempt every 5 s, after a failure every 30 s, and once more after the attempt's end.

    `send` returns why lines are unsent, or "". This reason or an exception becomes a warning, one for each outage. `later`: what
    sends the lines.
    """

    def __init__(self, tracker: str, later: str, attempt: Attempt, store: Store, send: Callable[[Run, Attempt], str]) -> None:
        super().__init__(name=tracker, daemon=True)
        self.is_over = threading.Event()
        self.seconds_at_end = 30.0
        self._later, self._send, self._attempt, self._store = later, send, attempt, store
        self._has_warned = False

    def finish(self, deadline: float = math.inf) -> None:
        """Wait for the last call for `seconds_at_end`, but not after `deadline` (of `time.monotonic`)."""
        self.is_over.set()
        self.join(max(0.0, min(self.seconds_at_end, deadline - time.monotonic())))
        if self.is_alive():
            self._warn(f"it did not finish within {self.seconds_at_end:.0f} s")

    def run(self) -> None:
        pause = 0.0
        while not self.is_over.wait(pause):
            pause = _SECONDS_BETWEEN if self._try_send() else _SECONDS_AFTER_FAILURE
        self._try_send()

    def _try_send(self) -> bool:
        try:
            run = Runs(self._store).get(self._attempt.run)
            assert run is not None
            reason = self._send(run, run.latest()[self._attempt.step, self._attempt.part])
        except Exception as error:  # noqa: BLE001 - A tracker's error must not end the step; the warning reports it.
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

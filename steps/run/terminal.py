"""Terminal output of a pipeline step: progress and metrics once a minute, new events at once."""

import time
from collections.abc import Callable, Iterable
from typing import Final

from grpo.metrics.records import Record
from grpo.metrics.table import FINDING

_SECONDS_TO_FIRST_LINE: Final = 10.0
_SECONDS_BETWEEN_LINES: Final = 60.0
_MIN_UNITS: Final = 5  # Fewer give no estimate, because the first unit's time includes loading.


class Pace:
    """Estimates the time left from the mean speed since the first call, or since `done` last fell."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = 0

    def text(self, done: int, total: int, unit: str, after: Callable[[], float | None] = lambda: None) -> str:
        """Return a text such as "1,200 of 3,000 steps, 14/s, about 2 min 08 s left, 5 min 10 s left in the run".

        `after()` estimates the run's seconds after this work (None if unknown).
        """
        now = time.monotonic()
        if self._first is None or done < self._last:
            self._first = now, done
        self._last, (first_time, first_done) = done, self._first
        text = f"{done:,} of {total:,} {unit}"
        if done >= total or done - first_done < _MIN_UNITS or now == first_time:
            return text
        rate = (done - first_done) / (now - first_time)
        seconds, seconds_after = (total - done) / rate, after()
        text += f", {rate:,.0f}/s" if rate >= 10 else f", {rate:.2g}/s"
        text += f", about {duration(seconds)} left"
        return text if seconds_after is None else f"{text}, {duration(seconds + seconds_after)} left in the run"


def duration(seconds: float) -> str:
    """Return a duration in words.

    >>> [duration(seconds) for seconds in (0.4, 75, 3_725, -9)]
    ['0 s', '1 min 15 s', '1 h 02 min', 'an unknown time (the clock was set back)']
    """
    rounded = round(seconds)
    if rounded < 0:
        return "an unknown time (the clock was set back)"
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


class TerminalSink:
    """`shown`: names of metrics."""

    def __init__(
        self, step: str, shown: Iterable[str], say: Callable[[str], None], after: Callable[[], float | None] = lambda: None
    ) -> None:
        self._step, self._shown, self._say, self._after = step, tuple(shown), say, after
        self._pace = Pace()
        self._due = time.monotonic() + _SECONDS_TO_FIRST_LINE
        self._numbers: dict[str, float] = {}
        self._events: dict[str, int] = {}  # Name -> repetitions since the last line.

    def say(self, text: str) -> None:
        self._say(f"{self._step}: {text}")

    def log(self, record: Record) -> None:
        """Print each event's first occurrence, and each finding of the diagnosis. Progress lines count the repetitions."""
        self._numbers |= {name.partition("/")[2]: record.metrics[name] for name in self._shown if name in record.metrics}
        for event in record.events:
            if event.name in self._events:
                self._events[event.name] += 1
                continue
            self.say(f"step {record.step:,}: {event.name}: {event.message}")
            if event.name != FINDING:  # Findings share a name, but differ.
                self._events[event.name] = 0

    def progress(self, done: int, total: int, unit: str) -> None:
        now, text = time.monotonic(), self._pace.text(done, total, unit, self._after)
        if done and now >= self._due:
            self._due = now + _SECONDS_BETWEEN_LINES
            self.finish(text)

    def finish(self, text: str = "") -> None:
        numbers = ", ".join(f"{name} {number:.4g}" for name, number in self._numbers.items())
        repeated = ", ".join(f"{name} {count:,} more times" for name, count in self._events.items() if count)
        self._numbers.clear()
        self._events = dict.fromkeys(self._events, 0)
        if text or numbers or repeated:
            self.say("; ".join(filter(None, (text, numbers, repeated))))

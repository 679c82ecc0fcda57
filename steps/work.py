"""What a step's body is handed: a folder to fill, and somewhere to send records and progress. Sinks take them."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from grpo.metrics import Record

HISTORY: Final = "history.jsonl"
_SECONDS_BETWEEN_LINES: Final = 10.0


class Sink(Protocol):
    """Takes what a step reports while it works: a tracker, a card, the terminal."""

    def take(self, record: Record) -> None:
        """Take one record."""

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take note that `done` of `total` units are done."""


@dataclass(slots=True)
class Work:
    """A step at work: `folder` is empty at first and is the step's output at the end."""

    folder: Path
    sinks: tuple[Sink, ...]
    _history: list[Record] = field(default_factory=list)

    def record(self, record: Record) -> None:
        """Keep a record in the step's history and hand it to all sinks."""
        self._history.append(record)
        for sink in self.sinks:
            sink.take(record)

    def measured(self, record: Record) -> None:
        """Hand all sinks what may differ between two equal runs, such as a cache's hits; it is no part of the output."""
        for sink in self.sinks:
            sink.take(record)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Tell all sinks how far the work is."""
        for sink in self.sinks:
            sink.progress(done, total, unit)

    def write_history(self) -> None:
        """Write all records into the folder: part of the output, for they are as repeatable as it is."""
        lines = (json.dumps({"step": record.step, **record.metrics}, sort_keys=True) for record in self._history)
        (self.folder / HISTORY).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_history(folder: Path) -> list[Record]:
    """Return the records of a finished step."""
    rows = [json.loads(line) for line in (folder / HISTORY).read_text(encoding="utf-8").splitlines()]
    return [Record(row.pop("step"), row) for row in rows]


class TerminalSink:
    """Prints progress with rate and time left, at most every ten seconds, and the numbers that a step asks to see."""

    def __init__(self, step: str, shown: Iterable[str], say: Callable[[str], None]) -> None:
        """Show the named metrics of each record."""
        self._step = step
        self._shown = tuple(shown)
        self._say = say
        self._started = self._last = time.monotonic()

    def take(self, record: Record) -> None:
        """Print the shown metrics of a record."""
        numbers = [f"{name.partition('/')[2]} {record.metrics[name]:.4g}" for name in self._shown if name in record.metrics]
        if numbers:
            self._say(f"{self._step}: step {record.step:,}: {', '.join(numbers)}")

    def progress(self, done: int, total: int, unit: str) -> None:
        """Print how far the work is, how fast, and how long it will still take at that pace."""
        now = time.monotonic()
        if done < total and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        seconds = max(now - self._started, 1e-3)
        rate = done / seconds
        left = int((total - done) / rate) if rate else 0
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2f}"
        self._say(f"{self._step}: {done:,} of {total:,} {unit}, {shown}/s, {left // 60}:{left % 60:02d} left")

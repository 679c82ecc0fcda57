"""What a step's body works with: a folder to fill, and sinks that log its records and progress."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from grpo.base.files import append_line, parse_json_object, read_lines, replace_file
from grpo.metrics.table import Event, Record
from steps.step_io.names import HISTORY


class Sink(Protocol):
    """Receives what a step reports while it works: a tracker, a card, the terminal."""

    def log(self, record: Record) -> None:
        """Log one record."""

    def progress(self, done: int, total: int, unit: str) -> None:
        """Report that `done` of `total` units are done."""


class Terminal(Sink, Protocol):
    """The sink that people read while they wait."""

    def say(self, text: str) -> None:
        """Print a line."""


class Watcher(Protocol):
    """Follows a step's history while it grows, such as the diagnosis; what it finds is no part of the output."""

    def observe(self, record: Record) -> tuple[Event, ...]:
        """Return what is found for the first time with this record; the same records give the same events."""

    def write(self, folder: Path) -> str:
        """Write, aside in the output, what the whole history shows, and return it in a line."""


@dataclass(slots=True)
class Work:
    """A step at work: `folder` is empty at first and is the step's output at the end."""

    folder: Path
    sinks: tuple[Sink, ...]
    terminal: Terminal | None = None
    """One more sink; unlike the others it does not log again what it logged before a kill."""
    progress_folder: Path | None = None
    """Where a step that can resume after a kill saves what it needs for that; the history's journal is there too."""
    on_saved: Callable[[], None] | None = None
    """Called whenever the progress folder holds something new to resume from."""
    watcher: Watcher | None = None
    """Adds events to the records that sinks log, and none to the history."""
    _history: list[Record] = field(default_factory=list)

    def record(self, record: Record) -> None:
        """Append a record to the step's history (with a progress folder: on the disk), and log it to all sinks."""
        self._history.append(record)
        if self.progress_folder is not None:
            append_line(self.progress_folder / HISTORY, _line(record))
        self.measured(self._observed(record))

    def measured(self, record: Record) -> None:
        """Log to all sinks what may differ between two equal runs, such as a cache's hits; it is no part of the output."""
        for sink in self._listeners():
            sink.log(record)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Report to all sinks how far the work is."""
        for sink in self._listeners():
            sink.progress(done, total, unit)

    def say(self, text: str) -> None:
        """Print a line."""
        if self.terminal is not None:
            self.terminal.say(text)

    def saved(self) -> None:
        """Report that the progress folder holds something new to resume from, such as a checkpoint, whole on the disk."""
        if self.on_saved is not None:
            self.on_saved()

    def history(self) -> tuple[Record, ...]:
        """Return all records so far, those from before a kill included."""
        return tuple(self._history)

    def resume_after(self, records: Sequence[Record]) -> None:
        """Make these records, from before a kill, the history so far; sinks that began with this process log them again.

        The journal holds them and nothing else from here on.
        """
        assert self.progress_folder is not None
        replace_file(self.progress_folder / HISTORY, "".join(f"{_line(record)}\n" for record in records).encode())
        self._history = list(records)
        for record in map(self._observed, records):
            for sink in self.sinks:
                sink.log(record)

    def write_history(self) -> None:
        """Write all records into the folder: part of the output, for they are as repeatable as it is; and what the watcher found."""
        (self.folder / HISTORY).write_text("".join(f"{_line(record)}\n" for record in self._history), encoding="utf-8")
        if self.watcher is not None:
            self.say(self.watcher.write(self.folder))

    def _observed(self, record: Record) -> Record:
        return record if self.watcher is None else replace(record, events=(*record.events, *self.watcher.observe(record)))

    def _listeners(self) -> tuple[Sink, ...]:
        return self.sinks if self.terminal is None else (*self.sinks, self.terminal)


def read_history(folder: Path) -> list[Record]:
    """Return the records of a finished step. Raises CorruptError at a line that is no JSON object."""
    path = folder / HISTORY
    return [_record(parse_json_object(line, path)) for line in path.read_bytes().splitlines()]


def read_journal(folder: Path) -> list[Record]:
    """Return the records of a step that was killed, up to the first that is torn."""
    records = []
    for line in read_lines(folder / HISTORY):
        try:
            records.append(_record(line.row))
        except (ValueError, KeyError, TypeError, AttributeError):
            break
    return records


def record_row(record: Record) -> dict[str, Any]:
    """Return a record as a row of the history: its step, its metrics by name, and its events if there are any."""
    events = {"events": [asdict(event) for event in record.events]} if record.events else {}
    return {"step": record.step, **record.metrics, **events}


def _line(record: Record) -> str:
    return json.dumps(record_row(record), sort_keys=True)


def _record(row: dict[str, Any]) -> Record:
    step, events = row.pop("step"), row.pop("events", [])
    return Record(step, row, tuple(Event(**event) for event in events))

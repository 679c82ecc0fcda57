"""Interface of a step's body, the function that computes the output.

The journal, `aside/journal.jsonl` in the progress folder, has one line per record (metrics and events), with time and hash. After a kill,
the journal is cut back to the last checkpoint, and the step logs the later records again, with the original times. So trackers can log each
line once, by its number.

The history, `history.jsonl`, has the records that are not aside, without times. The output's hash covers the history, not the journal.
"""

import json
import re
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from grpo.base.files import ASIDE, CorruptError, append_line, parse_json_object, replace_file, sha256_text
from grpo.metrics.records import Event, Record, refuse_undeclared
from grpo.settings.tree import Settings
from steps.names import HISTORY
from steps.run.machine import Machine
from steps.run.step import OfRun

if TYPE_CHECKING:
    import torch

JOURNAL: Final = f"{ASIDE}/journal.jsonl"
_INTEGER_LIMIT: Final = 2**53  # Tracking stores keep smaller integers exactly.
# End of a journal line: the first 16 digits of the hash of the other fields.
_SEAL: Final = re.compile(rb', "hash": "([0-9a-f]{16})"\}\n\Z')


class Listener(Protocol):
    """The card or the terminal."""

    def log(self, record: Record) -> None: ...

    def progress(self, done: int, total: int, unit: str) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One of a step's parallel tasks."""

    number: int  # From 0.
    count: int

    def of(self, numbers: Sequence[int]) -> list[int]:
        """Return this task's numbers, such as 1, 4, 7 for `number` 1 of `count` 3."""
        return [number for number in numbers if number % self.count == self.number]


@dataclass(kw_only=True)
class Work:
    folder: Path  # Empty at first, the step's output at the end.
    settings: Settings
    machine: Machine
    inputs: Mapping[str, Path] = field(default_factory=dict)  # Step in `Step.inputs` -> folder of its verified output.
    of_run: Mapping[OfRun, Path] = field(default_factory=dict)  # Folders of checkpoint and champion, if they exist.
    parts: Sequence[Path] = ()  # Outputs of the joined parallel tasks.
    part: Part = Part(number=0, count=1)
    facts: Mapping[str, Any] = field(default_factory=dict)  # `settings` -> settings in the version; input -> hash.
    progress_folder: Path  # Survives a kill; contains the journal.
    listeners: tuple[Listener, ...] = ()
    say: Callable[[str], None] = print
    saved: Callable[[], None] = lambda: None  # Called after each save of progress.
    observe: Callable[[Record], tuple[Event, ...]] = lambda _: ()  # Returns further events for the listeners.
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _old_times: deque[int] | None = None  # Times (ms since 1970) of cut lines; None before `go_on_after`.

    def __post_init__(self) -> None:
        self._rows = read_journal(self.progress_folder)

    @cached_property
    def device(self) -> "torch.device":
        from steps.run.device import torch_device

        return torch_device(self.machine)

    def log(self, record: Record, *, is_aside: bool = False) -> None:
        """Append a record to the journal. `is_aside`: the record, such as a time, differs between equal runs; the history leaves it out."""
        refuse_undeclared(record)
        if self._old_times is None:
            self.go_on_after(-1)
        milliseconds = self._old_times.popleft() if self._old_times else time.time_ns() // 1_000_000
        row = {"time": milliseconds, "aside": is_aside, "record": record_row(record)}
        append_line(self.progress_folder / JOURNAL, _sealed(row))
        self._rows.append(row)
        self._send(record, is_aside=is_aside)

    def progress(self, done: int, total: int, unit: str) -> None:
        for listener in self.listeners:
            listener.progress(done, total, unit)

    def history(self) -> tuple[Record, ...]:
        """Return the records that are not aside, also from before a kill."""
        return tuple(record_of(row["record"]) for row in self._rows if not row["aside"])

    def go_on_after(self, step: int) -> None:
        """Cut the journal after this step (-1: all); send the kept records to the listeners. A resuming body calls this before `log`."""
        old_rows = self._rows
        self._rows = list(takewhile(lambda row: row["record"]["step"] <= step, old_rows))
        self._old_times = deque(row["time"] for row in old_rows[len(self._rows) :])
        path = self.progress_folder / JOURNAL
        if path.exists():  # Also cuts an incomplete last line.
            replace_file(path, "".join(f"{_sealed(row)}\n" for row in self._rows).encode())
        for row in self._rows:
            self._send(record_of(row["record"]), is_aside=row["aside"])

    def write_history(self) -> None:
        if self._old_times is None:
            self.go_on_after(-1)
        (self.folder / HISTORY).write_text("".join(f"{_text(record_row(record))}\n" for record in self.history()), encoding="utf-8")
        if self._rows:
            (self.folder / JOURNAL).parent.mkdir(exist_ok=True)
            shutil.copyfile(self.progress_folder / JOURNAL, self.folder / JOURNAL)

    def _send(self, record: Record, *, is_aside: bool) -> None:
        shown = record if is_aside else replace(record, events=(*record.events, *self.observe(record)))
        for listener in self.listeners:
            listener.log(shown)


def read_history(folder: Path) -> list[Record]:
    """Raises CorruptError."""
    path = folder / HISTORY
    return [record_of(parse_json_object(line, path), path) for line in path.read_bytes().splitlines()]


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Return the rows up to the first incomplete or changed line. `folder`: progress or output."""
    rows: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, NotADirectoryError), (folder / JOURNAL).open("rb") as file:
        for line in file:
            if (row := _unsealed(line)) is None:
                break
            rows.append(row)
    return rows


def _sealed(row: Mapping[str, Any]) -> str:
    text = _text(row)
    return f'{text[:-1]}, "hash": "{sha256_text(text)[:16]}"}}'


def _unsealed(line: bytes) -> dict[str, Any] | None:
    if (seal := _SEAL.search(line)) is None:
        return None
    text = f"{line[: seal.start()].decode(errors='replace')}}}"
    if sha256_text(text)[:16] != seal[1].decode():
        return None
    try:
        row = parse_json_object(text.encode(), "a line")
        record_of(row["record"])
    except (CorruptError, KeyError, AttributeError):
        return None
    return row if type(row.get("time")) is int and abs(row["time"]) < _INTEGER_LIMIT and type(row.get("aside")) is bool else None


def record_row(record: Record) -> dict[str, Any]:
    events = {"events": [asdict(event) for event in record.events]} if record.events else {}
    return {"step": record.step, **record.metrics, **events}


def record_of(row: Mapping[str, Any], place: object = "a row") -> Record:
    """Raises CorruptError, which names `place`."""
    metrics = {name: value for name, value in row.items() if name not in ("step", "events")}
    try:
        events = tuple(Event(**event) for event in row.get("events", ()))
        is_record = type(row["step"]) is int and abs(row["step"]) < _INTEGER_LIMIT
        is_record &= all(isinstance(value, float) or (isinstance(value, int) and abs(value) < _INTEGER_LIMIT) for value in metrics.values())
    except (KeyError, TypeError):
        is_record = False
    if not is_record or any(not isinstance(text, str) for event in events for text in (event.name, event.message)):
        raise CorruptError(f"{place} is no record of a step: it needs a step, and a number for each metric")
    return Record(row["step"], metrics, events)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)

"""What a step's body works with: settings, inputs, a folder to fill, and the journal of its records.

The journal is `aside/journal.jsonl` in the progress folder while the step works, a line a record with its time and the line's hash. A step
that goes on after a kill cuts it back to where it goes on, and says the same records again, with their first times. So the line of a number
is always the same, and a tracker that counts the lines it has logged logs each once. The output holds the same journal, and the history
without times, `history.jsonl`.
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
"""In a progress folder and in an output: all records with their times, also the records that differ between equal runs."""
_INTEGER_LIMIT: Final = 2**53
"""Integers below it are numbers in every tracking store."""
_SEAL: Final = re.compile(rb', "hash": "([0-9a-f]{16})"\}\n\Z')


class Listener(Protocol):
    """Sees what a step reports while it works: the card, the terminal."""

    def log(self, record: Record) -> None:
        """See one record."""

    def progress(self, done: int, total: int, unit: str) -> None:
        """See that `done` of `total` units are done."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Which of a step's parallel tasks this is."""

    number: int
    """From 0."""
    count: int

    def of(self, numbers: Sequence[int]) -> list[int]:
        """Return this part's share; the parts make up the whole."""
        return [number for number in numbers if number % self.count == self.number]


@dataclass(kw_only=True)
class Work:
    """A step at work: `folder` is empty at first and is the step's output at the end."""

    folder: Path
    settings: Settings
    machine: Machine
    inputs: Mapping[str, Path] = field(default_factory=dict)
    """Step -> verified folder of its output, of the steps that `Step.inputs` names."""
    of_run: Mapping[OfRun, Path] = field(default_factory=dict)
    """Folders of the checkpoint and the champion, if there are such and `Step.of_run` names them."""
    parts: Sequence[Path] = ()
    """Of a step that joins parallel tasks: their outputs."""
    part: Part = Part(number=0, count=1)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the version is made of, for files that say where they come from."""
    progress_folder: Path
    """What is here survives a kill; the journal is here too."""
    listeners: tuple[Listener, ...] = ()
    """After a kill they see again what was reported before."""
    say: Callable[[str], None] = print
    """Prints a line."""
    saved: Callable[[], None] = lambda: None
    """Called whenever the progress folder holds something new to go on from, such as a checkpoint, whole on the disk."""
    observe: Callable[[Record], tuple[Event, ...]] = lambda _: ()
    """Finds events in a record of the history for those that listen; they are no part of it."""
    _rows: list[dict[str, Any]] = field(default_factory=list)
    """The journal's lines, from before a kill too."""
    _old_times: deque[int] | None = None
    """Of those that were cut off, and are said again; None until this process goes on."""

    def __post_init__(self) -> None:
        """Read the journal from before a kill."""
        self._rows = read_journal(self.progress_folder)

    @cached_property
    def device(self) -> "torch.device":
        """The device to compute on."""
        from steps.run.device import torch_device

        return torch_device(self.machine)

    def log(self, record: Record, *, is_aside: bool = False) -> None:
        """Append a record to the step's history; aside, what may differ between equal runs, such as times: it is in no output's hash."""
        refuse_undeclared(record)
        if self._old_times is None:
            self.go_on_after(-1)
        milliseconds = self._old_times.popleft() if self._old_times else time.time_ns() // 1_000_000
        row = {"time": milliseconds, "aside": is_aside, "record": record_row(record)}
        append_line(self.progress_folder / JOURNAL, _sealed(row))
        self._rows.append(row)
        self._send(record, is_aside=is_aside)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Report how far the work is."""
        for listener in self.listeners:
            listener.progress(done, total, unit)

    def history(self) -> tuple[Record, ...]:
        """Return all records of the journal, those from before a kill included."""
        return tuple(record_of(row["record"]) for row in self._rows if not row["aside"])

    def go_on_after(self, step: int) -> None:
        """Cut the journal from before a kill back to its records up to this step. Listeners see them again."""
        old_rows = self._rows
        self._rows = list(takewhile(lambda row: row["record"]["step"] <= step, old_rows))
        self._old_times = deque(row["time"] for row in old_rows[len(self._rows) :])
        path = self.progress_folder / JOURNAL
        if path.exists():  # A torn end goes, too.
            replace_file(path, "".join(f"{_sealed(row)}\n" for row in self._rows).encode())
        for row in self._rows:
            self._send(record_of(row["record"]), is_aside=row["aside"])

    def write_history(self) -> None:
        """Write the history into the folder, as part of the output, and the journal aside."""
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
    """Return the records of a finished step. Raises CorruptError at a line that is no record."""
    path = folder / HISTORY
    return [record_of(parse_json_object(line, path), path) for line in path.read_bytes().splitlines()]


def read_journal(folder: Path) -> list[dict[str, Any]]:
    """Return the journal's lines of a step at work (its progress folder) or done (its output), up to the first that is torn or changed."""
    rows: list[dict[str, Any]] = []
    with suppress(FileNotFoundError, NotADirectoryError), (folder / JOURNAL).open("rb") as file:
        for line in file:
            if (row := _unsealed(line)) is None:
                break
            rows.append(row)
    return rows


def _sealed(row: Mapping[str, Any]) -> str:
    """Return a line of the journal: the row, and the hash of its text."""
    text = _text(row)
    return f'{text[:-1]}, "hash": "{sha256_text(text)[:16]}"}}'


def _unsealed(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line of the journal; None for a line that is torn, changed or of another form."""
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
    """Return a record as a row of the history: its step, its metrics by name, and its events if there are any."""
    events = {"events": [asdict(event) for event in record.events]} if record.events else {}
    return {"step": record.step, **record.metrics, **events}


def record_of(row: Mapping[str, Any], place: object = "a row") -> Record:
    """Return the record that `record_row` made a row of, whatever its names. Raises CorruptError for another form; it names the place."""
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

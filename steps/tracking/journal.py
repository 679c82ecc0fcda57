"""Journals (write-ahead logs) of what steps log: `outbox/PARENT/TIME-STEP-ATTEMPT.jsonl`, and how far each reader of them came.

Each attempt of a step appends to a journal of its own. Its readers are MLflow's delivery and, if it is on, W&B's. A reader keeps what it
must remember in a file beside the journal, `.mlflow` or `.wandb`, and deletes that when it has all records; the last reader deletes the
journal. What a task leaves on a machine with an ephemeral disk goes to the shared store, from where `end`, the next run's `start` or
`chess-grpo track` takes it. Two processes may read it at once there: logging a record twice has the same result as once.
"""

import json
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from grpo.base.files import CorruptError, JsonLine, append_line, parse_json_object, read_lines, replace_file
from steps.runtime.machine import Machine
from steps.store.file_lock import BusyError, file_lock
from steps.store.objects import Objects, objects_at

JOURNAL_FOLDER: Final = "outbox"
DAMAGED: Final = "damaged"
"""Kind of a line that is no record; it is set aside at delivery."""
_REFUSED: Final = ".refused"


class Reader(StrEnum):
    """Who reads journals; the value is the suffix of the reader's file."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


class Journal:
    """The records of one writer, in order, and the states of its readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parent = path.parent.name
        """MLflow's id of the parent run."""
        self._held = ExitStack()
        self.shared: set[Reader] = set()
        """The readers for whom this process has read or written it in the shared store."""

    def open(self) -> Self:
        """Lock the journal for this process; raises BusyError when another has it."""
        self._held.enter_context(file_lock(self.path.with_suffix(".lock"), what=f"the journal {self.path}"))
        return self

    def close(self) -> None:
        """Release the lock."""
        self._held.close()

    def append(self, kind: str, **facts: Any) -> None:
        """Append a record; raises StorageError when the disk is full, and leaves the journal as it was."""
        append_line(self.path, json.dumps({"kind": kind, **facts}), is_synced=False)

    def entries(self, start: int = 0) -> list[JsonLine]:
        """Return the records from byte `start` on; a line that is no record is one of kind `DAMAGED`."""
        return [line._replace(row={"kind": DAMAGED, **line.row}) for line in read_lines(self.path, start)]

    def state(self, reader: Reader) -> dict[str, Any] | None:
        """Return what a reader remembers, or None when it has all records; a damaged state is empty: the reader begins again."""
        path = self.path.with_suffix(f".{reader}")
        return next((line.row for line in read_lines(path)), {}) if path.exists() else None

    def save(self, reader: Reader, state: Mapping[str, Any]) -> None:
        """Save what a reader remembers."""
        replace_file(self.path.with_suffix(f".{reader}"), f"{json.dumps(state)}\n".encode())

    def done(self, reader: Reader) -> None:
        """Note that a reader has all records; after the last reader the journal is deleted."""
        self.path.with_suffix(f".{reader}").unlink(missing_ok=True)
        if all(self.state(each) is None for each in Reader):
            self.path.unlink(missing_ok=True)

    def refuse(self, record: Mapping[str, Any], why: str) -> Path:
        """Save a record that the store rejects in a file of its own, for inspection, and return its path."""
        append_line(path := self.path.with_suffix(_REFUSED), json.dumps({"why": why, **record}), is_synced=False)
        return path


class JournalFolder:
    """All journals of a home, and those in a shared store that outlives an ephemeral disk."""

    def __init__(self, home: Path, objects: Objects | None = None) -> None:
        self.folder = home / JOURNAL_FOLDER
        self._objects = objects

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return the journals of a machine."""
        return cls(machine.home, objects_at(machine.shared) if machine.shared else None)

    def begin(self, parent: str, name: str, readers: Sequence[Reader] = (Reader.MLFLOW,)) -> Journal:
        """Return a new journal, opened; `name` becomes part of the file's name."""
        (self.folder / parent).mkdir(parents=True, exist_ok=True)
        journal = self._journal(f"{parent}/{time.time_ns() // 1_000_000:013d}-{name}-{uuid.uuid4().hex[:8]}").open()
        for reader in readers:
            journal.save(reader, {})
        journal.path.touch()
        return journal

    def left(self, reader: Reader, parent: str = "*", *, only_here: bool = False) -> list[str]:
        """Return PARENT/NAME of each journal, of one run or all, that a reader does not have completely, the oldest of a run first."""
        here = {path.relative_to(self.folder).with_suffix("").as_posix() for path in self.folder.glob(f"{parent}/*.{reader}")}
        prefix = f"{JOURNAL_FOLDER}/{reader}/{'' if parent == '*' else f'{parent}/'}"
        keys = [] if self._objects is None or only_here else self._objects.keys(prefix)
        return sorted(here | {key.split("/", 2)[2] for key in keys})

    def pending(self, reader: Reader, parent: str = "*", *, only_here: bool = False) -> Generator[Journal, None, None]:
        """Yield each journal that a reader does not have and whose writer has ended, opened until the next is asked for."""
        for name in self.left(reader, parent, only_here=only_here):
            journal = self._journal(name)
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                journal.open()
            except BusyError:
                continue  # Its writer is alive, or another process of this machine reads it.
            with closing(journal):
                if self._take(journal, reader):
                    try:
                        yield journal
                    finally:
                        self.leave(journal)

    def leave(self, journal: Journal) -> None:
        """Close a journal; for each reader that does not have all of it, it goes to the shared store, if there is one.

        Raises SharedStoreError when that fails; then the journal stays here.
        """
        try:
            for reader in Reader if self._objects is not None else ():
                self.share(journal, reader)
                journal.done(reader)
        finally:
            journal.close()

    def share(self, journal: Journal, reader: Reader) -> None:
        """Copy a journal to the shared store; if the reader has all of it, delete it there. Raises SharedStoreError."""
        if self._objects is None:
            return
        key, state = self._key(journal, reader), journal.state(reader)
        if state is not None:
            self._objects.put(key, _packed(state, journal.path.read_bytes()))
            journal.shared.add(reader)
        elif reader in journal.shared:  # Else it is none of this process's: another reader's, which this process has not taken.
            self._objects.delete(key)

    def refused(self) -> list[Path]:
        """Return the files of records that the store rejected."""
        return sorted(self.folder.glob(f"*/*{_REFUSED}"))

    def _take(self, journal: Journal, reader: Reader) -> bool:
        """Copy a journal here from the shared store, if it is there, and return whether the reader lacks records of it."""
        stored = None if self._objects is None else self._objects.get(self._key(journal, reader))
        if stored is not None:
            state, lines = _unpacked(stored)
            journal.save(reader, state)
            journal.shared.add(reader)
            replace_file(journal.path, lines)
        return journal.state(reader) is not None

    def _journal(self, name: str) -> Journal:
        return Journal(self.folder / f"{name}.jsonl")

    def _key(self, journal: Journal, reader: Reader) -> str:
        return f"{JOURNAL_FOLDER}/{reader}/{journal.parent}/{journal.path.stem}"


def _packed(state: Mapping[str, Any], lines: bytes) -> bytes:
    """Return a journal as it is shared: a line with what its reader remembers, and its lines."""
    return json.dumps({"state": state}).encode() + b"\n" + lines


def _unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Undo `_packed`; a journal whose first line is damaged is read from the beginning."""
    head, _, lines = data.partition(b"\n")
    try:
        return dict(parse_json_object(head, "a journal")["state"]), lines
    except (CorruptError, ValueError, TypeError, KeyError):
        return {}, data

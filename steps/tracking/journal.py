"""Journals (write-ahead logs) of what steps log: `outbox/PARENT/TIME-STEP-ATTEMPT.jsonl`, and how far each reader of them came.

Each attempt of a step appends to a journal of its own. Its readers are MLflow's delivery and, if it is on, W&B's. A reader keeps what it
must remember in a file beside the journal, `.mlflow` or `.wandb`, and deletes that when it has all records; the last reader deletes the
journal. What a task leaves on a machine with an ephemeral disk goes to the shared store, from where a later step takes it: a reader at a
time, under the lease of the run's journals.
"""

import json
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from grpo.base.files import CorruptError, JsonLine, append_line, parse_json_object, read_lines, replace_file
from steps.runtime.machine import Machine
from steps.runtime.process_id import Writer
from steps.store.file_lock import BusyError, file_lock
from steps.store.object_lease import Lease, LeaseLostError, shared_lease
from steps.store.objects import Objects, objects_at

JOURNAL_FOLDER: Final = "outbox"
DAMAGED: Final = "damaged"
"""Kind of a line that is no record; it is set aside at delivery."""
_REFUSED: Final = ".refused"
_LEASE_SECONDS: Final = 15.0
"""Term of the lease on a run's journals in the shared store: a step that ends waits less than 30 s for its last delivery."""


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
        self._lease: Lease | None = None
        self.tags: dict[Reader, str] = {}
        """ETags of what this process has read or written of it in the shared store."""

    def open(self) -> Self:
        """Lock the journal for this process; raises BusyError when another has it."""
        self._held.enter_context(file_lock(self.path.with_suffix(".lock"), what=f"the journal {self.path}"))
        return self

    def hold(self, lease: AbstractContextManager[Lease]) -> None:
        """Take the lease of the journals in the shared store until it is closed; raises BusyError when another process has it."""
        self._lease = self._held.enter_context(lease)

    def confirm(self) -> None:
        """Check, before a write to the shared store, that another process has not taken over; raises LeaseLostError when one has."""
        if self._lease is not None:
            self._lease.confirm()

    def close(self) -> None:
        """Release the lock, and the lease if there is one."""
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
        """Save what a reader remembers; raises LeaseLostError when another process reads the journal by now."""
        if self._lease is not None:
            self._lease.check()
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

    def __init__(self, home: Path, objects: Objects | None = None, writer: Writer | None = None) -> None:
        self.folder = home / JOURNAL_FOLDER
        self._objects = objects
        self._writer = Writer.here() if writer is None else writer

    @classmethod
    def of(cls, machine: Machine) -> Self:
        """Return the journals of a machine."""
        return cls(machine.home, objects_at(machine.shared) if machine.shared else None, machine.writer)

    def begin(self, parent: str, name: str, readers: Sequence[Reader] = (Reader.MLFLOW,)) -> Journal:
        """Return a new journal, opened; `name` becomes part of the file's name."""
        (self.folder / parent).mkdir(parents=True, exist_ok=True)
        journal = self._journal(f"{parent}/{time.time_ns() // 1_000_000:013d}-{name}-{uuid.uuid4().hex[:8]}").open()
        for reader in readers:
            journal.save(reader, {})
        journal.path.touch()
        return journal

    def left(self, reader: Reader, parent: str = "*") -> list[str]:
        """Return PARENT/NAME of each journal, of one run or all, that a reader does not have completely, the oldest of a run first."""
        here = {path.relative_to(self.folder).with_suffix("").as_posix() for path in self.folder.glob(f"{parent}/*.{reader}")}
        prefix = f"{JOURNAL_FOLDER}/{reader}/{'' if parent == '*' else f'{parent}/'}"
        keys = [] if self._objects is None else self._objects.keys(prefix)
        return sorted(here | {key.split("/", 2)[2] for key in keys})

    def pending(self, reader: Reader, parent: str = "*") -> Generator[Journal, None, None]:
        """Yield each journal that a reader does not have and whose writer has ended, opened until the next is asked for.

        Those of a run in the shared store are passed over while another process reads them.
        """
        busy: set[str] = set()
        for name in self.left(reader, parent):
            journal = self._journal(name)
            if journal.parent in busy:
                continue
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                journal.open()
            except BusyError:
                continue  # Its writer is alive, or another process of this machine reads it.
            with closing(journal):
                try:
                    if not self._take(journal, reader):
                        continue
                except BusyError:
                    busy.add(journal.parent)
                    continue
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
                with suppress(LeaseLostError):  # Another process has it there.
                    self.share(journal, reader)
                journal.done(reader)
        finally:
            journal.close()

    def share(self, journal: Journal, reader: Reader) -> None:
        """Copy a journal to the shared store, unless another process has changed it there; if the reader has all of it, delete it there.

        Raises SharedStoreError, and LeaseLostError when another process reads it by now.
        """
        if self._objects is None:
            return
        key, state, tag = self._key(journal, reader), journal.state(reader), journal.tags.get(reader)
        journal.confirm()
        if state is None:
            if tag is not None:  # Else it is none of this process's: another reader's, which this process has not taken.
                self._objects.delete(key)
        else:
            data = _packed(state, journal.path.read_bytes())
            written = self._objects.create(key, data) if tag is None else self._objects.replace(key, data, tag=tag)
            if written is not None:
                journal.tags[reader] = written

    def refused(self) -> list[Path]:
        """Return the files of records that the store rejected."""
        return sorted(self.folder.glob(f"*/*{_REFUSED}"))

    def _take(self, journal: Journal, reader: Reader) -> bool:
        """Copy a journal here from the shared store, if it is there, under the lease; return whether the reader lacks records of it.

        Raises BusyError when another process reads the run's journals in the shared store, CorruptError when their lease is damaged.
        """
        key = self._key(journal, reader)
        if self._objects is None or self._objects.get(key) is None:
            return journal.state(reader) is not None
        lease = f"leases/journals/{reader}/{journal.parent}.json"
        what = f"what {reader} lacks of run {journal.parent}"
        journal.hold(shared_lease(self._objects, lease, what=what, writer=self._writer, seconds=_LEASE_SECONDS))
        if (stored := self._objects.get(key)) is None:  # Another process has just delivered it.
            journal.done(reader)
            return False
        state, lines = _unpacked(stored.data)
        journal.save(reader, state)
        journal.tags[reader] = stored.tag
        replace_file(journal.path, lines)
        return True

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

"""Journals (write-ahead logs) of what steps log: `outbox/PARENT/TIME-STEP-ATTEMPT.jsonl`, and how far each reader of them came.

Each attempt of a step appends to a journal of its own. Its readers are MLflow's delivery and, if it is on, W&B's. A reader keeps what it
must remember in a file beside the journal and deletes that when it has all records; the last reader deletes the journal. What a task
leaves on a machine with an ephemeral disk goes to the shared store under the same name, from where a later step takes it.
"""

import json
import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from grpo.base.files import append_line, read_lines, replace_file
from steps.runtime.machine import Machine
from steps.store.file_lock import BusyError, file_lock
from steps.store.objects import Objects, objects_at

JOURNAL_FOLDER: Final = "outbox"
DAMAGED: Final = "damaged"
"""Kind of a line that is no record; it is set aside at delivery."""
_SUFFIX: Final = ".jsonl"
_REFUSED: Final = ".refused"
_LOCK: Final = ".lock"
_CLAIM_SECONDS: Final = 900.0
"""How long a claim on a journal in the shared store lasts; after that another process may claim it."""

State = dict[str, Any]
"""What a reader remembers."""


class Reader(StrEnum):
    """Who reads journals; the value is the suffix of the reader's file."""

    MLFLOW = "mlflow"
    WANDB = "wandb"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of a journal."""

    record: Mapping[str, Any]
    end: int
    """Offset of the next record, in bytes."""


class Journal:
    """The records of one writer, in order, and the states of its readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parent = path.parent.name
        """MLflow's id of the parent run."""
        self._lock = ExitStack()

    def open(self) -> Self:
        """Lock the journal for this process; raises BusyError when another has it."""
        self._lock.enter_context(file_lock(self.path.with_suffix(_LOCK), what=f"the journal {self.path}"))
        return self

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def append(self, kind: str, **facts: Any) -> None:
        """Append a record; raises StorageError when the disk is full, and leaves the journal as it was."""
        append_line(self.path, json.dumps({"kind": kind, **facts}), is_synced=False)

    def entries(self, start: int = 0) -> list[JournalEntry]:
        """Return the records from byte `start` on; a line that is no record is one of kind `DAMAGED`."""
        return [
            JournalEntry(row if (row := line.row) and "kind" in row else {"kind": DAMAGED, "line": line.text}, line.end)
            for line in read_lines(self.path, start)
        ]

    def states(self) -> dict[Reader, State]:
        """Return the states of the readers that do not have all of it; a damaged state is empty, that is, at the beginning."""
        states = {}
        for reader in Reader:
            if (path := self._state(reader)).exists():
                lines = read_lines(path)
                states[reader] = lines[0].row or {} if lines else {}
        return states

    def save(self, reader: Reader, state: Mapping[str, Any]) -> None:
        """Save the state of a reader."""
        replace_file(self._state(reader), f"{json.dumps(state)}\n".encode())

    def done(self, reader: Reader) -> None:
        """Note that a reader has all of it; after the last reader the journal is deleted."""
        self._state(reader).unlink(missing_ok=True)
        if not self.states():
            self.path.unlink(missing_ok=True)

    def waiting(self) -> list[JournalEntry]:
        """Return the records that MLflow's delivery has not logged yet."""
        state = self.states().get(Reader.MLFLOW)
        return [] if state is None else self.entries(state.get("offset", 0))

    def refuse(self, record: Mapping[str, Any], why: str) -> None:
        """Save a record that the store rejects in a file of its own, for inspection."""
        append_line(self.path.with_suffix(_REFUSED), json.dumps({"why": why, **record}), is_synced=False)

    def _state(self, reader: Reader) -> Path:
        return self.path.with_suffix(f".{reader}")


class _Shared(NamedTuple):
    """A journal in the shared store: a head line, and the whole journal behind it."""

    until: float
    """Until when it is claimed, in seconds since 1970."""
    states: dict[Reader, State]
    lines: bytes

    def packed(self) -> bytes:
        return json.dumps({"until": self.until, "readers": self.states}).encode() + b"\n" + self.lines

    @classmethod
    def unpacked(cls, data: bytes) -> Self:
        """Return what is stored; of a journal whose head is damaged, MLflow reads all lines from the beginning."""
        head, _, lines = data.partition(b"\n")
        try:
            facts = json.loads(head)
            return cls(float(facts["until"]), {Reader(name): dict(state) for name, state in facts["readers"].items()}, lines)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls(0.0, {Reader.MLFLOW: {}}, data)


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
        folder = self.folder / parent
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(folder / f"{time.time_ns() // 1_000_000:013d}-{name}-{uuid.uuid4().hex[:8]}{_SUFFIX}").open()
        for reader in readers:
            journal.save(reader, {})
        journal.path.touch()
        return journal

    def parents(self) -> list[str]:
        """Return the parent runs with journals that some reader does not have completely, here or in the shared store."""
        here = {path.parent.name for reader in Reader for path in self.folder.glob(f"*/*.{reader}")}
        return sorted(here | {key.split("/")[1] for key in self._keys("")})

    def pending(self, parent: str, reader: Reader = Reader.MLFLOW) -> Generator[Journal, None, None]:
        """Yield each journal whose writer has ended and that the reader does not have, the oldest first, opened until the next.

        A journal in the shared store is claimed only when its turn comes, so that other machines can read the rest.
        """
        here = {path.stem for path in (self.folder / parent).glob(f"*.{reader}")}
        for name in sorted(here | {Path(key).stem for key in self._keys(f"{parent}/")}):
            journal = Journal(self.folder / parent / f"{name}{_SUFFIX}")
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                journal.open()
            except BusyError:
                continue  # Its writer is alive, or another process reads it.
            try:
                if (states := journal.states()) and reader not in states:
                    continue
                if states or self._claim(journal, reader):
                    try:
                        yield journal
                    finally:
                        self.leave(journal)
            finally:
                journal.close()

    def leave(self, journal: Journal) -> None:
        """Close a journal; if a reader does not have all of it, it goes to the shared store, if there is one.

        Raises SharedStoreError when that fails; then the journal stays here.
        """
        try:
            if self._objects is not None and not journal.states():
                self._objects.delete(self._key(journal))
            elif self._objects is not None:
                self.share(journal)
                for reader in Reader:
                    journal.done(reader)
        finally:
            journal.close()

    def share(self, journal: Journal) -> None:
        """Copy a journal to the shared store, if there is one; raises SharedStoreError."""
        if self._objects is not None and journal.path.exists():
            self._objects.put(self._key(journal), _Shared(0.0, journal.states(), journal.path.read_bytes()).packed())

    def num_waiting(self, parent: str) -> int:
        """Return the number of records of a run that are not logged to MLflow yet."""
        here = sum(len(Journal(path.with_suffix(_SUFFIX)).waiting()) for path in (self.folder / parent).glob(f"*.{Reader.MLFLOW}"))
        offsets = ((each, each.states.get(Reader.MLFLOW)) for each in self._shared(f"{parent}/"))
        return here + sum(each.lines.count(b"\n", state.get("offset", 0)) for each, state in offsets if state is not None)

    def num_journals(self, reader: Reader) -> int:
        """Return the number of journals that a reader does not have completely."""
        return len(list(self.folder.glob(f"*/*.{reader}"))) + sum(reader in each.states for each in self._shared(""))

    def refused(self) -> list[Path]:
        """Return the files of records that the store rejected."""
        return sorted(self.folder.glob(f"*/*{_REFUSED}"))

    def _claim(self, journal: Journal, reader: Reader) -> bool:
        """Claim a journal in the shared store and copy it to this home; return whether the claim succeeded."""
        key = self._key(journal)
        if self._objects is None or (stored := self._objects.get(key)) is None:
            return False
        shared = _Shared.unpacked(stored.data)
        if shared.until > time.time() or reader not in shared.states:
            return False
        if self._objects.replace(key, shared._replace(until=time.time() + _CLAIM_SECONDS).packed(), tag=stored.tag) is None:
            return False  # Another process was first.
        for each, state in shared.states.items():
            journal.save(each, state)
        replace_file(journal.path, shared.lines)
        return True

    def _shared(self, prefix: str) -> Iterator[_Shared]:
        for key in self._keys(prefix):
            if self._objects is not None and (stored := self._objects.get(key)) is not None:
                yield _Shared.unpacked(stored.data)

    def _keys(self, prefix: str) -> list[str]:
        return [] if self._objects is None else self._objects.keys(f"{JOURNAL_FOLDER}/{prefix}")

    def _key(self, journal: Journal) -> str:
        return f"{JOURNAL_FOLDER}/{journal.parent}/{journal.path.name}"

"""Journals (write-ahead logs) of what is to be logged to MLflow: `outbox/PARENT/TIME-STEP-ATTEMPT.jsonl`, with the delivery progress.

Each writer appends to a journal of its own. One process at a time delivers it: the writer or, after the writer has ended, a later process.
A journal that was delivered completely is deleted. On a machine with an ephemeral disk the rest of a journal is copied to the shared store
under the same name, from where a later step delivers it.
"""

import json
import os
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from grpo.base.files import explain_write_errors, replace_file
from steps.store.file_lock import BusyError, file_lock
from steps.store.objects import Objects, Stored

JOURNAL_FOLDER: Final = "outbox"
DAMAGED: Final = "damaged"
"""Kind of a line that is no record; it is set aside at delivery."""
_SUFFIX: Final = ".jsonl"
_STATE: Final = ".state"
_REFUSED: Final = ".refused"
_LOCK: Final = ".lock"
_CLAIM_SECONDS: Final = 900.0
"""How long a claim on a journal in the shared store lasts; after that another process may claim it."""


@dataclass(slots=True)
class DeliveryProgress:
    """How far a journal was delivered, and MLflow's ids that are known since."""

    offset: int = 0
    """Delivered bytes."""
    run_id: str = ""
    """MLflow's id of the child run; empty until it is created."""
    holder: str = ""
    """The run that has the step's output among its artifacts, or will; empty until known."""
    has_ended: bool = False
    """Whether the child run's final status was logged."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of a journal."""

    record: Mapping[str, Any]
    end: int
    """Offset of the next record, in bytes."""


class Journal:
    """The records of one writer, in order; `DeliveryProgress` says which of them were delivered."""

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
        """Append a record; it survives the end of the process (but, like the step's output, not a crash of the machine).

        Raises StorageError when the disk is full; the journal is then as it was.
        """
        content = (json.dumps({"kind": kind, **facts}) + "\n").encode()
        with explain_write_errors(len(content), self.path), self.path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            left = memoryview(content)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)  # The next record would make one damaged line with half a record.
                raise

    def waiting(self) -> list[JournalEntry]:
        """Return the pending records; an incomplete last line is ignored, and any other that is no record is one of kind `DAMAGED`."""
        if not self.path.exists():
            return []
        end, lines = self.progress().offset, []
        with self.path.open("rb") as file:
            file.seek(end)
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    lines.append(JournalEntry(record_of(line), end))
        return lines

    def progress(self) -> DeliveryProgress:
        """Return how far it was delivered; if unknown, from the beginning, since delivery is idempotent."""
        try:
            return DeliveryProgress(**json.loads(self.path.with_suffix(_STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return DeliveryProgress()

    def save(self, progress: DeliveryProgress) -> None:
        """Save how far it was delivered."""
        # Atomic if the process is killed; after a crash of the machine it may be empty, and then all records are logged again.
        made = self.path.with_suffix(f"{_STATE}.new")
        content = json.dumps(asdict(progress))
        with explain_write_errors(len(content), made):
            made.write_text(content, encoding="utf-8")
        made.replace(self.path.with_suffix(_STATE))

    def refuse(self, record: Mapping[str, Any], why: str) -> None:
        """Save a record that the store rejects in a file of its own, for inspection."""
        with self.path.with_suffix(_REFUSED).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"why": why, **record}) + "\n")

    def remove(self) -> None:
        """Delete the journal after it was delivered completely."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(_STATE).unlink(missing_ok=True)


def record_of(line: bytes) -> Mapping[str, Any]:
    """Return the record of a whole line; of one that is damaged, a record of kind `DAMAGED` with the line as text."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) and "kind" in record else {"kind": DAMAGED, "line": line.decode(errors="replace").strip()}


class JournalFolder:
    """All journals of a home."""

    def __init__(self, home: Path, objects: Objects | None = None) -> None:
        """Use this home's folder, and a shared store that outlives an ephemeral disk."""
        self.folder = home / JOURNAL_FOLDER
        self._objects = objects

    def begin(self, parent: str, name: str) -> Journal:
        """Return a new journal, opened; `name` becomes part of the file's name."""
        folder = self.folder / parent
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(folder / f"{time.time_ns() // 1_000_000:013d}-{name}-{uuid.uuid4().hex[:8]}{_SUFFIX}").open()
        journal.path.touch()
        return journal

    def parents(self) -> list[str]:
        """Return the parent runs with pending journals, here or in the shared store."""
        here = {path.parent.name for path in self.folder.glob(f"*/*{_SUFFIX}")}
        return sorted(here | {key.split("/")[1] for key in self._keys("")})

    def pending(self, parent: str) -> Generator[Journal, None, None]:
        """Yield each journal whose writer has ended, the oldest first, opened; the next iteration releases it.

        A journal in the shared store is claimed only when its turn comes, so that other machines can deliver the rest.
        """
        here = {path.name for path in (self.folder / parent).glob(f"*{_SUFFIX}")}
        for name in sorted(here | {key.rpartition("/")[2] for key in self._keys(f"{parent}/")}):
            journal = Journal(self.folder / parent / name)
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                journal.open()
            except BusyError:
                continue  # Its writer is alive, or another process delivers it.
            if not journal.path.exists() and not self._claim(journal):
                journal.close()
                continue
            try:
                yield journal
            finally:
                self.leave(journal)

    def leave(self, journal: Journal) -> None:
        """Close a journal; its pending records go to the shared store, if there is one.

        Raises SharedStoreError when that fails; then the journal stays here.
        """
        try:
            if not journal.waiting():
                journal.remove()
                if self._objects is not None:
                    self._objects.delete(self._key(journal))
            elif self._objects is not None:
                self.share(journal)
                journal.remove()
        finally:
            journal.close()

    def share(self, journal: Journal) -> None:
        """Copy a journal's pending records to the shared store, if there is one; raises SharedStoreError."""
        if self._objects is not None:
            self._objects.put(self._key(journal), _packed(journal))

    def num_waiting(self, parent: str) -> int:
        """Return the number of pending records of a run."""
        here = sum(len(Journal(path).waiting()) for path in (self.folder / parent).glob(f"*{_SUFFIX}"))
        shared = (self._objects.get(key) for key in self._keys(f"{parent}/") if self._objects is not None)
        return here + sum(stored.data.count(b"\n") - 1 for stored in shared if stored is not None)

    def num_journals(self) -> int:
        """Return the number of pending journals of this home."""
        return len(list(self.folder.glob(f"*/*{_SUFFIX}")))

    def refused(self) -> list[Path]:
        """Return the files of records that the store rejected."""
        return sorted(self.folder.glob(f"*/*{_REFUSED}"))

    def _claim(self, journal: Journal) -> bool:
        """Claim a journal in the shared store and copy it to this home; return whether the claim succeeded."""
        key = self._key(journal)
        if self._objects is None or (stored := self._objects.get(key)) is None:
            return False
        until, progress, lines = _unpacked(stored)
        if until > time.time():
            return False
        claim = {"until": time.time() + _CLAIM_SECONDS, "progress": asdict(progress)}
        if self._objects.replace(key, json.dumps(claim).encode() + b"\n" + lines, tag=stored.tag) is None:
            return False  # Another process was first.
        replace_file(journal.path, lines)
        journal.save(progress)
        return True

    def _keys(self, prefix: str) -> list[str]:
        return [] if self._objects is None else self._objects.keys(f"{JOURNAL_FOLDER}/{prefix}")

    def _key(self, journal: Journal) -> str:
        return f"{JOURNAL_FOLDER}/{journal.parent}/{journal.path.name}"


def _packed(journal: Journal) -> bytes:
    progress = journal.progress()
    with journal.path.open("rb") as file:
        file.seek(progress.offset)
        lines = file.read()
    return json.dumps({"until": 0.0, "progress": asdict(progress) | {"offset": 0}}).encode() + b"\n" + lines


def _unpacked(stored: Stored) -> tuple[float, DeliveryProgress, bytes]:
    """Return until when a shared journal is claimed, its progress, and its lines; of one whose head is damaged, all from the beginning."""
    head, _, lines = stored.data.partition(b"\n")
    try:
        facts = json.loads(head)
        return float(facts["until"]), DeliveryProgress(**facts["progress"]), lines
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0, DeliveryProgress(), stored.data

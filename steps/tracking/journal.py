"""What is to be told to the tracking store, on the disk before it is told: `outbox/PARENT/TIME-STEP-ATTEMPT.jsonl`, and how far that was.

A writer has a journal of its own, which only it adds to, and which one process at a time delivers: the writer, and once that is gone
whoever comes next. A journal that was delivered whole is deleted. On a machine whose disk goes with it, what is left of one is handed over
to the shared objects under the same name, and taken from there by a later step.
"""

import json
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from grpo.base.files import explain_write_errors, replace_file
from steps.store.file_lock import BusyError, file_lease
from steps.store.objects import Objects, Stored

JOURNAL_FOLDER: Final = "outbox"
_SUFFIX: Final = ".jsonl"
_STATE: Final = ".state"
_REFUSED: Final = ".refused"
_LOCK: Final = ".lock"
_CLAIM_SECONDS: Final = 900.0
"""For so long a journal among the shared objects is another's who has taken it; then it counts as dead, and the journal is taken again."""


@dataclass(slots=True)
class DeliveryProgress:
    """How far a journal was delivered, and what is known since."""

    offset: int = 0
    """Bytes of it."""
    run_id: str = ""
    """MLflow's id of the child run; empty until it is made."""
    holder: str = ""
    """The run that has the step's output among its artifacts, or will; empty until that is known."""
    has_ended: bool = False
    """Whether the child run was told how it ended."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A record of a journal."""

    record: Mapping[str, Any]
    end: int
    """Where the next begins, in bytes."""


class Journal:
    """The records of one writer, in order; `DeliveryProgress` says which were delivered."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parent = path.parent.name
        """MLflow's id of the parent run."""
        self._held = ExitStack()

    def open(self) -> Self:
        """Make it this process's own; raises BusyError when it is another's."""
        self._held.enter_context(file_lease(self.path.with_suffix(_LOCK), what=f"what {self.path} tells the tracking store"))
        return self

    def close(self) -> None:
        """Let others have it, if anything is left of it."""
        self._held.close()

    def append(self, kind: str, **facts: Any) -> None:
        """Add a record; it survives the process (not the machine, whose end the step's output does not survive either).

        Raises StorageError when the disk is full.
        """
        content = (json.dumps({"kind": kind, **facts}) + "\n").encode()
        with explain_write_errors(len(content), self.path), self.path.open("ab") as file:
            file.write(content)

    def waiting(self) -> list[JournalEntry]:
        """Return the records that were not delivered; a last one that is torn is none."""
        if not self.path.exists():
            return []
        end, lines = self.progress().offset, []
        with self.path.open("rb") as file:
            file.seek(end)
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    lines.append(JournalEntry(json.loads(line), end))
        return lines

    def progress(self) -> DeliveryProgress:
        """Return how far it was delivered; from the beginning when that is not known, for telling something twice does no harm."""
        try:
            return DeliveryProgress(**json.loads(self.path.with_suffix(_STATE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return DeliveryProgress()

    def save(self, progress: DeliveryProgress) -> None:
        """Keep how far it was delivered."""
        # Whole after a kill; after the machine's end perhaps empty, and then all is told again.
        made = self.path.with_suffix(f"{_STATE}.new")
        content = json.dumps(asdict(progress))
        with explain_write_errors(len(content), made):
            made.write_text(content, encoding="utf-8")
        made.replace(self.path.with_suffix(_STATE))

    def refuse(self, record: Mapping[str, Any], why: str) -> None:
        """Set aside a record that the store will not take, for people to look at."""
        with self.path.with_suffix(_REFUSED).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"why": why, **record}) + "\n")

    def remove(self) -> None:
        """Forget it: all of it was delivered."""
        self.path.unlink(missing_ok=True)
        self.path.with_suffix(_STATE).unlink(missing_ok=True)


class Outbox:
    """All journals of a home."""

    def __init__(self, home: Path, objects: Objects | None = None) -> None:
        """Use this home's folder, and the shared objects for what a vanishing disk must not take."""
        self.folder = home / JOURNAL_FOLDER
        self._objects = objects

    def begin(self, parent: str, name: str) -> Journal:
        """Return a new journal, opened; `name` is for people, and part of the file's."""
        folder = self.folder / parent
        folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(folder / f"{time.time_ns() // 1_000_000:013d}-{name}-{uuid.uuid4().hex[:8]}{_SUFFIX}").open()
        journal.path.touch()
        return journal

    def parents(self) -> list[str]:
        """Return the parent runs that have journals here or among the shared objects."""
        here = {path.parent.name for path in self.folder.glob(f"*/*{_SUFFIX}")}
        return sorted(here | {key.split("/")[1] for key in self._keys("")})

    def left(self, parent: str) -> Generator[Journal, None, None]:
        """Give in turn each journal that its writer left, the oldest first, opened; it is left again when the next is asked for.

        One that is only among the shared objects is brought here then and not before, so that others have those that are not come to.
        """
        here = {path.name for path in (self.folder / parent).glob(f"*{_SUFFIX}")}
        for name in sorted(here | {key.rpartition("/")[2] for key in self._keys(f"{parent}/")}):
            journal = Journal(self.folder / parent / name)
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                journal.open()
            except BusyError:
                continue  # Its writer lives, or somebody else delivers it.
            if not journal.path.exists() and not self._is_taken_over(journal):
                journal.close()
                continue
            try:
                yield journal
            finally:
                self.leave(journal)

    def leave(self, journal: Journal) -> None:
        """Close a journal; what is left of it goes to the shared objects, where there are any.

        Raises SharedStoreError when they cannot be written; then it stays here.
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
        """Copy what is left of a journal to the shared objects, where there are any; raises SharedStoreError."""
        if self._objects is not None:
            self._objects.put(self._key(journal), _packed(journal))

    def num_waiting(self, parent: str) -> int:
        """Return how many records of a run were not delivered."""
        here = sum(len(Journal(path).waiting()) for path in (self.folder / parent).glob(f"*{_SUFFIX}"))
        shared = (self._objects.get(key) for key in self._keys(f"{parent}/") if self._objects is not None)
        return here + sum(stored.data.count(b"\n") - 1 for stored in shared if stored is not None)

    def num_journals(self) -> int:
        """Return how many journals of this home were not delivered whole."""
        return len(list(self.folder.glob(f"*/*{_SUFFIX}")))

    def refused(self) -> list[Path]:
        """Return the files with records that the store would not take."""
        return sorted(self.folder.glob(f"*/*{_REFUSED}"))

    def _is_taken_over(self, journal: Journal) -> bool:
        """Bring a journal that another machine left into this home, for this process alone; return whether that could be done."""
        key = self._key(journal)
        if self._objects is None or (stored := self._objects.get(key)) is None or _claimed_until(stored) > time.time():
            return False
        head, _, lines = stored.data.partition(b"\n")
        claim = {**json.loads(head), "until": time.time() + _CLAIM_SECONDS}
        if self._objects.replace(key, json.dumps(claim).encode() + b"\n" + lines, tag=stored.tag) is None:
            return False  # Another was first.
        replace_file(journal.path, lines)
        journal.save(DeliveryProgress(**claim["progress"]))
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


def _claimed_until(stored: Stored) -> float:
    return float(json.loads(stored.data.partition(b"\n")[0])["until"])

"""Files of a home that no run has used for some days: they can be made or fetched anew, or were set aside for a person to look at."""

import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from grpo.base.files import remove_folder
from steps.runtime.machine import Machine
from steps.store.file_lock import BusyError, file_lock
from steps.store.outputs import IN_PROGRESS, OUTPUTS, SET_ASIDE
from steps.tracking.journal import JournalFolder, Reader

_DAY: Final = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stale:
    """A file or folder that may be deleted."""

    path: Path
    what: str
    num_bytes: int
    num_days: float
    """Since anything of it was read, written or moved."""
    lock: Path | None = None
    """File lock of those who use it."""


def stale_files(machine: Machine, *, num_days: float) -> list[Stale]:
    """Return what has not been used for this many days, by path."""
    found = (_measured(machine, *each) for each in _candidates(machine))
    return sorted((each for each in found if each.num_days >= num_days), key=lambda each: each.path)


def delete(found: Stale) -> bool:
    """Delete it and return whether that was done: a process may be using it after all."""
    try:
        with nullcontext() if found.lock is None else file_lock(found.lock, what=str(found.path)):
            if found.path.is_dir():
                remove_folder(found.path)
            else:
                found.path.unlink(missing_ok=True)
    except BusyError:
        return False
    return True


def _candidates(machine: Machine) -> Iterator[tuple[Path, str]]:
    journals = JournalFolder(machine.home)
    if not journals.left(Reader.MLFLOW):  # A record that waits may name a file of an output that was set aside since.
        for path in machine.home.glob(f"{OUTPUTS}/*/*{SET_ASIDE}*"):
            yield path, "an output that was damaged or replaced"
    for path in machine.home.glob(f"{IN_PROGRESS}/*/*/"):
        yield path, "progress of a step that was never finished"
    for path in machine.value_cache.glob("values-*"):
        yield path, "an engine's answers, which can be asked for again"
    for path in journals.refused():
        yield path, "records that MLflow rejected"


def _measured(machine: Machine, path: Path, what: str) -> Stale:
    num_bytes, used = 0, 0.0
    for each in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):  # Of a run that is going on.
            stat = each.lstat()
            num_bytes += stat.st_size
            # Listing a folder is access, too.
            used = max(used, stat.st_mtime, stat.st_ctime, 0.0 if each.is_dir() else stat.st_atime)
    is_progress = path.is_relative_to(machine.home / IN_PROGRESS)
    return Stale(
        path=path,
        what=what,
        num_bytes=num_bytes,
        num_days=(time.time() - used) / _DAY,
        lock=path.with_name(f"{path.name}.lock") if is_progress else None,
    )

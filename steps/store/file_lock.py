"""File locks (flock): one writer at a time on one disk; the kernel releases the lock when the process ends."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from grpo.base.errors import PlainError


class BusyError(PlainError, RuntimeError):
    """Another process is writing this output; the message names it."""


@contextmanager
def file_lock(path: Path, *, what: str) -> Iterator[None]:
    """Hold an exclusive lock on this file while the block lasts; delete the file at the end.

    Raises BusyError, which names the holder and says that it writes `what`, when another process has the lock.
    """
    with _locked(path, what) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC).isoformat(timespec='seconds')}")
        file.flush()
        yield
        path.unlink()


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on this file, which stays, while the block lasts; wait for the process that has it."""
    with path.open("r" if path.exists() else "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _locked(path: Path, what: str) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read() or "another process"
            file.close()
            raise BusyError(
                f"{what} is being made by {holder} (it holds {path}): wait for it or stop it, then run the same command again"
            ) from None
        if _is_at(path, file):
            return file
        file.close()  # The previous holder has deleted the file, so this lock protects nothing.


def _is_at(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False

"""The lock of a file: one writer at a time on one disk, for as long as the process lives."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from grpo.base.errors import PlainError
from grpo.base.files import json_text
from steps.runtime.process_id import Writer


class BusyError(PlainError, RuntimeError):
    """Another process is making this output; the message says which."""


@contextmanager
def file_lease(path: Path, *, what: str) -> Iterator[None]:
    """Hold the lock of this file, which goes with the process however it ends, and then its file too.

    Raises BusyError, which says who holds it and makes `what`, when another process does.
    """
    with _locked(path, what) as file:
        file.truncate(0)
        file.write(json_text({"writer": Writer.here().facts(), "since": datetime.now(UTC).isoformat(timespec="seconds")}))
        file.flush()
        yield
        path.unlink()


def _locked(path: Path, what: str) -> TextIO:
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = _holder(file.read())
            file.close()
            raise BusyError(f"{what} is being made by {holder} (it holds {path}): wait for it, or end it, and run the same again") from None
        if _is_at(path, file):
            return file
        file.close()  # The holder before us has deleted it: it locks nothing any more.


def _holder(text: str) -> str:
    """Return who holds a lock: as its file says, unless that is of a process that has left it behind."""
    try:
        facts = json.loads(text)
        writer = Writer.from_facts(facts["writer"])
    except (ValueError, TypeError, KeyError):
        return "another process"
    return "another process" if writer.is_alive_here() is False else f"{writer}, since {facts['since']}"


def _is_at(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False

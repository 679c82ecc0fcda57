"""Tokens of processes: a file of the home that is locked for as long as its process lives tells others when that one is gone.

A token names the host, its boot, and the file. The lock ends with the process, however it ends, so that nothing has to be cleaned up.
"""

import atexit
import fcntl
import os
import socket
import uuid
from pathlib import Path
from typing import Final, TextIO

LAUNCHER: Final = "_CHESS_GRPO_LAUNCHER"
"""Variable: the token of the process that started the run; its tasks inherit it; those on Batch do not have it."""
_FOLDER: Final = "processes"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

_held: dict[Path, tuple[int, str, TextIO]] = {}
"""Home -> process id, token and locked file: a forked child does not take its parent's token for its own."""


def hold(home: Path) -> str:
    """Return the token of this process; it is held until the process ends, however it ends."""
    if home in _held and _held[home][0] == os.getpid():
        return _held[home][1]
    path = home.resolve() / _FOLDER / f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX)
    # A forked child that outlives its parent must not hold the parent's lock.
    os.register_at_fork(after_in_child=file.close)
    atexit.register(_release, os.getpid(), path)
    _held[home] = (os.getpid(), f"{socket.gethostname()} {_boot()} {path}", file)
    return _held[home][1]


def is_alive(token: str) -> bool:
    """Return whether a process of this host lives for sure."""
    return _state(token) == "alive"


def is_gone(token: str) -> bool:
    """Return whether a process of this host has ended for sure; of another host, or without a token, nothing is sure."""
    return _state(token) == "gone"


def _state(token: str) -> str:
    host, _, rest = token.partition(" ")
    boot, _, path = rest.partition(" ")
    if host != socket.gethostname() or not path:
        return "unknown"
    try:
        with Path(path).open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "alive"
    except FileNotFoundError:  # It was deleted at its process's end, or lies on the disk of another host of the same name.
        return "gone" if boot == _boot() else "unknown"
    except OSError:
        return "unknown"
    return "gone"


def _boot() -> str:
    return _BOOT.read_text(encoding="utf-8").strip() if _BOOT.exists() else "-"


def _release(process: int, path: Path) -> None:
    if process == os.getpid():
        path.unlink(missing_ok=True)

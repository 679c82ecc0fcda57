"""Who writes: a process that can be told from every other, on this machine and on others, so that a lease can say whose it is."""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_DEAD_STATES: Final = frozenset("ZXx")
"""Of /proc/PID/stat: a zombie has ended, whether or not its parent has noticed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """One process, and the task it makes."""

    host: str
    boot: str
    """The kernel's id of this boot; empty where there is no /proc."""
    pid_namespace: str
    """Containers on one machine share its boot, and each numbers its processes anew; empty where there is no /proc."""
    pid: int
    started: int
    """Clock ticks after the boot: a number that is used again belongs to a process that has started later."""
    task: str
    """RUN/STEP/TASK of Metaflow, or empty: no task of a flow."""
    attempt: int
    """Of that task, from 0."""

    @classmethod
    def here(cls, task: str = "", attempt: int = 0) -> Self:
        """Return this process as the writer of a task."""
        pid = os.getpid()
        stat = _stat(pid)
        return cls(
            host=socket.gethostname(),
            boot=_boot(),
            pid_namespace=_pid_namespace(),
            pid=pid,
            started=0 if stat is None else stat[1],
            task=task,
            attempt=attempt,
        )

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the writer that `facts` were made of.

        Raises TypeError when they are of something else.
        """
        writer = cls(**facts)
        for name, kind in cls.__annotations__.items():
            if type(getattr(writer, name)) is not kind:
                raise TypeError(f"{name} of a writer is {getattr(writer, name)!r}")
        return writer

    def facts(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)

    def is_alive_here(self) -> bool | None:
        """Return whether this very process still runs on this machine; None when that cannot be known from here.

        Another host, another boot or another container is elsewhere, even where it is likely that the process is gone with it.
        """
        if not self.boot or (self.host, self.boot, self.pid_namespace) != (socket.gethostname(), _boot(), _pid_namespace()):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # It is somebody else's.
        if (stat := _stat(self.pid)) is None:
            return None  # Hidden from us, or ended this moment.
        state, started = stat
        return started == self.started and state not in _DEAD_STATES

    def is_superseded_by(self, other: "Writer") -> bool:
        """Return whether `other` is a later attempt of the same task: Metaflow starts one only when the one before has ended."""
        return bool(self.task) and self.task == other.task and self.attempt < other.attempt

    def __str__(self) -> str:
        """Return how people find it."""
        return f"process {self.pid} on {self.host}" + (f" (task {self.task}, attempt {self.attempt})" if self.task else "")


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and start (in ticks after the boot) of a process; None when it cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text.rpartition(")")[2].split()  # The program's name before it may hold anything, brackets too.
    return fields[0], int(fields[19])


@cache
def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""

"""Process identity: host, boot id, PID namespace, PID and start time, so that a lease can name its holder across machines."""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_DEAD_STATES: Final = frozenset("ZXx")
"""States in /proc/PID/stat; a zombie counts as ended, whether or not its parent has reaped it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Writer:
    """One process, and the Metaflow task that it runs."""

    host: str
    boot: str
    """The kernel's id of this boot; empty where there is no /proc."""
    pid_namespace: str
    """Containers on one machine share its boot id but have PIDs of their own; empty where there is no /proc."""
    pid: int
    started: int
    """Start time in clock ticks after the boot: a process that reuses a PID started later."""
    task: str
    """RUN/STEP/TASK of Metaflow; empty outside of a flow."""
    attempt: int
    """Attempt of that task, from 0."""

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
        """Return the writer that `facts()` described.

        Raises TypeError when the facts do not describe a writer.
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
        """Return whether this process still runs on this machine; None when that cannot be known from here.

        A process of another host, boot or container is unknown, even where it has probably ended.
        """
        if not self.boot or (self.host, self.boot, self.pid_namespace) != (socket.gethostname(), _boot(), _pid_namespace()):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # It runs as another user.
        if (stat := _stat(self.pid)) is None:
            return None  # Hidden by the kernel, or it ended just now.
        state, started = stat
        return started == self.started and state not in _DEAD_STATES

    def is_superseded_by(self, other: "Writer") -> bool:
        """Return whether `other` is a later attempt of the same task: Metaflow starts an attempt only after the previous one ended."""
        return bool(self.task) and self.task == other.task and self.attempt < other.attempt

    def __str__(self) -> str:
        """Return PID, host and task for messages."""
        return f"process {self.pid} on {self.host}" + (f" (task {self.task}, attempt {self.attempt})" if self.task else "")


def _stat(pid: int) -> tuple[str, int] | None:
    """Return state and start time (in ticks after the boot) of a process; None when it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text.rpartition(")")[2].split()  # The program's name before it may contain brackets.
    return fields[0], int(fields[19])


@cache
def _boot() -> str:
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""

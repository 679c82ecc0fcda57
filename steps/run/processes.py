"""Tokens of processes: what tells others of the same machine whether a process still lives.

A token names the machine, its boot, the namespace of its process ids, and the process with its start, because ids are used again.
"""

import os
import socket
from pathlib import Path
from typing import Final, Literal

LAUNCHER: Final = "_CHESS_GRPO_LAUNCHER"
"""Variable: the token of the process that started the run; its tasks inherit it; those on Batch do not have it."""
_MACHINE: Final = Path("/etc/machine-id")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def own_token() -> str:
    """Return the token of this process; empty where the system does not tell about processes in /proc."""
    if not _NAMESPACE.exists():
        return ""
    machine = _MACHINE.read_text(encoding="utf-8").strip() if _MACHINE.exists() else ""
    boot = _BOOT.read_text(encoding="utf-8").strip()
    return " ".join((f"{socket.gethostname()}/{machine}", boot, str(_NAMESPACE.readlink()), str(os.getpid()), _start(os.getpid()) or ""))


def state_of(token: str) -> Literal["alive", "gone", "unknown"]:
    """Return whether the process of a token lives; of another machine, or without a token, nothing is known."""
    match token.split(), own_token().split():
        case [machine, boot, namespace, process, start], [here, *place, _, _] if machine == here:
            if boot != place[0] and not machine.endswith("/"):
                return "gone"  # Before the machine started again.
            if [boot, namespace] == place:
                return "alive" if _start(int(process)) == start else "gone"
    return "unknown"


def _start(process: int) -> str | None:
    """Return when a process started, in the kernel's ticks since the boot; None for one that has ended."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in ("Z", "X") else fields[18]

"""Processes of a flow: tokens that show whether a process still lives, exit codes, and the end of children with their parent."""

import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Final, Literal

from grpo.base.processes import signal_when_parent_ends

NO_RETRY: Final = 202  # Exit code after which Metaflow does not retry the task.
RESUMABLE: Final = 75  # Exit code after which a retry resumes from the last checkpoint (EX_TEMPFAIL of sysexits.h).
# Variable with the token of the process that started or resumed the run. Tasks on other machines get an item of `PLACES` instead.
LAUNCHER: Final = "_CHESS_GRPO_LAUNCHER"
PLACES: Final = ("batch", "kubernetes")  # Values of Metaflow's option `--with` for tasks on other machines.
PARENT_VARIABLE: Final = "_CHESS_GRPO_PARENT"
_SIGTERM_CODE: Final = 128 + signal.SIGTERM
_MACHINE: Final = Path("/etc/machine-id")
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/pid")


def own_token() -> str:
    """Return this process's machine, boot, process namespace, id and start time, as words; empty without /proc.

    The start time tells processes with a reused id apart.
    """
    if not _NAMESPACE.exists():
        return ""
    machine = _MACHINE.read_text(encoding="utf-8").strip() if _MACHINE.exists() else ""
    boot = _BOOT.read_text(encoding="utf-8").strip()
    return " ".join((f"{socket.gethostname()}/{machine}", boot, str(_NAMESPACE.readlink()), str(os.getpid()), _start(os.getpid()) or ""))


def state_of(token: str) -> Literal["alive", "gone", "unknown"]:
    """Return whether a token's process lives; "unknown" for "", an item of `PLACES`, another machine, or another namespace of this boot."""
    match token.split(), own_token().split():
        case [machine, boot, namespace, process, start], [own_machine, own_boot, own_namespace, _, _] if machine == own_machine:
            if boot != own_boot and not machine.endswith("/"):  # Without a machine id after "/", another boot may mean another machine.
                return "gone"
            if (boot, namespace) == (own_boot, own_namespace):
                return "alive" if _start(int(process)) == start else "gone"
    return "unknown"


def _start(process: int) -> str | None:
    """Return a process's start in kernel ticks since boot; None if the process has ended."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in ("Z", "X") else fields[18]  # Field 22 of proc(5), `starttime`.


def end_with_parent(*, unwinds: bool = False) -> None:
    """End this process when its parent in the flow ends (Linux only). Call this first, in the main thread.

    The kernel sends SIGTERM (PR_SET_PDEATHSIG) when the thread that started this process ends, so only the parent's main thread may start
    this process. With `unwinds`, SIGTERM raises SystemExit, so cleanup runs.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    if parent is None or sys.platform != "linux":
        return
    if unwinds:
        signal.signal(signal.SIGTERM, _unwind)
    signal_when_parent_ends(signal.SIGTERM)
    if not Path(f"/proc/{parent}").exists():  # The parent ended before the call above.
        os.kill(os.getpid(), signal.SIGTERM)


def _unwind(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # A second SIGTERM ends the process at once.
    raise SystemExit(_SIGTERM_CODE)

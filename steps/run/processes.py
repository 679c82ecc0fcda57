"""Processes of a flow: whether another still lives, what ends them with their parent, and what their exit codes say.

A token names the machine, its boot, the namespace of its process ids, and the process with its start, because ids are used again.

Metaflow's scheduler starts one process per task. A task starts processes that render its cards. On AWS Batch the scheduler's processes
watch remote jobs. Each process records itself in the environment of its children. When it ends, the Linux kernel sends its children
SIGTERM (PR_SET_PDEATHSIG), so that GRPO saves a checkpoint of its last step.
"""

import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Final, Literal

from grpo.base.processes import signal_when_parent_ends

NO_RETRY: Final = 202
"""Exit code: the error is not retryable; Metaflow does not retry a task that ends with it."""
RESUMABLE: Final = 75
"""Exit code: a retry, here or on another machine, resumes from the last checkpoint; EX_TEMPFAIL of sysexits.h."""
LAUNCHER: Final = "_CHESS_GRPO_LAUNCHER"
"""Variable: the token of the process that started the run; its tasks inherit it; those on Batch do not have it."""
PARENT_VARIABLE: Final = "_CHESS_GRPO_PARENT"
"""Variable: the id of the parent process. It means nothing on another machine, so jobs on AWS Batch do not get it."""
_ENDED: Final = 128 + signal.SIGTERM
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
        case [machine, boot, namespace, process, start], [own_machine, own_boot, own_namespace, _, _] if machine == own_machine:
            if boot != own_boot and not machine.endswith("/"):
                return "gone"  # Before the machine started again.
            if (boot, namespace) == (own_boot, own_namespace):
                return "alive" if _start(int(process)) == start else "gone"
    return "unknown"


def _start(process: int) -> str | None:
    """Return when a process started, in the kernel's ticks since the boot; None for one that has ended."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in ("Z", "X") else fields[18]


def end_with_parent(*, unwinds: bool = False) -> None:
    """End this process when its parent in the flow ends; the first process of a flow has no such parent.

    Call it once, in the main thread, before anything else. The kernel watches the thread that started this process, which must
    outlive it (Metaflow starts processes from main threads).

    Args:
        unwinds: whether SIGTERM raises SystemExit, so that cleanup runs; else SIGTERM keeps its default action, or that of the step.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    if parent is None or sys.platform != "linux":
        return
    if unwinds:
        signal.signal(signal.SIGTERM, _unwind)
    signal_when_parent_ends(signal.SIGTERM)
    if not Path(f"/proc/{parent}").exists():  # It ended before that.
        os.kill(os.getpid(), signal.SIGTERM)


def _unwind(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(_ENDED)

"""Parent death: every process of a flow gets SIGTERM, then SIGKILL, when the process that started it ends (PR_SET_PDEATHSIG).

Metaflow's scheduler starts one process per task. A task starts processes that render its cards. On AWS Batch the scheduler's processes
watch remote jobs. Each process records itself in the environment of its children. When it ends, the Linux kernel sends its children
SIGTERM, so that GRPO saves a checkpoint of its last step. A child that still runs after a grace period is killed.
"""

import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
from types import FrameType
from typing import Final

from grpo.base.files import CorruptError, parse_json_object
from steps.runtime.process_id import Writer

PARENT_VARIABLE: Final = "_CHESS_GRPO_PARENT"
"""Variable: the parent process. It means nothing on another machine, so jobs on AWS Batch do not get it."""
_PR_SET_PDEATHSIG: Final = 1
_ENDED: Final = 128 + signal.SIGTERM


def end_with_parent(*, grace_seconds: float, unwinds: bool = False) -> None:
    """End this process when its parent in the flow ends; the first process of a flow has no such parent.

    Call it once, in the main thread, before anything else. The kernel watches the thread that started this process, which must
    outlive it (Metaflow starts processes from main threads).

    Args:
        grace_seconds: time from the parent's end, which sends SIGTERM, to SIGKILL; five times what a checkpoint needs.
        unwinds: whether SIGTERM raises SystemExit, so that cleanup runs; else SIGTERM keeps its default action, or that of the step.
    """
    parent = _parent()
    os.environ[PARENT_VARIABLE] = json.dumps(Writer.here().facts())
    if parent is None or parent.is_alive_here() is None or sys.platform != "linux":
        return
    if unwinds:
        signal.signal(signal.SIGTERM, _unwind)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG is refused")
    if parent.is_alive_here() is False:  # It ended before prctl took effect.
        os.kill(os.getpid(), signal.SIGTERM)
        return
    try:
        handle = os.pidfd_open(parent.pid)
    except OSError:
        return  # The parent is ending, so SIGTERM is on its way; or this kernel has no pidfds, and only SIGTERM is sent.
    threading.Thread(target=_kill_after, args=(handle, grace_seconds), name="end-with-parent", daemon=True).start()


def _parent() -> Writer | None:
    text = os.environ.get(PARENT_VARIABLE)
    try:
        return None if text is None else Writer.from_facts(parse_json_object(text.encode(), PARENT_VARIABLE))
    except (CorruptError, TypeError):
        return None  # Another program set it.


def _unwind(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(_ENDED)


def _kill_after(parent: int, grace_seconds: float) -> None:
    """Wait for the parent's end and the grace period, then send SIGKILL to this process."""
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.poll()
    time.sleep(grace_seconds)
    os.kill(os.getpid(), signal.SIGKILL)

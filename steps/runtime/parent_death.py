"""Processes of a flow end with the one that started them, however that one ends: nobody is left to take what they would make.

Metaflow's scheduler starts a process for each task, a task starts some that draw its cards, and on AWS Batch the scheduler's processes
watch jobs elsewhere. Each notes itself in the environment for those that it starts. The kernel sends those SIGTERM when it ends
(PR_SET_PDEATHSIG, where there is Linux), so that GRPO keeps its last step; who has not ended by then, in a call that never returns, is
killed.
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

from steps.runtime.process_id import Writer

PARENT_VARIABLE: Final = "_CHESS_GRPO_PARENT"
"""The variable with the process that starts others; not for other machines, so it is not among those that a job on Batch is given."""
_PR_SET_PDEATHSIG: Final = 1
_ENDED: Final = 128 + signal.SIGTERM


def end_with_parent(*, grace_seconds: float, unwinds: bool = False) -> None:
    """End this process when the one of this flow that started it ends; the first of a flow ends when it likes.

    To be called before anything else, once, in the main thread: the kernel means the thread that started this process, which has to be
    one that lasts (Metaflow's are main threads).

    Args:
        grace_seconds: from the parent's end, and its SIGTERM, to SIGKILL; five times what a checkpoint needs.
        unwinds: whether SIGTERM raises SystemExit here, so that what is to be done at the end is done; else it ends the process as it
            does by default, or as the step's body has it.
    """
    parent = _parent()
    os.environ[PARENT_VARIABLE] = json.dumps(Writer.here().facts())
    if parent is None or parent.is_alive_here() is None or sys.platform != "linux":
        return
    if unwinds:
        signal.signal(signal.SIGTERM, _unwind)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG is refused")
    if parent.is_alive_here() is False:  # It had ended before the kernel knew what we want.
        os.kill(os.getpid(), signal.SIGTERM)
        return
    try:
        handle = os.pidfd_open(parent.pid)
    except OSError:
        return  # It ends this moment, and SIGTERM is on its way; or this kernel has no such handles, and SIGTERM is all there is.
    threading.Thread(target=_kill_after, args=(handle, grace_seconds), name="end-with-parent", daemon=True).start()


def _parent() -> Writer | None:
    text = os.environ.get(PARENT_VARIABLE)
    try:
        return None if text is None else Writer.from_facts(json.loads(text))
    except (ValueError, TypeError):
        return None  # Not ours.


def _unwind(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(_ENDED)


def _kill_after(parent: int, grace_seconds: float) -> None:
    """Wait for the parent's end, and then for our own; a process that has got SIGTERM and is still here is beyond help."""
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.poll()
    time.sleep(grace_seconds)
    os.kill(os.getpid(), signal.SIGKILL)

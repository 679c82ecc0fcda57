"""Parent death: every process of a flow gets SIGTERM when the process that started it ends (PR_SET_PDEATHSIG).

Metaflow's scheduler starts one process per task. A task starts processes that render its cards. On AWS Batch the scheduler's processes
watch remote jobs. Each process records itself in the environment of its children. When it ends, the Linux kernel sends its children
SIGTERM, so that GRPO saves a checkpoint of its last step.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Final

PARENT_VARIABLE: Final = "_CHESS_GRPO_PARENT"
"""Variable: the id of the parent process. It means nothing on another machine, so jobs on AWS Batch do not get it."""
_PR_SET_PDEATHSIG: Final = 1
_ENDED: Final = 128 + signal.SIGTERM


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
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG is refused")
    if not Path(f"/proc/{parent}").exists():  # It ended before prctl took effect.
        os.kill(os.getpid(), signal.SIGTERM)


def _unwind(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(_ENDED)

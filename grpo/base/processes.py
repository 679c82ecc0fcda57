"""A signal at the end of the parent process."""

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def signal_when_parent_ends(number: signal.Signals) -> None:
    """Have Linux send this process the signal when its parent ends, if the parent still runs. Raises OSError if Linux refuses."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG is refused")

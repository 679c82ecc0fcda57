"""SIGTERM, which asks a process to end: an exception in the main thread, so that a checkpoint can be saved; a second one kills."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """The process was told to end; no error, so that nothing that handles errors takes it for one."""


@contextmanager
def terminable() -> Iterator[Callable[[], None]]:
    """Raise Terminated in the block at the first SIGTERM; the second leaves at once.

    Gives a function that raises it again if somebody swallowed it, as Python does in a destructor. Only a main thread can be told to end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    before, is_told = signal.getsignal(signal.SIGTERM), False

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal is_told
        is_told = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise Terminated

    def check() -> None:
        if is_told:
            raise Terminated

    signal.signal(signal.SIGTERM, end)
    try:
        yield check
    finally:
        if not is_told:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)

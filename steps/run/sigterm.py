"""SIGTERM, which asks a process to end: where work is worth a checkpoint, it is only noted, for the loop to read between its steps."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_noted() -> Iterator[Callable[[], bool]]:
    """Only note the first SIGTERM in the block; a second one ends the process at once, and so does the first outside of the block.

    Gives a function that says whether it came. For a main thread: no other can be told to end.
    """
    before, is_told = signal.getsignal(signal.SIGTERM), False

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal is_told
        is_told = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: is_told
    finally:
        if not is_told:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)

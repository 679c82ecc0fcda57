"""Turns the two-minute notice of an EC2 spot interruption into SIGTERM, on which `finetune` saves a checkpoint.

Metaflow's monitor writes a file when the notice comes, and sends SIGTERM only to the container's shell. So the task polls the file.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SECONDS_BETWEEN: Final = 1.0  # Between two checks for the file.


@contextmanager
def sigterm_on_spot_notice(notice: Path | str | None) -> Iterator[None]:
    """Send this process SIGTERM, once, if the file `notice` exists or appears while the block runs."""
    if notice is None:
        yield
        return
    is_over, lock = threading.Event(), threading.Lock()  # The lock prevents a signal after the block.

    def watch() -> None:
        while not Path(notice).exists():
            if is_over.wait(_SECONDS_BETWEEN):
                return
        with lock:
            if not is_over.is_set():
                print(f"spot interruption notice ({notice} exists): sending SIGTERM to this step", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="spot-notice", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            is_over.set()

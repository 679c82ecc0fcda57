"""Spot interruption: turns the two-minute notice of an EC2 spot instance into SIGTERM, so that the step saves its progress.

Metaflow's monitor writes a file when the notice comes, and sends SIGTERM to the container's shell. The shell does not forward the signal,
so the task polls the file.
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
    """Send this process SIGTERM, once, if a spot interruption notice comes while the block runs.

    `notice` is the path of Metaflow's file (`current.spot_termination_notice`). None, as outside of AWS Batch, means no polling.
    """
    if notice is None:
        yield
        return
    is_over, lock = threading.Event(), threading.Lock()

    def watch() -> None:
        while not Path(notice).exists():
            if is_over.wait(_SECONDS_BETWEEN):
                return
        with lock:
            if not is_over.is_set():
                print(f"spot interruption notice ({notice} exists): sending SIGTERM to this step, which saves its progress", flush=True)
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="spot-notice", daemon=True).start()
    try:
        yield
    finally:
        with lock:
            is_over.set()

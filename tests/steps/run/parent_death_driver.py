"""A small scheduler and its children: a test kills `python parent_death_driver.py scheduler FOLDER`, and all children must end."""

import atexit
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from steps.run.parent_death import end_with_parent

role, folder = sys.argv[1], Path(sys.argv[2])


def note(what: str) -> None:
    made = folder / f".{role}.{what}"  # Renamed, so that no reader finds an empty file.
    made.write_text(str(os.getpid()))
    made.replace(folder / f"{role}.{what}")


def start(child: str) -> "subprocess.Popen[bytes]":
    """Start a process and wait until it has said that it is ready for its parent's end."""
    started = subprocess.Popen([sys.executable, __file__, child, str(folder)])
    while not (folder / f"{child}.ready").exists():
        time.sleep(0.01)
    return started


def save(number: int, frame: FrameType | None) -> None:
    time.sleep(0.2)
    note("saved")
    sys.exit(75)


end_with_parent(unwinds=role == "launcher")
if role == "task":
    start("card")
elif role == "saving":
    signal.signal(signal.SIGTERM, save)
elif role == "launcher":
    atexit.register(note, "job_ended")
elif role == "scheduler":
    for child in ("task", "saving", "launcher"):
        start(child)
    ended = start("ended")
    assert ended.wait() == 0
note("ready")
time.sleep(0.0 if role == "ended" else 600)

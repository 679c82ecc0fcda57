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
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bodies"))

from steps.runtime.parent_death import end_with_parent

role, folder = sys.argv[1], Path(sys.argv[2])


def note(what: str) -> None:
    (folder / f"{role}.{what}").write_text(str(os.getpid()))


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


def train() -> None:
    """Fine-tune until the fourth step, and stay there; all it says goes to its parent, as a task's does."""
    from kill_driver import finetune

    finetune({"home": str(folder / "home"), "failpoint": "after the rollout", "nth": 7, "deed": "pause"})


end_with_parent(grace_seconds=30.0 if role == "training" else 1.0, unwinds=role == "launcher")
if role == "task":
    start("card")
elif role == "training":
    train()
elif role == "trainer":
    with subprocess.Popen([sys.executable, __file__, "training", str(folder)], stdout=subprocess.PIPE, text=True) as training:
        (folder / "trainer.training").write_text(str(training.pid))
        assert training.stdout is not None
        while "paused" not in training.stdout.readline():
            pass
        note("ready")
        time.sleep(600)
elif role == "saving":
    signal.signal(signal.SIGTERM, save)
elif role == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif role == "launcher":
    atexit.register(note, "job_ended")
elif role == "scheduler":
    for child in ("task", "saving", "deaf", "launcher"):
        start(child)
    ended = start("ended")
    assert ended.wait() == 0
note("ready")
time.sleep(0.0 if role == "ended" else 600)

"""Processes of a killed scheduler end, each in its way: at once, after a save, or after the work at its own end."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forking import has_ended

from steps.run.processes import PARENT_VARIABLE

CHILDREN = {"scheduler": ("task", "saving", "launcher"), "task": ("card",)}
PROCESS = f"""
import atexit, os, signal, subprocess, sys, time
from pathlib import Path
from steps.run.processes import end_with_parent
role, folder = sys.argv[1], Path(sys.argv[2])
def note(what):
    (folder / f".{{role}}").write_text(str(os.getpid()))
    (folder / f".{{role}}").replace(folder / f"{{role}}.{{what}}")  # No reader finds an empty file.
def save(number, frame):
    note("saved")
    sys.exit(75)
end_with_parent(unwinds=role == "launcher")
if role == "saving":
    signal.signal(signal.SIGTERM, save)
if role == "launcher":
    atexit.register(note, "job_ended")
for child in {CHILDREN}.get(role, ()):
    subprocess.Popen([sys.executable, "-c", sys.orig_argv[2], child, str(folder)])
note("ready")
time.sleep(0 if role == "alone" else 600)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(role: str, folder: Path, **more: str) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE} | more
    return subprocess.Popen([sys.executable, "-c", PROCESS, role, str(folder)], env=environment, cwd=Path(__file__).parents[3])


def test_all_that_a_killed_scheduler_has_started_ends_each_in_its_way(tmp_path: Path) -> None:
    scheduler, children = start("scheduler", tmp_path), [child for each in CHILDREN.values() for child in each]
    wait_until(lambda: all((tmp_path / f"{child}.ready").exists() for child in children))
    pids = [int((tmp_path / f"{child}.ready").read_text()) for child in children]
    scheduler.send_signal(signal.SIGKILL)
    scheduler.wait()
    try:
        wait_until(lambda: all(map(has_ended, pids)))
    finally:
        for pid in itertools.filterfalse(has_ended, pids):
            os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "saving.saved").exists(), "it had time to save"
    assert (tmp_path / "launcher.job_ended").exists(), "what is done at the end was done"


def test_a_process_whose_parent_has_ended_meanwhile_ends_before_it_does_anything(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for parent, status in ((os.getpid(), 0), (gone.pid, -signal.SIGTERM)):
        assert start("alone", tmp_path, **{PARENT_VARIABLE: str(parent)}).wait() == status
        assert (tmp_path / "alone.ready").exists() == (status == 0)
        (tmp_path / "alone.ready").unlink(missing_ok=True)

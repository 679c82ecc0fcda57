"""What a scheduler has started ends when it is killed, each in its way: at once, after a save, or after its own end's work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steps.run.parent_death import PARENT_VARIABLE

DRIVER = Path(__file__).with_name("parent_death_driver.py")
CHILDREN = ("task", "card", "saving", "launcher")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def environment(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE} | more


def is_running(pid: int) -> bool:
    """Return whether it runs; nobody waits for those whose parent was killed but init, if there is one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_all_that_a_killed_scheduler_has_started_ends_each_in_its_way(tmp_path: Path) -> None:
    scheduler = subprocess.Popen([sys.executable, str(DRIVER), "scheduler", str(tmp_path)], env=environment())
    wait_until((tmp_path / "scheduler.ready").exists)
    pids = {name: int((tmp_path / f"{name}.ready").read_text()) for name in CHILDREN}
    assert all(is_running(pid) for pid in pids.values())
    scheduler.send_signal(signal.SIGKILL)
    scheduler.wait()
    try:
        wait_until(lambda: not any(is_running(pid) for pid in pids.values()))
    finally:
        for pid in filter(is_running, pids.values()):
            os.kill(pid, signal.SIGKILL)
    assert (tmp_path / "saving.saved").exists(), "it had time to save"
    assert (tmp_path / "launcher.job_ended").exists(), "what is done at the end was done"


def test_a_process_whose_parent_has_ended_meanwhile_ends_before_it_does_anything(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for parent, status in ((os.getpid(), 0), (gone.pid, -signal.SIGTERM)):
        command = [sys.executable, str(DRIVER), "ended", str(tmp_path)]
        assert subprocess.run(command, env=environment(**{PARENT_VARIABLE: str(parent)}), check=False).returncode == status
        assert (tmp_path / "ended.ready").exists() == (status == 0)
        (tmp_path / "ended.ready").unlink(missing_ok=True)

"""What a scheduler has started ends when it is killed, each in its way: at once, after a save, after its own end's work, or by force."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grpo.learning.checkpoints import latest_valid_checkpoint
from steps.runtime.parent_death import PARENT_VARIABLE
from steps.runtime.process_id import Writer

DRIVER = Path(__file__).with_name("parent_death_driver.py")
CHILDREN = ("task", "card", "saving", "deaf", "launcher")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def environment(parent: str | None = None) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if name != PARENT_VARIABLE}
    return others if parent is None else {**others, PARENT_VARIABLE: parent}


def is_running(pid: int) -> bool:
    """Return whether it runs; nobody waits for those whose parent was killed but init, if there is one."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
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


@pytest.mark.prove
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_training_whose_scheduler_is_killed_keeps_its_last_finished_step(tmp_path: Path) -> None:
    scheduler = subprocess.Popen([sys.executable, str(DRIVER), "trainer", str(tmp_path)], env=environment())
    try:
        wait_until(lambda: (tmp_path / "trainer.ready").exists() or scheduler.poll() is not None)
    finally:
        scheduler.send_signal(signal.SIGKILL)
        scheduler.wait()
    training = int((tmp_path / "trainer.training").read_text())
    wait_until(lambda: not is_running(training))
    kept, problems = latest_valid_checkpoint(tmp_path / "home" / "in_progress" / "finetune" / "v1" / "interrupted")
    assert (kept and kept.name, problems) == ("step-00000003", [])


def test_the_first_of_a_flow_outlives_who_started_it(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, {str(DRIVER)!r}, 'deaf', {str(tmp_path)!r}])"
    subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
    wait_until((tmp_path / "deaf.ready").exists)
    pid = int((tmp_path / "deaf.ready").read_text())
    time.sleep(1.5)  # The driver's grace, and more.
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)


def status_of(parent: Writer, folder: Path) -> int:
    """Return how a process ends that would end by itself, and was started by this writer."""
    command = [sys.executable, str(DRIVER), "ended", str(folder)]
    return subprocess.run(command, env=environment(json.dumps(parent.facts())), check=False).returncode


def test_a_process_whose_parent_has_ended_meanwhile_ends_before_it_does_anything(tmp_path: Path) -> None:
    here = Writer.here()
    assert status_of(here, tmp_path) == 0
    (tmp_path / "ended.ready").unlink()
    assert status_of(replace(here, started=here.started - 1), tmp_path) == -signal.SIGTERM
    assert not (tmp_path / "ended.ready").exists()


def test_a_parent_on_another_machine_is_nobody_to_end_with(tmp_path: Path) -> None:
    assert status_of(replace(Writer.here(), host="elsewhere", started=0), tmp_path) == 0


def test_a_variable_that_is_not_ours_is_nobody_to_end_with(tmp_path: Path) -> None:
    command = [sys.executable, str(DRIVER), "ended", str(tmp_path)]
    for text in ("", "1234", "{}", "[]"):
        assert subprocess.run(command, env=environment(text), check=False).returncode == 0

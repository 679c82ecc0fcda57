"""The first process of a container: a SIGTERM reaches the task below Metaflow's shell, which then saves, and the shell keeps the logs."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "infra" / "entrypoint.sh"
# What Metaflow hands a container, in short: a shell, below it the task with its output in a pipe, then the logs, then the task's exit code.
SHELL = "true && python3 -u flow.py --quiet step finetune 2>&1 | tee task.log; c=${PIPESTATUS[0]}; echo kept > logs; exit $c"
TASK = """
import os, signal, sys, time
def save(number, frame):
    open("saved" if forked else "told", "w").write("saved")
    time.sleep(0.2)  # So that a process which is told too has the time to say so.
    if forked:
        os.kill(forked, signal.SIGKILL)
        print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
forked = os.fork()
if forked:
    open("ready", "w").close()
time.sleep(60)
"""


UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts a command by the entry point, in a process namespace of its own, which is what a container makes of it."""
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespaces here: unshare --user --pid --fork fails")
    (tmp_path / "flow.py").write_text(TASK)
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([*UNSHARE, "bash", str(ENTRYPOINT), *command], cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def terminate(container: subprocess.Popen[bytes], ready: Path) -> None:
    """Send SIGTERM to the first process from outside, as a container's runtime does, when the command is ready."""
    while not ready.exists():
        assert container.poll() is None, "the command ended before it was ready"
        time.sleep(0.01)
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)


def test_sigterm_reaches_the_task_which_saves_and_its_exit_code_comes_out(start: Start, tmp_path: Path) -> None:
    container = start("bash", "-c", SHELL)
    terminate(container, tmp_path / "ready")
    assert container.wait(30) == 75
    assert (tmp_path / "saved").read_text() == "saved"
    assert (tmp_path / "task.log").read_text() == "saved\n"  # The end of the task's output is kept: who writes it down was left alone.
    assert (tmp_path / "logs").read_text() == "kept\n"
    assert not (tmp_path / "told").exists(), "what the task has forked is its own to end"


def test_what_is_not_a_task_is_ended_at_once(start: Start, tmp_path: Path) -> None:
    container = start("bash", "-c", "touch ready; sleep 60")
    terminate(container, tmp_path / "ready")
    assert container.wait(30) == 128 + signal.SIGTERM


def test_a_signal_is_not_lost_when_the_command_has_just_started(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_start = tmp_path / "at_start.sh"
    at_start.write_text("unset BASH_ENV\ntrap 'case $BASH_COMMAND in command=*) kill -TERM $$ ;; esac' DEBUG\n")
    monkeypatch.setenv("BASH_ENV", str(at_start))
    assert start("sleep", "60").wait(30) == 128 + signal.SIGTERM

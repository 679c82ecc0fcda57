"""The first process of a container: a SIGTERM reaches the task below Metaflow's shell, which then saves, and the shell keeps the logs."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ENTRYPOINT = Path(__file__).resolve().parents[2] / "infra" / "entrypoint.sh"
# What Metaflow hands a container, in short: a shell, below it the task with its output in a pipe, then the logs, then the task's exit code.
SHELL = "true && python3 -u flow.py --quiet {word} finetune 2>&1 | tee task.log; c=${{PIPESTATUS[0]}}; echo kept > logs; exit $c"
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


class Container:
    """A command as the first process of a process namespace of its own, which is what a container makes of it."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        (folder / "flow.py").write_text(TASK)
        self._outer = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *command], cwd=folder
        )

    def wait_until_ready(self) -> None:
        while not (self.folder / "ready").exists():
            assert self._outer.poll() is None, "the command ended before the task was ready"
            time.sleep(0.01)

    def signal_first_process(self, number: int) -> None:
        """Send from outside, as a container's runtime does."""
        children = Path(f"/proc/{self._outer.pid}/task/{self._outer.pid}/children").read_text().split()
        os.kill(int(children[0]), number)

    def exit_code(self, timeout: float = 30) -> int:
        return self._outer.wait(timeout)

    def end(self) -> None:
        self._outer.kill()
        self._outer.wait()


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[list[Container]]:
    if subprocess.run(["unshare", "--user", "--map-root-user", "--pid", "--fork", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no process namespaces here: unshare --user --pid --fork fails")
    made: list[Container] = []
    yield made
    for container in made:
        container.end()


def start(containers: list[Container], folder: Path, *command: str) -> Container:
    containers.append(Container(folder, *command))
    return containers[-1]


def test_sigterm_reaches_the_task_which_saves_and_its_exit_code_comes_out(containers: list[Container], tmp_path: Path) -> None:
    container = start(containers, tmp_path, "bash", str(ENTRYPOINT), "bash", "-c", SHELL.format(word="step"))
    container.wait_until_ready()
    container.signal_first_process(signal.SIGTERM)
    assert container.exit_code() == 75
    assert (tmp_path / "saved").read_text() == "saved"
    assert (tmp_path / "task.log").read_text() == "saved\n"  # The end of the task's output is kept: who writes it down was left alone.
    assert (tmp_path / "logs").read_text() == "kept\n"
    assert not (tmp_path / "told").exists(), "what the task has forked is its own to end"


def test_what_is_not_a_task_is_ended_at_once(containers: list[Container], tmp_path: Path) -> None:
    container = start(containers, tmp_path, "bash", str(ENTRYPOINT), "bash", "-c", "touch ready; sleep 60")
    container.wait_until_ready()
    container.signal_first_process(signal.SIGTERM)
    assert container.exit_code() == 128 + signal.SIGTERM


def test_a_signal_is_not_lost_when_the_command_has_just_started(
    containers: list[Container], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_start = tmp_path / "at_start.sh"
    at_start.write_text("unset BASH_ENV\ntrap 'case $BASH_COMMAND in command=*) kill -TERM $$ ;; esac' DEBUG\n")
    monkeypatch.setenv("BASH_ENV", str(at_start))
    container = start(containers, tmp_path, "bash", str(ENTRYPOINT), "sleep", "60")
    assert container.exit_code() == 128 + signal.SIGTERM

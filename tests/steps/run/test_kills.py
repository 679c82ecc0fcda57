"""A kill between any two file operations, and two processes at once: the same call again gives the equal output, and nothing is left."""

import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo.base.files import append_line
from steps.run.store import Making, Store

OPERATIONS = ("open", "os.rename", "os.mkdir", "os.link", "os.chmod", "os.truncate", "os.utime")
ANYWHERE = ("os.remove", "os.rmdir", "fcntl.flock")
"""Operations that name no whole path."""
FOLDERS = {"outputs", "outputs/finetune", "outputs/finetune/v1", "progress", "progress/finetune"}


def forked(body: Callable[[], object]) -> int:
    """Run in a child, and return its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except BaseException:  # noqa: BLE001  A child must not go on with the tests.
            os._exit(1)
        os._exit(0)
    return pid


def status_of(pid: int) -> int:
    """Wait for a child and return its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed_at(number: int, folder: Path) -> None:
    """Kill this process before the operation with this number, from 0, on a file of the folder."""
    num_left = number

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal num_left
        if event in ANYWHERE or (event in OPERATIONS and str(arguments[0]).startswith(str(folder))):
            num_left -= 1
            if num_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def work(making: Making, folder: Path, log: Path) -> None:
    """Count to three in the progress folder, and say what is saved."""
    path = making.progress / "count.jsonl"
    first = len(path.read_text().splitlines()) if path.exists() else 0
    append_line(log, f"from {first}")
    for number in range(first, 3):
        append_line(path, str(number))
        append_line(log, f"saved {number}")
        making.save()
    (folder / "numbers").write_text(path.read_text())


def make(place: Path, log: Path, home: Path | None = None) -> None:
    with Store(place, home or place).making("finetune", "v1") as making:
        if making.output is None:
            with making.filling({}) as folder:
                work(making, folder, log)


def test_killed_before_any_file_operation_the_same_call_gives_the_equal_output_and_leaves_nothing(tmp_path: Path) -> None:
    number, status = 0, -signal.SIGKILL
    while status:
        place, log = tmp_path / f"store-{number}", tmp_path / f"log-{number}"
        place.mkdir()

        def first(number: int = number, place: Path = place, log: Path = log) -> None:
            killed_at(number, place)
            make(place, log)

        status = status_of(forked(first))
        assert status in (0, -signal.SIGKILL)
        make(place, log)
        lines = log.read_text().splitlines()
        *_, last = [number for number, line in enumerate(lines) if line.startswith("from")]
        assert int(lines[last].removeprefix("from ")) >= sum(line.startswith("saved") for line in lines[:last]), (
            "what was saved is not done again"
        )
        left = {path.relative_to(place).as_posix() for path in place.rglob("*")} - FOLDERS
        assert left == {"outputs/finetune/v1/manifest.json", "outputs/finetune/v1/numbers"}, f"killed before operation {number}"
        assert (place / "outputs/finetune/v1/numbers").read_text() == "0\n1\n2\n"
        number += 1
    assert number > 30


def test_two_processes_on_one_version_are_one_after_the_other_and_the_second_says_for_whom_it_waits(tmp_path: Path) -> None:
    log, (is_in, may_go) = tmp_path / "log", (os.pipe(), os.pipe())

    def first() -> None:
        with Store(tmp_path / "store", tmp_path / "one").making("finetune", "v1") as making, making.filling({}) as folder:
            os.write(is_in[1], b".")
            os.read(may_go[0], 1)
            work(making, folder, log)

    def second() -> None:
        sys.stdout = Told(may_go[1])
        make(tmp_path / "store", log, tmp_path / "two")
        (tmp_path / "said").write_text(sys.stdout.text)

    processes = [forked(first)]
    os.read(is_in[0], 1)
    processes.append(forked(second))
    assert [status_of(process) for process in processes] == [0, 0]
    assert log.read_text().count("from") == 1
    said = (tmp_path / "said").read_text()
    assert said.count(f"finetune: process {processes[0]} on ") == said.count("waiting for it") == 1


class Told(io.StringIO):
    """Lets the process that is waited for go on when that is said."""

    def __init__(self, gate: int) -> None:
        super().__init__()
        self._gate = gate

    @property
    def text(self) -> str:
        return self.getvalue()

    def write(self, text: str) -> int:
        if "waiting for it" in text:
            os.write(self._gate, b".")
        return super().write(text)


def test_who_waits_for_a_process_that_is_killed_goes_on_from_its_progress(tmp_path: Path) -> None:
    log, is_in = tmp_path / "log", os.pipe()

    def first() -> None:
        with Store(tmp_path, tmp_path).making("finetune", "v1") as making, making.filling({}):
            append_line(making.progress / "count.jsonl", "0")
            os.write(is_in[1], b".")
            signal.pause()

    process = forked(first)
    os.read(is_in[0], 1)
    waiting = forked(lambda: make(tmp_path, log))
    os.kill(process, signal.SIGKILL)
    assert (status_of(process), status_of(waiting)) == (-signal.SIGKILL, 0)
    assert log.read_text().startswith("from 1\n")
    assert (tmp_path / "outputs/finetune/v1/numbers").read_text() == "0\n1\n2\n"

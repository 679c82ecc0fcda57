"""A process that forks the jobs that tests may kill: it imports once, because an import takes seconds.

`jobs.py` serves, and `Forks` starts it. This file imports only the standard library.
"""

import contextlib
import ctypes
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

JOBS: Final = Path(__file__).with_name("jobs.py")
MARK: Final = "CHESS_GRPO_TESTS_MARK"
"""The variable by which all that descends from a process is known."""
_PR_SET_PDEATHSIG = 1
_PATIENCE_SECONDS = 1_000.0
_HOURS_OFF = 12
_SECONDS_BETWEEN_JUMPS = 1.0

Job = dict[str, Any]


def serve(run: Callable[[Job], None], others: Mapping[str, Callable[[Job], int]]) -> None:
    """Answer each line of JSON with a number; first with this process's id.

    `start` forks a process that runs the job and prints into its `log`, and gives its id; `wait` gives how one ended, negative for a
    signal. Several may be at work. Other words are `others`.
    """
    answers = os.dup(1)
    os.dup2(2, 1)  # What a library prints is no answer.

    def answer(number: int) -> None:
        os.write(answers, f"{number}\n".encode())

    answer(os.getpid())
    for line in sys.stdin:
        job = json.loads(line)
        match job["do"]:
            case "start":
                if pid := os.fork():
                    answer(pid)
                else:
                    _work(run, job)
            case "wait":
                answer(os.waitstatus_to_exitcode(os.waitpid(job["pid"], 0)[1]))
            case word:
                answer(others[word](job))


def _work(run: Callable[[Job], None], job: Job) -> None:
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # Nothing is left when the tests are cut off.
    faulthandler.enable()
    status = 0
    try:
        run(job)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def at(nth: int, place: Any, name: str, deed: Callable[..., object], *, is_after: bool = False) -> None:
    """Do the deed before, or after, the nth call of a function of a module or class; the deed gets the call's arguments."""
    whole, calls = getattr(place, name), 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        is_nth = calls == nth
        if is_nth and not is_after:
            deed(*arguments)
        found = whole(*arguments, **named)
        if is_nth and is_after:
            deed(*arguments)
        return found

    setattr(place, name, wrapped)


def let_clock_jump(seed: str, folder: Path) -> None:
    """Set this process's clock off by up to 12 hours, each second by another amount; files below the folder were written by such clocks."""
    real_ns, utime = time.time_ns, os.utime

    def now_ns() -> int:
        stretch = int(time.monotonic() / _SECONDS_BETWEEN_JUMPS)
        return real_ns() + int(3_600e9 * random.Random(f"{seed} {stretch}").uniform(-_HOURS_OFF, _HOURS_OFF))

    def touch(path: Any, times: Any = None, **more: Any) -> None:
        utime(path, **more | ({"ns": (now_ns(), now_ns())} if times is None and "ns" not in more else {"times": times}))

    time.time_ns, time.time, os.utime = now_ns, lambda: now_ns() / 1e9, touch
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            touch(path)


class Forks:
    """`jobs.py` at work; its environment is that of the tests without the project's own variables, but for the engine."""

    def __init__(self, kind: str, *, within: tuple[str, ...] = (), variables: Mapping[str, str] | None = None, **more: Any) -> None:
        """Start it for jobs of a kind; `within` is a command that starts it, `more` is `Popen`'s."""
        command = [*within, sys.executable, str(JOBS), kind]
        # Without what an import has set in this process: a job would take it for inherited, and a run would do without.
        environment = inherited() | dict(variables or {})
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, **more)
        self._at_work: set[int] = set()
        self.pid = self._answer()

    def fork(self, **job: Any) -> int:
        """Start a job, and return its process id."""
        pid = self.ask("start", **job)
        self._at_work.add(pid)
        return pid

    def wait(self, pid: int) -> int:
        """Wait until a job ends, and return its exit status, negative for a signal."""
        if not ends_within(pid, _PATIENCE_SECONDS):
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} went on for {_PATIENCE_SECONDS:g} s and was killed")
        self._at_work.discard(pid)
        return self.ask("wait", pid=pid)

    def ask(self, word: str, **job: Any) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": word, **job}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        for pid in self._at_work:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.communicate(timeout=300)

    def _answer(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return int(line)


def inherited() -> dict[str, str]:
    """Return the environment of these tests without what this project reads, but for the engine."""
    ours = ("CHESS_GRPO_", "MLFLOW_", "SOAK_")
    return {name: value for name, value in os.environ.items() if name == "CHESS_GRPO_STOCKFISH" or not name.startswith(ours)}


def ends_within(pid: int, seconds: float) -> bool:
    """Wait so long, or until a process ends, and return whether it has."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not has_ended(pid):
        time.sleep(0.01)
    return has_ended(pid)


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or only waits to be asked how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (OSError, IndexError):
        return True


def marked(mark: str) -> dict[int, str]:
    """Return all living processes that carry this mark in their environment: id -> command line."""
    found, needle = {}, f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0") and not has_ended(int(entry.name)):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found

"""The scheduler's lines, as a terminal of 80 characters shows them."""

import io
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steps.runtime.commands import pasteable
from steps.runtime.console import Console

_SAID = """\
Metaflow 2.19.39 executing ChessGrpo for user:me
2026-11-23 15:39:39.010 Workflow starting (run-id 17):
2026-11-23 15:39:40.010 [17/start/1 (pid 12)] Task is starting.
2026-11-23 15:40:01.310 [17/start/1 (pid 12)] ok    stockfish  Stockfish 15.1 (sha256 af67e5f96d92cf6a) at /usr/games/stockfish
2026-11-23 15:40:02.010 [17/start/1 (pid 12)] Foreach yields 2 child steps.
2026-11-23 15:40:02.110 [17/start/1 (pid 12)] Task finished successfully.
2026-11-23 15:40:05.000 [17/build_boards/2 (pid 13)] build_boards: step 1 of 11
2026-11-23 15:40:05.001 [17/build_boards/3 (pid 14)] build_boards: step 1 of 11
2026-11-23 15:41:05.000 [17/build_boards/3 (pid 14)] \x1b[1mspot interruption notice\x1b[22m
2026-11-23 15:44:00.000 2 tasks are running: build_boards (2 running; 0 done).
2026-11-23 15:44:00.001 No tasks are waiting in the queue.
2026-11-23 15:44:00.002 9 steps have not started: select, end, join_boards.
2026-11-23 15:45:05.000 [17/end/20 (pid 30)] Verdict: better. Step 6 beats its own start.
2026-11-23 15:45:05.001 [17/end/20 (pid 30)] .venv/bin/chess-grpo card last
2026-11-23 15:45:05.002 Done!
"""


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_have_the_time_and_the_step_and_what_metaflow_says_of_itself_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    terminal, file = _Terminal(), io.StringIO()
    for out in (terminal, file):
        console = Console(out)
        for part in (_SAID[:100], _SAID[100:333], _SAID[333:]):  # Click writes a line in pieces.
            print(part, end="", file=console, flush=True)
    assert (
        terminal.getvalue()
        == """\
Metaflow 2.19.39 executing ChessGrpo for user:me
15:39 Workflow starting (run-id 17):
15:40 start: ok    stockfish  Stockfish 15.1 (sha256 af67e5f96d92cf6a) at
        /usr/games/stockfish
15:40 build_boards: step 1 of 11
15:41 build_boards: spot interruption notice
Verdict: better. Step 6 beats its own start.
.venv/bin/chess-grpo card last
"""
    )
    assert " ".join(file.getvalue().split()) == " ".join(terminal.getvalue().split())
    assert "at /usr/games/stockfish\n" in file.getvalue(), "only a terminal has a width"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_last_where_it_is_and_how_to_go_on(number: signal.Signals) -> None:
    program = """
import os, signal, sys
from steps.runtime.console import Console
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background jobs are started without.
console = Console(sys.stdout)
console.stop_at_signals()
console.write(sys.argv[1])
console.flush()
os.kill(os.getpid(), int(sys.argv[2]))
"""
    begun = _SAID[: _SAID.index("2026-11-23 15:45")]
    done = subprocess.run([sys.executable, "-c", program, begun, str(int(number))], capture_output=True, text=True, check=False)
    said = done.stdout.splitlines()[-1]
    assert (done.returncode, done.stderr) == (-number, "")
    assert said.startswith("Stopped in build_boards (step 1 of 11). Nothing is lost; go on: ")
    assert said.endswith("flows/chess_grpo.py --no-pylint resume --origin-run-id 17")


def test_a_command_is_printed_with_the_path_that_works_when_pasted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    programs, elsewhere = tmp_path / "checkout" / ".venv" / "bin", tmp_path / "elsewhere"
    programs.mkdir(parents=True)
    elsewhere.mkdir()
    for name in ("python", "chess-grpo"):
        (programs / name).touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path / "checkout")
    assert pasteable("chess-grpo show last") == ".venv/bin/chess-grpo show last"
    assert pasteable("make ui") == "make ui"
    monkeypatch.chdir(elsewhere)
    assert pasteable("chess-grpo runs") == f"{programs}/chess-grpo runs"
    monkeypatch.setenv("PATH", str(programs))
    assert pasteable("chess-grpo runs") == "chess-grpo runs", "the environment is active"

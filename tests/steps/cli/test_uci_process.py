"""The engine as chess programs have it: what they check, how it ends, spoilt lines, and whole games."""

import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import chess
import pytest
from doubles import CPU, TINY

from grpo.policy.policy import new_policy
from grpo.uci.options import UciError, UciOptions
from grpo.uci.search import PolicyMoveFinder
from grpo.uci.server import UciEngine, read_position, serve

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
LINE = re.compile(
    r"id (name|author) .+|uciok|readyok|option name .+ type .+|bestmove (\(none\)|0000|[a-h][1-8][a-h][1-8][nbrq]?)"
    r"|info string .+|info depth \d+ .*score (cp|mate) -?\d+.*"
)
FIRST_COMMANDS = ("uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go", "stop", "ponderhit", "quit")


class Engine:
    def __init__(self, model: Path) -> None:
        command, pipe = [sys.executable, "-m", "steps.cli.main", "uci", "--model", str(model)], subprocess.PIPE
        # Whoever runs the tests may ignore interrupts, as shells do for what they start in the background; children inherit that.
        listen = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        pipes = {"stdin": pipe, "stdout": pipe, "stderr": pipe}
        self.process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, text=True, bufsize=1, preexec_fn=listen, **pipes)  # noqa: PLW1509

    def ask(self, line: str, beginning: str) -> list[str]:
        """Send lines, and return what comes up to the one that begins so."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        got: list[str] = []
        while not (got and got[-1].startswith(beginning)):
            got.append(self.process.stdout.readline().rstrip("\n"))
            assert LINE.fullmatch(got[-1]), got
        return got


@pytest.fixture
def engine(policy: Path) -> Iterator[Engine]:
    started = Engine(policy)
    yield started
    started.process.kill()
    started.process.communicate()


def test_it_meets_fastchess_compliance_list_and_an_interrupt_in_a_search_ends_it_quietly(engine: Engine) -> None:
    """https://github.com/Disservin/fastchess, app/src/engine/compliance.hpp."""
    assert {line.partition(" ")[0] for line in engine.ask("uci", "uciok")} == {"id", "option", "uciok"}
    for line in ("", "ucinewgame\n", "position startpos\n", "position fen 6k1/p5n1/1pq5/2p3p1/2P1P1n1/1P6/PN1Q2K1/5R2 w - - 0 27\n"):
        engine.ask(f"{line}isready", "readyok")
    moves = "ucinewgame\nposition startpos moves e2e4 e7e5\ngo wtime 100 btime 100"
    for line in ("go wtime 100", "go wtime 100 winc 100 btime 100 binc 100", moves):
        *_, info, best = [each for each in engine.ask(line, "bestmove") if " score " in each or each.startswith("bestmove")]
        assert len(best.split()) == 2
        assert " pv " in info
        assert "." not in info, "whole numbers"
    engine.ask("go infinite", "info depth")
    assert engine.ask("isready", "readyok")[-1] == "readyok"
    assert engine.ask("stop", "bestmove")[-1].startswith("bestmove ")
    engine.process.send_signal(signal.SIGINT)
    assert "".join(engine.process.communicate()).strip() == ""
    assert engine.process.returncode == 130


def test_without_a_policy_a_chess_program_gets_the_reason_by_the_protocol(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "steps.cli.main", "uci", "--model", "peak"]
    environment = {**ENVIRONMENT, "CHESS_GRPO_HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, input="uci\n", capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stdout.splitlines()
    assert line.startswith("info string error: no policy of preset ")
    assert len(done.stderr.splitlines()) == 1


# Fuzz.

ENDED = ("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "8/8/8/8/8/8/8/8 w - - 0 1", "RRRRRRRR/QQQQQQQQ/8/8/8/8/8/k6K w - - 0 1")
OTHERS = ("uci", "isready", "ucinewgame", "stop", "ponderhit", "\u2028\x0b\x85", "setoption name MultiPV value 1e400")
LIMITS = (
    "",
    " depth 1",
    " nodes -1",
    " movetime 1",
    " wtime x",
    f" depth {'9' * 21}",
    " infinite",
    " ponder",
    " searchmoves e2e4 0000 zzzz",
)
STRAY = ("joho", "go", "moves", "fen", "startpos", "infinite", "value", "searchmoves", "\x00", "ü", "-", "0" * 5_000)


def some_line(rng: random.Random) -> str:
    """Return a line as programs write them, or half of the time a spoilt one."""
    board = chess.Board()
    for _ in range(rng.randrange(40)):
        if legal := list(board.legal_moves):
            board.push(rng.choice(legal))
    moves = " ".join(move.uci() for move in board.move_stack)
    position = rng.choice([f"startpos moves {moves}", f"fen {board.fen()}", f"fen {rng.choice(ENDED)}"])
    words = rng.choice([f"position {position}", f"go{rng.choice(LIMITS)}", rng.choice(OTHERS)]).split(" ")
    at = rng.randrange(len(words))
    match rng.randrange(8):
        case 0:
            del words[at]
        case 1:
            words.insert(at, rng.choice([*words, *STRAY]))
        case 2:
            words[at] = "".join(rng.sample(words[at], len(words[at])))
        case 3:
            words = words[:at]
    return " ".join(words)


def first_command(line: str) -> str | None:
    return next((word for word in line.split() if word in FIRST_COMMANDS), None)


def test_a_thousand_fuzzed_lines_get_what_they_are_owed_and_no_more() -> None:
    rng = random.Random(1)
    lines = [line for line in (some_line(rng) for _ in range(1_000)) if first_command(line) != "quit"]
    said: list[str] = []
    policy = new_policy(TINY, seed=5, device=CPU)
    options = UciOptions(temperature=0.0)
    engine = UciEngine(name="fuzzed", options=options, load=lambda: PolicyMoveFinder(policy), seed=1, write=said.append)
    serve(engine, [line.encode() for line in [*lines, "stop", "isready"]])
    assert not [line for line in said if not LINE.fullmatch(line)]
    board: chess.Board | None = chess.Board()
    asked: list[chess.Board | None] = []
    for line in lines:
        if first_command(line) == "position":
            words = line.split()
            try:
                board = read_position(words[words.index("position") + 1 :])
            except UciError:
                board = None
        elif first_command(line) == "go":
            asked.append(board)
    best = [line.split()[1] for line in said if line.startswith("bestmove")]
    assert len(best) == len(asked) > 200
    for move, about in zip(best, asked, strict=True):
        legal = {"0000"} if about is None else {legal.uci() for legal in about.legal_moves} or {"(none)"}
        assert move in legal, about
    assert said.count("readyok") == sum(first_command(line) == "isready" for line in lines) + 1
    assert sum("there is no position now" in line for line in said) > 20

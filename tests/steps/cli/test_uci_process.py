"""The engine as a process, as chess programs have it: what they check, what breaks engines, and whole games in real ones."""

import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue

import chess
import chess.engine
import chess.pgn
import pytest
from doubles import CPU, TINY

from grpo.base.files import read_json, write_json
from grpo.policy.distribution import new_policy
from grpo.policy.files import POLICY
from grpo.train.checkpoints import save_policy
from steps.cli.uci import command as uci_command

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 900.0  # Seconds until a test gives up: on a busy machine an engine imports for minutes.
LINE = re.compile(
    r"id (name|author) .+|uciok|readyok|option name .+ type .+|bestmove (\(none\)|[a-h][1-8][a-h][1-8][nbrq]?)"
    r"|info string .+|info depth \d+ .*score (cp|mate) -?\d+.*"
)
FIRST_COMMANDS = ("uci", "debug", "isready", "setoption", "register", "ucinewgame", "position", "go", "stop", "ponderhit", "quit")


@pytest.fixture(scope="module")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny policy's folder."""
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    folder.mkdir()
    save_policy(folder, new_policy(TINY, seed=5, device=CPU), TINY)
    return folder


@pytest.fixture(scope="module")
def command(policy_folder: Path) -> list[str]:
    return [sys.executable, "-m", "steps.cli.main", "uci", "--model", str(policy_folder)]


class Engine:
    """The process, seen from a chess program."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            # Whoever runs the tests may ignore interrupts, as shells do for what they start in the background; children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        self.lines: list[str] = []
        self.is_ended = False
        self._queue: Queue[str | None] = Queue()
        self._errors: list[str] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors += list(self.process.stderr)

    def send(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines))
        self.process.stdin.flush()

    def until(self, beginning: str, seconds: float = PATIENCE) -> list[str]:
        """Return the lines up to the one that begins so."""
        got: list[str] = []
        while not (got and got[-1].startswith(beginning)):
            try:
                line = self._queue.get(timeout=seconds)
            except Empty:
                raise AssertionError(f"no {beginning} within {seconds:g} s after {got}") from None
            assert line is not None, f"ended without {beginning} after {got}: {''.join(self._errors)}"
            got.append(line)
        self.lines += got
        return got

    def ask(self, line: str, beginning: str, seconds: float = PATIENCE) -> list[str]:
        self.send(line)
        return self.until(beginning, seconds)

    def end(self) -> tuple[int, list[str], str]:
        """Close its input and return exit code, the rest of its lines, and what it wrote to the standard error."""
        assert self.process.stdin is not None
        self.is_ended = True
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        rest: list[str] = []
        while (line := self._queue.get_nowait()) is not None:
            rest.append(line)
        self.lines += rest
        return code, rest, "".join(self._errors)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@pytest.fixture(scope="module")
def engine(command: list[str]) -> Iterator[Engine]:
    started = Engine(command)
    yield started
    if not started.is_ended:
        started.process.kill()
        started.end()


def answered(command: list[str], text: str) -> subprocess.CompletedProcess[str]:
    """Return how the process ends that gets this on its input."""
    return subprocess.run(command, cwd=ROOT, env=environment(), input=text, capture_output=True, text=True, timeout=PATIENCE, check=False)


# What fastchess --compliance checks: https://github.com/Disservin/fastchess, app/src/engine/compliance.hpp.


def best_and_info(engine: Engine, go: str) -> None:
    """Check a search as fastchess does: a best move, an info line with a score, and whole numbers in it."""
    got = engine.ask(go, "bestmove")
    assert len(got[-1].split()) == 2
    infos = [line for line in got if line.startswith("info") and "info string" not in line and " score " in line]
    assert infos
    tokens = infos[-1].split()
    for keyword in {"time", "nps", "score"} & set(tokens):
        assert "." not in tokens[tokens.index(keyword) + 1]
    assert "pv" in tokens


def test_it_meets_fastchess_compliance_list(engine: Engine) -> None:
    got = engine.ask("uci", "uciok")
    assert any(line.startswith("id name chess-grpo tiny ") for line in got)
    assert any(line.startswith("id author ") for line in got)
    engine.ask("isready", "readyok")
    engine.send("ucinewgame")
    engine.ask("isready", "readyok")
    engine.send("position startpos")
    engine.ask("isready", "readyok")
    engine.send("position fen 3r2k1/p5n1/1pq1p2p/2p3p1/2P1P1n1/1P1P2pP/PN1Q2K1/5R2 w - - 0 27")
    engine.ask("isready", "readyok")
    best_and_info(engine, "go wtime 100")
    engine.send("position fen rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1")
    best_and_info(engine, "go btime 100")
    best_and_info(engine, "go wtime 100 winc 100 btime 100 binc 100")
    best_and_info(engine, "go btime 100 binc 100 wtime 100 winc 100")
    engine.send("ucinewgame")
    engine.ask("isready", "readyok")
    engine.send("position startpos")
    best_and_info(engine, "go wtime 100 btime 100")
    engine.send("position startpos moves e2e4 e7e5")
    best_and_info(engine, "go wtime 100 btime 100")
    assert all(LINE.fullmatch(line) for line in engine.lines)


def test_fastchess_itself_finds_it_compliant(command: list[str]) -> None:
    fastchess = program("fastchess", "build it from https://github.com/Disservin/fastchess")
    done = subprocess.run(
        [fastchess, "--compliance", command[0], " ".join(command[1:])],
        cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert "Engine passed all compliance checks." in done.stdout, done.stdout + done.stderr


def program(name: str, remedy: str) -> str:
    """Return the path of a program that may not be there."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/games")
    if path is None:
        pytest.skip(f"no {name}: {remedy}")
    return path


# Starting and ending.


def test_in_a_search_it_answers_isready_and_goes_on_searching(engine: Engine) -> None:
    engine.ask("isready", "readyok")
    engine.send("go infinite")
    engine.until("info depth")
    for _ in range(20):
        assert engine.ask("isready", "readyok") == ["readyok"]
    assert engine.ask("stop", "bestmove")[-1].startswith("bestmove ")
    # And an interrupt ends it without a traceback.
    engine.process.send_signal(signal.SIGINT)
    engine.process.wait(PATIENCE)
    assert engine.end() == (130, [], "")


@pytest.mark.parametrize("last", ["quit\n", *(pytest.param(text, marks=pytest.mark.prove) for text in ("quit", ""))])
def test_in_a_search_quit_and_the_end_of_input_end_it_with_the_move_it_owes(last: str, command: list[str]) -> None:
    done = answered(command, f"go infinite\n{last}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].startswith("bestmove ")


def test_when_nobody_reads_it_ends_quietly(command: list[str]) -> None:
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.close()
    process.stdin.write("uci\nisready\ngo\n")
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.prove
def test_what_libraries_print_goes_to_the_standard_error(policy_folder: Path) -> None:
    script = f"""
import os, sys, warnings
from steps.cli import uci
load = uci._load
def noisy(model, machine):
    print("stray print")
    warnings.warn("stray warning")
    os.system("echo stray child")
    os.write(1, b"stray write\\n")
    return load(model, machine)
uci._load = noisy
sys.exit(uci.main(["--model", {str(policy_folder)!r}]))
"""
    done = answered([sys.executable, "-c", script], "uci\nisready\ngo\nquit\n")
    assert done.returncode == 0
    assert all(LINE.fullmatch(line) for line in done.stdout.splitlines())
    assert all(f"stray {kind}" in done.stderr for kind in ("print", "warning", "child", "write"))


@pytest.mark.prove
def test_with_the_standard_error_closed_it_plays_too(command: list[str]) -> None:
    done = answered(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], "isready\ngo\nquit\n")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "readyok"
    assert done.stdout.splitlines()[-1].startswith("bestmove ")


def test_without_a_model_it_does_not_start_and_says_why(command: list[str], tmp_path: Path) -> None:
    done = answered([*command[:-1], str(tmp_path / "nowhere")], "uci\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"chess-grpo: {tmp_path / 'nowhere'} is not a folder; give champion, peak or v7")
    assert "Traceback" not in done.stderr


def test_as_a_command_of_chess_grpo_it_plays_the_champion_on_the_cpu_by_its_best_move() -> None:
    with uci_command.make_context("uci", []) as context:
        assert context.params == {"model": "champion", "temperature": 0.0, "device": "cpu"}


@pytest.mark.prove
def test_a_device_that_is_not_there_is_told_to_the_chess_program_and_to_the_terminal(command: list[str]) -> None:
    done = answered([*command, "--device", "abacus"], "uci\nisready\ngo\n")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("info string error: CHESS_GRPO_DEVICE = 'abacus'")
    assert done.stderr.startswith("chess-grpo: CHESS_GRPO_DEVICE = 'abacus'")
    assert "readyok" not in done.stdout


# Fuzz.


def fuzzed_lines(count: int, rng: random.Random) -> list[str]:
    """Return lines as programs write them, half of them spoilt; none ends the process."""
    lines: list[str] = []
    while len(lines) < count:
        line = rng.choice(WRITERS)(rng)
        if rng.random() < 0.5:
            line = spoilt(line, rng)
        if first_command(line) != "quit":
            lines.append(line)
    return lines


def some_position(rng: random.Random) -> str:
    board = chess.Board()
    for _ in range(rng.randrange(0, 40)):
        legal = list(board.legal_moves)
        if not legal:
            break
        board.push(rng.choice(legal))
    moves = " ".join(move.uci() for move in board.move_stack)
    forms = [f"startpos moves {moves}", f"fen {board.fen()}", f"fen {chess.STARTING_FEN} moves {moves}", f"fen {rng.choice(ENDED)}"]
    return f"position {rng.choice(forms)}"


def some_go(rng: random.Random) -> str:
    words = ["go"]
    for name in rng.sample(["depth", "nodes", "movetime", "wtime", "btime", "winc", "movestogo", "mate", "perft"], rng.randrange(0, 4)):
        words += [name, rng.choice(["0", "1", "100", "-1", "999999999999999999999", "x"])]
    words += rng.sample(["infinite", "ponder"], rng.choice([0, 0, 0, 1, 2]))
    if rng.random() < 0.2:
        words += ["searchmoves", *rng.sample(["e2e4", "a7a6", "e1g1", "0000", "e2e5", "h2h1q", "zzzz"], rng.randrange(0, 4))]
    return " ".join(words)


def some_setoption(rng: random.Random) -> str:
    name = rng.choice(["Temperature", "MultiPV", "Seed", "Hash", "Threads", "Ponder", "Move Overhead", "UCI_Chess960", "", "value"])
    return f"setoption name {name} value {rng.choice(['0', '1', '3', '-1', '0.5', '1e400', 'true', '', 'nan', '219', 'name'])}"


def some_words(rng: random.Random) -> str:
    return "".join(
        chr(rng.choice([9, 11, 12, 28, 32, 133, 160, 0x2028, 0xD7FF, rng.randrange(1, 500)])) for _ in range(rng.randrange(0, 30))
    )


ENDED = [
    "rnb1kbnr/pppp1ppp/8/4p3/6Pq/5P2/PPPPP2P/RNBQKBNR w KQkq - 1 3",
    "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",
    "8/8/4k3/8/8/3K4/8/8 w - - 99 150",
    "8/8/8/8/8/8/8/8 w - - 0 1",
    "RRRRRRRR/QQQQQQQQ/8/8/8/8/8/k6K w - - 0 1",
]
WRITERS: list[Callable[[random.Random], str]] = [
    *[some_position] * 6,
    *[some_go] * 5,
    *[some_setoption] * 2,
    some_words,
    lambda rng: rng.choice(["uci", "isready", "ucinewgame", "stop", "stop", "ponderhit", "debug on", "debug off", "register"]),
]


def spoilt(line: str, rng: random.Random) -> str:
    """Return the line with some of it missing, doubled, swapped or changed."""
    words = line.split(" ")
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    match rng.randrange(7):
        case 0:
            del words[at]
        case 1:
            words.insert(at, words[other])
        case 2:
            words[at], words[other] = words[other], words[at]
        case 3:
            words[at] = "".join(rng.sample(words[at], len(words[at])))
        case 4:
            words[at] = words[at][: len(words[at]) // 2] + rng.choice(["9", "\x00", "\u00fc", "/", "-", "KQ", "0" * 5_000])
        case 5:
            words.insert(at, rng.choice(["joho", "go", "moves", "fen", "startpos", "infinite", "value", "searchmoves"]))
        case 6:
            words = words[:at]
    return " ".join(words).replace("\n", "").replace("\r", "")


def first_command(line: str) -> str | None:
    return next((word for word in line.split() if word in FIRST_COMMANDS), None)


def board_after(line: str, board: chess.Board) -> chess.Board:
    """Return the board after a `position` line, by other means than the engine's: texts of moves compared with the legal ones'."""
    words = line.split()
    words = words[words.index("position") + 1 :]
    end = words.index("moves") if "moves" in words else len(words)
    head, moves = words[:end], words[end + 1 :]
    try:
        if head == ["startpos"]:
            new = chess.Board()
        elif head[:1] == ["fen"]:
            new = chess.Board(" ".join(head[1:]))
        else:
            return board
    except ValueError:
        return board
    if not new.is_valid() or len(" ".join(head[1:])) > 128:
        return board
    for text in moves:
        legal = {move.uci(): move for move in new.legal_moves}
        if text not in legal:
            return board
        new.push(legal[text])
    return new


def check_fuzzed(command: list[str], count: int, seed: int) -> str:
    """Send fuzzed lines and check all that comes back; return how many of which kind there were."""
    lines = fuzzed_lines(count, random.Random(seed))
    done = answered(command, "".join(f"{line}\n" for line in [*lines, "stop", "isready"]))
    said = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert said[-1] == "readyok"
    strays = [line for line in said if not LINE.fullmatch(line)]
    assert not strays
    board, asked = chess.Board(), []
    for line in lines:
        if first_command(line) == "position":
            board = board_after(line, board)
        elif first_command(line) == "go":
            asked.append(board)
    best = [line.split()[1] for line in said if line.startswith("bestmove")]
    assert len(best) == len(asked)
    for move, about in zip(best, asked, strict=True):
        legal = {legal.uci() for legal in about.legal_moves}
        assert move in legal if legal else move == "(none)", about.fen()
    num_ready = sum(first_command(line) == "isready" for line in lines)
    assert said.count("readyok") == num_ready + 1
    num_refused = sum("the previous position stays" in line for line in said)
    return f"{count:,} lines: {len(best):,} best moves, {num_ready:,} times ready, {num_refused:,} positions refused"


def test_a_thousand_fuzzed_lines_get_what_they_are_owed_and_no_more(command: list[str]) -> None:
    assert re.match(r"1,000 lines: \d{3} best moves, [1-9]\d* times ready, \d{2,3} positions refused", check_fuzzed(command, 1_000, seed=1))


@pytest.mark.prove
def test_ten_thousand_fuzzed_lines_do_too(command: list[str]) -> None:
    print(check_fuzzed(command, 10_000, seed=2))


# Games in chess programs.


def check_games(
    command: list[str], opponent: Callable[[chess.Board], chess.Move], num_games: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Play games with changing colours in python-chess, which says when an engine writes what it should not."""
    with chess.engine.SimpleEngine.popen_uci([*command, "--temperature", "1"], timeout=PATIENCE, cwd=ROOT, env=environment()) as engine:
        for number in range(num_games):
            board = chess.Board()
            while not board.is_game_over(claim_draw=False) and board.ply() < 40:
                if board.turn == (number % 2 == 0):
                    played = engine.play(board, chess.engine.Limit(time=0.05), game=number, info=chess.engine.INFO_ALL)
                    assert played.move in board.legal_moves
                    assert played.info["pv"] == [played.move]
                    board.push(played.move)
                else:
                    board.push(opponent(board))
    assert not [record for record in caplog.records if record.name.startswith("chess")]


@pytest.mark.parametrize("num_games", [2, pytest.param(20, marks=pytest.mark.prove)])
def test_it_plays_games_in_python_chess_against_stockfish(
    num_games: int, command: list[str], stockfish: str, caplog: pytest.LogCaptureFixture
) -> None:
    with chess.engine.SimpleEngine.popen_uci(stockfish, timeout=PATIENCE) as opponent:

        def move(board: chess.Board) -> chess.Move:
            played = opponent.play(board, chess.engine.Limit(nodes=1)).move
            assert played is not None
            return played

        check_games(command, move, num_games, caplog)


def games_of(path: Path) -> list[chess.pgn.Game]:
    with path.open(encoding="utf-8", errors="replace") as file:
        return list(iter(lambda: chess.pgn.read_game(file), None))


def check_xboard(command: list[str], folder: Path, num_games: int) -> None:
    """Let XBoard run a match against Fairy-Stockfish; it ends games at illegal moves, crashes and lost time, and says so."""
    display = program("xvfb-run", "install it (apt-get install xvfb xauth)")
    xboard = program("xboard", "install it (apt-get install xboard)")
    program("polyglot", "install it (apt-get install polyglot): XBoard talks UCI through it")
    opponent = program("fairy-stockfish", "install it (apt-get install fairy-stockfish)")
    ours = folder / "engine.sh"
    ours.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec {" ".join(command)} --temperature 1\n')
    ours.chmod(0o755)
    done = subprocess.run(
        [
            *(display, "-a", xboard, "-noGUI", "-fUCI", "-fcp", str(ours), "-fd", ".", "-sUCI", "-scp", opponent, "-sd", "."),
            *("-mg", str(num_games), "-tc", "1", "-inc", "1", "-depth", "1", "-sgf", str(folder / "games.pgn"), "-debug"),
            *("-matchPause", "100", "-soundProgram", "", "-popupExitMessage", "false", "-popupMoveErrors", "false"),
        ],
        cwd=folder,
        env={**environment(), "HOME": str(folder), "PATH": f"{os.environ['PATH']}:/usr/games"},
        capture_output=True, text=True, timeout=PATIENCE + 60 * num_games, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = (folder / "xboard.debug").read_text(encoding="utf-8", errors="replace")
    told = log + done.stdout + done.stderr
    assert not re.search(r"illegal move|forfeits on time|exited unexpectedly|error \(unknown|died", told, re.IGNORECASE)
    games = games_of(folder / "games.pgn")
    assert len(games) == num_games
    assert {game.headers["Result"] for game in games} <= {"1-0", "0-1", "1/2-1/2"}
    assert sum("chess-grpo" in game.headers["White"] for game in games) == math.ceil(num_games / 2)
    assert not any(game.errors for game in games)
    ends = [game.end().comment for game in games]
    assert all(re.search("mate|draw|repetition|insufficient|50.move", end, re.IGNORECASE) for end in ends), ends


def test_xboard_plays_two_games_with_it(command: list[str], tmp_path: Path) -> None:
    check_xboard(command, tmp_path, 2)


def test_weights_that_do_not_fit_are_told_before_it_is_ready(policy_folder: Path, command: list[str], tmp_path: Path) -> None:
    folder = shutil.copytree(policy_folder, tmp_path / "other")
    write_json(folder / POLICY, {**read_json(folder / POLICY), "action_table": "deadbeef" * 8})
    done = answered([*command[:-1], str(folder)], "uci\nisready\n")
    assert (done.returncode, done.stdout) == (1, "")
    assert "action_table is deadbeefdead" in done.stderr

"""Fixtures for tests of the learning library: thousands of positions, and a check that no process is left."""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import chess
import pytest

NUM_RANDOM_BOARDS = 5_000
# The start, and positions rich in castling, promotions and en passant (https://www.chessprogramming.org/Perft_Results).
START_FENS = (
    chess.STARTING_FEN,
    "r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1",
    "8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1",
    "r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1",
)


@pytest.fixture(scope="session")
def random_boards() -> list[chess.Board]:
    """Return 5,000 positions with a legal move, reached by random play; every ply of a game is one of them."""
    rng = random.Random(20_240_229)
    boards: list[chess.Board] = []
    while len(boards) < NUM_RANDOM_BOARDS:
        board = chess.Board(START_FENS[len(boards) % len(START_FENS)])
        for _ in range(rng.randrange(20, 160)):
            legal = list(board.legal_moves)
            if not legal or len(boards) == NUM_RANDOM_BOARDS:
                break
            boards.append(board.copy(stack=False))
            pawn_moves = [move for move in legal if board.piece_type_at(move.from_square) == chess.PAWN]
            # Pawns move more often than by chance, for the sake of en passant and promotions.
            board.push(rng.choice(pawn_moves if pawn_moves and rng.random() < 0.35 else legal))
    return boards


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """Fail when a process of this test's engines, or any new child of this process, is left at its end, dead or alive."""
    children = _children()
    yield
    left: set[int] = set()
    until = time.monotonic() + 60  # What was killed by force may take a moment to go; what was not killed stays.
    while time.monotonic() < until:
        left = _children() - children | _named(tmp_path)
        if not left:
            return
        time.sleep(0.05)
    pytest.fail(f"processes still run, or are zombies: {left}")


def _children() -> set[int]:
    return {int(pid) for thread in Path("/proc/self/task").iterdir() for pid in _read(thread / "children").split()}


def _named(folder: Path) -> set[int]:
    """Return the processes whose command line names a folder."""
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if str(folder) in _read(entry / "cmdline")} - {os.getpid()}


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""  # The process has ended meanwhile.

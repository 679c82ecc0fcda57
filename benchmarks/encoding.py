"""Benchmarks board encoding and move lookup against simpler implementations: `python benchmarks/encoding.py`. Quote ratios, not times."""

import random
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import chess
import numpy as np

from grpo.board.actions import ACTIONS, legal_action_ids, mirror_move
from grpo.board.encoding import encode, encode_fens

_NUM_BOARDS = 2_000
_REPEATS = 7
_IDS = {move: index for index, move in enumerate(ACTIONS)}
_Position = TypeVar("_Position")


def boards() -> list[chess.Board]:
    """Return positions of random games."""
    rng, found, board = random.Random(0), [], chess.Board()
    while len(found) < _NUM_BOARDS:
        if board.ply() > 120 or not any(board.legal_moves):
            board = chess.Board()
        board.push(rng.choice(list(board.legal_moves)))
        if any(board.legal_moves):
            found.append(board.copy(stack=False))
    return found


def encode_by_mirror(positions: list[chess.Board]) -> None:
    """Encode by turning the board first and reading it square by square."""
    rows = np.zeros((len(positions), 64), dtype=np.uint8)
    for row, board in zip(rows, positions, strict=True):
        view = board if board.turn == chess.WHITE else board.mirror()
        for square, piece in view.piece_map().items():
            row[square] = piece.piece_type + (0 if piece.color == chess.WHITE else 6)


def ids_by_dictionary(positions: list[chess.Board]) -> None:
    """Look moves up as objects."""
    for board in positions:
        moves = board.legal_moves if board.turn == chess.WHITE else map(mirror_move, board.legal_moves)
        sorted(_IDS[move] for move in moves)


def encode_by_board(fens: list[str]) -> None:
    """Parse each FEN into a board of python-chess first."""
    encode([chess.Board(fen) for fen in fens])


def compare(
    name: str, slow: Callable[[list[_Position]], object], fast: Callable[[list[_Position]], object], positions: list[_Position]
) -> None:
    """Print the ratio of the two; they alternate, so that a change of the machine's speed affects both."""
    ratios = []
    for _ in range(_REPEATS):
        times = []
        for way in (slow, fast):
            start = time.perf_counter()
            way(positions)
            times.append(time.perf_counter() - start)
        ratios.append(times[0] / times[1])
    print(f"{name}: {statistics.median(ratios):.1f} times [{min(ratios):.1f}, {max(ratios):.1f}]")


if __name__ == "__main__":
    compare("encoding, mirrored board / bitboards", encode_by_mirror, encode, boards())
    compare("encoding of FENs, by boards / by text", encode_by_board, encode_fens, [board.fen() for board in boards()])
    compare(
        "legal ids, dictionary of moves / table", ids_by_dictionary, lambda found: [legal_action_ids(board) for board in found], boards()
    )

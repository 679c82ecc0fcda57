"""Afterstates against python-chess: what stands where, who controls it, and how games end, move by move."""

import random
from collections.abc import Iterator

import chess
import numpy as np
import pytest
import torch
from torch import Tensor

from grpo.board.actions import action_id, action_move, legal_action_ids
from grpo.board.afterstates import afterstates
from grpo.board.encoding import CASTLING, HALFMOVE_CLOCK, encode, mover_view

MATE, DRAW, CLOCK = 4, 5, 6
"""Columns of the features after the castling rights."""


def flat_moves(boards: list[chess.Board]) -> tuple[Tensor, Tensor, Tensor]:
    ids = [legal_action_ids(board) for board in boards]
    rows = torch.tensor([row for row, legal in enumerate(ids) for _ in legal], dtype=torch.int64)
    return torch.from_numpy(encode(boards)), rows, torch.tensor([index for legal in ids for index in legal], dtype=torch.int64)


def after_moves(boards: list[chess.Board]) -> Iterator[chess.Board]:
    """Yield the position after every legal move, with the player who has moved as White."""
    for board in boards:
        view = mover_view(board).copy(stack=False)
        for index in legal_action_ids(board):
            view.push(action_move(index, chess.WHITE))
            yield view
            view.pop()


def turned(encoding: np.ndarray) -> np.ndarray:
    """Return the piece codes of an encoding from the other side."""
    codes = encoding[:64].reshape(8, 8)[::-1].reshape(64)
    return np.where(codes == 0, 0, (codes + 5) % 12 + 1)


def control(board: chess.Board, color: chess.Color, square: chess.Square) -> int:
    """Return how a side controls a square: 0, or the lowest attacker, plus 6 if it is not alone."""
    kinds = [board.piece_type_at(attacker) for attacker in board.attackers(color, square)]
    return min(kind for kind in kinds if kind) + 6 * (len(kinds) > 1) if kinds else 0


def without_black_king(board: chess.Board) -> chess.Board:
    seen = board.copy(stack=False)
    king = seen.king(chess.BLACK)
    assert king is not None
    seen.remove_piece_at(king)
    return seen


def bitboard_afterstates(encodings: Tensor, rows: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of all squares that the changes lead to, [3, N, 64], and the features."""
    after = afterstates(encodings, rows, ids)
    codes = after.board[:, rows].clone()
    assert torch.equal(codes[:, after.moves, after.squares], after.before)
    assert (after.before != after.after).any(0).all(), "no more squares than needed"
    assert (after.moves.diff() >= 0).all()
    codes[:, after.moves, after.squares] = after.after
    return codes, after.features


def test_pieces_rights_clock_mate_and_draws_are_those_of_python_chess(random_boards: list[chess.Board]) -> None:
    boards = random_boards[::40]
    rng = random.Random(0)
    codes, features = bitboard_afterstates(*flat_moves(boards))
    reached = []
    for index, (after, (mate, draw)) in enumerate(zip(after_moves(boards), features[:, [MATE, DRAW]].bool().tolist(), strict=True)):
        has_reply = any(after.generate_legal_moves())
        assert mate == (after.is_check() and not has_reply), after.fen()
        ends = not has_reply or after.is_insufficient_material() or after.halfmove_clock >= 100
        assert draw == (ends and not mate), after.fen()
        reached.append(after.copy(stack=False))
        square = rng.randrange(64)
        assert codes[1, index, square] == control(without_black_king(after), chess.WHITE, square), (after.fen(), square)
        assert codes[2, index, square] == control(after, chess.BLACK, square), (after.fen(), square)
    assert features[:, [MATE, DRAW]].any(0).all()
    encodings = encode(reached)
    assert np.array_equal(codes[0].numpy(), np.stack([turned(encoding) for encoding in encodings]))
    rights = np.roll(encodings[:, CASTLING], 2, axis=1)
    assert np.array_equal(features[:, :4].numpy(), rights)
    assert np.array_equal((features[:, CLOCK] * 100).round().numpy(), encodings[:, HALFMOVE_CLOCK])


@pytest.mark.parametrize(
    ("fen", "uci", "mates", "draws"),
    [
        ("6k1/5ppp/8/8/8/8/8/R3K3 w Q - 0 1", "a1a8", True, False),
        ("k7/8/K7/8/8/8/8/1Q6 w - - 99 80", "b1b7", True, False),  # Mate comes before fifty moves.
        ("k7/8/K7/8/8/8/8/2Q5 w - - 99 80", "c1c2", False, True),
        ("k7/8/1K6/8/8/8/8/2Q5 w - - 0 1", "c1c7", False, True),  # Stalemate.
        ("8/8/8/8/8/1k6/8/K1r5 b - - 0 1", "c1c8", False, False),
        ("8/8/8/3b4/8/1k6/2N5/K7 b - - 0 1", "b3c2", False, True),  # A bishop alone.
        ("8/8/8/3n4/8/1k6/2N5/K7 b - - 0 1", "b3c2", False, True),  # A knight alone.
        ("8/8/2b5/3n4/8/1k6/2N5/K7 b - - 0 1", "b3c2", False, False),
        # The only reply to check is en passant.
        ("8/8/8/1k6/1p6/1R3B2/P6R/3K2R1 w - - 0 1", "a2a4", False, False),
        # It is not: both pawns leave the rank of the king.
        ("6b1/8/8/8/kpR5/2P5/P7/2K5 w - - 0 1", "a2a3", False, False),
        # Double check: only the king may move, and it cannot.
        ("r1bqkb1r/pp1n1ppp/2p5/4N3/8/8/PPPPQPPP/RNB1KB1R w KQkq - 0 1", "e5c6", False, False),
        ("4k3/3pPp2/3P1P2/8/8/8/8/4K3 w - - 0 1", "e1e2", False, True),
    ],
)
def test_ends_of_games_that_rarely_occur(fen: str, uci: str, mates: bool, draws: bool) -> None:
    board, move = chess.Board(fen), chess.Move.from_uci(uci)
    ids = torch.tensor([action_id(move, board.turn)])

    _, features = bitboard_afterstates(torch.from_numpy(encode([board])), torch.tensor([0]), ids)

    board.push(move)
    assert board.is_checkmate() == mates, "the example is right"
    assert (features[0, MATE], features[0, DRAW]) == (mates, draws)

"""Legal moves and the positions after moves, against python-chess."""

import chess
import pytest
import torch

from grpo.board.actions import action_move, legal_action_ids
from grpo.board.encoding import EN_PASSANT, encode
from grpo.board.moves import legal_actions, positions_after

TRICKY = [
    "r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1",  # Castling on both sides.
    "r3k2r/8/8/8/8/8/6p1/R3K2R w KQkq - 0 1",  # A pawn controls f1 and attacks h1.
    "1r2k3/8/8/8/8/8/8/R3K2R w KQ - 3 1",  # A rook attacks b1, which the king does not cross.
    "4k3/8/8/8/4r3/8/8/R3K2R w KQ - 0 1",  # No castling out of check.
    "rn2k2r/8/8/8/8/8/8/R2QKB1R b KQkq - 0 1",
    "8/8/8/K2pP2r/8/8/8/4k3 w - d6 0 1",  # The capture would remove two pawns from the king's rank.
    "4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1",
    "4k3/8/4r3/3pP3/8/8/8/4K3 w - d6 0 1",  # The capturing pawn is pinned.
    "8/8/8/1k6/2pP4/8/8/4K3 b - d3 0 1",  # The capture answers a pawn's check.
    "2r1k3/1P6/8/8/8/8/6p1/4K2R w K - 99 80",  # Promotions, with and without a capture; the clock is at its end.
    "4k3/8/5N2/8/8/4R3/8/4K3 b - - 0 1",  # Double check.
    "4k3/4r3/8/8/8/8/4B3/4K3 w - - 0 1",  # A pinned bishop.
    "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1",  # Stalemate.
    "6k1/5ppp/8/8/8/8/8/K2R4 w - - 0 1",  # A mate in one.
    "8/8/8/8/8/k7/8/K6q w - - 0 1",  # Checkmate.
]


@pytest.fixture
def boards(random_boards: list[chess.Board]) -> list[chess.Board]:
    tricky = [chess.Board(fen) for fen in TRICKY]
    return [*tricky, *(board.mirror() for board in tricky), *random_boards[::10]]


def moves_of(boards: list[chess.Board]) -> list[tuple[int, int]]:
    return [(row, index) for row, board in enumerate(boards) for index in legal_action_ids(board)]


def test_legal_moves_are_those_of_python_chess(boards: list[chess.Board]) -> None:
    rows, ids = legal_actions(torch.from_numpy(encode(boards)))
    assert list(zip(rows.tolist(), ids.tolist(), strict=True)) == moves_of(boards)


def test_positions_after_moves_are_those_of_python_chess(boards: list[chess.Board]) -> None:
    moves = moves_of(boards)
    rows, ids = torch.tensor(moves).unbind(1)
    after = []
    for row, index in moves:
        board = boards[row].copy(stack=False)
        board.push(action_move(index, board.turn))
        after.append(board)
    encodings, expected = positions_after(torch.from_numpy(encode(boards)), rows, ids), torch.from_numpy(encode(after))
    can_capture = expected[:, EN_PASSANT] > 0
    assert can_capture.any()
    jumped = torch.tensor([board.ep_square is not None for board in after])
    assert torch.equal(encodings[:, EN_PASSANT] > 0, jumped), "the file is known even if no pawn can capture"
    encodings[:, EN_PASSANT] *= can_capture
    assert torch.equal(encodings, expected)
    rows, ids = legal_actions(positions_after(torch.from_numpy(encode(boards)), *torch.tensor(moves).unbind(1)))
    assert list(zip(rows.tolist(), ids.tolist(), strict=True)) == moves_of(after)

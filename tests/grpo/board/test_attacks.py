"""Attack counts against python-chess, square by square."""

import chess
import numpy as np
import torch

from grpo.board.attacks import NUM_ATTACK_COUNTS, attack_counts
from grpo.board.encoding import encode, mover_view


def counts_of(boards: list[chess.Board]) -> torch.Tensor:
    return attack_counts(torch.from_numpy(encode(boards))[:, :64])


def expected_counts(board: chess.Board) -> np.ndarray:
    seen = mover_view(board)
    counts = np.zeros((64, NUM_ATTACK_COUNTS), dtype=np.uint8)
    for square in chess.SQUARES:
        for first, color in ((0, chess.WHITE), (6, chess.BLACK)):
            for attacker in seen.attackers(color, square):
                counts[square, first + seen.piece_type_at(attacker) - 1] += 1
    return counts


def test_counts_are_python_chess_s_attackers_in_positions_of_random_play(random_boards: list[chess.Board]) -> None:
    boards = random_boards[::9]

    found = counts_of(boards)

    for board, counts in zip(boards, found, strict=True):
        assert np.array_equal(counts.numpy(), expected_counts(board)), board.fen()
    assert found.amax(dim=(0, 1)).min() >= 1, "every kind of piece of both sides attacked something"
    assert found.max() >= 2


def test_nine_queens_and_a_full_board_are_counted_too() -> None:
    crowd = chess.Board("QQQQQQQk/QQQQQQQQ/8/3K4/8/8/8/8 w - - 0 1")
    full = chess.Board(None)
    for square in chess.SQUARES:
        full.set_piece_at(square, chess.Piece(chess.QUEEN if square not in (27, 60) else chess.KING, square < 32))

    for board in (crowd, full):
        assert np.array_equal(counts_of([board])[0].numpy(), expected_counts(board))


def test_a_board_s_counts_do_not_depend_on_the_others_of_its_batch(random_boards: list[chess.Board]) -> None:
    boards = random_boards[:40]

    assert torch.equal(counts_of(boards), torch.cat([counts_of([board]) for board in boards]))


def test_no_boards_have_no_counts() -> None:
    assert attack_counts(torch.zeros((0, 64), dtype=torch.uint8)).shape == (0, 64, NUM_ATTACK_COUNTS)

"""Sparse features: the sum by what a move changes is the plain sum over the position after it, also chosen, joined and mirrored."""

import chess
import torch
from doubles import some_boards
from torch import Tensor

from grpo.board.afterstates import NUM_CONTROLS, NUM_FEATURES, afterstates
from grpo.board.encoding import NUM_PIECE_CODES
from grpo.board.features import NUM_ROWS, REPETITION, joined
from grpo.policy.distribution import PositionBatch
from grpo.train.states import reflected

EMBEDDING = torch.randn(NUM_ROWS, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
GAME = chess.Board()
for _move in ("g1f3", "g8f6", "f3g1"):
    GAME.push_uci(_move)  # A move of Black's returns to the first position.
BOARDS = [*some_boards(60), GAME, chess.Board("4k3/1P6/8/8/8/8/8/R3K2R w KQ - 37 1")]


def sums(positions: PositionBatch) -> Tensor:
    """Return the sum of each move, from features that were computed before where there are any."""
    return positions.move_features().sums(EMBEDDING)


def plain_sums(positions: PositionBatch) -> Tensor:
    """Return the same over all squares of the position after each move."""
    control, piece, whole, repetition = EMBEDDING.split([NUM_PIECE_CODES * NUM_CONTROLS**2, NUM_PIECE_CODES * 64, NUM_FEATURES, 1])
    rows, columns = positions.is_legal.nonzero(as_tuple=True)
    after = afterstates(positions.encodings, rows, positions.action_ids[rows, columns])
    codes = after.board[:, rows].clone()
    codes[:, after.moves, after.squares] = after.after
    pieces, ours, theirs = codes
    squares = control[(pieces * NUM_CONTROLS + ours) * NUM_CONTROLS + theirs].sum(1) + piece[pieces * 64 + torch.arange(64)].sum(1)
    return squares + after.features.double() @ whole + positions.repeats[rows, columns, None] * repetition


def test_the_sum_by_changes_is_the_plain_sum_over_the_squares_of_the_afterstate() -> None:
    positions = PositionBatch.from_boards(BOARDS)
    assert positions.repeats.any()
    torch.testing.assert_close(sums(positions), plain_sums(positions), rtol=0, atol=1e-7)  # The clock is float32.
    fresh = EMBEDDING.clone()
    fresh[REPETITION] = 0
    differ = (sums(positions) != positions.move_features().sums(fresh)).any(1)
    assert torch.equal(differ, positions.repeats[positions.is_legal])


def test_features_computed_beforehand_stay_with_their_boards() -> None:
    positions, rows, turned = PositionBatch.from_boards(BOARDS), torch.randperm(len(BOARDS)), torch.arange(len(BOARDS)) % 2 > 0
    prepared = joined([part.with_features() for part in (positions.select_rows(rows[:40]), positions.select_rows(rows[40:]))])
    assert prepared.features is not None
    assert torch.equal(sums(prepared), sums(positions.select_rows(rows)))
    chosen = torch.tensor([50, 3, 3, 17, 0])
    assert torch.equal(sums(prepared.select_rows(chosen)), sums(positions.select_rows(rows[chosen])))
    images = reflected(positions.select_rows(rows), turned)
    assert not torch.equal(images.encodings, prepared.encodings)
    torch.testing.assert_close(sums(reflected(prepared, turned)), plain_sums(images), rtol=0, atol=1e-7)

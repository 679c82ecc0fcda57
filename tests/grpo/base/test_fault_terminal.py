"""Boards on which nobody can choose have probabilities, entropies and gradients without a NaN, alone and beside others."""

import chess
import pytest
import torch
from doubles import lively_policy, some_boards

from grpo.policy.distribution import MoveDistribution, PositionBatch

MATE = chess.Board("7k/6Q1/6K1/8/8/8/8/8 b - - 0 1")
STALEMATE = chess.Board("7k/5Q2/6K1/8/8/8/8/8 b - - 0 1")
ONE_MOVE = chess.Board("7k/8/5K2/6Q1/8/8/8/8 b - - 0 1")
BOARDS = [*some_boards(3), MATE, STALEMATE, ONE_MOVE]


def test_lost_and_drawn_boards_have_no_move_and_no_entropy_and_nothing_else_changes() -> None:
    assert [board.legal_moves.count() for board in BOARDS[3:]] == [0, 0, 1]
    policy = lively_policy()
    together = policy.distribution(PositionBatch.from_boards(BOARDS), temperature=1.0)
    alone = policy.distribution(PositionBatch.from_boards(BOARDS[:3]), temperature=1.0)
    assert torch.isfinite(together.log_probs).all()
    assert together.probs[3:].sum(1).tolist() == [0, 0, 1]
    assert together.entropy()[3:].tolist() == [0, 0, 0]
    assert together.kl_to(together)[3:].tolist() == [0, 0, 0]
    assert together.entropy()[:3].tolist() == pytest.approx(alone.entropy().tolist(), abs=1e-5)


def test_their_gradient_is_zero_and_not_nan() -> None:
    batch = PositionBatch.from_boards(BOARDS)
    logits = torch.randn(batch.is_legal.shape, requires_grad=True, generator=torch.Generator().manual_seed(0))
    distribution = MoveDistribution.from_logits(logits, batch.is_legal, temperature=0.7)
    (distribution.entropy().sum() + distribution.log_probs[:, 0].sum()).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[3:].any()
    assert logits.grad[:3].any(1).all()

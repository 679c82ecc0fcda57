"""Lichess's measures of moves, worked by hand: win probability 1 / (1 + exp(-0.00368208 centipawns))."""

import math

import numpy as np
import pytest

from grpo.engine.answers import Score
from grpo.engine.move_values import centipawns_of, value_of
from grpo.match.accuracy import move_quality


def quality(*moves: tuple[Score, Score]) -> tuple[float, ...]:
    """Return ACPL, accuracy and fraction of blunders, given each board's scores of the best and the played move."""
    best, played = (np.array([value_of(score) for score in scores]) for scores in zip(*moves, strict=True))
    return tuple(move_quality(best, played).values())


def test_a_value_gives_its_centipawns_again_and_a_mate_the_limit() -> None:
    scores = [Score(0), Score(-250), Score(999), Score(3_000), Score(2, is_mate=True), Score(-1, is_mate=True)]
    values = np.array([value_of(score) for score in scores])
    assert centipawns_of(values, limit=1_000) == pytest.approx([0, -250, 999, 1_000, 1_000, -1_000])
    rounded = values.astype(np.float32).astype(np.float64)  # Tables have float32.
    assert centipawns_of(rounded, limit=1_000) == pytest.approx([0, -250, 999, 1_000, 1_000, -1_000], abs=0.001)


def test_the_best_move_is_exact_and_a_lost_pawn_on_each_side_is_a_blunder() -> None:
    assert quality((Score(30), Score(30)), (Score(1_500), Score(1_100))) == pytest.approx((0, 100, 0))
    # 100 centipawns are 59.10 % of winning, -100 are 40.90 %: 18.21 % lost, 103.1668 exp(-0.04354415 * 18.2084) - 2.1669 = 44.52.
    assert quality((Score(100), Score(-100))) == pytest.approx((200, 44.52, 1), abs=0.01)
    # The mean of an exact move and this move.
    assert quality((Score(100), Score(-100)), (Score(0), Score(0))) == pytest.approx((100, 72.26, 0.5), abs=0.01)


def test_a_blunder_begins_at_a_drop_of_three_tenths_of_the_winning_chances() -> None:
    edge = math.log(1.3 / 0.7) / 0.00368208  # The chances 2p - 1 of 168.1 centipawns are 0.3.
    assert 168 < edge < 169
    assert [quality((Score(0), Score(-loss)))[2] for loss in (168, 169)] == [0, 1]


def test_a_mate_counts_as_ten_pawns() -> None:
    assert quality((Score(3, is_mate=True), Score(-2, is_mate=True))) == pytest.approx((2_000, 0, 1))
    assert quality((Score(3, is_mate=True), Score(9, is_mate=True))) == pytest.approx((0, 100, 0))

"""Shares with Wilson's interval, and what a policy's move on a board is credited with."""

import math

import chess
import numpy as np
import pytest
from doubles import CPU, TINY, WrittenPolicy, made_up_number, some_boards

from grpo.evaluation import exercises
from grpo.evaluation.exercises import Fault, LeftOut, LeftOuts, expected_credits, solved_fraction
from grpo.policy.distribution import new_policy
from grpo.reading.games import Reason


def test_wilsons_interval_is_that_of_the_oracle() -> None:
    share = solved_fraction([1.0] * 6 + [0.4] + [0.0] * 57)
    assert (share.num, share.solved, share.share) == (64, pytest.approx(6.4), pytest.approx(0.1))
    assert (share.low, share.high) == pytest.approx((0.048, 0.198), abs=5e-4)
    assert str(share) == " 10.0% [4.8%, 19.8%], 64"
    assert share.facts() == {"num": 64, "solved": share.solved, "share": share.share, "low": share.low, "high": share.high}


@pytest.mark.parametrize("num", [1, 10, 1_000])
def test_none_or_all_is_not_certain_and_the_ends_are_the_roots_of_the_normal_equation(num: int) -> None:
    none, every = solved_fraction([0.0] * num), solved_fraction([1.0] * num)
    assert (none.low, every.high) == (0.0, pytest.approx(1.0))
    assert none.high == pytest.approx(1.959964**2 / (num + 1.959964**2))
    assert every.low == pytest.approx(1 - none.high)
    some = solved_fraction([1.0] * num + [0.0] * num * 2)
    for end in (some.low, some.high):
        assert abs(some.share - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / (3 * num)))


def test_left_outs_are_counted_with_the_first_of_each_reason() -> None:
    found = LeftOuts()
    for offset, reason in enumerate((Reason.ILLEGAL_MOVE, Fault.NO_RATING, Reason.ILLEGAL_MOVE)):
        found.add(LeftOut(source="file", offset=1_000 * offset, reason=reason, detail="e2e5"))
    assert found.facts() == {
        "illegal move": {"count": 2, "first": "file, byte 0: illegal move (e2e5)"},
        "no rating": {"count": 1, "first": "file, byte 1,000: no rating (e2e5)"},
    }


@pytest.mark.parametrize(("temperature", "size"), [(0.0, 7), (0.5, 1), (1.0, 512)])
def test_expected_credits_are_the_sum_over_all_moves_whatever_the_batches(
    temperature: float, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exercises, "_BATCH", size)
    boards = some_boards(12)
    of_moves = [
        {move: (made_up_number(board, move), float(index == 3)) for index, move in enumerate(board.legal_moves)} for board in boards
    ]
    found = expected_credits(WrittenPolicy(lambda board, move: 3 * made_up_number(board, move)), boards, of_moves, temperature=temperature)
    for row, board in enumerate(boards):
        logits = np.array([3 * made_up_number(board, move) for move in board.legal_moves])
        weights = np.exp(logits / temperature) if temperature else (logits == logits.max()).astype(float)
        expected = (weights / weights.sum()) @ np.array([of_moves[row][move] for move in board.legal_moves])
        assert found[row] == pytest.approx(expected, abs=1e-6)


def test_a_move_without_credit_gets_none_and_no_board_gives_no_row() -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    assert expected_credits(policy, [chess.Board()], [{}], temperature=1.0).tolist() == [[0.0, 0.0]]
    assert expected_credits(policy, [], [], temperature=1.0).shape == (0, 2)
    every = dict.fromkeys(chess.Board().legal_moves, (1.0, 0.5))
    assert expected_credits(policy, [chess.Board()], [every], temperature=1.0)[0] == pytest.approx([1.0, 0.5])

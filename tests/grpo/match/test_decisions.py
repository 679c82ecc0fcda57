"""Telling decisions: worked by hand on boards of three moves, for both colours."""

from dataclasses import replace

import chess
import numpy as np
import pytest
from doubles import CPU, TINY, fake_arrays, made_up_number, some_boards, written_probabilities

from grpo.dataset.table import BoardArrays
from grpo.match import regret
from grpo.match.decisions import notable_decisions
from grpo.match.regret import heldout_scores
from grpo.policy.policy import new_policy

# Kings in the corners, three moves each; for Black the board is turned, so that a wrong side would show.
WHITE = chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1")
BLACK = chess.Board("k7/8/8/8/8/8/8/7K b - - 0 1")
OTHER = chess.Board("6k1/8/8/8/8/8/8/K7 w - - 0 1")
VALUES = {
    WHITE.board_fen(): {"a1a2": 0.9, "a1b1": 0.5, "a1b2": 0.1},
    BLACK.board_fen(): {"a8a7": 0.2, "a8b7": 0.6, "a8b8": 0.4},
    OTHER.board_fen(): {"a1a2": 0.7, "a1b1": 0.7, "a1b2": 0.1},
}
NOW = {
    WHITE.board_fen(): {"a1a2": 0.25, "a1b1": 0.5, "a1b2": 0.25},  # Gives 0.4 away.
    BLACK.board_fen(): {"a8a7": 0.1, "a8b7": 0.8, "a8b8": 0.1},  # Right, 0.2 ahead of the next.
    OTHER.board_fen(): {"a1a2": 0.1, "a1b1": 0.8, "a1b2": 0.1},  # Right, but two moves are.
}
THEN = {
    WHITE.board_fen(): {"a1a2": 0.5, "a1b1": 0.25, "a1b2": 0.25},
    BLACK.board_fen(): {"a8a7": 0.75, "a8b7": 0.125, "a8b8": 0.125},
    OTHER.board_fen(): {"a1a2": 0.25, "a1b1": 0.5, "a1b2": 0.25},
}


def arrays(*boards: chess.Board) -> BoardArrays:
    return fake_arrays(boards, lambda board, move: VALUES[board.board_fen()][move.uci()])


def test_the_worst_is_what_gives_most_away_and_the_best_the_only_move_found() -> None:
    found = notable_decisions(written_probabilities(NOW), arrays(OTHER, WHITE, BLACK), count=3, before=written_probabilities(THEN))
    [worst], [best] = found["worst"], found["best"]
    assert worst["fen"] == WHITE.fen()
    assert (worst["chosen"]["move"], worst["best"]["move"], worst["phase"]) == ("a1b1", "a1a2", "endgame")
    assert (worst["chosen"]["probability"], worst["best"]["probability"]) == pytest.approx((0.5, 0.25))
    assert (worst["chosen"]["value"], worst["best"]["value"], worst["regret"], worst["margin"]) == pytest.approx((0.5, 0.9, 0.4, 0.4))
    assert worst["before"] is not None
    assert worst["before"] == {"move": "a1a2", "probability": pytest.approx(0.5), "value": pytest.approx(0.9)}
    assert best["fen"] == BLACK.fen()
    assert best["chosen"] == best["best"]
    assert (best["chosen"]["move"], best["regret"], best["margin"]) == ("a8b7", 0.0, pytest.approx(0.2))
    assert best["before"] is not None
    assert best["before"]["move"] == "a8a7"


def test_one_legal_move_is_no_decision() -> None:
    forced = chess.Board("k7/8/1K6/8/8/8/8/7R b - - 0 1")
    assert forced.legal_moves.count() == 1
    found = notable_decisions(new_policy(TINY, seed=0, device=CPU), fake_arrays([forced], lambda board, move: 0.3), count=3)
    assert found["worst"] == found["best"] == []


def test_changed_moves_are_those_whose_value_differs_from_the_earlier_policys_largest_first() -> None:
    found = notable_decisions(written_probabilities(NOW), arrays(OTHER, WHITE, BLACK), count=3, before=written_probabilities(THEN))
    assert [(each["fen"], each["chosen"]["move"]) for each in found["improved"]] == [(BLACK.fen(), "a8b7")], "0.2 -> 0.6"
    assert [(each["fen"], each["chosen"]["move"]) for each in found["worsened"]] == [(WHITE.fen(), "a1b1")], "0.9 -> 0.5"
    alone = notable_decisions(written_probabilities(NOW), arrays(OTHER, WHITE, BLACK), count=3)
    assert alone["improved"] == alone["worsened"] == []


def test_what_is_told_is_what_regret_says_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regret, "_BATCH", 100)
    boards = fake_arrays(some_boards(250, seed=3), made_up_number)
    policy = new_policy(TINY, seed=1, device=CPU)
    regrets = heldout_scores(policy, boards).regret_best
    found = notable_decisions(policy, boards, count=5)
    assert [decision["regret"] for decision in found["worst"]] == pytest.approx(sorted(regrets, reverse=True)[:5])
    margins = [decision["margin"] for decision in found["best"]]
    assert margins == sorted(margins, reverse=True)
    assert len(margins) == 5
    for decision in (*found["worst"], *found["best"]):
        board = chess.Board(decision["fen"])
        for judged in (decision["chosen"], decision["best"]):
            move = chess.Move.from_uci(judged["move"])
            assert move in board.legal_moves
            assert judged["value"] == pytest.approx(made_up_number(board, move))


def test_a_policy_that_errs_nowhere_has_no_worst_decision() -> None:
    boards = fake_arrays(some_boards(20, seed=4), made_up_number)
    flat = replace(boards, values=np.full_like(boards.values, 0.5))
    found = notable_decisions(new_policy(TINY, seed=1, device=CPU), flat, count=5)
    assert found["worst"] == found["best"] == []

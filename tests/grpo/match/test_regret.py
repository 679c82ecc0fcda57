"""Held-out regret: worked by hand, zero for whoever plays the best move, and taken at T = 1."""

import math
from dataclasses import replace

import chess
import numpy as np
import pytest
from doubles import CPU, TINY, fake_arrays, some_boards, written_probabilities

from grpo.board.phases import PHASES
from grpo.match import regret
from grpo.match.regret import heldout_metrics, heldout_scores
from grpo.policy.policy import new_policy

# Kings in the corners: three moves each; for Black the board is turned, so that a wrong side would show.
WHITE_KING = chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1")
BLACK_KING = chess.Board("k7/8/8/8/8/8/8/7K b - - 0 1")
VALUES = {
    WHITE_KING.board_fen(): {"a1a2": 0.9, "a1b1": 0.5, "a1b2": 0.1},
    BLACK_KING.board_fen(): {"a8a7": 0.2, "a8b7": 0.6, "a8b8": 0.4},
}
PROBABILITIES = {
    WHITE_KING.board_fen(): {"a1a2": 0.25, "a1b1": 0.5, "a1b2": 0.25},
    BLACK_KING.board_fen(): {"a8a7": 0.5, "a8b7": 0.25, "a8b8": 0.25},
}


def written_value(board: chess.Board, move: chess.Move) -> float:
    """Return the value from the table above."""
    return VALUES[board.board_fen()][move.uci()]


def test_regret_worked_by_hand() -> None:
    metrics = heldout_metrics(written_probabilities(PROBABILITIES), fake_arrays([WHITE_KING, BLACK_KING], written_value))
    # Expected values: 0.225 + 0.25 + 0.025 = 0.5, and 0.1 + 0.15 + 0.1 = 0.35. Likeliest moves: a1b1 (0.5), a8a7 (0.2).
    of_endgames = {
        "heldout/expected_value": (0.5 + 0.35) / 2,
        "heldout/regret_sampled": ((0.9 - 0.5) + (0.6 - 0.35)) / 2,
        "heldout/regret_best": (0.4 + 0.4) / 2,
        "heldout/entropy": 1.5 * math.log(2),
    }
    assert metrics == pytest.approx(
        {
            **of_endgames,
            **{f"{name}/endgame": value for name, value in of_endgames.items()},
            "heldout/regret_best_stderr": 0.0,
            # All but a1a2 and a8b7 lose 0.1 or more.
            "heldout/blunder_mass": 0.75,
        },
        abs=1e-6,
    )


def test_the_standard_error_worked_by_hand() -> None:
    probabilities = {**PROBABILITIES, BLACK_KING.board_fen(): {"a8b7": 0.8, "a8a7": 0.1, "a8b8": 0.1}}
    boards = [WHITE_KING, BLACK_KING, WHITE_KING, BLACK_KING]
    metrics = heldout_metrics(written_probabilities(probabilities), fake_arrays(boards, written_value))
    # Regrets 0.4, 0, 0.4, 0: mean 0.2, sample variance 4 * 0.04 / 3, divided by the root of 4.
    assert metrics["heldout/regret_best"] == pytest.approx(0.2)
    assert metrics["heldout/regret_best_stderr"] == pytest.approx(math.sqrt(0.16 / 3) / 2)


def test_what_stands_on_the_padding_has_no_effect() -> None:
    arrays, policy = fake_arrays(some_boards(30)), new_policy(TINY, seed=0, device=CPU)
    wider = replace(
        arrays,
        action_ids=np.pad(arrays.action_ids, ((0, 0), (0, 9))),
        is_legal=np.pad(arrays.is_legal, ((0, 0), (0, 9))),
        values=np.pad(arrays.values, ((0, 0), (0, 9))),
    )
    assert heldout_metrics(policy, wider) == heldout_metrics(policy, arrays)


def test_the_size_of_the_batches_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, policy = fake_arrays(some_boards(30)), new_policy(TINY, seed=0, device=CPU)
    whole = heldout_metrics(policy, arrays)
    scores = heldout_scores(policy, arrays)
    monkeypatch.setattr(regret, "_BATCH", 7)
    assert heldout_metrics(policy, arrays) == pytest.approx(whole, abs=1e-6)
    assert heldout_scores(policy, arrays).regret_sampled == pytest.approx(scores.regret_sampled, abs=1e-6)


def test_scores_board_by_board_average_to_the_metrics() -> None:
    arrays, policy = fake_arrays(some_boards(60, max_plies=300)), new_policy(TINY, seed=0, device=CPU)
    metrics, scores = heldout_metrics(policy, arrays), heldout_scores(policy, arrays)
    assert len(scores.phases) == 60
    for column in ("regret_best", "regret_sampled", "expected_value"):
        values = getattr(scores, column)
        assert values.shape == (60,)
        assert values.mean() == pytest.approx(metrics[f"heldout/{column}"], abs=1e-6)
        for index, phase in enumerate(PHASES):
            assert values[scores.phases == index].mean() == pytest.approx(metrics[f"heldout/{column}/{phase}"], abs=1e-6)
    assert scores.regret_best.std(ddof=1) / 60**0.5 == pytest.approx(metrics["heldout/regret_best_stderr"], abs=1e-6)

"""Held-out regret and the decisions that show it: worked by hand on boards of three moves, for both colors, at T = 1."""

import math
from dataclasses import replace

import chess
import numpy as np
import pytest
from doubles import CPU, TINY, fake_arrays, some_boards, written_probabilities

from grpo.board.phases import PHASES
from grpo.match import regret
from grpo.match.regret import heldout_metrics, heldout_scores, move_probabilities
from grpo.metrics.shared import MOVE_QUALITY
from grpo.policy.policy import new_policy
from grpo.viewer.decisions import notable_decisions

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
    return VALUES[board.board_fen()][move.uci()]


def test_regret_worked_by_hand() -> None:
    metrics = heldout_metrics(written_probabilities(PROBABILITIES), fake_arrays([WHITE_KING, BLACK_KING], written_value))
    # The values 0.9 and 0.6 are ln(11) / 0.003 and ln(29 / 19) / 0.003 centipawns, 0.5 is 0, and 0.2 is -ln(13 / 3) / 0.003. By
    # Lichess's curve, the moves lose 44.99 % and 48.50 % win probability, and their accuracies are 12.377 and 10.316.
    quality = [metrics.pop(name) for name in MOVE_QUALITY]
    assert quality == pytest.approx([(math.log(11) + math.log(29 / 19) + math.log(13 / 3)) / 0.006, 11.346, 1], rel=1e-4)
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


def test_the_size_of_a_batch_decides_nothing_and_probabilities_are_those_at_temperature_1(monkeypatch: pytest.MonkeyPatch) -> None:
    boards, policy = [WHITE_KING, BLACK_KING, *some_boards(9)], new_policy(TINY, seed=0, device=CPU)
    written, arrays = fake_arrays([WHITE_KING, BLACK_KING], written_value), fake_arrays(boards)
    whole, columns = heldout_metrics(policy, arrays), move_probabilities(policy, arrays)
    monkeypatch.setattr(regret, "_BATCH", 4)
    assert heldout_metrics(policy, arrays) == pytest.approx(whole, abs=1e-6)
    assert np.allclose(move_probabilities(policy, arrays), columns, atol=1e-6)
    found = move_probabilities(written_probabilities(PROBABILITIES), written)
    assert found.tolist() == [pytest.approx([0.25, 0.5, 0.25]), pytest.approx([0.5, 0.25, 0.25])]


def test_the_standard_error_worked_by_hand() -> None:
    probabilities = {**PROBABILITIES, BLACK_KING.board_fen(): {"a8b7": 0.8, "a8a7": 0.1, "a8b8": 0.1}}
    boards = [WHITE_KING, BLACK_KING, WHITE_KING, BLACK_KING]
    metrics = heldout_metrics(written_probabilities(probabilities), fake_arrays(boards, written_value))
    # Regrets 0.4, 0, 0.4, 0: mean 0.2, sample variance 4 * 0.04 / 3, divided by the root of 4.
    assert metrics["heldout/regret_best"] == pytest.approx(0.2)
    assert metrics["heldout/regret_best_stderr"] == pytest.approx(math.sqrt(0.16 / 3) / 2)


def test_scores_board_by_board_average_to_the_metrics_and_what_stands_on_the_padding_has_no_effect() -> None:
    arrays, policy = fake_arrays(some_boards(25, max_plies=300)), new_policy(TINY, seed=0, device=CPU)
    metrics, scores = heldout_metrics(policy, arrays), heldout_scores(policy, arrays)
    for column in ("regret_best", "regret_sampled", "expected_value"):
        values = getattr(scores, column)
        assert values.mean() == pytest.approx(metrics[f"heldout/{column}"], abs=1e-6)
        for index, phase in enumerate(PHASES):
            assert values[scores.phases == index].mean() == pytest.approx(metrics[f"heldout/{column}/{phase}"], abs=1e-6)
    assert scores.move_quality() == pytest.approx({name: metrics[name] for name in MOVE_QUALITY}, rel=1e-5)
    padded = {name: np.pad(getattr(arrays, name), ((0, 0), (0, 9))) for name in ("action_ids", "is_legal", "values")}
    padded["values"][~padded["is_legal"]] = 1
    assert heldout_metrics(policy, replace(arrays, **padded)) == metrics


# Decisions: where training changed the move most, blunders, only moves.

OTHER = chess.Board("6k1/8/8/8/8/8/8/K7 w - - 0 1")
VALUES[OTHER.board_fen()] = {"a1a2": 0.7, "a1b1": 0.7, "a1b2": 0.1}
JUDGED = fake_arrays([OTHER, WHITE_KING, BLACK_KING], written_value)
NOW = {
    WHITE_KING.board_fen(): {"a1a2": 0.25, "a1b1": 0.5, "a1b2": 0.25},  # Gives 0.4 away.
    BLACK_KING.board_fen(): {"a8a7": 0.1, "a8b7": 0.8, "a8b8": 0.1},  # Right, 0.2 ahead of the next.
    OTHER.board_fen(): {"a1a2": 0.1, "a1b1": 0.8, "a1b2": 0.1},  # Right, but two moves are.
}
THEN = {
    WHITE_KING.board_fen(): {"a1a2": 0.5, "a1b1": 0.25, "a1b2": 0.25},
    BLACK_KING.board_fen(): {"a8a7": 0.75, "a8b7": 0.125, "a8b8": 0.125},
    OTHER.board_fen(): {"a1a2": 0.25, "a1b1": 0.5, "a1b2": 0.25},
}


def test_the_worst_gives_most_away_the_best_is_the_only_move_found_and_changed_moves_differ_in_value_from_the_earlier_policys() -> None:
    found = notable_decisions(written_probabilities(NOW), JUDGED, count=3, before=written_probabilities(THEN))
    [worst], [best] = found.worst, found.best
    assert worst.fen == WHITE_KING.fen()
    assert (worst.chosen.move, worst.best.move, worst.phase) == ("a1b1", "a1a2", "endgame")
    assert (worst.chosen.probability, worst.best.probability) == pytest.approx((0.5, 0.25))
    assert (worst.chosen.value, worst.best.value, worst.regret, worst.margin) == pytest.approx((0.5, 0.9, 0.4, 0.4))
    assert dict(worst.before) == {"move": "a1a2", "probability": pytest.approx(0.5), "value": pytest.approx(0.9)}
    assert best.fen == BLACK_KING.fen()
    assert best.chosen == best.best
    assert (best.chosen.move, best.regret, best.margin) == ("a8b7", 0.0, pytest.approx(0.2))
    assert best.before.move == "a8a7"
    assert [(each.fen, each.chosen.move) for each in found.improved] == [(BLACK_KING.fen(), "a8b7")], "0.2 -> 0.6"
    assert [(each.fen, each.chosen.move) for each in found.worsened] == [(WHITE_KING.fen(), "a1b1")], "0.9 -> 0.5"

"""Held-out regret: worked by hand, zero for whoever plays the best move, and taken at T = 1."""

import math
from dataclasses import replace

import chess
import numpy as np
import pytest
import torch
from doubles import CPU, TINY, WrittenPolicy, fake_arrays, made_up_number, some_boards, written_probabilities

from grpo.board.phases import PHASES, phase_of
from grpo.evaluation import regret
from grpo.evaluation.regret import heldout_metrics, heldout_scores
from grpo.policy.distribution import PositionBatch, new_policy

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
            "heldout/best_move_probability": 0.25,
            # All but a1a2 and a8b7 lose 0.1 or more.
            "heldout/blunder_mass": 0.75,
            # White: of the three pairs of moves one is ranked right, one wrong, one tied. Black: two wrong of two that are not tied.
            "heldout/kendall": (0 - 2 / math.sqrt(2 * 3)) / 2,
            # Centred mid-ranks -0.5, 1, -0.5 against 1, 0, -1, and 1, -0.5, -0.5 against -1, 1, 0.
            "heldout/spearman": (0 - 1.5 / math.sqrt(1.5 * 2)) / 2,
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


def test_the_perfect_policy_has_no_regret_and_a_blurred_one_only_when_its_moves_are_drawn() -> None:
    arrays = fake_arrays(some_boards(30))
    for sharpness, sampled in ((1e4, 0.0), (5.0, None)):
        metrics = heldout_metrics(WrittenPolicy(lambda board, move, k=sharpness: k * made_up_number(board, move)), arrays)  # type: ignore[misc]
        assert metrics["heldout/regret_best"] == 0
        assert metrics["heldout/regret_best_stderr"] == 0
        if sampled is None:
            assert metrics["heldout/regret_sampled"] > 0.05
        else:
            assert metrics["heldout/regret_sampled"] == pytest.approx(sampled, abs=1e-5)


def test_each_phase_is_averaged_by_itself_and_the_whole_over_all_boards() -> None:
    boards = some_boards(60, max_plies=300)
    policy = new_policy(TINY, seed=0, device=CPU)
    metrics = heldout_metrics(policy, fake_arrays(boards))
    counts = {}
    for phase in PHASES:
        part = [board for board in boards if phase_of(board) == phase]
        counts[phase] = len(part)
        alone = heldout_metrics(policy, fake_arrays(part))
        assert metrics[f"heldout/regret_best/{phase}"] == pytest.approx(alone["heldout/regret_best"], abs=1e-6)
    assert min(counts.values()) >= 5
    assert len(set(counts.values())) > 1
    weighted = sum(counts[phase] * metrics[f"heldout/regret_best/{phase}"] for phase in PHASES) / len(boards)
    assert metrics["heldout/regret_best"] == pytest.approx(weighted, abs=1e-6)


def test_adding_a_constant_to_all_values_changes_no_regret() -> None:
    boards, policy = some_boards(30), new_policy(TINY, seed=0, device=CPU)
    one = heldout_metrics(policy, fake_arrays(boards, lambda board, move: made_up_number(board, move) / 2))
    other = heldout_metrics(policy, fake_arrays(boards, lambda board, move: made_up_number(board, move) / 2 + 0.5))
    raised = {name: value + 0.5 * name.startswith("heldout/expected_value") for name, value in one.items()}
    assert other == pytest.approx(raised, abs=1e-6)


def test_what_stands_on_the_padding_has_no_effect() -> None:
    arrays, policy = fake_arrays(some_boards(30)), new_policy(TINY, seed=0, device=CPU)
    wider = replace(
        arrays,
        action_ids=np.pad(arrays.action_ids, ((0, 0), (0, 9))),
        is_legal=np.pad(arrays.is_legal, ((0, 0), (0, 9))),
        values=np.pad(arrays.values, ((0, 0), (0, 9))),
    )
    assert heldout_metrics(policy, wider) == heldout_metrics(policy, arrays)


@pytest.mark.parametrize("size", [1, 7])
def test_the_size_of_the_batches_has_no_effect(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, policy = fake_arrays(some_boards(30)), new_policy(TINY, seed=0, device=CPU)
    whole = heldout_metrics(policy, arrays)
    scores = heldout_scores(policy, arrays)
    monkeypatch.setattr(regret, "_BATCH", size)
    monkeypatch.setattr(regret, "_RANKED_AT_ONCE", size)
    assert heldout_metrics(policy, arrays) == pytest.approx(whole, abs=1e-6)
    assert heldout_scores(policy, arrays).regret_sampled == pytest.approx(scores.regret_sampled, abs=1e-6)


def test_it_is_taken_at_temperature_one_and_of_the_policy_as_it_stands() -> None:
    boards = some_boards(10)
    arrays, policy = fake_arrays(boards), new_policy(TINY, seed=0, device=CPU)
    distribution = policy.distribution(PositionBatch.from_arrays(arrays), temperature=1.0).detach()
    values = torch.from_numpy(arrays.values)
    expected = (values.max(1).values - (distribution.probs * values).sum(1)).mean().item()
    assert heldout_metrics(policy, arrays)["heldout/regret_sampled"] == pytest.approx(expected, abs=1e-6)
    with torch.no_grad():
        policy.network.short_cut.weight *= 30
    assert heldout_metrics(policy, arrays)["heldout/regret_sampled"] != pytest.approx(expected, abs=1e-3)


def test_boards_with_one_move_or_one_value_say_nothing_about_agreement() -> None:
    one_move = chess.Board("k7/8/1K6/8/8/8/8/7R b - - 0 1")
    assert one_move.legal_moves.count() == 1
    policy = WrittenPolicy(made_up_number)
    boards = some_boards(10)

    def flat_on_the_first(board: chess.Board, move: chess.Move) -> float:
        return 0.5 if board.epd() == boards[0].epd() else made_up_number(board, move) ** 2 % 0.3

    metrics = heldout_metrics(policy, fake_arrays([*boards, one_move], flat_on_the_first))
    rest = heldout_metrics(policy, fake_arrays(boards[1:], flat_on_the_first))
    for name in ("heldout/spearman", "heldout/kendall"):
        assert metrics[name] == pytest.approx(rest[name], abs=1e-9)
        assert abs(rest[name]) < 0.9
    assert not {"heldout/spearman", "heldout/kendall"} & heldout_metrics(policy, fake_arrays([one_move] * 2)).keys()


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

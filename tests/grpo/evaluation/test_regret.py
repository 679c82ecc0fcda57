"""Held-out regret: worked by hand, zero for whoever plays the best move, and taken at T = 1."""

import math
from collections.abc import Sequence
from dataclasses import replace

import chess
import numpy as np
import pytest
import torch
from doubles import CPU, TINY, WrittenPolicy, fake_arrays, made_up_number, some_boards, written_probabilities

from grpo.board.phases import PHASES, Phase, phase_of
from grpo.evaluation import regret
from grpo.evaluation.regret import HeldoutScores, heldout_metrics, heldout_scores, paired_difference
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
    assert len(scores) == 60
    for column in ("regret_best", "regret_sampled", "expected_value"):
        values = getattr(scores, column)
        assert values.shape == (60,)
        assert values.mean() == pytest.approx(metrics[f"heldout/{column}"], abs=1e-6)
        for index, phase in enumerate(PHASES):
            assert values[scores.phases == index].mean() == pytest.approx(metrics[f"heldout/{column}/{phase}"], abs=1e-6)
    assert scores.regret_best.std(ddof=1) / 60**0.5 == pytest.approx(metrics["heldout/regret_best_stderr"], abs=1e-6)


def scores_of(regret_best: Sequence[float], phases: Sequence[int] | None = None, *, boards: str = "these") -> HeldoutScores:
    """Return scores with these regrets, of which the other columns are multiples."""
    column = np.array(regret_best, dtype=np.float64)
    return HeldoutScores(
        regret_best=column,
        regret_sampled=2 * column,
        expected_value=-column,
        phases=np.array([0] * len(column) if phases is None else phases, dtype=np.int64),
        boards=boards,
    )


def test_a_paired_difference_worked_by_hand() -> None:
    found = paired_difference(scores_of([0.3, 0.1, 0.2, 0.2]), scores_of([0.1, 0.1, 0.1, 0.3]))
    # Differences 0.2, 0, 0.1, -0.1, mean 0.05; squares about it 0.05 in all, and twice 0.25 of the two that are added.
    assert found.mean == pytest.approx(0.05)
    assert found.stderr == pytest.approx(math.sqrt(0.55 / 6) / math.sqrt(6))
    assert (found.low, found.high) == pytest.approx((0.05 - 1.959964 * found.stderr, 0.05 + 1.959964 * found.stderr))
    assert found.num_boards == 4
    assert str(found) == "+0.0500 [-0.1923, +0.2923], 4 boards"


def test_the_difference_the_other_way_round_is_the_negative_and_columns_are_taken_as_asked() -> None:
    one, other = scores_of([0.3, 0.1, 0.2]), scores_of([0.1, 0.1, 0.1])
    there, back = paired_difference(one, other), paired_difference(other, one)
    assert (back.mean, back.low, back.high) == pytest.approx((-there.mean, -there.high, -there.low))
    assert paired_difference(one, other, column="regret_sampled").mean == pytest.approx(2 * there.mean)
    assert paired_difference(one, other, column="expected_value").mean == pytest.approx(-there.mean)


@pytest.mark.parametrize(("count", "half_width"), [(1, 0.4620), (30, 0.0433), (600, 0.0023)])
def test_equal_columns_do_not_look_certain(count: int, half_width: float) -> None:
    found = paired_difference(scores_of([0.2] * count), scores_of([0.2] * count))
    assert found.mean == 0
    assert (found.low, found.high) == pytest.approx((-half_width, half_width), abs=1e-4)


def test_the_interval_covers_the_truth_where_what_counts_is_rare() -> None:
    # One board in a hundred loses half a point: of 100 boards a third have none of these, and the plain interval would be 0 +- 0.
    rng = np.random.default_rng(1)
    covered = plain = 0
    for _ in range(1_000):
        losses = 0.5 * (rng.random(100) < 0.01)
        found = paired_difference(scores_of(losses), scores_of(np.zeros(100)))
        covered += found.low <= 0.005 <= found.high
        plain += abs(losses.mean() - 0.005) <= 1.96 * losses.std() / 10
    assert covered >= 950
    assert plain < 800, "the plain interval fails, so that this test can"


def test_a_phase_is_compared_by_its_own_boards() -> None:
    one, other = scores_of([0.3, 0.1, 0.6, 0.2], [0, 2, 0, 2]), scores_of([0.1, 0.1, 0.1, 0.3], [0, 2, 0, 2])
    by_phase = {phase: paired_difference(one, other, phase=phase) for phase in (Phase.OPENING, Phase.ENDGAME)}
    assert (by_phase[Phase.OPENING].mean, by_phase[Phase.ENDGAME].mean) == pytest.approx((0.35, -0.05))
    assert {found.num_boards for found in by_phase.values()} == {2}
    with pytest.raises(ValueError, match="no middlegame boards, no difference"):
        paired_difference(one, other, phase=Phase.MIDDLEGAME)


def test_scores_of_other_boards_or_other_values_are_not_paired() -> None:
    boards, policy = some_boards(12), new_policy(TINY, seed=0, device=CPU)
    scores = heldout_scores(policy, fake_arrays(boards))
    assert paired_difference(scores, heldout_scores(new_policy(TINY, seed=1, device=CPU), fake_arrays(boards))).num_boards == 12
    for arrays in (fake_arrays(boards[::-1]), fake_arrays(boards, lambda board, move: made_up_number(board, move) / 2)):
        with pytest.raises(ValueError, match="different boards or values"):
            paired_difference(scores, heldout_scores(policy, arrays))

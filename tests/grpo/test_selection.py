"""Choosing a champion: noise is not promoted, strength is, and each gate is tried from both sides."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from grpo.selection import Decision, Verdict, best_by_screening, candidates_by_regret, decide, peak_step
from grpo.statistics import ScoreInterval, paired_interval

torch.set_num_threads(1)

NUM_SELECTIONS = 2_000


def interval(score: float, *, low: float, high: float) -> ScoreInterval:
    """Return an interval with these numbers."""
    return ScoreInterval(score=score, low=low, high=high, num_pairs=100)


EVEN = interval(0.5, low=0.45, high=0.55)


# The gates.


@pytest.mark.parametrize(
    ("low", "verdict"),
    [(0.4999, Verdict.NO_IMPROVEMENT), (0.5, Verdict.NO_IMPROVEMENT), (0.5001, Verdict.BETTER), (0.9, Verdict.BETTER)],
)
def test_a_candidate_is_better_only_when_the_whole_interval_of_its_best_moves_lies_above_one_half(low: float, verdict: Verdict) -> None:
    best = interval(max(low, 0.6), low=low, high=0.95)
    assert decide(300, best, EVEN) == Decision(candidate=300, best_moves=best, sampled_moves=EVEN, verdict=verdict)


def test_a_high_score_with_a_wide_interval_is_no_improvement_and_a_small_one_with_a_narrow_interval_is() -> None:
    assert decide(1, paired_interval([1.0, 1.0, 0.5]), EVEN).verdict == Verdict.NO_IMPROVEMENT
    assert decide(1, paired_interval([0.5] * 700 + [0.75] * 300), EVEN).verdict == Verdict.BETTER


def test_the_interval_of_the_sampled_moves_is_reported_and_never_makes_a_champion() -> None:
    brilliant = interval(0.9, low=0.85, high=0.95)
    decision = decide(7, EVEN, brilliant)
    assert (decision.verdict, decision.sampled_moves) == (Verdict.NO_IMPROVEMENT, brilliant)


def test_sixteen_wins_in_a_row_are_convincing_and_two_are_not() -> None:
    assert decide(1, paired_interval([1.0] * 16), EVEN).verdict == Verdict.BETTER
    assert decide(1, paired_interval([1.0] * 2), EVEN).verdict == Verdict.NO_IMPROVEMENT


def test_the_verdict_reads_as_what_was_shown() -> None:
    assert [str(verdict) for verdict in Verdict] == ["better", "no improvement shown"]


# Noise and strength.


def drawn_pairs(rng: np.random.Generator, shape: tuple[int, ...], *, win: float, draw: float) -> NDArray[np.float64]:
    """Return scores of pairs of games with these chances of a win and a draw."""
    games: NDArray[np.float64] = rng.choice([1.0, 0.5, 0.0], p=[win, draw, 1 - win - draw], size=(*shape, 2))
    means: NDArray[np.float64] = games.mean(-1)
    return means


def share_promoted(rows: Sequence[NDArray[np.float64]] | NDArray[np.float64]) -> float:
    """Return how often a candidate with these confirmation games is called better."""
    verdicts = [decide(1, paired_interval(row.tolist()), EVEN).verdict for row in rows]
    return sum(verdict == Verdict.BETTER for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize(("win", "draw"), [(0.5, 0.0), (0.25, 0.5), (0.1, 0.8)])
@pytest.mark.parametrize("num_pairs", [4, 30, 300])
def test_an_equal_candidate_is_promoted_no_more_often_than_the_interval_allows(num_pairs: int, win: float, draw: float) -> None:
    rng = np.random.default_rng([num_pairs, round(100 * draw)])
    assert share_promoted(drawn_pairs(rng, (NUM_SELECTIONS, num_pairs), win=win, draw=draw)) <= 0.035


def test_of_an_equal_candidate_with_many_pairs_about_one_in_forty_is_promoted() -> None:
    # Two-sided 95 %: 2.5 % on this side. Far fewer would mean that the gate asks for more than it says.
    rng = np.random.default_rng(5)
    assert 0.015 <= share_promoted(drawn_pairs(rng, (NUM_SELECTIONS, 300), win=0.25, draw=0.5)) <= 0.035


def test_a_whole_selection_among_equals_promotes_no_more_often_than_one_comparison() -> None:
    # Twenty equal checkpoints, the best of 60 screening pairs confirmed by 300 fresh ones.
    rng = np.random.default_rng(3)
    promoted = fooled = 0
    for _ in range(NUM_SELECTIONS):
        regrets = {step: float(rng.normal(0.1, 0.01)) for step in range(50, 1_050, 50)}
        steps = candidates_by_regret(regrets, 3)
        games = {step: drawn_pairs(rng, (60,), win=0.25, draw=0.5) for step in steps}
        screening = {step: paired_interval(games[step].tolist()) for step in steps}
        chosen = best_by_screening(screening)
        fooled += decide(chosen, screening[chosen], EVEN).verdict == Verdict.BETTER
        confirmation = paired_interval(drawn_pairs(rng, (300,), win=0.25, draw=0.5).tolist())
        promoted += decide(chosen, confirmation, EVEN).verdict == Verdict.BETTER
    assert promoted / NUM_SELECTIONS <= 0.035
    assert fooled / NUM_SELECTIONS > 0.045, "judged by the games that chose it, the winner's curse would show"


def test_a_worse_candidate_is_hardly_ever_promoted_and_a_clearly_better_one_nearly_always() -> None:
    rng = np.random.default_rng(4)
    assert share_promoted(drawn_pairs(rng, (500, 300), win=0.20, draw=0.5)) == 0
    # 0.575 with half of the games drawn: 53 Elo.
    assert share_promoted(drawn_pairs(rng, (500, 300), win=0.325, draw=0.5)) > 0.95


# Who plays, who is chosen, what `peak` is.


def test_the_lowest_regrets_come_first_and_of_equals_the_later_step() -> None:
    regrets = {0: 0.30, 50: 0.20, 100: 0.10, 150: 0.20, 200: 0.10, 250: 0.40}
    assert candidates_by_regret(regrets, 6) == [200, 100, 150, 50, 0, 250]
    assert candidates_by_regret(regrets, 3) == [200, 100, 150]
    assert candidates_by_regret(dict(reversed(regrets.items())), 3) == [200, 100, 150]


def test_fewer_checkpoints_than_candidates_are_all_candidates() -> None:
    assert candidates_by_regret({50: 0.2, 100: 0.1}, 3) == [100, 50]
    assert candidates_by_regret({}, 3) == []


def test_screening_chooses_the_highest_score_and_of_equals_the_one_with_the_lower_regret() -> None:
    ordered_by_regret = {200: interval(0.55, low=0.5, high=0.6), 100: interval(0.55, low=0.51, high=0.59), 50: EVEN}
    assert best_by_screening(ordered_by_regret) == 200
    assert best_by_screening({50: EVEN, 100: interval(0.51, low=0.3, high=0.7)}) == 100


def test_the_peak_is_the_candidate_with_the_best_lower_bound_and_not_the_one_with_the_luckiest_score() -> None:
    screening = {50: interval(0.60, low=0.40, high=0.80), 100: interval(0.55, low=0.51, high=0.59)}
    assert peak_step({50: 0.1, 100: 0.2}, screening) == 100
    assert best_by_screening(screening) == 50


def test_without_screening_games_the_peak_is_the_lowest_regret() -> None:
    assert peak_step({50: 0.3, 100: 0.1, 150: 0.2}, {}) == 100

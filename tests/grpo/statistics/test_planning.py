"""Games needed: the facts' numbers, power checked by playing, and limits that cannot be planned around."""

import doctest
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.statistics import planning
from grpo.statistics.intervals import expected_score, paired_interval
from grpo.statistics.planning import (
    Assumptions,
    Certainty,
    PlanError,
    expected_sprt,
    games_head_to_head,
    games_per_arm,
    smallest_difference,
)
from grpo.statistics.sprt import Sprt, SprtModel

FACTS = Certainty(level=0.05, probability=0.8, is_padded=False)
OURS = Certainty(level=0.025, probability=0.8, is_padded=True)
NO_DRAWS = Assumptions(draw_rate=0.0, pair_correlation=0.0)
THIRTY = Assumptions(draw_rate=0.3, pair_correlation=0.0)


def test_the_examples_in_the_documentation_are_true() -> None:
    result = doctest.testmod(planning)
    assert result.failed == 0
    assert result.attempted > 0


@pytest.mark.parametrize(("score", "games"), [(0.5, 1_659), (0.1, 4_608), (0.03, 14_250)])
def test_against_a_common_opponent_they_take_many_times_that(score: float, games: int) -> None:
    # The facts take the logistic curve for straight over 30 Elo, 2 z^2 / (s (1 - s) (30 ln 10 / 400)^2); the curve itself differs by 0.1 %.
    assert games_per_arm(30, around_score=score, assumed=NO_DRAWS, certainty=FACTS) == pytest.approx(games, rel=1.5e-3)


def test_without_draws_an_arm_takes_more_than_two_and_a_half_times_the_games_of_a_match() -> None:
    arm = games_per_arm(30, around_score=0.5, assumed=NO_DRAWS, certainty=FACTS)
    match = games_head_to_head(30, assumed=NO_DRAWS, certainty=FACTS)
    assert arm / match == pytest.approx(2, rel=0.02)
    assert arm / games_head_to_head(30, assumed=THIRTY, certainty=FACTS) > 2.5


@pytest.mark.parametrize(("true_elo", "games"), [(0, 520), (15, 840), (30, 520)])
def test_a_sequential_test_takes_about_520_games_at_either_end_and_840_in_the_middle(true_elo: float, games: int) -> None:
    test = Sprt(elo0=0, elo1=30, alpha=0.05, beta=0.05, model=SprtModel.LOGISTIC)
    assert expected_sprt(test, true_elo=true_elo, assumed=THIRTY).num_games == pytest.approx(games, rel=0.04)


def test_a_sequential_test_errs_a_little_less_often_than_it_says() -> None:
    test = Sprt(elo0=0, elo1=30, alpha=0.05, beta=0.10, model=SprtModel.LOGISTIC)
    assert 0.04 < expected_sprt(test, true_elo=0, assumed=THIRTY).acceptance <= 0.05
    assert 0.90 <= expected_sprt(test, true_elo=30, assumed=THIRTY).acceptance < 0.92


def test_the_length_has_no_seam_where_the_drift_vanishes() -> None:
    test = Sprt(elo0=0, elo1=30, alpha=0.05, beta=0.05, model=SprtModel.LOGISTIC)
    lengths = [expected_sprt(test, true_elo=15.01 + offset, assumed=THIRTY).num_games for offset in np.linspace(-0.1, 0.1, 2_001)]
    assert max(abs(one - next_one) for one, next_one in itertools.pairwise(lengths)) < 0.05


@pytest.mark.parametrize("true_elo", [-3_000.0, -400.0, 400.0, 3_000.0])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 800.0), (-800.0, -799.0)])
def test_far_from_its_bounds_a_sequential_test_has_a_finite_length_and_a_chance(true_elo: float, bounds: tuple[float, float]) -> None:
    test = Sprt(elo0=bounds[0], elo1=bounds[1], alpha=0.05, beta=0.05, model=SprtModel.LOGISTIC)
    length = expected_sprt(test, true_elo=true_elo, assumed=NO_DRAWS)
    assert 2 <= length.num_games < math.inf
    assert 0 <= length.acceptance <= 1


def test_normalised_bounds_take_the_same_games_whatever_the_draws() -> None:
    test = Sprt(elo0=0, elo1=10, alpha=0.05, beta=0.05, model=SprtModel.NORMALISED)
    lengths = [expected_sprt(test, true_elo=0, assumed=Assumptions(draw_rate=d, pair_correlation=0)).num_games for d in (0.0, 0.5, 0.9)]
    assert lengths == pytest.approx([lengths[0]] * 3)
    test = Sprt(elo0=0, elo1=10, alpha=0.05, beta=0.05, model=SprtModel.LOGISTIC)
    lengths = [expected_sprt(test, true_elo=0, assumed=Assumptions(draw_rate=d, pair_correlation=0)).num_games for d in (0.0, 0.5, 0.9)]
    assert lengths[0] > 1.8 * lengths[1] > 3.6 * lengths[2]


@pytest.mark.parametrize(("elo", "draw_rate"), [(50, 0.3), (75, 0.6), (75, 0.0), (150, 0.2)])
def test_as_many_games_as_planned_show_the_difference_as_often_as_planned(elo: float, draw_rate: float) -> None:
    assumed = Assumptions(draw_rate=draw_rate, pair_correlation=0.0)
    num_pairs = games_head_to_head(elo, assumed=assumed, certainty=OURS) // 2
    win = expected_score(elo) - draw_rate / 2
    rng = np.random.default_rng(round(elo + 100 * draw_rate))
    games = rng.choice([0.0, 0.5, 1.0], p=[1 - win - draw_rate, draw_rate, win], size=(600, num_pairs, 2))
    shown = np.mean([paired_interval(row.tolist()).low > 0.5 for row in games.mean(2)])
    assert 0.75 <= shown <= 0.85


def test_openings_that_favour_a_colour_make_pairs_that_say_more() -> None:
    needed = [games_head_to_head(30, assumed=Assumptions(draw_rate=0.3, pair_correlation=r), certainty=FACTS) for r in (-0.5, 0.0, 1.0)]
    assert needed[0] == pytest.approx(needed[1] / 2, abs=2)
    assert needed[2] == pytest.approx(needed[1] * 2, abs=2)


@given(st.floats(5, 300), st.floats(0, 0.15))
def test_the_smallest_difference_is_the_inverse_of_the_games_needed(elo: float, draw_rate: float) -> None:
    assumed = Assumptions(draw_rate=draw_rate, pair_correlation=0.0)
    needed = games_head_to_head(elo, assumed=assumed, certainty=OURS)
    smallest = smallest_difference(needed, assumed=assumed, certainty=OURS)
    assert smallest is not None
    assert smallest <= elo * (1 + 1e-6)
    assert games_head_to_head(smallest, assumed=assumed, certainty=OURS) <= needed
    assert games_head_to_head(smallest * 0.999, assumed=assumed, certainty=OURS) >= needed


def test_the_cautious_interval_costs_a_few_pairs_and_never_a_share_of_them() -> None:
    extra = [
        games_head_to_head(elo, assumed=THIRTY, certainty=OURS)
        - games_head_to_head(elo, assumed=THIRTY, certainty=Certainty(level=0.025, probability=0.8, is_padded=False))
        for elo in (200, 100, 50, 20, 5)
    ]
    assert all(4 <= games <= 20 for games in extra)


def test_too_few_games_show_nothing_and_so_do_games_that_are_nearly_all_drawn() -> None:
    # Three pairs won, one lost and one won added: mean 0.8, standard error 0.4 / sqrt(5): 1.68 of them above one half. Four: 2.19.
    assert smallest_difference(6, assumed=NO_DRAWS, certainty=OURS) is None
    assert smallest_difference(8, assumed=NO_DRAWS, certainty=OURS) is not None
    assert smallest_difference(100, assumed=Assumptions(draw_rate=0.99, pair_correlation=0.0), certainty=OURS) is None


def test_planning_without_a_result_to_hope_for_is_refused() -> None:
    with pytest.raises(PlanError, match="not a pair: give at least 2"):
        smallest_difference(1, assumed=NO_DRAWS, certainty=OURS)
    with pytest.raises(PlanError, match="impossible at 90% draws"):
        games_head_to_head(100, assumed=Assumptions(draw_rate=0.9, pair_correlation=0.0), certainty=OURS)

"""Score intervals, Elo and ratings: numbers worked by hand, symmetries, and intervals that hold the truth as often as they say."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_selections import simulated

from grpo.statistics import intervals as statistics
from grpo.statistics.intervals import (
    LEVEL,
    REPEATED_Z,
    Z95,
    Estimate,
    between_runs,
    difference,
    elo,
    expected_score,
    holm,
    p_value,
    paired_interval,
    within_runs,
)
from grpo.statistics.ratings import ELO_PER_NAT, fit_ratings, rate_against, rating_difference

PAIRS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=80)
# Elo.


def test_the_examples_in_the_documentation_are_true() -> None:
    result = doctest.testmod(statistics)
    assert result.failed == 0
    assert result.attempted > 1


# Intervals.


def test_an_interval_worked_by_hand() -> None:
    # Pairs 1, 0.5, 0.5, 0.25 with one lost and one won: mean 3.25 / 6, squares 2.5625 / 6.
    interval = paired_interval([1.0, 0.5, 0.5, 0.25])
    center = 3.25 / 6
    half = 1.959964 * math.sqrt((2.5625 / 6 - center**2) / 6)
    assert interval.value == 0.5625
    assert interval.num_pairs == 4
    assert (interval.low, interval.high) == pytest.approx((center - half, center + half), abs=1e-9)


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [
        # 16 lost: center 1/18, variance 17/324, half width 1.96 sqrt(17/324/18) = 0.1058.
        ([0.0] * 16, 0.0, 0.1614),
        # Drawn: variance 2 * 0.25 / 18, half width 1.96 sqrt(0.02778 / 18) = 0.0770.
        ([0.5] * 16, 0.4230, 0.5770),
        # One pair: center (0 + 0 + 1) / 3, variance 2/9, half width 0.533.
        ([1.0], 0.1332, 1.0),
    ],
)
def test_pairs_that_all_ended_alike_give_an_interval_that_is_neither_empty_nor_certain(pairs: list[float], low: float, high: float) -> None:
    interval = paired_interval(pairs)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-4)


@given(PAIRS)
def test_an_interval_holds_its_score_lies_within_0_and_1_and_has_a_width(pairs: list[float]) -> None:
    interval = paired_interval(pairs)
    assert 0 <= interval.low < interval.high <= 1
    assert interval.low <= interval.value <= interval.high
    assert interval.value == pytest.approx(np.mean(pairs))
    assert interval.num_pairs == len(pairs)


@pytest.mark.parametrize("num_pairs", [5, 30, 300])
@pytest.mark.parametrize(("win", "draw"), [(0.5, 0.0), (0.1, 0.8), (0.0, 0.1)])
def test_the_truth_lies_inside_about_95_times_in_100(num_pairs: int, win: float, draw: float) -> None:
    rng = np.random.default_rng([num_pairs, round(100 * win), round(100 * draw)])
    truth = win + draw / 2
    runs = 500
    pairs = rng.choice([1.0, 0.5, 0.0], p=[win, draw, 1 - win - draw], size=(runs, num_pairs, 2)).mean(2)
    intervals = [paired_interval(row.tolist()) for row in pairs]
    held = sum(interval.low <= truth <= interval.high for interval in intervals) / runs
    assert held >= 0.92
    if num_pairs == 300 and win >= 0.1:
        assert held <= 0.98, "and it is no wider than that takes"


@given(st.floats(-1_199, 1_199))
def test_the_expected_score_is_the_inverse_of_elo(difference: float) -> None:
    assert elo(expected_score(difference)) == pytest.approx(difference, abs=1e-6)


# Several claims at once.


@given(PAIRS)
def test_a_p_value_below_the_level_is_an_interval_above_one_half(pairs: list[float]) -> None:
    assert (p_value(pairs) <= LEVEL) == (paired_interval(pairs).low > 0.5)


def test_holm_worked_by_hand() -> None:
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 and never falling: 0.02, 0.03, 0.06, 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.02]) == [0.02]
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_never_lowers_a_p_value_keeps_their_order_and_is_never_stricter_than_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= by_holm <= min(1.0, len(p_values) * p) for p, by_holm in zip(p_values, adjusted, strict=True))
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [adjusted[index] for index in order] == sorted(adjusted)


# Over runs with different seeds.


def test_equal_runs_leave_no_spread_and_one_run_has_none_to_show() -> None:
    assert between_runs([5.0, 5.0, 5.0]) == Estimate(value=5.0, low=5.0, high=5.0)
    assert between_runs([5.0]) is None
    assert between_runs([]) is None


def test_uneven_intervals_worked_by_hand() -> None:
    first, second = Estimate(value=10.0, low=7.0, high=15.0), Estimate(value=20.0, low=8.0, high=24.0)
    # Below, the first's 3 and the second's 4 above; above, the first's 5 and the second's 12 below.
    assert difference(first, second) == Estimate(value=-10.0, low=-15.0, high=3.0)
    # Below 3 and 12, above 5 and 4: half of the roots of 153 and 41.
    assert within_runs([first, second]) == Estimate(value=15.0, low=15 - 153**0.5 / 2, high=15 + 41**0.5 / 2)


# Ratings worked by hand.


def test_two_players_are_apart_by_the_log_odds_of_wins_and_losses_with_half_a_game_added_to_each() -> None:
    # 10 pairs, 15 of 20 points: log(15.5 / 5.5) = 1.03609 nats = 179.99 Elo.
    elo, covariance = fit_ratings(2, {(1, 0): [1.0] * 5 + [0.5] * 5})
    assert elo == pytest.approx([0, ELO_PER_NAT * math.log(15.5 / 5.5)], abs=1e-6)
    assert elo[1] == pytest.approx(179.99, abs=0.01)
    # Pairs 1 x 5 and 0.5 x 5 with one lost and one won: mean 8.5 / 12, squares 7.25 / 12, variance 0.604167 - 0.501736 = 0.102431, of the
    # mean 0.0085359; the log-odds' slope there is 1 / (0.708333 * 0.291667) = 4.840336, so 0.0923898 * 4.840336 = 0.447198 nats.
    assert math.sqrt(covariance[1, 1]) == pytest.approx(0.447198 * ELO_PER_NAT, rel=1e-5)
    assert covariance[0].tolist() == covariance[:, 0].tolist() == [0, 0]


def test_a_chain_of_two_meetings_is_the_sum_of_its_links_and_so_is_its_variance() -> None:
    # With three players and two meetings each link is as if it were alone: a saturated model, leverage 1 each.
    lower, upper = [1.0, 0.75, 0.5, 0.5], [1.0, 1.0, 0.25, 0.5, 0.5]
    elo, covariance = fit_ratings(3, {(1, 0): lower, (2, 1): upper})
    ([_, one], of_lower), ([_, other], of_upper) = (fit_ratings(2, {(1, 0): scores}) for scores in (lower, upper))
    assert elo == pytest.approx([0, one, one + other], abs=1e-6)
    assert covariance[2, 2] == pytest.approx(of_lower[1, 1] + of_upper[1, 1])
    assert covariance[1, 2] == pytest.approx(of_lower[1, 1])


# Ratings of tables without an answer.


@pytest.mark.parametrize("num_pairs", [1, 200])
def test_when_every_game_was_won_ratings_and_errors_are_finite_and_grow_with_the_number_of_games(num_pairs: int) -> None:
    elo, covariance = fit_ratings(3, {(1, 0): [1.0] * num_pairs, (2, 1): [1.0] * num_pairs})
    step = ELO_PER_NAT * math.log(4 * num_pairs + 1)  # (2 n + 1/2) wins to 1/2.
    assert elo == pytest.approx([0, step, 2 * step], rel=1e-6)
    errors = np.sqrt(np.diag(covariance))
    assert 0 < errors[1] < errors[2] < 1_000


# Ratings of simulated games.


TRUE = np.array([0, 260, 470, 760, 1_080, 1_260])


def test_a_ladder_is_recovered_and_its_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(7)
    size, num_pairs = len(TRUE), 12
    errors, held, gaps_held = [], [], []
    for _ in range(300):
        pairs = [(one, other) for one in range(size) for other in (one - 1, one - 2) if other >= 0]
        elo, covariance = fit_ratings(size, {(one, other): simulated(rng, TRUE[one] - TRUE[other], num_pairs) for one, other in pairs})
        variance = np.diag(covariance)
        errors.append(elo - TRUE)
        held.append(np.abs(errors[-1]) <= Z95 * np.sqrt(variance))
        gap_errors = np.sqrt(variance[1:] + variance[:-1] - 2 * np.diag(covariance, 1))
        gaps_held.append(np.abs(np.diff(errors[-1])) <= Z95 * gap_errors)
    # The standard error of a share of 300 near 0.95 is 0.0126; a little too wide is as it should be with few pairs.
    assert np.mean(held, axis=0)[1:].min() > 0.91
    assert np.mean(gaps_held, axis=0).min() > 0.91
    assert np.mean(gaps_held) < 0.985
    bias = np.mean(errors, axis=0)
    assert np.abs(bias).max() < 25, "the standard error of the mean of 300 is about 5; with half a game added to each meeting it is 60 off"


# The difference of two players on the same openings.


def test_the_difference_of_two_players_worked_by_hand() -> None:
    # 12 of 16 and 8 of 16 points: log(12.5 / 4.5) - log(8.5 / 8.5) = 1.021651 nats = 177.47 Elo.
    first, second = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5], [0.5] * 8
    found = rating_difference([300.0], [first], [second])
    assert found.elo == pytest.approx(ELO_PER_NAT * math.log(12.5 / 4.5))
    assert found.weights == (0.0,)
    # With a pair each that one lost and the other won: the first's mean is 7 / 10, slope 1 / 0.21; the second's 1 / 2, slope 4.
    apart = [1 / 0.21 - 2] * 4 + [0.5 / 0.21 - 2] * 4 + [0 - 4, 1 / 0.21 - 0]
    assert found.standard_error == pytest.approx(ELO_PER_NAT * math.sqrt(np.var(apart) / 10))


def test_a_rating_follows_each_opponents_by_its_weight_and_the_closer_one_counts_more() -> None:
    near, far = [0.5, 0.75, 0.25, 0.5] * 100, [1.0, 1.0, 1.0, 0.75] * 100
    rating = rate_against([200.0, -300.0], [near, far])
    moved = [rate_against([200.0 + one, -300.0 + other], [near, far]).elo - rating.elo for one, other in ((1.0, 0.0), (0.0, 1.0))]
    assert rating.weights == pytest.approx(moved, abs=0.01)
    assert rating.weights[0] > 0.6


def test_a_test_that_stops_at_the_first_look_that_shows_something_errs_in_five_cases_of_a_hundred() -> None:
    looks = np.arange(1, len(REPEATED_Z) + 1)
    scores = np.random.default_rng(1).normal(size=(400_000, len(looks))).cumsum(1) / np.sqrt(looks)
    # The standard error of the share is 0.00034.
    assert (np.abs(scores) > REPEATED_Z).any(1).mean() == pytest.approx(0.05, abs=0.001)


@pytest.mark.parametrize(("shared", "width"), [(0.0, 28), (0.95, 12)])
def test_the_intervals_of_the_difference_at_all_looks_hold_the_truth_whatever_the_openings_share(shared: float, width: float) -> None:
    rng = np.random.default_rng(6)
    opponents, ratings, num_pairs = [0.0, 200.0], [130.0, 90.0], 450
    held, widths = [], []
    for _ in range(300):
        scores: list[list[list[float]]] = [[], []]
        for opponent in opponents:
            # In a game of a given opening both players have the same luck, or each its own; chances are exact either way.
            luck, own = rng.random((num_pairs, 2)), rng.random((2, num_pairs, 2))
            is_shared = rng.random((num_pairs, 2)) < shared
            for player, rating in enumerate(ratings):
                won = np.where(is_shared, luck, own[player]) < expected_score(rating - opponent)
                scores[player].append(won.mean(1).tolist())
        parts = [[[each[: num_pairs * look // 2] for each in of_player] for of_player in scores] for look in (1, 2)]
        found = [rating_difference(opponents, *part) for part in parts]
        held.append(all(abs(each.elo - 40) <= z * each.standard_error for each, z in zip(found, REPEATED_Z, strict=True)))
        widths.append(REPEATED_Z[-1] * found[-1].standard_error)
    assert 0.92 < np.mean(held) < 0.99
    assert np.mean(widths) < width

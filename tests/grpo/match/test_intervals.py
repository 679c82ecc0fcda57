"""Score intervals and Elo: numbers worked by hand, symmetries, and intervals that hold the truth as often as they say."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.match import intervals as statistics
from grpo.match.intervals import (
    LEVEL,
    Estimate,
    between_runs,
    elo,
    expected_score,
    holm,
    p_value,
    paired_interval,
)

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
    centre = 3.25 / 6
    half = 1.959964 * math.sqrt((2.5625 / 6 - centre**2) / 6)
    assert interval.score == 0.5625
    assert interval.num_pairs == 4
    assert (interval.low, interval.high) == pytest.approx((centre - half, centre + half), abs=1e-9)


@pytest.mark.parametrize(
    ("pairs", "low", "high"),
    [
        # 16 lost: centre 1/18, variance 17/324, half width 1.96 sqrt(17/324/18) = 0.1058.
        ([0.0] * 16, 0.0, 0.1614),
        # Drawn: variance 2 * 0.25 / 18, half width 1.96 sqrt(0.02778 / 18) = 0.0770.
        ([0.5] * 16, 0.4230, 0.5770),
        # One pair: centre (0 + 0 + 1) / 3, variance 2/9, half width 0.533.
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
    assert interval.low <= interval.score <= interval.high
    assert interval.score == pytest.approx(np.mean(pairs))
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

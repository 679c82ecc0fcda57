"""Pooling over seeds: against SciPy, against the sum worked by hand, and what one run alone cannot say."""

import math

import numpy as np
import pytest
from scipy import stats

from grpo.match.intervals import Estimate
from grpo.match.pooling import between_runs, within_runs


@pytest.mark.parametrize("num_runs", [2, 3, 5, 12])
def test_the_interval_between_runs_is_that_of_a_t_test(num_runs: int) -> None:
    values = np.random.default_rng(num_runs).normal(70, 25, num_runs)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    found = between_runs(values.tolist())
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((values.mean(), expected.low, expected.high))


def test_between_two_runs_worked_by_hand() -> None:
    # s = 20 / sqrt(2), so s / sqrt(n) = 10; t of one degree of freedom is tan(0.95 pi / 2) = 12.706.
    found = between_runs([60.0, 80.0])
    assert found == Estimate(value=70.0, low=pytest.approx(70 - 127.062, abs=1e-3), high=pytest.approx(70 + 127.062, abs=1e-3))


def test_equal_runs_leave_no_spread_and_one_run_has_none_to_show() -> None:
    assert between_runs([5.0, 5.0, 5.0]) == Estimate(value=5.0, low=5.0, high=5.0)
    assert between_runs([5.0]) is None
    assert between_runs([]) is None


def test_within_equal_runs_the_interval_narrows_by_the_root_of_their_number() -> None:
    one = Estimate(value=86.0, low=66.0, high=110.0)
    assert within_runs([one]) == one
    found = within_runs([one] * 4)
    assert (found.value, found.low, found.high) == pytest.approx((86.0, 86.0 - 20 / 2, 86.0 + 24 / 2))


def test_within_runs_the_errors_of_normal_estimates_add_in_quadrature() -> None:
    errors = (3.0, 4.0, 12.0)
    pooled = within_runs(
        [Estimate(value=value, low=value - error, high=value + error) for value, error in zip((1.0, 2.0, 6.0), errors, strict=True)]
    )
    assert pooled.value == pytest.approx(3.0)
    assert pooled.margin == pytest.approx(math.sqrt(9 + 16 + 144) / 3)

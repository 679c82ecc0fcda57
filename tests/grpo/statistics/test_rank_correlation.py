"""Rank correlations: worked by hand, checked against counting pairs and averaging ranks, and blind to padding."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from grpo.statistics.rank_correlation import rank_correlations


def of_rows(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Return both correlations of one board."""
    scores = torch.tensor([one], dtype=torch.float32), torch.tensor([other], dtype=torch.float32)
    spearman, kendall = rank_correlations(*scores, torch.ones(1, len(one), dtype=torch.bool))
    return spearman.item(), kendall.item()


@pytest.mark.parametrize(
    ("one", "other", "spearman", "kendall"),
    [
        ([1, 2], [5, 9], 1, 1),
        ([1, 2], [9, 5], -1, -1),
        ([1, 2, 3, 4], [1, 2, 4, 3], 0.8, 4 / 6),  # One pair of six the wrong way; 1 - 6 * 2 / 60.
        ([1, 2, 3, 4, 5], [5, 1, 4, 2, 3], -0.3, -0.2),  # 1 - 6 * 26 / 120; 4 pairs right, 6 wrong.
        ([1, 1, 2], [1, 2, 3], 1.5 / math.sqrt(1.5 * 2), 2 / math.sqrt(2 * 3)),
        ([1, 1, 2, 2], [0, 1, 0, 1], 0, 0),
    ],
)
def test_worked_by_hand(one: Sequence[float], other: Sequence[float], spearman: float, kendall: float) -> None:
    assert of_rows(one, other) == pytest.approx((spearman, kendall), abs=1e-12)
    assert of_rows(other, one) == pytest.approx((spearman, kendall), abs=1e-12), "whichever comes first"


def mid_ranks(row: Sequence[float]) -> list[float]:
    """Return each number's place among them, equal ones sharing the mean of their places."""
    return [sum(other < number for other in row) + (sum(other == number for other in row) + 1) / 2 for number in row]


@pytest.mark.parametrize("num_levels", [2, 5, 1_000])
@pytest.mark.parametrize("num_moves", [2, 3, 17, 218])
def test_they_are_what_counting_pairs_and_averaging_ranks_gives(num_moves: int, num_levels: int) -> None:
    rng = np.random.default_rng(num_moves * num_levels)
    one, other = rng.integers(num_levels, size=(2, num_moves)).tolist()
    one[:2], other[:2] = [0, 1], [1, 0]
    pairs = [(i, j) for i in range(num_moves) for j in range(i)]
    products = sum(int(np.sign(one[i] - one[j]) * np.sign(other[i] - other[j])) for i, j in pairs)
    untied = [sum(row[i] != row[j] for i, j in pairs) for row in (one, other)]
    spearman = np.corrcoef(mid_ranks(one), mid_ranks(other))[0, 1]
    assert of_rows(one, other) == pytest.approx((spearman, products / math.sqrt(untied[0] * untied[1])), abs=1e-9)


def test_only_the_order_counts() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.random((2, 30))
    assert of_rows(np.exp(5 * one).tolist(), (other**3).tolist()) == pytest.approx(of_rows(one.tolist(), other.tolist()))


def test_what_stands_on_the_padding_has_no_effect_and_rows_none_on_each_other() -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = torch.rand(4, 9, generator=generator), torch.rand(4, 9, generator=generator).round(decimals=1)
    sizes = [9, 5, 3, 2]
    is_move = torch.arange(9)[None] < torch.tensor(sizes)[:, None]
    found = rank_correlations(one, other.masked_fill(~is_move, 7.0), is_move)
    for row, size in enumerate(sizes):
        assert (found[0][row].item(), found[1][row].item()) == pytest.approx(of_rows(one[row, :size].tolist(), other[row, :size].tolist()))


@pytest.mark.parametrize("row", [[3.0], [2.0, 2.0, 2.0]])
def test_without_two_different_scores_there_is_no_correlation(row: list[float]) -> None:
    assert all(map(math.isnan, of_rows(row, [float(number) for number in range(len(row))])))


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scores \(1, 3\) and \(1, 2\) and mask \(1, 3\) differ"):
        rank_correlations(torch.zeros(1, 3), torch.zeros(1, 2), torch.ones(1, 3, dtype=torch.bool))

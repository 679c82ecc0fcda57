"""Score intervals and Elo: numbers worked by hand, symmetries, and intervals that hold the truth as often as they say."""

import doctest
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.statistics import intervals as statistics
from grpo.statistics.intervals import (
    LEVEL,
    MatchStatistics,
    Outcomes,
    ScoreInterval,
    elo,
    expected_score,
    holm,
    match_statistics,
    normal_statistics,
    p_value,
    paired_interval,
)

PAIRS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=80)
SCORES = st.floats(0, 1)


# Elo.


@pytest.mark.parametrize(
    ("score", "expected"),
    [(0.5, 0.0), (0.75, 190.848502), (0.25, -190.848502), (0.1, -381.697003), (10 / 11, 400.0), (1 / 11, -400.0), (0.999, 1199.826)],
)
def test_elo_worked_by_hand(score: float, expected: float) -> None:
    # 400 log10(3) = 190.85, 400 log10(9) = 381.70; odds of 10 to 1 are 400 by definition, odds of 999 to 1 are 1,199.83.
    assert elo(score) == pytest.approx(expected, abs=1e-3)


@given(SCORES)
def test_elo_is_antisymmetric_and_its_inverse_is_the_logistic_curve(score: float) -> None:
    assert elo(score) == pytest.approx(-elo(1 - score), abs=1e-6)
    assert 1 / (1 + 10 ** (-elo(score) / 400)) == pytest.approx(min(max(score, 0.001), 0.999), abs=1e-9)


def test_elo_is_finite_where_every_game_was_won_or_lost() -> None:
    assert elo(1.0) == pytest.approx(-elo(0.0))
    assert 1_199 < elo(1.0) <= 1_200


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
        # The documentation's own: 16 lost give [0, 0.16]. Centre 1/18, variance 17/324, half width 1.96 sqrt(17/324/18) = 0.1058.
        ([0.0] * 16, 0.0, 0.1614),
        ([1.0] * 16, 0.8386, 1.0),
        # Drawn: variance 2 * 0.25 / 18, half width 1.96 sqrt(0.02778 / 18) = 0.0770.
        ([0.5] * 16, 0.4230, 0.5770),
        # One pair: centre (0 + 0 + 1) / 3, variance 2/9, half width 0.533.
        ([0.0], 0.0, 0.8668),
        ([1.0], 0.1332, 1.0),
        ([0.5], 0.0380, 0.9620),
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
    assert "nan" not in str(interval)
    assert "inf" not in str(interval)


@given(PAIRS)
def test_the_other_players_interval_is_the_mirror_image(pairs: list[float]) -> None:
    one, other = paired_interval(pairs), paired_interval([1 - score for score in pairs])
    assert (other.score, other.low, other.high) == pytest.approx((1 - one.score, 1 - one.high, 1 - one.low), abs=1e-9)


def test_four_times_the_pairs_halve_the_width_where_there_are_many() -> None:
    pairs = [0.0, 0.25, 0.5, 0.5, 0.75, 1.0] * 50
    one, four = (paired_interval(pairs * times) for times in (1, 4))
    assert (one.high - one.low) / (four.high - four.low) == pytest.approx(2, abs=0.02)


def test_two_games_of_an_opening_are_one_observation() -> None:
    # A colour that always wins says nothing of the players: each pair is 0.5, where single games would vary between 0 and 1.
    fair = paired_interval([0.5] * 100)
    as_games = paired_interval([0.0, 1.0] * 100)
    assert fair.high - fair.low < (as_games.high - as_games.low) / 3


def test_without_a_pair_there_is_no_score() -> None:
    with pytest.raises(ValueError, match="no pairs, no score"):
        paired_interval([])


@pytest.mark.parametrize("num_pairs", [5, 10, 30, 60, 300])
@pytest.mark.parametrize(
    ("win", "draw"),
    [(0.5, 0.0), (0.25, 0.5), (0.1, 0.8), (0.4, 0.3), (0.8, 0.1), (0.03, 0.1), (0.0, 0.1), (0.05, 0.0)],
)
def test_the_truth_lies_inside_about_95_times_in_100(num_pairs: int, win: float, draw: float) -> None:
    rng = np.random.default_rng([num_pairs, round(100 * win), round(100 * draw)])
    truth = win + draw / 2
    runs = 1_000
    pairs = rng.choice([1.0, 0.5, 0.0], p=[win, draw, 1 - win - draw], size=(runs, num_pairs, 2)).mean(2)
    intervals = [paired_interval(row.tolist()) for row in pairs]
    held = sum(interval.low <= truth <= interval.high for interval in intervals) / runs
    assert held >= 0.93
    if num_pairs == 300 and win >= 0.1:
        assert held <= 0.975, "and it is no wider than that takes"


def test_pairs_that_share_their_openings_luck_are_covered_too() -> None:
    # An opening that favours one colour by far: both games of a pair go together, and single games would look far too sure.
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(500):
        luck = rng.choice([-0.4, 0.4], size=60)
        pairs = (rng.random((60, 2)) < 0.5 + luck[:, None]).mean(1)
        held += paired_interval(pairs.tolist()).low <= 0.5 <= paired_interval(pairs.tolist()).high
    assert held / 500 >= 0.93


def test_it_reads_as_score_interval_elo_and_number_of_pairs() -> None:
    interval = ScoreInterval(score=0.5, low=0.25, high=0.75, num_pairs=12)
    assert str(interval) == "0.500 [0.250, 0.750] = +0 Elo [-191, +191], 12 pairs"


# What fastchess prints, by the plain normal interval (its elo_test.cpp).


@pytest.mark.parametrize(
    ("outcomes", "of_elo", "superiority"),
    [
        (Outcomes.of_games(wins=136, draws=111, losses=96), (40.70, 30.43), 0.9960),
        (Outcomes.of_games(wins=76, draws=123, losses=89), None, 0.1553),
        (Outcomes(counts=(34, 54, 63, 64, 75)), (55.58, 27.65), None),
    ],
)
def test_the_oracles_are_reproduced_to_the_digits_given(
    outcomes: Outcomes, of_elo: tuple[float, float] | None, superiority: float | None
) -> None:
    found = normal_statistics(outcomes)
    if of_elo is not None:
        assert (found.elo.value, found.elo.margin) == pytest.approx(of_elo, abs=0.005)
    if superiority is not None:
        assert found.likelihood_of_superiority == pytest.approx(superiority, abs=5e-5)


# Counts, and our own figures from them.


def numbers(found: MatchStatistics) -> list[float]:
    return [
        *(number for each in (found.score, found.elo) for number in (each.value, each.low, each.high, each.margin)),
        found.likelihood_of_superiority,
    ]


def test_pairs_are_counted_from_both_lost_to_both_won() -> None:
    assert Outcomes.of_pairs([0.0, 0.25, 0.25, 0.5, 0.5, 0.5, 0.75, 1.0, 1.0]).counts == (1, 2, 3, 1, 2)
    assert Outcomes.of_games(wins=3, draws=2, losses=1).counts == (1, 2, 3)
    with pytest.raises(ValueError, match=r"cannot score 0.3"):
        Outcomes.of_pairs([0.5, 0.3])


@given(PAIRS)
def test_our_score_with_interval_is_that_of_the_pairs_and_the_chance_goes_with_the_p_value(pairs: list[float]) -> None:
    found, interval = match_statistics(Outcomes.of_pairs(pairs)), paired_interval(pairs)
    assert (found.score.value, found.score.low, found.score.high) == pytest.approx((interval.score, interval.low, interval.high), abs=1e-9)
    assert found.elo.low == pytest.approx(elo(interval.low), abs=1e-6)
    assert found.likelihood_of_superiority == pytest.approx(1 - p_value(pairs), abs=1e-9)


def test_independent_games_give_the_same_numbers_counted_singly_or_in_pairs() -> None:
    win, draw, loss = 0.4, 0.35, 0.25
    games = Outcomes(counts=tuple(1e6 * share for share in (loss, draw, win)))
    in_pairs = Outcomes(counts=tuple(5e5 * share for share in (loss**2, 2 * loss * draw, draw**2 + 2 * win * loss, 2 * win * draw, win**2)))
    one, other = normal_statistics(games), normal_statistics(in_pairs)
    assert numbers(one) == pytest.approx(numbers(other))


@pytest.mark.parametrize("of_match", [match_statistics, normal_statistics])
@pytest.mark.parametrize(
    "counts",
    [(*[0] * where, number, *[0] * (size - 1 - where)) for size in (3, 5) for where in range(size) for number in (1, 16, 10**6)],
    ids=str,
)
def test_every_number_is_finite_where_all_games_ended_alike(of_match: object, counts: tuple[int, ...]) -> None:
    found = of_match(Outcomes(counts=counts))  # type: ignore[operator]
    assert all(math.isfinite(number) for number in numbers(found))
    assert 0 <= found.score.low <= found.score.value <= found.score.high <= 1
    assert 0 <= found.likelihood_of_superiority <= 1
    worst, middle = counts[0] > 0, counts[len(counts) // 2] > 0
    if middle:
        assert (found.elo.value, found.likelihood_of_superiority) == pytest.approx((0, 0.5), abs=1e-6)
    else:
        upper = found.likelihood_of_superiority > 0.5
        assert upper == (found.elo.value > 0)
        assert not (worst and upper)


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

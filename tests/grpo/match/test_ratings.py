"""Ratings from games: cases worked by hand, reductions, intervals that hold the truth as often as they say, and tables with no answer."""

import math

import numpy as np
import pytest
from made_selections import simulated

from grpo.match.intervals import Z95, expected_score
from grpo.match.ratings import ELO_PER_NAT, fit_ratings, rate_against, rating_difference

# Worked by hand.


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


def test_a_rating_against_one_known_opponent_is_the_two_players_rating_moved_by_his() -> None:
    scores = (1.0, 0.5, 0.75, 0.5, 0.0)
    elo, covariance = fit_ratings(2, {(1, 0): scores})
    found = rate_against([700.0], [scores])
    assert found.elo == pytest.approx(700 + elo[1])
    assert found.standard_error == pytest.approx(math.sqrt(covariance[1, 1]))
    assert found.weights == (1.0,)


# Degenerate tables.


@pytest.mark.parametrize("num_pairs", [1, 200])
def test_when_every_game_was_won_ratings_and_errors_are_finite_and_grow_with_the_number_of_games(num_pairs: int) -> None:
    elo, covariance = fit_ratings(3, {(1, 0): [1.0] * num_pairs, (2, 1): [1.0] * num_pairs})
    step = ELO_PER_NAT * math.log(4 * num_pairs + 1)  # (2 n + 1/2) wins to 1/2.
    assert elo == pytest.approx([0, step, 2 * step], rel=1e-6)
    errors = np.sqrt(np.diag(covariance))
    assert 0 < errors[1] < errors[2] < 1_000


# Simulation.


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


@pytest.mark.parametrize(("shared", "width"), [(0.0, 45), (0.95, 20)])
def test_the_interval_of_the_difference_holds_the_truth_whatever_the_openings_share(shared: float, width: float) -> None:
    rng = np.random.default_rng(6)
    opponents, ratings, num_pairs = [0.0, 200.0], [130.0, 90.0], 150
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
        found = rating_difference(opponents, *scores)
        held.append(abs(found.elo - 40) <= Z95 * found.standard_error)
        widths.append(Z95 * found.standard_error)
    assert 0.92 < np.mean(held) < 0.99
    assert np.mean(widths) < width

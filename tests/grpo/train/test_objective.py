"""Advantages, objective, and what is measured of both: numbers worked by hand, gradients, and what sampling must converge to.

Legend: B boards, A legal moves (padded), M moves of a board in the surrogate, G moves of a group.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from doubles import sampled_moves
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo.metrics.shared import TERMS
from grpo.metrics.table import METRICS
from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.train.control import Knobs
from grpo.train.network_problem import select_rows
from grpo.train.objective import Batch, Measured, Terms, clipped_surrogate, group_advantages, grpo_objective, is_clipped
from grpo.train.probes import budget, columns, gradient_products, logit_descents, loss_metrics, move_metrics, network_metrics
from grpo.train.states import States

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}


def knobs(*, entropy: float = 0.0, kl: float = 0.0, recovery: float = 0.0) -> Knobs:
    return Knobs(temperature=1.0, entropy_coefficient=entropy, kl_coefficient=kl, recovery_coefficient=recovery, learning_rate=1.0)


PLAIN = knobs()
ALL_TERMS = knobs(entropy=0.3, kl=0.7, recovery=0.5)


def numbers(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def of(logits_BA: Tensor, legal_BA: Tensor | None = None, temperature: float = 1.0) -> MoveDistribution:
    mask = torch.ones_like(logits_BA, dtype=torch.bool) if legal_BA is None else legal_BA
    return MoveDistribution.from_logits(logits_BA, mask, temperature=temperature)


class Case:
    """Boards with 6, 3, 8 and 1 legal moves, an old policy near the new one, and groups of four moves, in float64."""

    def __init__(self, *, temperature: float = 1.3, distance: float = 1.2) -> None:
        rng = torch.Generator().manual_seed(2)
        self.temperature = temperature
        self.legal = torch.arange(9) < torch.tensor([6, 3, 8, 1])[:, None]
        self.logits = torch.randn(4, 9, generator=rng, dtype=torch.float64)
        noise = torch.randn(4, 9, generator=rng, dtype=torch.float64) * distance
        self.old = of(self.logits + noise, self.legal, temperature)
        self.reference = of(torch.randn(4, 9, generator=rng, dtype=torch.float64), self.legal, temperature)
        self.values = torch.rand(4, 9, generator=rng, dtype=torch.float64)
        self.columns = torch.tensor([[0, 5, 2, 2], [1, 0, 2, 1], [0, 7, 3, 5], [0, 0, 0, 0]])
        self.moves = sampled_moves(self.old, self.columns, self.values * self.legal, temperature)

    def objective(self, logits: Tensor, knobs: Knobs = ALL_TERMS, **changes: Any) -> Terms:
        parts = {"reference": self.reference, "batch": self.moves, **changes}
        return grpo_objective(of(logits, self.legal, self.temperature), knobs=knobs, **BOUNDS, **parts)

    def gradient(self, knobs: Knobs = ALL_TERMS, term: str | None = None) -> Tensor:
        """Return the gradient of the summed loss, or of one weighted term, in the logits."""
        logits = self.logits.clone().requires_grad_(True)
        made = self.objective(logits, knobs)
        [result] = torch.autograd.grad((made.loss if term is None else made.weighted[term]).sum(), logits)
        return result

    def descents(self, knobs: Knobs = ALL_TERMS) -> dict[str, Tensor]:
        """Return the closed forms."""
        new = of(self.logits, self.legal, self.temperature)
        return logit_descents(self.moves, self.objective(self.logits, knobs), new, self.reference, knobs)


# Worked by hand.


def test_the_clipped_surrogate_worked_by_hand() -> None:
    ratios = numbers(1.5, 1.5, 0.5, 0.5, 1.1, 1.1)
    advantages = numbers(2, -2, 2, -2, 2, -2)
    assert clipped_surrogate(ratios, advantages, **BOUNDS)[0].tolist() == pytest.approx([2.56, -3.0, 1.0, -1.6, 2.2, -2.2])
    low, high = is_clipped(ratios, advantages, **BOUNDS)
    assert low[0].tolist() == [False, False, False, True, False, False]
    assert high[0].tolist() == [True, False, False, False, False, False]


def test_the_whole_objective_worked_by_hand() -> None:
    old, new, reference = of(numbers(0, 0)), of(numbers(math.log(3), 0)), of(numbers(0, math.log(7)))
    columns = torch.tensor([[0, 1]])
    moves = replace(sampled_moves(old, columns, numbers(0, 0)), advantages=numbers(0.25, -0.5))
    made = grpo_objective(new, reference, moves, ALL_TERMS, **BOUNDS)
    # p = (3/4, 1/4), q = (1/8, 7/8): the ratios are 1.5 and 0.5, clipped to 1.28 and 0.8.
    assert made.ratios[0].tolist() == pytest.approx([1.5, 0.5])
    assert made.is_clipped_high[0].tolist() == [True, False]
    assert made.is_clipped_low[0].tolist() == [False, True]
    surrogate = (0.25 * 1.28 - 0.5 * 0.8) / 2
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    kl_reference = 0.75 * math.log(6) + 0.25 * math.log(2 / 7)
    kl_from_reference = math.log(1 / 6) / 8 + 7 * math.log(7 / 2) / 8
    assert {term: value.item() for term, value in made.weighted.items()} == pytest.approx(
        {"policy": -surrogate, "entropy": -0.3 * entropy, "reference_kl": 0.7 * kl_reference, "recovery_kl": 0.5 * kl_from_reference}
    )
    assert made.loss.item() == pytest.approx(-surrogate - 0.3 * entropy + 0.7 * kl_reference + 0.5 * kl_from_reference)
    assert made.kl_old.item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    # Without the whole old distribution it is estimated: the mean of r - 1 - ln r.
    estimated = grpo_objective(new, reference, replace(moves, old=None), ALL_TERMS, **BOUNDS)
    assert estimated.kl_old.item() == pytest.approx((0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 2)
    assert torch.equal(estimated.loss, made.loss)


# Gradients: closed forms, autograd and finite differences are one.


@pytest.mark.parametrize(("distance", "temperature"), [(0.0, 0.7), (1.2, 1.3)])
@pytest.mark.parametrize("term", TERMS)
def test_the_closed_form_descent_of_a_term_is_minus_its_gradient_and_minus_its_finite_difference(
    term: str, temperature: float, distance: float
) -> None:
    case = Case(temperature=temperature, distance=distance)
    made = case.objective(case.logits)
    is_real = case.moves.weights > 0
    if distance:
        assert made.is_clipped_low.any(), "there is something of either kind of clip"
        assert made.is_clipped_high.any()
        assert not (made.is_clipped_low | made.is_clipped_high)[is_real].all()
    else:
        assert (made.ratios - 1).abs().max() < 1e-14
    assert torch.stack([(made.ratios - bound).abs() for bound in (0.8, 1.28)]).min() > 1e-4, "no kink lies within the step"
    found = case.descents()[term]
    assert torch.allclose(found, -case.gradient(term=term), atol=1e-14)
    differences = torch.zeros_like(found)
    for index in np.ndindex(4, 9):
        sides = []
        for step in (1e-5, -1e-5):
            moved = case.logits.clone()
            moved[index] += step
            sides.append(case.objective(moved).weighted[term].sum())
        differences[index] = (sides[0] - sides[1]) / 2e-5
    assert torch.allclose(found, -differences, atol=1e-9)
    assert found[:3].abs().amax(1).min() > 1e-4, "the test has teeth, for each state"


@pytest.mark.parametrize(("temperature", "group_size"), [(0.7, 2), (1.3, 4)])
def test_over_all_groups_there_are_the_gradient_is_the_exact_one_less_the_share_of_oneself(temperature: float, group_size: int) -> None:
    # No sampling: every group is weighed with its probability, so that this is an identity.
    start, values = numbers(0.5, -0.3, 1.1), numbers(0.9, 0.2, 0.4)
    old = of(start, temperature=temperature)
    total = torch.zeros_like(start)
    for group in itertools.product(range(3), repeat=group_size):
        columns = torch.tensor([group])
        logits = start.clone().requires_grad_(True)
        moves = sampled_moves(old, columns, values)
        made = grpo_objective(of(logits, temperature=temperature), old, moves, PLAIN, **BOUNDS)
        [gradient] = torch.autograd.grad(made.raw["policy"].sum(), logits)
        total += old.log_prob(columns).sum().exp() * gradient
    exact = old.probs * (values - old.expectation(values)[:, None]) / temperature
    assert torch.allclose(total, (1 - 1 / group_size) * exact, atol=1e-14)


# The gradient budget.


def test_a_budget_worked_by_hand() -> None:
    descents = {
        "policy": numbers(3, 0, 0),
        "entropy": numbers(0, 4, 0),
        "reference_kl": numbers(-3, -4, 0),
        "recovery_kl": numbers(0, 0, 0),
    }
    norms, shares, cosines = budget({pair: value.item() for pair, value in gradient_products(descents).items()})
    assert norms == {"policy": 3, "entropy": 4, "reference_kl": 5, "recovery_kl": 0}
    assert shares == pytest.approx({"policy": 3 / 12, "entropy": 4 / 12, "reference_kl": 5 / 12, "recovery_kl": 0})
    assert (cosines["policy", "entropy"], cosines["policy", "recovery_kl"]) == (0, 0)
    assert (cosines["policy", "reference_kl"], cosines["entropy", "reference_kl"]) == pytest.approx((-0.6, -0.8))


# What must make no difference.


def test_what_stands_on_the_padding_of_the_moves_has_no_effect() -> None:
    case = Case()
    moves, width = case.moves, 4
    padded = replace(
        moves,
        columns=torch.cat([moves.columns, torch.tensor([[0, 5], [2, 1], [7, 0], [0, 0]])], dim=1),
        weights=torch.nn.functional.pad(moves.weights, (0, 2)),
        old_log_probs=torch.nn.functional.pad(moves.old_log_probs, (0, 2), value=1e4),
        advantages=torch.nn.functional.pad(moves.advantages, (0, 2), value=1e4),
    )
    logits = case.logits.clone().requires_grad_(True)
    made, plain = case.objective(logits, batch=padded), case.objective(case.logits)
    assert torch.allclose(made.loss, plain.loss, atol=1e-15)
    assert (made.ratios[:, width:] == 1).all()
    assert not (made.is_clipped_low | made.is_clipped_high)[:, width:].any()
    assert torch.allclose(torch.autograd.grad(made.loss.sum(), logits)[0], case.gradient(), atol=1e-15)


def test_without_coefficient_a_reference_that_finds_a_move_impossible_makes_no_nan_and_no_difference() -> None:
    case, plain, chosen = Case(), Case(), knobs(entropy=0.3)
    impossible = torch.zeros_like(case.logits)
    impossible[:3, 1] = -math.inf
    case.reference = of(impossible, case.legal)
    assert torch.equal(case.gradient(chosen), plain.gradient(chosen))
    assert torch.isfinite(case.gradient(chosen)).all()
    without = case.objective(case.logits, chosen, reference=None)
    assert torch.equal(without.loss, plain.objective(case.logits, chosen).loss), "it may be left out, too"
    for needing in (knobs(kl=0.1), knobs(recovery=0.1)):
        with pytest.raises(AssertionError, match="a KL term in the loss needs the reference"):
            case.objective(case.logits, needing, reference=None)


# Advantages.


def test_advantages_worked_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.5, 0.0, 0.5], [0.25, 0.75, 0.25, 0.75]], dtype=torch.float64)
    assert group_advantages(rewards).tolist() == [[0.5, 0.0, -0.5, 0.0], [-0.25, 0.25, -0.25, 0.25]]


@given(dtype=st.sampled_from([torch.float32, torch.float64]), reward=st.floats(0, 1, width=32), size=st.integers(2, 64))
def test_equal_rewards_have_no_advantage_at_all(dtype: torch.dtype, reward: float, size: int) -> None:
    # Exactly 0, not 1e-9: Adam divides a gradient by its own size, and would make a full step of rounding.
    assert not group_advantages(torch.full((1, size), reward, dtype=dtype)).any()


def test_empty_places_get_nothing_and_the_others_are_a_smaller_group() -> None:
    rewards = torch.tensor([[1.0, math.nan, 0.5, 0.0], [0.25, 0.75, math.nan, math.inf], [math.nan, math.nan, 0.5, math.nan]])
    made = group_advantages(rewards, is_member_BG=torch.isfinite(rewards))
    assert made.tolist() == [[0.5, 0.0, 0.0, -0.5], [-0.25, 0.25, 0.0, 0.0], [0.0] * 4]


# What is measured of rollouts and of optimizer steps.

# Two states: p = (3/4, 1/4), and three equal moves.
ENTROPY_0 = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
ENTROPY_1 = math.log(3)
VALUES = torch.tensor([[0.8, 0.4, 0.0], [1.0, 0.0, 0.5]], dtype=torch.float64)
PROBS = torch.tensor([[0.75, 0.25, 0.0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
# The policy after a step: the ratios are .8 and 1.6, and .6, .9 and 1.5.
NEW = torch.tensor([[0.6, 0.4, 0.0], [0.2, 0.3, 0.5]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64)


def written(probs_BA: Tensor) -> MoveDistribution:
    """Return the distribution with these probabilities, 0 being padding."""
    is_legal = probs_BA > 0
    return MoveDistribution(log_probs=torch.where(is_legal, probs_BA, 1.0).log(), is_legal=is_legal)


def sampled(temperature: float = 1.0) -> Batch[States]:
    """Return groups of four: three of the first state's first move and one of its second; all four of the second state's last."""
    old = MoveDistribution.from_logits(written(PROBS).log_probs, PROBS > 0, temperature=temperature)
    positions = PositionBatch(
        encodings=torch.zeros(2, 71, dtype=torch.uint8),
        action_ids=torch.zeros(2, 3, dtype=torch.int64),
        is_legal=old.is_legal,
        repeats=torch.zeros_like(old.is_legal),
    )
    states = States(positions=positions, values=VALUES, phases=torch.tensor([0, 2]))
    return replace(sampled_moves(old, torch.tensor([[0, 0, 1, 0], [2, 2, 2, 2]]), VALUES, temperature), states=states, num_dropped=3)


@pytest.mark.parametrize("temperature", [1.0, 1.3, 0.5])
def test_the_metrics_of_sampled_groups_worked_by_hand(temperature: float) -> None:
    normalized = ENTROPY_0 / math.log(2)
    # Rewards .8 .8 .4 .8 and .5 .5 .5 .5; advantages .1 .1 -.3 .1 and 0.
    deviations = (3 * 0.2**2 + 0.2**2 + 4 * 0.1**2) / 8
    assert move_metrics(sampled(temperature)) == pytest.approx(
        {
            "grpo/entropy": (ENTROPY_0 + ENTROPY_1) / 2,
            "grpo/entropy/opening": ENTROPY_0,
            "grpo/entropy/endgame": ENTROPY_1,
            "grpo/normalized_entropy": (normalized + 1) / 2,
            "grpo/log_num_legal": (math.log(2) + math.log(3)) / 2,
            "grpo/regret": (0.1 + 0.5) / 2,
            "grpo/zero_variance_groups": 0.5,
            "grpo/agreement": (0.75 + 1) / 2,
            "grpo/reward_mean": 0.6,
            "grpo/reward_std": math.sqrt(deviations),
            "grpo/states_dropped": 3.0,
        },
        abs=1e-7,
    )


def pieces_of(pieces: list[list[int]], new: Tensor = NEW) -> Measured:
    step = Measured(total=2.0, num_rows=2.0)
    for rows in pieces:
        piece = select_rows(sampled(), torch.tensor(rows))
        width = piece.states.values.shape[1]
        now, reference = written(new[rows][:, :width]), written(REFERENCE[rows][:, :width])
        terms = grpo_objective(now, reference, piece, ALL_TERMS, **BOUNDS)
        step.add(piece, terms, columns(piece, terms, now, reference, ALL_TERMS))
    step.gradient_norm = 2.0
    return step


def step_metrics(taken: list[Measured], refused: Measured | None = None) -> dict[str, float]:
    return loss_metrics("grpo", taken, refused) | network_metrics(taken, refused)


def test_the_metrics_of_several_steps_are_their_mean_their_extreme_or_the_last() -> None:
    # The ratios of the second step: .8 .8 1.6 .8, and 1.5; nothing is clipped, for 1.6 is pushed down and 1.5 has no advantage.
    first, second = pieces_of([[0, 1]], PROBS), pieces_of([[0, 1]])
    assert (second.mean("clip_low"), second.mean("clip_high")) == (0, 0)
    # 0.1 * 0.8 - 0.1 * 0.4, and -0.05 * 1.0.
    assert second.mean("reward_gain") == pytest.approx((0.04 - 0.05) / 2)
    metrics = step_metrics([first, second])
    assert step_metrics([first, pieces_of([[1], [0]])]) == pytest.approx(metrics, rel=1e-12, abs=1e-14), "in pieces"
    assert metrics["grpo/loss"] == pytest.approx((first.mean("loss") + second.mean("loss")) / 2)
    # Of the policy that was sampled: the later steps may not know the reference.
    assert metrics["grpo/kl_reference"] == first.kl_reference > 0.01
    assert metrics["grpo/kl_old"] == second.kl_old > 0.01
    assert (metrics["grpo/ratio_min"], metrics["grpo/ratio_max"]) == pytest.approx((0.8, 1.6))
    assert metrics.keys() <= METRICS.keys()


def test_the_metrics_of_a_step_whose_gradients_are_clipped_worked_by_hand() -> None:
    # The first state's ratios are 1.31 three times, which only rise, and .08 once, which only falls.
    first, clipped = pieces_of([[0, 1]], PROBS), pieces_of([[0, 1]], torch.tensor([[0.98, 0.02, 0.0], [0.2, 0.3, 0.5]]).double())
    clipped.gradient_norm = 4.0
    metrics = step_metrics([first, clipped])
    # Means over two states and two steps.
    assert (metrics["grpo/clip_low_fraction"], metrics["grpo/clip_high_fraction"]) == pytest.approx((0.25 / 4, 0.75 / 4))
    assert metrics["grpo/clip_fraction"] == pytest.approx(1 / 4)
    assert metrics["grpo/gradient_norm"] == 3.0
    # Of the policy that was sampled: KL(reference || policy), and 0.25 * (0.8 - 0.4) of the first state's values alone.
    divergence = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.25 * 3) + 0.5 * math.log(0.5 * 3)
    assert metrics["grpo/kl_from_reference"] == pytest.approx(divergence / 2)
    assert metrics["grpo/reward_gain"] == pytest.approx(0.1 / 2)

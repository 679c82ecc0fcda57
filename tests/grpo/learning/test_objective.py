"""The objective: reductions, numbers worked by hand, gradients, what sampling must converge to, and the mistakes of the field notes.

Legend: B boards, A legal moves (padded), M moves of a board in the surrogate, G moves of a group.
"""

import itertools
import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo.control.controller import Knobs
from grpo.learning.advantages import exact_advantages, group_advantages
from grpo.learning.objective import (
    Moves,
    Objective,
    budget,
    clipped_surrogate,
    exact_policy_ascent,
    gradient_products,
    grpo_objective,
    is_clipped,
    logit_descents,
)
from grpo.learning.rollouts import Rollout
from grpo.learning.states import States
from grpo.metrics.table import TERM_PAIRS, TERMS
from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.settings.grpo import GrpoConfig

Direction = Literal["policy_to_reference", "reference_to_policy"]
Kind = Literal["sampled", "exact"]

TEMPERATURES = [0.7, 1.0, 1.3]
BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}
DIRECTIONS: list[Direction] = ["policy_to_reference", "reference_to_policy"]
KINDS: list[Kind] = ["sampled", "exact"]
CONFIG = GrpoConfig(**BOUNDS)
OTHERS = GrpoConfig(**BOUNDS, baseline="leave_one_out")


def knobs(*, entropy: float = 0.0, kl: float = 0.0, recovery: float = 0.0) -> Knobs:
    """Return these coefficients; the temperature is in the distributions."""
    return Knobs(temperature=1.0, entropy_coefficient=entropy, kl_coefficient=kl, recovery_coefficient=recovery, learning_rate=1.0)


PLAIN = knobs()
ALL_TERMS = knobs(entropy=0.3, kl=0.7, recovery=0.5)


def numbers(*values: float) -> Tensor:
    """Return a float64 batch of one row."""
    return torch.tensor([values], dtype=torch.float64)


def of(logits_BA: Tensor, legal_BA: Tensor | None = None, temperature: float = 1.0) -> MoveDistribution:
    """Return the distribution of these logits; without a mask all moves are legal."""
    mask = torch.ones_like(logits_BA, dtype=torch.bool) if legal_BA is None else legal_BA
    return MoveDistribution.from_logits(logits_BA, mask, temperature=temperature)


def sampled_moves(old: MoveDistribution, columns_BG: Tensor, values_BA: Tensor, config: GrpoConfig = CONFIG) -> Moves:
    """Return groups of these moves."""
    advantages = group_advantages(values_BA.gather(1, columns_BG), config)
    weights = torch.full_like(advantages, 1 / columns_BG.shape[1])
    return Moves(columns=columns_BG, weights=weights, old_log_probs=old.log_prob(columns_BG), advantages=advantages)


def all_moves(old: MoveDistribution, values_BA: Tensor, config: GrpoConfig = CONFIG) -> Moves:
    """Return all legal moves by their old probabilities: the exact estimator."""
    columns = torch.arange(values_BA.shape[1]).expand(len(values_BA), -1)
    return Moves(
        columns=columns,
        weights=old.probs,
        old_log_probs=old.log_probs,
        advantages=exact_advantages(old.probs, values_BA, config),
    )


class Case:
    """Boards with 6, 3, 8 and 1 legal moves, an old policy near the new one, and groups of four moves, in float64."""

    def __init__(
        self, *, temperature: float = 1.3, distance: float = 1.2, kind: Kind = "sampled", direction: Direction = "policy_to_reference"
    ) -> None:
        rng = torch.Generator().manual_seed(2)
        self.temperature = temperature
        self.legal = torch.arange(9) < torch.tensor([6, 3, 8, 1])[:, None]
        self.logits = torch.randn(4, 9, generator=rng, dtype=torch.float64)
        noise = torch.randn(4, 9, generator=rng, dtype=torch.float64) * distance
        self.old = of(self.logits + noise, self.legal, temperature)
        self.reference = of(torch.randn(4, 9, generator=rng, dtype=torch.float64), self.legal, temperature)
        self.values = torch.rand(4, 9, generator=rng, dtype=torch.float64)
        self.columns = torch.tensor([[0, 5, 2, 2], [1, 0, 2, 1], [0, 7, 3, 5], [0, 0, 0, 0]])
        self.config = GrpoConfig(**BOUNDS, kl_direction=direction)
        self.kind = kind

    @property
    def moves(self) -> Moves:
        """What the surrogate sums over."""
        values = self.values * self.legal
        return sampled_moves(self.old, self.columns, values) if self.kind == "sampled" else all_moves(self.old, values)

    def parts(self, logits: Tensor) -> dict[str, Any]:
        """Return what both functions take."""
        new = of(logits, self.legal, self.temperature)
        return {"new": new, "reference": self.reference, "moves": self.moves, "config": self.config}

    def objective(self, logits: Tensor, knobs: Knobs = ALL_TERMS) -> Objective:
        """Return the objective of these logits."""
        return grpo_objective(old=self.old, knobs=knobs, **self.parts(logits))

    def gradient(self, knobs: Knobs = ALL_TERMS, term: str | None = None) -> Tensor:
        """Return the gradient of the summed loss, or of one weighted term, in the logits."""
        logits = self.logits.clone().requires_grad_(True)
        made = self.objective(logits, knobs)
        [result] = torch.autograd.grad((made.loss if term is None else made.weighted[term]).sum(), logits)
        return result

    def descents(self, knobs: Knobs = ALL_TERMS) -> dict[str, Tensor]:
        """Return the closed forms."""
        made = self.objective(self.logits, knobs)
        return logit_descents(objective=made, temperature=self.temperature, knobs=knobs, **self.parts(self.logits))


# The clip, worked by hand.


def test_the_clipped_surrogate_worked_by_hand() -> None:
    ratios = numbers(1.5, 1.5, 0.5, 0.5, 1.1, 1.1)
    advantages = numbers(2, -2, 2, -2, 2, -2)
    assert clipped_surrogate(ratios, advantages, **BOUNDS)[0].tolist() == pytest.approx([2.56, -3.0, 1.0, -1.6, 2.2, -2.2])
    low, high = is_clipped(ratios, advantages, **BOUNDS)
    assert low[0].tolist() == [False, False, False, True, False, False]
    assert high[0].tolist() == [True, False, False, False, False, False]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_whole_objective_worked_by_hand(direction: Direction) -> None:
    old, new, reference = of(numbers(0, 0)), of(numbers(math.log(3), 0)), of(numbers(0, math.log(7)))
    columns = torch.tensor([[0, 1]])
    moves = Moves(columns=columns, weights=numbers(0.5, 0.5), old_log_probs=old.log_prob(columns), advantages=numbers(0.25, -0.25))
    config = GrpoConfig(**BOUNDS, kl_direction=direction)
    made = grpo_objective(new=new, old=old, reference=reference, moves=moves, config=config, knobs=ALL_TERMS)
    # p = (3/4, 1/4), q = (1/8, 7/8): the ratios are 1.5 and 0.5, clipped to 1.28 and 0.8.
    assert made.ratios[0].tolist() == pytest.approx([1.5, 0.5])
    assert made.is_clipped_high[0].tolist() == [True, False]
    assert made.is_clipped_low[0].tolist() == [False, True]
    surrogate = (0.25 * 1.28 - 0.25 * 0.8) / 2
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    kl_reference = 0.75 * math.log(6) + 0.25 * math.log(2 / 7)
    kl_from_reference = math.log(1 / 6) / 8 + 7 * math.log(7 / 2) / 8
    anchor = kl_reference if direction == "policy_to_reference" else kl_from_reference
    assert {term: value.item() for term, value in made.raw.items()} == pytest.approx(
        {"policy": surrogate, "entropy": entropy, "reference_kl": anchor, "recovery_kl": kl_from_reference}
    )
    assert {term: value.item() for term, value in made.weighted.items()} == pytest.approx(
        {"policy": -surrogate, "entropy": -0.3 * entropy, "reference_kl": 0.7 * anchor, "recovery_kl": 0.5 * kl_from_reference}
    )
    assert made.loss.item() == pytest.approx(-surrogate - 0.3 * entropy + 0.7 * anchor + 0.5 * kl_from_reference)
    assert (made.kl_reference.item(), made.kl_from_reference.item()) == pytest.approx((kl_reference, kl_from_reference))
    assert made.kl_old.item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))


# Reductions.


@given(st.floats(0, 10), st.floats(-5, 5))
def test_with_infinite_bounds_it_is_the_unclipped_surrogate(ratio: float, advantage: float) -> None:
    found = clipped_surrogate(numbers(ratio), numbers(advantage), clip_low=math.inf, clip_high=math.inf)
    assert found.item() == ratio * advantage
    low, high = is_clipped(numbers(ratio), numbers(advantage), clip_low=math.inf, clip_high=math.inf)
    assert not low.item()
    assert not high.item()


@given(st.floats(0, 10), st.floats(-5, 5), st.floats(0.01, 0.99), st.floats(0.01, 5))
def test_the_clip_only_ever_lowers_the_surrogate_and_stops_its_gradient_exactly_where_it_says(
    ratio: float, advantage: float, low: float, high: float
) -> None:
    ratios = numbers(ratio).requires_grad_(True)
    made = clipped_surrogate(ratios, numbers(advantage), clip_low=low, clip_high=high)
    assert made.item() <= ratio * advantage
    [gradient] = torch.autograd.grad(made.sum(), ratios)
    if min(abs(ratio - 1 + low), abs(ratio - 1 - high)) > 1e-9:  # At the kink itself any of its slopes is right.
        at_low, at_high = is_clipped(ratios, numbers(advantage), clip_low=low, clip_high=high)
        assert gradient.item() == pytest.approx(0 if at_low.item() or at_high.item() else advantage)
        assert not (at_low.item() and at_high.item())


@pytest.mark.parametrize("chosen", [PLAIN, knobs(entropy=0.03), knobs(kl=0.5), knobs(recovery=0.2), ALL_TERMS])
def test_the_loss_is_the_sum_of_its_weighted_terms_and_each_is_coefficient_times_value(chosen: Knobs) -> None:
    case = Case()
    made = case.objective(case.logits, chosen)
    factors = (-1.0, -chosen.entropy_coefficient, chosen.kl_coefficient, chosen.recovery_coefficient)
    for term, factor in zip(TERMS, factors, strict=True):
        assert torch.equal(made.weighted[term], factor * made.raw[term] + 0.0)
    assert torch.allclose(made.loss, torch.stack(list(made.weighted.values())).sum(0), atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_each_term_is_its_closed_form_state_by_state(kind: Kind) -> None:
    case = Case(kind=kind)
    made, moves = case.objective(case.logits), case.moves
    new = of(case.logits, case.legal, case.temperature)
    for row in range(4):
        total = 0.0
        for place in range(moves.columns.shape[1]):
            weight, advantage = moves.weights[row, place].item(), moves.advantages[row, place].item()
            if weight > 0:
                ratio = new.probs[row, moves.columns[row, place]].item() / math.exp(moves.old_log_probs[row, place].item())
                assert made.ratios[row, place].item() == pytest.approx(ratio)
                total += weight * min(ratio * advantage, min(max(ratio, 0.8), 1.28) * advantage)
        assert made.raw["policy"][row].item() == pytest.approx(total, abs=1e-14)
    assert torch.equal(made.raw["entropy"], new.entropy())
    assert torch.equal(made.kl_reference, new.kl_to(case.reference))
    assert torch.equal(made.kl_from_reference, case.reference.kl_to(new))
    assert torch.equal(made.kl_old, case.old.kl_to(new))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_anchor_is_the_divergence_of_the_chosen_direction_and_recovery_always_that_from_the_reference(direction: Direction) -> None:
    case = Case(direction=direction)
    made = case.objective(case.logits)
    chosen = made.kl_reference if direction == "policy_to_reference" else made.kl_from_reference
    assert torch.equal(made.raw["reference_kl"], chosen)
    assert torch.equal(made.raw["recovery_kl"], made.kl_from_reference)
    assert not torch.allclose(made.kl_reference, made.kl_from_reference)


def test_moves_and_advantages_of_different_shapes_are_refused() -> None:
    case = Case()
    parts = case.parts(case.logits)
    parts["moves"] = replace(case.moves, advantages=torch.zeros(4, 3))
    with pytest.raises(ValueError, match=r"advantages must have one shape, not \[\(4, 3\), \(4, 4\)\]$"):
        grpo_objective(old=case.old, knobs=PLAIN, **parts)


def test_nothing_that_is_only_watched_carries_a_gradient() -> None:
    case = Case()
    made = case.objective(case.logits.clone().requires_grad_(True), PLAIN)
    assert made.loss.requires_grad
    assert not any(tensor.requires_grad for tensor in (made.kl_old, made.is_clipped_low, made.is_clipped_high))
    assert not any(made.weighted[term].requires_grad for term in TERMS[1:]), "a coefficient of 0 takes a term out altogether"
    assert not any(descent.requires_grad for descent in case.descents().values())


# Gradients: closed forms, autograd and finite differences are one.


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("distance", [0.0, 1.2], ids=["on-policy", "off-policy"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("term", TERMS)
def test_the_closed_form_descent_of_a_term_is_minus_its_gradient_and_minus_its_finite_difference(
    term: str, temperature: float, kind: Kind, distance: float, direction: Direction
) -> None:
    case = Case(temperature=temperature, kind=kind, distance=distance, direction=direction)
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


@pytest.mark.parametrize("term", TERMS[1:])
def test_a_term_without_a_coefficient_has_no_descent_and_with_twice_the_coefficient_twice_as_much(term: str) -> None:
    name = {"entropy": "entropy", "reference_kl": "kl", "recovery_kl": "recovery"}[term]
    case = Case()
    once, twice = case.descents(knobs(**{name: 0.2})), case.descents(knobs(**{name: 0.4}))
    assert torch.allclose(twice[term], 2 * once[term])
    assert once[term].abs().max() > 0.01
    for other in TERMS[1:]:
        assert other == term or not once[other].any()


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_on_policy_the_exact_estimators_gradient_is_the_exact_policy_gradient(temperature: float) -> None:
    case = Case(temperature=temperature, kind="exact", distance=0.0)
    exact = exact_policy_ascent(case.old, case.values * case.legal, temperature=temperature)
    assert torch.allclose(case.descents(PLAIN)["policy"], exact, atol=1e-15)
    assert torch.allclose(-case.gradient(PLAIN), exact, atol=1e-15)
    # And that is the gradient of the expected value itself.
    logits = case.logits.clone().requires_grad_(True)
    expected_value = of(logits, case.legal, temperature).expectation(case.values * case.legal)
    assert torch.allclose(torch.autograd.grad(expected_value.sum(), logits)[0], exact, atol=1e-15)
    assert exact.abs().max() > 0.01


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("group_size", [2, 3, 4])
def test_over_all_groups_there_are_the_gradient_is_the_exact_one_less_the_share_of_oneself(temperature: float, group_size: int) -> None:
    # No sampling: every group is weighed with its probability, so that this is an identity.
    start, values = numbers(0.5, -0.3, 1.1), numbers(0.9, 0.2, 0.4)
    old = of(start, temperature=temperature)
    exact = exact_policy_ascent(old, values, temperature=temperature)
    for config, factor in ((CONFIG, 1 - 1 / group_size), (OTHERS, 1.0)):
        total = torch.zeros_like(start)
        for group in itertools.product(range(3), repeat=group_size):
            columns = torch.tensor([group])
            logits = start.clone().requires_grad_(True)
            moves = sampled_moves(old, columns, values, config)
            made = grpo_objective(new=of(logits, temperature=temperature), old=old, reference=old, moves=moves, config=config, knobs=PLAIN)
            [gradient] = torch.autograd.grad(made.raw["policy"].sum(), logits)
            total += old.log_prob(columns).sum().exp() * gradient
        assert torch.allclose(total, factor * exact, atol=1e-14)


# The gradient budget.


def test_a_budget_worked_by_hand() -> None:
    descents = {
        "policy": numbers(3, 0, 0),
        "entropy": numbers(0, 4, 0),
        "reference_kl": numbers(-3, -4, 0),
        "recovery_kl": numbers(0, 0, 0),
    }
    products = {pair: value.item() for pair, value in gradient_products(descents).items()}
    assert products["policy", "policy"] == 9
    assert products["entropy", "reference_kl"] == -16
    assert set(products) == {*((term, term) for term in TERMS), *TERM_PAIRS}
    norms, shares, cosines = budget(products)
    assert norms == {"policy": 3, "entropy": 4, "reference_kl": 5, "recovery_kl": 0}
    assert shares == pytest.approx({"policy": 3 / 12, "entropy": 4 / 12, "reference_kl": 5 / 12, "recovery_kl": 0})
    assert cosines == pytest.approx(
        {
            ("policy", "entropy"): 0,
            ("policy", "reference_kl"): -0.6,
            ("entropy", "reference_kl"): -0.8,
            ("policy", "recovery_kl"): 0,
            ("entropy", "recovery_kl"): 0,
            ("reference_kl", "recovery_kl"): 0,
        }
    )


def test_a_budget_of_nothing_is_zero_and_no_nan() -> None:
    norms, shares, cosines = budget(dict.fromkeys([*((term, term) for term in TERMS), *TERM_PAIRS], 0.0))
    assert {*norms.values(), *shares.values(), *cosines.values()} == {0.0}
    assert (list(norms), list(shares), list(cosines)) == (list(TERMS), list(TERMS), list(TERM_PAIRS))


def test_to_an_even_reference_the_anchor_is_the_entropy_bonus_again() -> None:
    # KL(p || even) = ln L - H.
    case = Case()
    case.reference = of(torch.zeros_like(case.logits), case.legal)
    descents = case.descents(knobs(entropy=0.2, kl=0.2))
    assert torch.allclose(descents["reference_kl"], descents["entropy"], atol=1e-15)
    products = {pair: value.sum().item() for pair, value in gradient_products(descents).items()}
    assert budget(products)[2]["entropy", "reference_kl"] == pytest.approx(1, abs=1e-12)


# What the field notes called KL and entropy (grpo_facts.md, section 1).


def field_notes_terms(new: MoveDistribution, columns_BG: Tensor, old_log_probs_BG: Tensor) -> tuple[Tensor, Tensor]:
    """Return their KL, k1 = mean(log old - log new), and their "entropy", -mean(log new)."""
    log_new = new.log_prob(columns_BG)
    return (old_log_probs_BG - log_new).mean(), -log_new.mean()


def test_their_kl_as_a_loss_and_their_entropy_bonus_are_one_vector_with_opposite_signs() -> None:
    case = Case()
    logits = case.logits.clone().requires_grad_(True)
    kl, entropy = field_notes_terms(of(logits, case.legal, case.temperature), case.columns, case.moves.old_log_probs)
    [of_kl] = torch.autograd.grad(0.1 * kl, logits, retain_graph=True)
    [of_bonus] = torch.autograd.grad(-0.1 * entropy, logits, retain_graph=True)
    assert torch.equal(of_kl, -of_bonus)
    assert of_kl.abs().max() > 1e-3
    [of_both] = torch.autograd.grad(0.1 * kl - 0.1 * entropy, logits)
    assert not of_both.any(), "as in feb04_loss_budget, 0.1 and 0.1: no regulariser at all"
    assert abs(entropy.item()) > 5 * abs(kl.item()), "while the values said that entropy is nearly everything"
    nothing = torch.zeros_like(of_kl)
    descents = {"policy": nothing, "entropy": -of_bonus, "reference_kl": -of_kl, "recovery_kl": nothing}
    norms, shares, cosines = budget({pair: value.sum().item() for pair, value in gradient_products(descents).items()})
    assert norms["entropy"] == norms["reference_kl"] > 0
    assert shares["entropy"] == shares["reference_kl"] == 0.5
    assert cosines["entropy", "reference_kl"] == pytest.approx(-1, abs=1e-12)
    assert norms["recovery_kl"] == cosines["entropy", "recovery_kl"] == 0


@given(st.lists(st.floats(-60, 60), min_size=2, max_size=30), st.sampled_from(TEMPERATURES))
def test_the_entropy_of_the_objective_is_never_above_its_bound_and_no_divergence_below_zero(
    logits: list[float], temperature: float
) -> None:
    new, reference = of(numbers(*logits), temperature=temperature), of(numbers(*reversed(logits)), temperature=temperature)
    moves = all_moves(reference, torch.zeros(1, len(logits), dtype=torch.float64))
    made = grpo_objective(new=new, old=reference, reference=reference, moves=moves, config=CONFIG, knobs=ALL_TERMS)
    assert -1e-12 <= made.raw["entropy"].item() <= math.log(len(logits)) + 1e-12
    assert min(made.kl_reference.item(), made.kl_from_reference.item(), made.kl_old.item()) >= -1e-12


# Collapse (grpo_facts.md, section 3).


@pytest.mark.parametrize(
    ("margin", "entropy", "of_policy", "of_entropy", "of_anchor", "of_recovery"),
    [(4, 2.13, 1.4e-2, 0.70, 1.04, 0.49), (8, 0.147, 9e-4, 0.13, 0.16, 1.00), (12, 0.004, 2e-5, 4e-3, 4e-3, 1.02)],
)
def test_once_pushed_onto_one_wrong_move_only_the_divergence_from_the_reference_still_pulls(
    margin: float, entropy: float, of_policy: float, of_entropy: float, of_anchor: float, of_recovery: float
) -> None:
    # A reference of 30 normal quantiles of deviation 1.1, a wrong move in their middle that is worth 0.05 less than the rest.
    quantiles = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(30, dtype=torch.float64) + 0.5) / 30)
    healthy = 1.1 * quantiles[None]
    pushed, values = healthy.clone(), torch.full((1, 30), 0.5, dtype=torch.float64)
    pushed[0, 13] += margin
    values[0, 13] -= 0.05
    new, reference = of(pushed), of(healthy)
    parts: dict[str, Any] = {"new": new, "reference": reference, "moves": all_moves(new, values), "config": CONFIG}
    chosen = knobs(entropy=1.0, kl=1.0, recovery=1.0)
    made = grpo_objective(old=new, knobs=chosen, **parts)
    norms = {term: d.norm().item() for term, d in logit_descents(objective=made, temperature=1.0, knobs=chosen, **parts).items()}
    # The last line of the facts is rounded to one digit.
    tolerance = 0.12 if margin == 12 else 0.04
    assert made.raw["entropy"].item() == pytest.approx(entropy, rel=tolerance)
    assert norms["entropy"] == pytest.approx(of_entropy, rel=tolerance)
    assert norms["reference_kl"] == pytest.approx(of_anchor, rel=max(tolerance, 0.15 if margin == 12 else 0))
    assert norms["recovery_kl"] == pytest.approx(of_recovery, rel=0.03)
    assert norms["policy"] == pytest.approx(of_policy, rel=0.12)
    if margin == 12:
        assert norms["recovery_kl"] > 200 * max(norms["entropy"], norms["reference_kl"])


# What must make no difference.


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_moves_and_the_order_of_the_states_have_no_effect(kind: Kind) -> None:
    case = Case(kind=kind)
    once = case.gradient()
    order = torch.randperm(case.moves.columns.shape[1], generator=torch.Generator().manual_seed(0))
    logits = case.logits.clone().requires_grad_(True)
    parts = case.parts(logits)
    turned_moves = {name: getattr(case.moves, name)[:, order] for name in ("columns", "weights", "old_log_probs", "advantages")}
    parts["moves"] = Moves(**turned_moves)
    made = grpo_objective(old=case.old, knobs=ALL_TERMS, **parts)
    assert torch.allclose(torch.autograd.grad(made.loss.sum(), logits)[0], once, atol=1e-14)
    order = torch.tensor([2, 0, 3, 1])
    turned = Case(kind=kind)
    for name in ("legal", "logits", "values", "columns"):
        setattr(turned, name, getattr(case, name)[order])
    turned.old, turned.reference = (
        MoveDistribution(log_probs=made.log_probs[order], is_legal=made.is_legal[order]) for made in (case.old, case.reference)
    )
    assert torch.allclose(turned.gradient(), once[order], atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_with_one_legal_move_has_no_gradient(kind: Kind) -> None:
    assert not Case(kind=kind).gradient()[3].any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rubbish", [1e4, -1e4, math.nan])
def test_the_logits_of_illegal_moves_have_no_effect_and_no_gradient(rubbish: float, kind: Kind) -> None:
    case, spoilt = Case(kind=kind), Case(kind=kind)
    spoilt.logits = torch.where(case.legal, case.logits, torch.full_like(case.logits, rubbish))
    assert torch.equal(spoilt.gradient(), case.gradient())
    assert not case.gradient()[~case.legal].any()
    for term in TERMS:
        assert torch.equal(spoilt.descents()[term], case.descents()[term])


@pytest.mark.parametrize("rubbish", [1e4, -1e4])
def test_what_stands_on_the_padding_of_the_moves_has_no_effect(rubbish: float) -> None:
    case = Case()
    moves, width = case.moves, 4
    padded = Moves(
        columns=torch.cat([moves.columns, torch.tensor([[0, 5], [2, 1], [7, 0], [0, 0]])], dim=1),
        weights=torch.nn.functional.pad(moves.weights, (0, 2)),
        old_log_probs=torch.nn.functional.pad(moves.old_log_probs, (0, 2), value=rubbish),
        advantages=torch.nn.functional.pad(moves.advantages, (0, 2), value=rubbish),
    )
    logits = case.logits.clone().requires_grad_(True)
    parts = case.parts(logits) | {"moves": padded}
    made, plain = grpo_objective(old=case.old, knobs=ALL_TERMS, **parts), case.objective(case.logits)
    assert torch.allclose(made.loss, plain.loss, atol=1e-15)
    assert torch.equal(made.ratios[:, :width], plain.ratios)
    assert (made.ratios[:, width:] == 1).all()
    assert not (made.is_clipped_low | made.is_clipped_high)[:, width:].any()
    assert torch.allclose(torch.autograd.grad(made.loss.sum(), logits)[0], case.gradient(), atol=1e-15)
    found = logit_descents(objective=made, temperature=case.temperature, knobs=ALL_TERMS, **parts)
    for term in TERMS:
        assert torch.allclose(found[term], case.descents()[term], atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("floor", [-1e4, -math.inf])
def test_without_coefficient_a_reference_that_finds_a_move_impossible_makes_no_nan_and_no_difference(floor: float, kind: Kind) -> None:
    case, plain = Case(kind=kind), Case(kind=kind)
    impossible = torch.zeros_like(case.logits)
    impossible[:3, 1] = floor
    case.reference = of(impossible, case.legal)
    for chosen in (PLAIN, knobs(entropy=0.3)):
        assert torch.equal(case.objective(case.logits, chosen).loss, plain.objective(case.logits, chosen).loss)
        assert torch.equal(case.gradient(chosen), plain.gradient(chosen))
        assert torch.isfinite(case.gradient(chosen)).all()
        for term in TERMS:
            assert torch.equal(case.descents(chosen)[term], plain.descents(chosen)[term])


@pytest.mark.parametrize("kind", KINDS)
def test_without_coefficients_the_reference_may_be_left_out_and_with_one_it_may_not(kind: Kind) -> None:
    case, chosen = Case(kind=kind), knobs(entropy=0.3)
    whole = case.objective(case.logits, chosen)
    parts = case.parts(case.logits) | {"reference": None}
    made = grpo_objective(old=case.old, knobs=chosen, **parts)
    assert torch.equal(made.loss, whole.loss)
    assert torch.equal(made.kl_old, whole.kl_old)
    assert not any(value.any() for value in (made.kl_reference, made.kl_from_reference, made.raw["reference_kl"], made.raw["recovery_kl"]))
    found = logit_descents(objective=made, temperature=case.temperature, knobs=chosen, **parts)
    for term in TERMS:
        assert torch.equal(found[term], case.descents(chosen)[term])
    for needing in (knobs(kl=0.1), knobs(recovery=0.1)):
        with pytest.raises(ValueError, match=r"^a divergence is in the loss, so that its reference is needed$"):
            grpo_objective(old=case.old, knobs=needing, **parts)


# Pieces of a minibatch.


def rollout_of(case: Case, state_weights: Tensor) -> Rollout:
    """Return a rollout of the case's states."""
    positions = PositionBatch(
        encodings=torch.zeros(4, 71, dtype=torch.uint8),
        action_ids=torch.zeros(4, 9, dtype=torch.int64),
        is_legal=case.legal,
        repeats=torch.zeros_like(case.legal),
    )
    moves = case.moves
    return Rollout(
        states=States(positions=positions, values=case.values * case.legal, phases=torch.zeros(4, dtype=torch.int64)),
        indices=torch.arange(4),
        state_weights=state_weights,
        moves=moves,
        rewards=torch.zeros_like(moves.weights),
        old=case.old,
        temperature=case.temperature,
        num_dropped=0,
        num_forced=0,
    )


def in_precision(rollout: Rollout, dtype: torch.dtype) -> Rollout:
    """Return the rollout with its numbers in this precision."""
    moves = rollout.moves
    cast = {name: getattr(moves, name).to(dtype) for name in ("weights", "old_log_probs", "advantages")}
    old = MoveDistribution(log_probs=rollout.old.log_probs.to(dtype), is_legal=rollout.old.is_legal)
    return replace(rollout, moves=replace(moves, **cast), old=old, state_weights=rollout.state_weights.to(dtype))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [[[0, 1, 2, 3]], [[0], [1], [2], [3]], [[3, 1], [0, 2]], [[2], [0, 3, 1]]], ids=str)
def test_the_gradients_of_the_pieces_of_a_minibatch_add_up_to_that_of_the_whole(
    pieces: list[list[int]], kind: Kind, dtype: torch.dtype, tolerance: float
) -> None:
    # One layer of weights behind all logits, so that the pieces meet in its gradient; the denominator is the whole minibatch's.
    case = Case(kind=kind)
    weights = torch.tensor([4.0, 1.0, 4.0, 1.0], dtype=torch.float64)
    rollout = in_precision(rollout_of(case, weights), dtype)
    features = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64).to(dtype)
    reference = of(case.reference.log_probs.to(dtype), case.legal)

    def gradient(parts: list[list[int]]) -> Tensor:
        layer = torch.ones(5, dtype=dtype, requires_grad=True)
        for rows in parts:
            piece = rollout.select_rows(torch.tensor(rows))
            width = piece.states.positions.is_legal.shape[1]
            new = of((features @ layer)[rows][:, :width], piece.old.is_legal, case.temperature)
            made = grpo_objective(
                new=new,
                old=piece.old,
                reference=MoveDistribution(log_probs=reference.log_probs[rows][:, :width], is_legal=piece.old.is_legal),
                moves=piece.moves,
                config=case.config,
                knobs=ALL_TERMS,
            )
            (made.loss * piece.state_weights / rollout.state_weights.sum()).sum().backward()
        assert layer.grad is not None
        return layer.grad

    whole = gradient([[0, 1, 2, 3]])
    assert (gradient(pieces) - whole).abs().max() < tolerance
    assert whole.abs().max() > 0.01
    logits = (features.double() @ torch.ones(5, dtype=torch.float64)).requires_grad_(True)
    by_hand = torch.autograd.grad((case.objective(logits).loss * weights).sum() / 10, logits)[0]
    if dtype == torch.float64:
        assert torch.allclose(whole, (by_hand[:, :, None] * features).sum((0, 1)), atol=1e-12)


# Before the first update.

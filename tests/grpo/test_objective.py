"""The objective: reductions, numbers worked by hand, gradients, and what sampling must converge to.

Legend: B boards, A legal moves (padded), G moves of a group.
"""

import itertools
import math

import chess
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo.advantages import group_advantages
from grpo.config import GrpoConfig, PolicyConfig
from grpo.objective import Objective, clipped_surrogate, grpo_objective, is_clipped
from grpo.policy import MoveDistribution, PositionBatch, new_policy
from grpo.rollouts import States, sample_groups
from grpo.seeding import torch_stream

TEMPERATURES = [0.5, 1.0, 1.3, 2.0]
BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}


def weighted(*, entropy: float = 0.0, kl: float = 0.0) -> GrpoConfig:
    """Return settings with these coefficients and the bounds above."""
    return GrpoConfig(entropy_coefficient=entropy, kl_coefficient=kl, clip_low=BOUNDS["clip_low"], clip_high=BOUNDS["clip_high"])


PLAIN = weighted()
ALL_TERMS = weighted(entropy=0.3, kl=0.7)


def numbers(*values: float) -> Tensor:
    """Return a float64 batch of one row."""
    return torch.tensor([values], dtype=torch.float64)


def of(logits_BA: Tensor, legal_BA: Tensor, temperature: float = 1.0) -> MoveDistribution:
    """Return the distribution of these logits."""
    return MoveDistribution.from_logits(logits_BA, legal_BA, temperature=temperature)


def objective(
    new: MoveDistribution, old: MoveDistribution, reference: MoveDistribution, *, columns: Tensor, advantages: Tensor, config: GrpoConfig
) -> Objective:
    """Return the objective when the sampler recorded what the old policy says."""
    return grpo_objective(
        new=new,
        old=old,
        reference=reference,
        columns_BG=columns,
        old_log_probs_BG=old.log_prob(columns),
        advantages_BG=advantages,
        config=config,
    )


class Case:
    """Three boards with 6, 3 and 1 legal moves, an old policy near the new one, and groups of four moves, in float64."""

    def __init__(self, *, temperature: float = 1.3, distance: float = 0.4) -> None:
        rng = torch.Generator().manual_seed(12)
        self.temperature = temperature
        self.legal = torch.arange(8) < torch.tensor([6, 3, 1])[:, None]
        self.logits = torch.randn(3, 8, generator=rng, dtype=torch.float64)
        old = self.logits + torch.randn(3, 8, generator=rng, dtype=torch.float64) * distance
        self.old = of(old, self.legal, temperature)
        self.reference = of(torch.randn(3, 8, generator=rng, dtype=torch.float64), self.legal, temperature)
        self.values = torch.rand(3, 8, generator=rng, dtype=torch.float64)
        self.columns = torch.tensor([[0, 5, 2, 2], [1, 0, 2, 1], [0, 0, 0, 0]])

    def objective(
        self, logits: Tensor, config: GrpoConfig, *, columns: Tensor | None = None, advantages: Tensor | None = None
    ) -> Objective:
        """Return the objective of these logits."""
        moves = self.columns if columns is None else columns
        rewards = self.values.gather(1, moves)
        return objective(
            of(logits, self.legal, self.temperature),
            self.old,
            self.reference,
            columns=moves,
            advantages=group_advantages(rewards) if advantages is None else advantages,
            config=config,
        )

    def gradient(self, config: GrpoConfig, **changes: Tensor) -> Tensor:
        """Return the gradient of the loss in the logits."""
        logits = self.logits.clone().requires_grad_(True)
        [result] = torch.autograd.grad(self.objective(logits, config, **changes).loss, logits)
        return result


# The clip, worked by hand.


def test_the_clipped_surrogate_worked_by_hand() -> None:
    ratios = numbers(1.5, 1.5, 0.5, 0.5, 1.1, 1.1)
    advantages = numbers(2, -2, 2, -2, 2, -2)
    assert clipped_surrogate(ratios, advantages, **BOUNDS)[0].tolist() == pytest.approx([2.56, -3.0, 1.0, -1.6, 2.2, -2.2])
    assert is_clipped(ratios, advantages, **BOUNDS)[0].tolist() == [True, False, False, True, False, False]


def test_the_worked_example_of_feb05_sampled_at_one_temperature_and_scored_at_another() -> None:
    # Identical weights; the field notes' run had 55.6 % of its ratios clipped before the first update for this reason alone.
    logits, legal = numbers(2, 1, 0), torch.ones(1, 3, dtype=torch.bool)
    sampled, scored = of(logits, legal, 1.3), of(logits, legal, 1.0)
    columns, advantages = torch.tensor([[0, 1, 2]]), numbers(-1, -1, -1)
    config = GrpoConfig(clip_low=0.2, clip_high=0.2, entropy_coefficient=0.0, kl_coefficient=0.0)
    made = objective(scored, sampled, scored, columns=columns, advantages=advantages, config=config)
    # The notes divide probabilities rounded to three places; unrounded, the second ratio is 0.8863.
    assert made.ratios[0].tolist() == pytest.approx([1.116, 0.888, 0.703], abs=2e-3)
    assert made.ratios[0].tolist() == pytest.approx([1.1163, 0.8863, 0.7036], abs=5e-5)
    assert is_clipped(made.ratios, advantages, clip_low=0.2, clip_high=0.2)[0].tolist() == [False, False, True]
    assert made.clip_fraction.item() == pytest.approx(1 / 3)
    assert made.surrogate.item() == pytest.approx(-(1.1163 + 0.8863 + 0.8) / 3, abs=1e-4)
    assert sampled.expectation(made.ratios).item() == pytest.approx(1, abs=1e-12), "a harmless-looking mean"
    assert made.kl_old.item() > 0.01


def test_the_whole_objective_worked_by_hand() -> None:
    legal = torch.ones(1, 2, dtype=torch.bool)
    old, new, reference = of(numbers(0, 0), legal), of(numbers(math.log(3), 0), legal), of(numbers(0, math.log(3)), legal)
    columns = torch.tensor([[0, 1]])
    made = objective(new, old, reference, columns=columns, advantages=numbers(0.25, -0.25), config=ALL_TERMS)
    # pi = (3/4, 1/4): the ratios are 1.5 and 0.5, clipped to 1.28 and 0.8.
    assert made.ratios[0].tolist() == pytest.approx([1.5, 0.5])
    assert made.surrogate.item() == pytest.approx((0.25 * 1.28 - 0.25 * 0.8) / 2)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    kl_reference = 0.75 * math.log(3) - 0.25 * math.log(3)
    assert made.entropy.item() == pytest.approx(entropy)
    assert made.kl_reference.item() == pytest.approx(kl_reference)
    assert made.kl_old.item() == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))
    assert made.loss.item() == pytest.approx(-0.06 - 0.3 * entropy + 0.7 * kl_reference)
    assert made.clip_fraction.item() == 1


# Reductions.


@settings(derandomize=True)
@given(st.floats(0, 10), st.floats(-5, 5))
def test_with_infinite_bounds_it_is_the_unclipped_surrogate(ratio: float, advantage: float) -> None:
    found = clipped_surrogate(numbers(ratio), numbers(advantage), clip_low=math.inf, clip_high=math.inf)
    assert found.item() == ratio * advantage
    assert not is_clipped(numbers(ratio), numbers(advantage), clip_low=math.inf, clip_high=math.inf).item()


@settings(derandomize=True)
@given(st.floats(0, 10), st.floats(-5, 5), st.floats(0.01, 0.99), st.floats(0.01, 5))
def test_the_clip_only_ever_lowers_the_surrogate_and_stops_its_gradient_exactly_where_it_says(
    ratio: float, advantage: float, low: float, high: float
) -> None:
    ratios = numbers(ratio).requires_grad_(True)
    made = clipped_surrogate(ratios, numbers(advantage), clip_low=low, clip_high=high)
    assert made.item() <= ratio * advantage
    [gradient] = torch.autograd.grad(made.sum(), ratios)
    if min(abs(ratio - 1 + low), abs(ratio - 1 - high)) > 1e-9:  # At the kink itself any of its slopes is right.
        clipped = is_clipped(ratios, numbers(advantage), clip_low=low, clip_high=high).item()
        assert gradient.item() == pytest.approx(0 if clipped else advantage)


def test_without_coefficients_the_loss_is_the_surrogate_alone() -> None:
    case = Case()
    made = case.objective(case.logits, PLAIN)
    assert made.loss.item() == -made.surrogate.item()


@pytest.mark.parametrize(("entropy_coefficient", "kl_coefficient"), [(0.03, 0.0), (0.0, 0.5), (0.3, 0.7)])
def test_the_loss_is_the_sum_of_its_terms(entropy_coefficient: float, kl_coefficient: float) -> None:
    case = Case()
    made = case.objective(case.logits, weighted(entropy=entropy_coefficient, kl=kl_coefficient))
    expected = -made.surrogate - entropy_coefficient * made.entropy + kl_coefficient * made.kl_reference
    assert made.loss.item() == pytest.approx(expected.item(), abs=1e-12)


def test_each_term_is_the_mean_over_states_of_its_closed_form() -> None:
    case = Case()
    made = case.objective(case.logits, ALL_TERMS)
    new = of(case.logits, case.legal, case.temperature)
    ratios = (new.log_prob(case.columns) - case.old.log_prob(case.columns)).exp()
    advantages = group_advantages(case.values.gather(1, case.columns))
    assert torch.allclose(made.ratios, ratios)
    assert made.surrogate.item() == pytest.approx(clipped_surrogate(ratios, advantages, **BOUNDS).sum().item() / (3 * 4))
    assert made.entropy.item() == pytest.approx(new.entropy().sum().item() / 3)
    assert made.kl_reference.item() == pytest.approx(new.kl_to(case.reference).sum().item() / 3)
    assert made.kl_old.item() == pytest.approx(case.old.kl_to(new).sum().item() / 3)


def test_moves_and_advantages_of_different_shapes_are_refused() -> None:
    case = Case()
    with pytest.raises(ValueError, match=r"moves \(3, 4\), old log-probabilities \(3, 4\) and advantages \(3, 3\) must have one shape"):
        case.objective(case.logits, PLAIN, advantages=torch.zeros(3, 3))


# Gradients.


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize(
    "config",
    [PLAIN, weighted(entropy=1.0), weighted(kl=1.0), ALL_TERMS],
    ids=["surrogate", "with entropy", "with KL", "all"],
)
def test_the_gradient_is_the_finite_difference(temperature: float, config: GrpoConfig) -> None:
    case = Case(temperature=temperature)
    found = case.gradient(config)
    made = case.objective(case.logits, config)
    distance_to_a_kink = torch.stack([(made.ratios - 0.8).abs(), (made.ratios - 1.28).abs()]).min()
    assert distance_to_a_kink > 1e-3, "no kink lies within the step"
    assert 0 < made.clip_fraction < 1, "both sides of the clip are there"
    expected = torch.zeros_like(found)
    for index in np.ndindex(3, 8):
        sides = []
        for step in (1e-5, -1e-5):
            moved = case.logits.clone()
            moved[index] += step
            sides.append(case.objective(moved, config).loss)
        expected[index] = (sides[0] - sides[1]) / 2e-5
    assert torch.allclose(found, expected, atol=1e-8)
    assert found.abs().max() > 1e-3


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_gradients_of_the_entropy_and_kl_terms_are_their_closed_forms(temperature: float) -> None:
    case = Case(temperature=temperature)
    now = of(case.logits, case.legal, temperature)
    silent = torch.zeros(3, 4, dtype=torch.float64)
    entropy = -now.probs * (now.log_probs + now.entropy()[:, None]) / temperature
    log_ratio = now.log_probs - case.reference.log_probs
    kl = now.probs * (log_ratio - now.kl_to(case.reference)[:, None]) / temperature
    found = case.gradient(weighted(entropy=0.25), advantages=silent)
    assert torch.allclose(found, -0.25 * entropy / 3, atol=1e-14)
    found = case.gradient(weighted(kl=0.5), advantages=silent)
    assert torch.allclose(found, 0.5 * kl / 3, atol=1e-14)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("group_size", [2, 3])
def test_over_all_groups_there_are_the_gradient_is_the_exact_one_less_the_share_of_oneself(temperature: float, group_size: int) -> None:
    # No sampling: every group is weighed with its probability, so that this is an identity.
    legal = torch.ones(1, 3, dtype=torch.bool)
    start, values = numbers(0.5, -0.3, 1.1), numbers(0.9, 0.2, 0.4)
    old = of(start, legal, temperature)
    total = torch.zeros_like(start)
    for group in itertools.product(range(3), repeat=group_size):
        columns = torch.tensor([group])
        logits = start.clone().requires_grad_(True)
        advantages = group_advantages(values.gather(1, columns))
        made = objective(of(logits, legal, temperature), old, old, columns=columns, advantages=advantages, config=PLAIN)
        [gradient] = torch.autograd.grad(made.surrogate, logits)
        total += old.log_prob(columns).sum().exp() * gradient
    exact = old.probs * (values - old.expectation(values)[:, None]) / temperature
    assert torch.allclose(total, (1 - 1 / group_size) * exact, atol=1e-14)


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_the_sampled_gradient_converges_to_the_exact_one_less_the_share_of_oneself(temperature: float) -> None:
    num_groups, group_size = 20_000, 4
    start = torch.tensor([0.5, -0.3, 1.1, 0.0, -1.0], dtype=torch.float64).expand(num_groups, 5)
    values = torch.tensor([0.9, 0.2, 0.4, 0.7, 0.5], dtype=torch.float64).expand(num_groups, 5)
    legal = torch.ones(num_groups, 5, dtype=torch.bool)

    class Fixed:
        """A policy that is a table of logits."""

        def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
            return of(start, legal, temperature)

    states = States(
        positions=PositionBatch(
            encodings=torch.zeros(num_groups, 71, dtype=torch.uint8), action_ids=torch.arange(5).expand(num_groups, 5), is_legal=legal
        ),
        values=values,
        phases=torch.zeros(num_groups, dtype=torch.int64),
    )
    rollout = sample_groups(Fixed(), states, group_size=group_size, temperature=temperature, rng=torch_stream(0, "moves"))
    logits = start.clone().requires_grad_(True)
    made = grpo_objective(
        new=of(logits, legal, temperature),
        old=rollout.old,
        reference=rollout.old,
        columns_BG=rollout.columns,
        old_log_probs_BG=rollout.old_log_probs,
        advantages_BG=group_advantages(rollout.rewards),
        config=PLAIN,
    )
    [gradients] = torch.autograd.grad(made.surrogate * num_groups, logits)
    exact = (rollout.old.probs * (values - rollout.old.expectation(values)[:, None]) / temperature)[0]
    error = gradients.std(0) / num_groups**0.5
    distance = (gradients.mean(0) - (1 - 1 / group_size) * exact).abs() / error
    assert distance.max() < 4.5
    assert ((gradients.mean(0) - exact).abs() / error).max() > 10, "the test has teeth: without the factor it would fail"


# What must make no difference.


def test_the_order_within_groups_and_the_order_of_the_states_have_no_effect() -> None:
    case = Case()
    once = case.gradient(ALL_TERMS)
    assert torch.allclose(case.gradient(ALL_TERMS, columns=case.columns[:, [2, 0, 3, 1]]), once, atol=1e-15)
    order = torch.tensor([2, 0, 1])
    turned = Case()
    for name in ("legal", "logits", "values", "columns"):
        setattr(turned, name, getattr(case, name)[order])
    turned.old, turned.reference = (
        MoveDistribution(log_probs=made.log_probs[order], is_legal=made.is_legal[order]) for made in (case.old, case.reference)
    )
    assert torch.allclose(turned.gradient(ALL_TERMS), once[order], atol=1e-15)


def test_adding_a_constant_to_all_rewards_of_a_state_has_no_effect() -> None:
    case, shifted = Case(), Case()
    shifted.values = shifted.values + torch.tensor([[3.0], [-1.0], [0.5]], dtype=torch.float64)
    assert torch.allclose(shifted.gradient(ALL_TERMS), case.gradient(ALL_TERMS), atol=1e-14)


def test_equal_rewards_teach_nothing() -> None:
    case = Case()
    case.values = torch.full_like(case.values, 0.37)
    assert case.gradient(PLAIN).abs().max() < 1e-15


def test_a_state_with_one_legal_move_has_no_gradient() -> None:
    assert not Case().gradient(ALL_TERMS)[2].any()


@pytest.mark.parametrize("rubbish", [1e4, -1e4, math.nan])
def test_the_logits_of_illegal_moves_have_no_effect_and_no_gradient(rubbish: float) -> None:
    case, spoilt = Case(), Case()
    spoilt.logits = torch.where(case.legal, case.logits, torch.full_like(case.logits, rubbish))
    assert torch.equal(spoilt.gradient(ALL_TERMS), case.gradient(ALL_TERMS))
    assert not case.gradient(ALL_TERMS)[~case.legal].any()


def test_a_shift_of_all_logits_has_no_effect() -> None:
    case, shifted = Case(), Case()
    shifted.logits = case.logits + torch.tensor([[50.0], [-3.0], [1e3]], dtype=torch.float64)
    assert torch.allclose(shifted.gradient(ALL_TERMS), case.gradient(ALL_TERMS), atol=1e-12)
    assert case.gradient(ALL_TERMS).sum(1).abs().max() < 1e-15, "so that no gradient points along the shift"


def test_the_mean_of_the_gradients_of_equal_minibatches_is_the_gradient_of_the_batch() -> None:
    case = Case()
    whole = case.gradient(ALL_TERMS)
    parts = torch.zeros_like(whole)
    for row in range(3):
        logits = case.logits.clone().requires_grad_(True)
        rows = slice(row, row + 1)
        old, reference = (
            MoveDistribution(log_probs=made.log_probs[rows], is_legal=made.is_legal[rows]) for made in (case.old, case.reference)
        )
        columns = case.columns[rows]
        advantages = group_advantages(case.values[rows].gather(1, columns))
        new = of(logits[rows], case.legal[rows], case.temperature)
        made = objective(new, old, reference, columns=columns, advantages=advantages, config=ALL_TERMS)
        parts += torch.autograd.grad(made.loss / 3, logits)[0]
    assert torch.allclose(parts, whole, atol=1e-15)


def test_old_and_reference_policies_get_no_gradient_from_what_is_only_watched() -> None:
    case = Case()
    logits = case.logits.clone().requires_grad_(True)
    made = case.objective(logits, PLAIN)
    assert not made.kl_old.requires_grad
    assert not made.clip_fraction.requires_grad


# Before the first update.


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("num_minibatches", [1, 3, 12])
def test_before_the_first_update_every_ratio_is_one_nothing_is_clipped_and_both_divergences_are_zero(
    temperature: float, num_minibatches: int, random_boards: list[chess.Board]
) -> None:
    policy = new_policy(PolicyConfig(channels=16, num_blocks=1, num_heads=2), seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        policy.network.from_head.weight.mul_(5)
    positions = PositionBatch.from_boards(random_boards[3::417])
    assert len(positions) == 12
    values = torch.rand(positions.is_legal.shape, generator=torch.Generator().manual_seed(2))
    states = States(positions=positions, values=values, phases=torch.zeros(12, dtype=torch.int64))
    rollout = sample_groups(policy, states, group_size=8, temperature=temperature, rng=torch_stream(0, "moves"))
    advantages = group_advantages(rollout.rewards)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(3))
    config = GrpoConfig(clip_low=1e-4, clip_high=1e-4, entropy_coefficient=0.0, kl_coefficient=0.5)
    for rows in order.chunk(num_minibatches):
        part = rollout.take(rows)
        new = policy.distribution(part.states.positions, temperature=part.temperature)
        made = grpo_objective(
            new=new,
            old=part.old,
            reference=new.detach(),
            columns_BG=part.columns,
            old_log_probs_BG=part.old_log_probs,
            advantages_BG=advantages[rows],
            config=config,
        )
        assert (made.ratios - 1).abs().max() < 1e-5
        assert made.clip_fraction == 0
        assert abs(made.kl_old.item()) < 1e-6
        assert made.kl_reference.item() == 0
        assert abs(made.surrogate.item()) < 1e-6, "the advantages of each group sum to zero"
        assert made.loss.item() == pytest.approx(-made.surrogate.item(), abs=1e-9)

"""The batch of one optimizer step, its loss, and the measurements that training decides by: pure functions, each term of the loss apart.

Clipped surrogate, exact entropy and exact KL share the temperature of the rollout, because temperature belongs to the policy that is
trained. Each is one number a state, [B]; the caller takes means over all states of a minibatch, however many pieces it is cut into.

Legend: B states, A legal moves of a state (padded), M moves of a state in the surrogate (its group; padded with weight 0), G moves of a
full group.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Generic, TypeVar

import torch
from torch import Tensor

from grpo.policy.distribution import MoveDistribution
from grpo.train.control import Knobs

_KL_OF_RATIO: Final = 0.02  # KL(old || policy) that goes with such ratios, at most; it is of second order in them.


class InvariantError(AssertionError):
    """Sampler and trainer do not score alike: the run would train a policy that it does not sample."""


_States_co = TypeVar("_States_co", covariant=True)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Batch(Generic[_States_co]):
    """States, the moves that were sampled in each, and all that the objective needs of them.

    A group of two moves from the board that `States` describes, a and b at T = 1 from probabilities 0.5, 0.3, 0.2: `columns` [0, 1],
    `weights` [0.5, 0.5], `old_log_probs` [ln 0.5, ln 0.3], `rewards` [0.5, 1.0], `advantages` [-0.25, 0.25].

    For a language model a state is a place in an answer, its moves are the tokens of the vocabulary, and M is 1.
    """

    states: _States_co
    """B of them: `States` of a network; of a language model the answers, whose tokens are the states."""
    state_weights: Tensor
    """[B] how much a state counts in means: 1, but in the initial states of trajectories, which stand for G states, G."""
    columns: Tensor
    """[B, M] column of each move."""
    weights: Tensor
    """[B, M] its weight in the state's surrogate: 1/G, or 1 where a trajectory has one move from the state; 0 on padding."""
    old_log_probs: Tensor
    """[B, M] the sampler's own log-probability of each move, at its temperature."""
    rewards: Tensor
    """[B, M] of each move, for the player who moved; 0 on padding."""
    advantages: Tensor
    """[B, M]."""
    temperature: float
    """Temperature of the policy that was sampled; the loss must use the same."""
    old: MoveDistribution | None
    """The whole distribution that was sampled from, [B, A]; None for a language model, of which the sampled tokens' are known."""
    num_dropped: int = 0
    """States of trajectories that were left out, because the engine failed on them."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """Rows that may be trained on: all."""
        return torch.arange(len(self))

    @property
    def row_weights(self) -> Tensor:
        """Weight of each row in means, [B], on the CPU."""
        return self.state_weights.cpu()

    def mean(self, values_B: Tensor) -> float:
        """Return the mean of one number a state over all states, in float64."""
        weights = self.row_weights.double()
        return ((values_B.double().cpu() * weights).sum() / weights.sum()).item()

    def at_one(self) -> MoveDistribution:
        """Return the whole distribution that was sampled from, at T = 1."""
        assert self.old is not None
        # To the power T, what was sampled is what it was at T = 1.
        return MoveDistribution.from_logits(self.old.log_probs * self.temperature, self.old.is_legal, temperature=1.0)


def group_advantages(rewards_BG: Tensor, *, is_member_BG: Tensor | None = None) -> Tensor:
    """Return each reward less its group's mean, [B, G] (Dr. GRPO, arXiv 2503.20783).

    The expected gradient is (1 - 1/G) times the exact one, since each reward is part of its own baseline.

    Args:
        rewards_BG: of the moves of each group.
        is_member_BG: which members a group has; all, if not given. The rest, and a group of one, gets 0.
    """
    # In float64: rounded in float32, the mean of equal rewards is not that reward, and Adam makes full steps of the rest.
    member = torch.ones_like(rewards_BG, dtype=torch.float64) if is_member_BG is None else is_member_BG.double()
    rewards = torch.where(member > 0, rewards_BG.double(), 0.0)
    advantages = (rewards - rewards.sum(1, keepdim=True) / member.sum(1, keepdim=True).clamp(min=1)) * member
    return advantages.to(rewards_BG.dtype)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Terms:
    """The loss of each state and its parts, [B] each; minimize the mean of `loss`."""

    loss: Tensor
    raw: Mapping[str, Tensor]
    """Term -> its value without coefficient. The loss maximizes `policy`, the clipped surrogate, and `entropy`, in nats at the rollout's
    temperature; it minimizes `reference_kl`, KL(policy || reference), and `recovery_kl`, KL(reference || policy), in nats."""
    weighted: Mapping[str, Tensor]
    """Term -> what it adds to the loss."""
    ratios: Tensor
    """[B, M] probability of each move, new over old; 1 on padding."""
    is_clipped_low: Tensor
    """[B, M] where the lower clip removed the gradient."""
    is_clipped_high: Tensor
    """[B, M] where the upper clip did."""
    kl_old: Tensor
    """KL(old || policy), without a gradient: exact where the whole old distribution is known; else the mean of r - 1 - ln r over the
    sampled moves, r being their ratios (http://joschu.net/blog/kl-approx.html, k3), which is never negative."""


def clipped_surrogate(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), shape [B, M] (PPO, arXiv 1707.06347).

    Two bounds (DAPO, arXiv 2503.14476): with `clip_high` wider, a rare move may grow faster than a common one may shrink.
    """
    clipped = ratios_BM.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratios_BM * advantages_BM, clipped * advantages_BM)


def is_clipped(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return where the lower and where the upper clip removes the gradient, [B, M]: the ratio is past the bound it is pushed to."""
    return (ratios_BM < 1 - clip_low) & (advantages_BM < 0), (ratios_BM > 1 + clip_high) & (advantages_BM > 0)


def grpo_objective(
    new: MoveDistribution, reference: MoveDistribution | None, batch: Batch[object], knobs: Knobs, *, clip_low: float, clip_high: float
) -> Terms:
    """Return loss = -surrogate - entropy_coefficient * H + kl_coefficient * reference KL + recovery_coefficient * KL(reference || new).

    Args:
        new: the policy being trained; the only part with a gradient.
        reference: the frozen healthy policy; without it, divergences are given as 0, and both their coefficients must be.
        batch: what the surrogate sums over.
        knobs: coefficients of this step, in win probability per nat.
        clip_low: ratios are clipped below at 1 - clip_low.
        clip_high: ratios are clipped above at 1 + clip_high.
    """
    shapes = {tuple(tensor.shape) for tensor in (batch.columns, batch.weights, batch.old_log_probs, batch.advantages)}
    assert len(shapes) == 1, f"columns, weights, old log-probabilities and advantages must have one shape, not {sorted(shapes)}"
    is_real = batch.weights > 0
    log_ratios = torch.where(is_real, new.log_prob(batch.columns) - batch.old_log_probs, 0.0)
    ratios = log_ratios.exp()
    low, high = is_clipped(ratios.detach(), batch.advantages, clip_low=clip_low, clip_high=clip_high)
    surrogate = clipped_surrogate(ratios, batch.advantages, clip_low=clip_low, clip_high=clip_high)
    entropy = new.entropy()
    if reference is None:
        assert knobs.kl_coefficient == knobs.recovery_coefficient == 0, "a divergence is in the loss, so that its reference is needed"
        to_reference = from_reference = torch.zeros_like(entropy)
    else:
        to_reference, from_reference = new.kl_to(reference), reference.kl_to(new)
    raw = {
        "policy": (batch.weights * surrogate).sum(1),
        "entropy": entropy,
        "reference_kl": to_reference,
        "recovery_kl": from_reference,
    }
    # A term whose coefficient is 0 is no part of the loss: 0 times an infinite divergence would be NaN.
    weighted = {term: factor * raw[term] if factor else torch.zeros_like(raw[term]) for term, factor in factors(knobs).items()}
    estimate = (batch.weights * (ratios - 1 - log_ratios)).sum(1)
    return Terms(
        loss=torch.stack(list(weighted.values())).sum(0),
        raw=raw,
        weighted=weighted,
        ratios=ratios,
        is_clipped_low=low & is_real,
        is_clipped_high=high & is_real,
        kl_old=(estimate if batch.old is None else batch.old.kl_to(new)).detach(),
    )


def factors(knobs: Knobs) -> dict[str, float]:
    """Return the factor with which each term's raw value enters the loss."""
    return {
        "policy": -1.0,
        "entropy": -knobs.entropy_coefficient,
        "reference_kl": knobs.kl_coefficient,
        "recovery_kl": knobs.recovery_coefficient,
    }


class Measured:
    """Measurements of an optimizer step's minibatch: those that training decides by, and the means of those that only inform.

    Trust region, on-policy assertion, skipping of NaN and the KL controller read it. Columns that the problem adds only inform.
    """

    def __init__(self, *, total: float, num_rows: float) -> None:
        """Begin.

        Args:
            total: weight of all states of the minibatch.
            num_rows: over what KL(old || policy) is a mean: the states; for a language model the answers.
        """
        self.is_finite = True
        self.gradient_norm = math.nan
        self._total, self._num_rows = total, num_rows
        self._sums: dict[str, Tensor] = {}
        self._extremes: list[Tensor] = []

    @torch.no_grad()
    def add(self, part: Batch[object], terms: Terms, informing: Mapping[str, Tensor]) -> None:
        """Add one piece of the minibatch; `informing` are further columns, [B] each."""
        weight, ratios = part.state_weights.double(), terms.ratios.double()
        columns = {
            "loss": terms.loss,
            "kl_old": terms.kl_old,
            "kl_reference": terms.raw["reference_kl"],
            "clip_low": (part.weights * terms.is_clipped_low).sum(1),
            "clip_high": (part.weights * terms.is_clipped_high).sum(1),
            **informing,
        }
        for name, column in columns.items():
            so_far = self._sums.get(name, torch.zeros((), dtype=torch.float64, device=weight.device))
            self._sums[name] = so_far + (column.double() * weight).sum()
        real = ratios[part.weights > 0]
        self._extremes += [real.min(), real.max()]

    @cached_property
    def _means(self) -> dict[str, float]:
        return dict(zip(self._sums, (torch.stack([*self._sums.values()]) / self._total).tolist(), strict=True))

    def mean(self, name: str) -> float:
        """Return a column's mean over all states, after the last piece."""
        return self._means[name]

    @cached_property
    def ratios(self) -> tuple[float, float]:
        """Smallest and largest ratio."""
        extremes = torch.stack(self._extremes)
        return extremes.min().item(), extremes.max().item()

    @property
    def kl_old(self) -> float:
        """Mean KL(old || policy) of a row."""
        return self._means["kl_old"] * self._total / self._num_rows

    @property
    def kl_reference(self) -> float:
        """Mean KL(policy || reference) of a state."""
        return self._means["kl_reference"]

    @property
    def clipped(self) -> float:
        """Fraction of the moves that either clip left without a gradient."""
        return self._means["clip_low"] + self._means["clip_high"]


def assert_on_policy(measured: Measured, *, max_log_ratio: float) -> None:
    """Raise InvariantError unless every ratio is 1, nothing is clipped and KL(old || policy) is 0.

    Holds before the first optimizer step on a rollout. It fails when sampling and scoring differ in temperature, dropout, precision,
    weights, or in which move belongs to which state.
    """
    worst = max(abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in measured.ratios)
    # Written so that NaN fails too.
    if not (worst <= max_log_ratio and abs(measured.kl_old) <= _KL_OF_RATIO * max_log_ratio and measured.clipped == 0):
        raise InvariantError(
            f"before the first update the policy does not score as it sampled: largest |log ratio| {worst:.3g}, KL(old)"
            f" {measured.kl_old:.3g}, clip fraction {measured.clipped:.3g}, where all must be 0. Sampling and loss use different"
            " temperatures, weights, masks or modes; training would be of another policy than the one that plays"
        )

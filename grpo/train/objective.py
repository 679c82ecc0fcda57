"""The batch of a rollout, its loss, and means over a minibatch.

- Group: moves or answers whose rewards are compared: the samples from one state, or the n-th moves of the first mover in games
  continued from one board.
- Surrogate: PPO's clipped policy term.
- Old: the sampling policy's distribution. New: the trained policy's. Reference: the frozen policy's. All have the rollout's
  temperature.
- Ratio: new / sampled probability of a move.
- Column: index of a move among the board's A legal moves.

Legend: B states, A legal moves (padded), G moves of a full group, M sampled moves of a state (padded; 1 for a language model).
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

# Largest KL(old || new) by rounding / largest |ln ratio| by rounding. KL is about half the mean of (ln ratio)**2, so far smaller.
_KL_OF_RATIO: Final = 0.02


class InvariantError(AssertionError):
    """Sampling and training disagree."""


_States_co = TypeVar("_States_co", covariant=True)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Batch(Generic[_States_co]):
    """A rollout or a part of one.

    Example: a board has three legal moves a, b, c with values 0.5, 1.0, 0.4 and probabilities 0.5, 0.3, 0.2. Moves a and b are sampled.

    Its row: `columns` [0, 1], `weights` [0.5, 0.5], `old_log_probs` [ln 0.5, ln 0.3], `rewards` [0.5, 1.0], `advantages` [-0.25, 0.25].
    """

    states: _States_co
    """`grpo.train.states.States`, or a language model's answers; then the B states are the answers' tokens."""
    state_weights: Tensor
    """[B] weight in means: G if G continued games start in the state (once per game), otherwise 1."""
    columns: Tensor
    """[B, M] int64, column of each sampled move."""
    weights: Tensor
    """[B, M] weight in the surrogate: 1 / number of moves sampled from the state; 0 on padding."""
    old_log_probs: Tensor
    """[B, M] at `temperature`."""
    rewards: Tensor
    """[B, M] for the player who moved; 0 on padding."""
    advantages: Tensor
    """[B, M] reward minus its group's mean reward; 0 on padding."""
    temperature: float
    old: MoveDistribution | None
    """[B, A]; None for a language model, which keeps only `old_log_probs`."""
    num_dropped: int = 0
    """States that the engine could not value."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        return torch.arange(len(self))

    @property
    def row_weights(self) -> Tensor:
        """[B] on the CPU, for `grpo.train.trainer.Rollout`."""
        return self.state_weights.cpu()

    def mean(self, values_B: Tensor) -> float:
        """Return the mean, weighted by `state_weights`, in float64."""
        weights = self.row_weights.double()
        return ((values_B.double().cpu() * weights).sum() / weights.sum()).item()

    def at_one(self) -> MoveDistribution:
        """Return `old` at T = 1."""
        assert self.old is not None
        # softmax(logits / T) to the power T is proportional to softmax(logits).
        return MoveDistribution.from_logits(self.old.log_probs * self.temperature, self.old.is_legal, temperature=1.0)


def group_advantages(rewards_BG: Tensor, *, is_member_BG: Tensor | None = None) -> Tensor:
    """Return each reward minus its group's mean, [B, G]; 0 where `is_member_BG` is False (None: all True)."""
    # Float64: in float32 the mean of equal rewards is rounded, and Adam would turn the tiny differences into full steps.
    member = torch.ones_like(rewards_BG, dtype=torch.float64) if is_member_BG is None else is_member_BG.double()
    rewards = torch.where(member > 0, rewards_BG.double(), 0.0)
    advantages = (rewards - rewards.sum(1, keepdim=True) / member.sum(1, keepdim=True).clamp(min=1)) * member
    return advantages.to(rewards_BG.dtype)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Terms:
    """Each state's loss and its parts, [B] unless noted."""

    loss: Tensor
    raw: Mapping[str, Tensor]
    """Term -> value without coefficient: `policy` is the surrogate, a reward. In nats: `entropy`, `reference_kl` = KL(new || reference),
    `recovery_kl` = KL(reference || new)."""
    weighted: Mapping[str, Tensor]
    """Term -> summand of `loss`."""
    ratios: Tensor
    """[B, M]; 1 on padding."""
    is_clipped_low: Tensor
    """[B, M] bool, from `is_clipped`."""
    is_clipped_high: Tensor
    kl_old: Tensor
    """KL(old || new) in nats, without a gradient; exact if `Batch.old` is known. Otherwise the mean of r - 1 - ln r over the sampled moves'
    ratios r (k3 of http://joschu.net/blog/kl-approx.html)."""


def clipped_surrogate(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return min(ratio * advantage, clip(ratio, 1 - clip_low, 1 + clip_high) * advantage), [B, M] (PPO, arXiv 1707.06347).

    A `clip_high` above `clip_low` leaves rare moves room to rise (DAPO, arXiv 2503.14476).
    """
    clipped = ratios_BM.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratios_BM * advantages_BM, clipped * advantages_BM)


def is_clipped(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return the moves whose gradient the lower and the upper clip remove, [B, M] bool each."""
    return (ratios_BM < 1 - clip_low) & (advantages_BM < 0), (ratios_BM > 1 + clip_high) & (advantages_BM > 0)


def grpo_objective(
    new: MoveDistribution, reference: MoveDistribution | None, batch: Batch[object], knobs: Knobs, *, clip_low: float, clip_high: float
) -> Terms:
    """Return each state's loss and its terms.

    loss = -surrogate - entropy_coefficient * entropy + kl_coefficient * KL(new || reference) + recovery_coefficient * KL(reference || new)

    Without a reference both KL coefficients must be 0, and both KLs are reported as 0.
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
        assert knobs.kl_coefficient == knobs.recovery_coefficient == 0, "a KL term in the loss needs the reference"
        to_reference = from_reference = torch.zeros_like(entropy)
    else:
        to_reference, from_reference = new.kl_to(reference), reference.kl_to(new)
    raw = {
        "policy": (batch.weights * surrogate).sum(1),
        "entropy": entropy,
        "reference_kl": to_reference,
        "recovery_kl": from_reference,
    }
    # A term with coefficient 0 is left out, because 0 times an infinite KL is NaN.
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
    """Return term -> factor of `Terms.raw` in the loss."""
    return {
        "policy": -1.0,
        "entropy": -knobs.entropy_coefficient,
        "reference_kl": knobs.kl_coefficient,
        "recovery_kl": knobs.recovery_coefficient,
    }


class Measured:
    """Means over one minibatch, weighted by `state_weights`; `add` takes its pieces."""

    def __init__(self, *, total: float, num_rows: float) -> None:
        """`total`: sum of the minibatch's state weights. `num_rows` divides `kl_old`: `total`, or a language model's number of answers."""
        self.is_finite = True  # The trainer sets False for a non-finite loss.
        self.gradient_norm = math.nan
        self._total, self._num_rows = total, num_rows
        self._sums: dict[str, Tensor] = {}
        self._extremes: list[Tensor] = []

    @torch.no_grad()
    def add(self, part: Batch[object], terms: Terms, logged: Mapping[str, Tensor]) -> None:
        """`logged`: quantities for the log, [B] each."""
        weight, ratios = part.state_weights.double(), terms.ratios.double()
        quantities = {
            "loss": terms.loss,
            "kl_old": terms.kl_old,
            "kl_reference": terms.raw["reference_kl"],
            "clip_low": (part.weights * terms.is_clipped_low).sum(1),
            "clip_high": (part.weights * terms.is_clipped_high).sum(1),
            **logged,
        }
        for name, values in quantities.items():
            so_far = self._sums.get(name, torch.zeros((), dtype=torch.float64, device=weight.device))
            self._sums[name] = so_far + (values.double() * weight).sum()
        real = ratios[part.weights > 0]
        self._extremes += [real.min(), real.max()]

    @cached_property
    def _means(self) -> dict[str, float]:
        return dict(zip(self._sums, (torch.stack([*self._sums.values()]) / self._total).tolist(), strict=True))

    def mean(self, name: str) -> float:
        """Call `mean` after the last `add`, because means are computed once."""
        return self._means[name]

    @cached_property
    def ratios(self) -> tuple[float, float]:  # Smallest and largest.
        extremes = torch.stack(self._extremes)
        return extremes.min().item(), extremes.max().item()

    @property
    def kl_old(self) -> float:
        """Mean per state, or per answer of a language model, in nats."""
        return self._means["kl_old"] * self._total / self._num_rows

    @property
    def kl_reference(self) -> float:
        """Mean per state, in nats."""
        return self._means["kl_reference"]

    @property
    def clipped(self) -> float:
        """Fraction of moves whose gradient a clip removed."""
        return self._means["clip_low"] + self._means["clip_high"]


def assert_on_policy(measured: Measured, *, max_log_ratio: float) -> None:
    """Raise InvariantError unless, up to rounding, all ratios are 1 and KL(old || new) is 0."""
    worst = max(abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in measured.ratios)
    # A NaN makes the comparison false, so it raises too.
    if not (worst <= max_log_ratio and abs(measured.kl_old) <= _KL_OF_RATIO * max_log_ratio and measured.clipped == 0):
        raise InvariantError(
            f"before the first update, scored and sampled probabilities differ: largest |log ratio| {worst:.3g}, KL(old)"
            f" {measured.kl_old:.3g}, clip fraction {measured.clipped:.3g}; all must be 0. Sampling and loss use different temperatures,"
            " weights, masks or modes"
        )

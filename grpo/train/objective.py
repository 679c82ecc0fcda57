"""The batch of a rollout, its loss, and the measurements that training decides by.

Surrogate, exact entropy and exact KL all use the rollout's temperature, because the temperature belongs to the policy that is trained.
Each term is one number per state, [B], so that the caller can average over a minibatch that is cut into pieces.

Legend: B states; A legal moves of a state (padded); G moves of a full group; M sampled moves of a state that the loss uses. A trajectory's
later state has one sampled move and padding of weight 0; a language model's M is 1.
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

_KL_OF_RATIO: Final = 0.02  # Largest KL(old || policy) per |ln ratio| that rounding explains: KL is of second order in ln ratio.


class InvariantError(AssertionError):
    """Sampler and trainer disagree, so the run would not train the policy that it samples."""


_States_co = TypeVar("_States_co", covariant=True)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Batch(Generic[_States_co]):
    """States, the moves sampled in each, and their rewards and advantages.

    Example: the board of `States`, policy (0.5, 0.3, 0.2) at T = 1, moves a and b sampled. `columns` [0, 1], `weights` [0.5, 0.5],
    `old_log_probs` [ln 0.5, ln 0.3], `rewards` [0.5, 1.0], `advantages` [-0.25, 0.25].

    For a language model a state is a position in an answer, and its moves are the tokens of the vocabulary.
    """

    states: _States_co
    """A network's B `States`; a language model's answers, which contain B tokens."""
    state_weights: Tensor
    """[B] weight of each state in means: G for the initial state of G trajectories, otherwise 1."""
    columns: Tensor
    """[B, M] column of each sampled move among the A legal moves, int64."""
    weights: Tensor
    """[B, M] weight of each move in the state's surrogate: 1/G in a group, 1 for a single move, 0 on padding."""
    old_log_probs: Tensor
    """[B, M] log-probability of each move when it was sampled, at `temperature`."""
    rewards: Tensor
    """[B, M] reward of each move for the player who moved; 0 on padding."""
    advantages: Tensor
    """[B, M] reward minus the group's mean reward."""
    temperature: float
    """Sampling temperature; the loss must use the same."""
    old: MoveDistribution | None
    """[B, A] distribution that was sampled from; None for a language model, which keeps only the sampled tokens' log-probabilities."""
    num_dropped: int = 0
    """Number of trajectory states left out because the engine failed on them."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """Indices of the rows to train on: all."""
        return torch.arange(len(self))

    @property
    def row_weights(self) -> Tensor:
        """[B] weight of each row in means, on the CPU."""
        return self.state_weights.cpu()

    def mean(self, values_B: Tensor) -> float:
        """Return the weighted mean of one number per state, in float64."""
        weights = self.row_weights.double()
        return ((values_B.double().cpu() * weights).sum() / weights.sum()).item()

    def at_one(self) -> MoveDistribution:
        """Return the sampled distribution at T = 1, [B, A]."""
        assert self.old is not None
        # softmax(logits / T) to the power T is proportional to softmax(logits).
        return MoveDistribution.from_logits(self.old.log_probs * self.temperature, self.old.is_legal, temperature=1.0)


def group_advantages(rewards_BG: Tensor, *, is_member_BG: Tensor | None = None) -> Tensor:
    """Return each reward minus its group's mean, [B, G] (Dr. GRPO, arXiv 2503.20783).

    The expected gradient is (1 - 1/G) times the exact gradient, because each reward is part of its own baseline.

    Args:
        rewards_BG: one reward per move.
        is_member_BG: False excludes a move from its group; excluded moves get 0, as does a group's only member. None: all are members.
    """
    # Float32 would round the mean of equal rewards, and Adam would scale that tiny difference up to a full step.
    member = torch.ones_like(rewards_BG, dtype=torch.float64) if is_member_BG is None else is_member_BG.double()
    rewards = torch.where(member > 0, rewards_BG.double(), 0.0)
    advantages = (rewards - rewards.sum(1, keepdim=True) / member.sum(1, keepdim=True).clamp(min=1)) * member
    return advantages.to(rewards_BG.dtype)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Terms:
    """The loss of each state and its parts, [B] unless noted; the trainer minimizes the mean of `loss`."""

    loss: Tensor
    raw: Mapping[str, Tensor]
    """Term -> value without its coefficient.

    The loss maximizes `policy` (clipped surrogate) and `entropy`; it minimizes `reference_kl`, KL(policy || reference), and `recovery_kl`,
    KL(reference || policy). Entropy and KL are in nats, at the rollout's temperature.
    """
    weighted: Mapping[str, Tensor]
    """Term -> addend of the loss."""
    ratios: Tensor
    """[B, M] new probability / sampled probability; 1 on padding."""
    is_clipped_low: Tensor
    """[B, M] True if the lower clip removed the move's gradient."""
    is_clipped_high: Tensor
    """[B, M] True if the upper clip removed the move's gradient."""
    kl_old: Tensor
    """KL(old || policy) in nats, without a gradient.

    Exact if the whole old distribution is known. Otherwise the mean of r - 1 - ln r over the sampled moves' ratios r, which is never
    negative (k3 of http://joschu.net/blog/kl-approx.html).
    """


def clipped_surrogate(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), shape [B, M] (PPO, arXiv 1707.06347).

    Two bounds (DAPO, arXiv 2503.14476): if `clip_high` is wider, a rare move can gain probability faster than a common move loses it.
    """
    clipped = ratios_BM.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratios_BM * advantages_BM, clipped * advantages_BM)


def is_clipped(ratios_BM: Tensor, advantages_BM: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Return where the lower and the upper clip remove the gradient, [B, M] each: past a bound in the direction of the advantage."""
    return (ratios_BM < 1 - clip_low) & (advantages_BM < 0), (ratios_BM > 1 + clip_high) & (advantages_BM > 0)


def grpo_objective(
    new: MoveDistribution, reference: MoveDistribution | None, batch: Batch[object], knobs: Knobs, *, clip_low: float, clip_high: float
) -> Terms:
    """Return loss = -surrogate - entropy_coefficient * H + kl_coefficient * reference KL + recovery_coefficient * KL(reference || new).

    Args:
        new: the trained policy; only this distribution has a gradient.
        reference: the frozen reference; None is allowed if both KL coefficients are 0, and gives divergences of 0.
        batch: sampled moves and advantages.
        knobs: the step's coefficients, in win probability per nat.
        clip_low: ratios are clipped at 1 - clip_low.
        clip_high: ratios are clipped at 1 + clip_high.
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
    # A term with coefficient 0 is left out: 0 times an infinite KL would be NaN.
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
    """Return term -> factor of its raw value in the loss."""
    return {
        "policy": -1.0,
        "entropy": -knobs.entropy_coefficient,
        "reference_kl": knobs.kl_coefficient,
        "recovery_kl": knobs.recovery_coefficient,
    }


class Measured:
    """Means over an optimizer step's minibatch.

    Training decides by `is_finite`, `gradient_norm`, `ratios`, `kl_old`, `kl_reference` and `clipped`. All other columns only inform.
    """

    def __init__(self, *, total: float, num_rows: float) -> None:
        """Begin without pieces.

        Args:
            total: sum of the minibatch's state weights.
            num_rows: denominator of the mean KL(old || policy): weight of the states, or number of answers of a language model.
        """
        self.is_finite = True
        self.gradient_norm = math.nan
        self._total, self._num_rows = total, num_rows
        self._sums: dict[str, Tensor] = {}
        self._extremes: list[Tensor] = []

    @torch.no_grad()
    def add(self, part: Batch[object], terms: Terms, informing: Mapping[str, Tensor]) -> None:
        """Add one piece of the minibatch; `informing` are more columns, [B] each."""
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
        """Return the mean of a column over all states; call after the last piece."""
        return self._means[name]

    @cached_property
    def ratios(self) -> tuple[float, float]:
        """Smallest and largest probability ratio."""
        extremes = torch.stack(self._extremes)
        return extremes.min().item(), extremes.max().item()

    @property
    def kl_old(self) -> float:
        """Mean KL(old || policy) per row, in nats."""
        return self._means["kl_old"] * self._total / self._num_rows

    @property
    def kl_reference(self) -> float:
        """Mean KL(policy || reference) per state, in nats."""
        return self._means["kl_reference"]

    @property
    def clipped(self) -> float:
        """Fraction of the moves whose gradient a clip removed."""
        return self._means["clip_low"] + self._means["clip_high"]


def assert_on_policy(measured: Measured, *, max_log_ratio: float) -> None:
    """Raise InvariantError unless every ratio is 1, no move is clipped and KL(old || policy) is 0, up to rounding.

    Call before the first optimizer step on a rollout. Sampling and loss then differ if temperature, dropout, precision, weights or the
    assignment of moves to states differ.
    """
    worst = max(abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in measured.ratios)
    # NaN makes the comparisons false, so NaN fails too.
    if not (worst <= max_log_ratio and abs(measured.kl_old) <= _KL_OF_RATIO * max_log_ratio and measured.clipped == 0):
        raise InvariantError(
            f"before the first update, scored and sampled probabilities differ: largest |log ratio| {worst:.3g}, KL(old)"
            f" {measured.kl_old:.3g}, clip fraction {measured.clipped:.3g}; all must be 0. Sampling and loss use different temperatures,"
            " weights, masks or modes, so training would update another policy than the one that plays"
        )

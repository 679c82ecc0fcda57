"""Clipped surrogate, exact entropy and exact KL, each term apart: pure functions of distributions and of a batch.

Legend: B states, A legal moves (padded), M moves of a state in the surrogate. All terms share the temperature of the rollout, because
temperature belongs to the policy that is trained. Every quantity is one number a state, [B]; means are taken by the caller over all states
of a minibatch, however many pieces it is cut into.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.policy.distribution import MoveDistribution
from grpo.settings.grpo import GrpoConfig
from grpo.train.batch import Batch
from grpo.train.control import Knobs


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Terms:
    """The loss of each state and its parts, [B] each; minimise the mean of `loss`."""

    loss: Tensor
    raw: Mapping[str, Tensor]
    """Term -> its value without coefficient: `policy` the clipped surrogate, to be raised; `entropy` in nats at the rollout's temperature,
    to be raised; `reference_kl` KL(policy || reference) and `recovery_kl` KL(reference || policy) in nats, to be lowered."""
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


def grpo_objective(new: MoveDistribution, reference: MoveDistribution | None, batch: Batch[Any], config: GrpoConfig, knobs: Knobs) -> Terms:
    """Return loss = -surrogate - entropy_coefficient * H + kl_coefficient * reference KL + recovery_coefficient * KL(reference || new).

    Args:
        new: the policy being trained; the only part with a gradient.
        reference: the frozen healthy policy; without it, divergences are given as 0, and both their coefficients must be.
        batch: what the surrogate sums over.
        config: clip bounds.
        knobs: coefficients of this step, in win probability per nat.
    """
    shapes = {tuple(tensor.shape) for tensor in (batch.columns, batch.weights, batch.old_log_probs, batch.advantages)}
    assert len(shapes) == 1, f"columns, weights, old log-probabilities and advantages must have one shape, not {sorted(shapes)}"
    is_real = batch.weights > 0
    log_ratios = torch.where(is_real, new.log_prob(batch.columns) - batch.old_log_probs, 0.0)
    ratios = log_ratios.exp()
    bounds = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    low, high = is_clipped(ratios.detach(), batch.advantages, **bounds)
    entropy = new.entropy()
    if reference is None:
        assert knobs.kl_coefficient == knobs.recovery_coefficient == 0, "a divergence is in the loss, so that its reference is needed"
        to_reference = from_reference = torch.zeros_like(entropy)
    else:
        to_reference, from_reference = new.kl_to(reference), reference.kl_to(new)
    raw = {
        "policy": (batch.weights * clipped_surrogate(ratios, batch.advantages, **bounds)).sum(1),
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

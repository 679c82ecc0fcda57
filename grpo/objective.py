"""Clipped surrogate, exact entropy and exact KL, each term kept apart.

Legend: B boards, A legal moves (padded), G moves of a group. All terms share the temperature of the rollout, because temperature belongs to
the policy that is trained.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.config import GrpoConfig
from grpo.policy import MoveDistribution


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Objective:
    """The loss and its parts, as means over states; `loss` is what is minimised."""

    loss: Tensor
    surrogate: Tensor
    """Mean clipped ratio * advantage, to be raised."""
    entropy: Tensor
    """Mean exact entropy in nats at the rollout's temperature, to be raised by its coefficient."""
    kl_reference: Tensor
    """Mean exact KL(policy || reference) in nats, to be lowered by its coefficient."""
    kl_old: Tensor
    """Mean exact KL(old || policy) in nats; watched, not part of the loss."""
    ratios: Tensor
    """[B, G] probability of each sampled move, new over old."""
    clip_fraction: Tensor
    """Share of sampled moves whose ratio the clip took out of the gradient."""


def clipped_surrogate(ratios_BG: Tensor, advantages_BG: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A), shape [B, G] (PPO, arXiv 1707.06347).

    Two bounds (DAPO, arXiv 2503.14476): with `clip_high` wider, a rare move may grow faster than a common one may shrink.
    """
    clipped = ratios_BG.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratios_BG * advantages_BG, clipped * advantages_BG)


def is_clipped(ratios_BG: Tensor, advantages_BG: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """Return where the clip removes the gradient, shape [B, G]: the ratio is past the bound that its advantage pushes it to."""
    too_high = (ratios_BG > 1 + clip_high) & (advantages_BG > 0)
    too_low = (ratios_BG < 1 - clip_low) & (advantages_BG < 0)
    return too_high | too_low


def grpo_objective(
    *,
    new: MoveDistribution,
    old: MoveDistribution,
    reference: MoveDistribution,
    columns_BG: Tensor,
    old_log_probs_BG: Tensor,
    advantages_BG: Tensor,
    config: GrpoConfig,
) -> Objective:
    """Return loss = -surrogate - entropy_coefficient * H + kl_coefficient * KL(new || reference), all means over states.

    Args:
        new: the policy being trained; the only part with a gradient.
        old: what was sampled from.
        reference: the frozen pretrained policy.
        columns_BG: column of each sampled move.
        old_log_probs_BG: log-probabilities that the sampler recorded.
        advantages_BG: from `advantages`.
        config: clip bounds and coefficients, in win probability per nat.
    """
    if columns_BG.shape != advantages_BG.shape or columns_BG.shape != old_log_probs_BG.shape:
        raise ValueError(
            f"moves {tuple(columns_BG.shape)}, old log-probabilities {tuple(old_log_probs_BG.shape)} and advantages"
            f" {tuple(advantages_BG.shape)} must have one shape"
        )
    ratios = (new.log_prob(columns_BG) - old_log_probs_BG).exp()
    bounds = {"clip_low": config.clip_low, "clip_high": config.clip_high}
    surrogate = clipped_surrogate(ratios, advantages_BG, **bounds).mean()
    entropy = new.entropy().mean()
    kl_reference = new.kl_to(reference).mean()
    return Objective(
        loss=-surrogate - config.entropy_coefficient * entropy + config.kl_coefficient * kl_reference,
        surrogate=surrogate,
        entropy=entropy,
        kl_reference=kl_reference,
        kl_old=old.kl_to(new.detach()).mean(),
        ratios=ratios,
        clip_fraction=is_clipped(ratios, advantages_BG, **bounds).float().mean(),
    )

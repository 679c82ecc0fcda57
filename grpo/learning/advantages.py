"""Rewards -> advantages, from samples or exactly.

Legend: B groups, G moves of a group, A legal moves (padded).
"""

import torch
from torch import Tensor

from grpo.settings.grpo import GrpoConfig


def group_advantages(rewards_BG: Tensor, config: GrpoConfig, *, is_member_BG: Tensor | None = None) -> Tensor:
    """Return each reward less its group's baseline, [B, G].

    `mean`: A = r - mean(r) (Dr. GRPO, arXiv 2503.20783); the expected gradient is (1 - 1/G) times the exact one, since each reward is
    part of its own baseline. `leave_one_out`: A = r - mean of the others (RLOO, arXiv 2402.14740), which is G / (G - 1) times that, and
    unbiased.
    With `divide_by_std` (GRPO as first published, arXiv 2402.03300), A is divided by max(std, std_floor), std as of the whole group.

    Args:
        rewards_BG: of the moves of each group.
        config: baseline, and whether and how the spread is divided out.
        is_member_BG: which members a group has; all, if not given. The rest, and a group of one, gets 0.
    """
    # In float64: rounded in float32, the mean of equal rewards is not that reward, and Adam makes full steps of the rest.
    member = torch.ones_like(rewards_BG, dtype=torch.float64) if is_member_BG is None else is_member_BG.double()
    size = member.sum(1, keepdim=True)
    rewards = torch.where(member > 0, rewards_BG.double(), 0.0)
    centred = (rewards - rewards.sum(1, keepdim=True) / size.clamp(min=1)) * member
    advantages = centred * size / (size - 1).clamp(min=1) if config.baseline == "leave_one_out" else centred
    if config.divide_by_std:
        std = ((centred**2).sum(1, keepdim=True) / size.clamp(min=1)).sqrt()
        advantages = advantages / std.clamp(min=config.std_floor)
    return advantages.to(rewards_BG.dtype)


def exact_advantages(probs_BA: Tensor, values_BA: Tensor, config: GrpoConfig) -> Tensor:
    """Return A = Q - V for every legal move, [B, A], where V = sum p Q; so that sum p A = 0. 0 where a move has no probability at all.

    The limit of `group_advantages` as groups grow. With `divide_by_std` it is divided by the same standard deviation, sqrt(sum p A^2).
    """
    probs, values = probs_BA.double(), values_BA.double()
    probs = probs / probs.sum(1, keepdim=True)
    advantages = torch.where(probs > 0, values - (probs * values).sum(1, keepdim=True), 0.0)
    if config.divide_by_std:
        std = (probs * advantages**2).sum(1, keepdim=True).sqrt()
        advantages = advantages / std.clamp(min=config.std_floor)
    return advantages.to(values_BA.dtype)

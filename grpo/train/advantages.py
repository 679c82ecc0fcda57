"""Rewards -> advantages.

Legend: B groups, G moves of a group.
"""

import torch
from torch import Tensor


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

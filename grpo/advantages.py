"""Group rewards -> advantages.

Legend: B boards, G moves of a group.
"""

from typing import Protocol

from torch import Tensor


class Estimator(Protocol):
    """How rewards become advantages."""

    def __call__(self, rewards_BG: Tensor) -> Tensor:
        """Return the advantages [B, G] of the rewards [B, G]."""


def group_advantages(rewards_BG: Tensor) -> Tensor:
    """Return each reward less its group's mean: A = r - mean(r) (Dr. GRPO, arXiv 2503.20783).

    The spread is not divided out, so an easy group weighs no more than a hard one. The expected gradient is (1 - 1/G) times the exact one,
    since each reward is part of its own baseline.
    """
    # The mean in float64: rounded in float32, the mean of equal rewards is not that reward, and Adam makes full steps of the rest.
    return (rewards_BG - rewards_BG.double().mean(dim=1, keepdim=True)).to(rewards_BG.dtype)


ESTIMATORS: dict[str, Estimator] = {"sampled": group_advantages}
"""By the name in the settings."""

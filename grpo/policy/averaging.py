"""EMA of the policy's weights over training steps; it averages out the noise of single updates."""

import copy

import torch

from grpo.policy.distribution import NetworkPolicy


class WeightAverage:
    """Exponential moving average (EMA) of a policy's weights (Polyak and Juditsky, SIAM J. Control Optim. 30, 1992)."""

    def __init__(self, policy: NetworkPolicy, *, decay: float) -> None:
        """Start from the policy's weights; `decay` in (0, 1) is the weight of the old average at each step."""
        self.policy = NetworkPolicy(copy.deepcopy(policy.network), policy.device)
        """The policy with the averaged weights, in full precision."""
        self._decay = decay

    def begin_at(self, policy: NetworkPolicy) -> None:
        """Set the average to the policy's weights."""
        self.policy.network.load_state_dict(policy.network.state_dict())

    @torch.no_grad()
    def update(self, policy: NetworkPolicy, num_steps: int) -> None:
        """Update the average with the weights after step `num_steps`, counted from 1.

        The decay is at most num_steps / (num_steps + 9), so that the initial weights are forgotten soon.
        """
        decay = min(self._decay, num_steps / (num_steps + 9))
        for mean, weights in zip(self.policy.network.parameters(), policy.network.parameters(), strict=True):
            mean.lerp_(weights, 1 - decay)

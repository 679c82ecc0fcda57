"""An average of the weights over training: a step moves them to and fro, and most of that is noise of its sample."""

import copy

import torch

from grpo.policy.distribution import NetworkPolicy


class WeightAverage:
    """An exponential moving average (EMA) of a policy's weights over steps (Polyak and Juditsky, SIAM J. Control Optim. 30, 1992)."""

    def __init__(self, policy: NetworkPolicy, *, decay: float) -> None:
        """Begin at the policy as it is; `decay` is the fraction that the average keeps at each step, in (0, 1)."""
        self.policy = NetworkPolicy(copy.deepcopy(policy.network), policy.device)
        """The policy whose weights are the average; in full precision, whatever the training's."""
        self._decay = decay

    def begin_at(self, policy: NetworkPolicy) -> None:
        """Make the policy's weights the average."""
        self.policy.network.load_state_dict(policy.network.state_dict())

    @torch.no_grad()
    def update(self, policy: NetworkPolicy, num_steps: int) -> None:
        """Take up the weights after the `num_steps`-th step since the beginning, which counts from 1.

        The first steps weigh more, so that the beginning is soon forgotten: at most num_steps / (num_steps + 9) is kept.
        """
        kept = min(self._decay, num_steps / (num_steps + 9))
        for mean, weights in zip(self.policy.network.parameters(), policy.network.parameters(), strict=True):
            mean.lerp_(weights, 1 - kept)

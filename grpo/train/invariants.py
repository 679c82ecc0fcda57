"""What must hold of every rollout, asserted in every run: cheap, and each breach would train something else than the settings say."""

import math
from typing import Final

import torch

from grpo.settings.grpo import GrpoConfig
from grpo.train.batch import Batch, States, group_advantages
from grpo.train.probes import Measured

MAX_LOG_RATIO: Final = {"float32": 1e-3, "bfloat16": 0.05}
"""By `grpo.precision`, of a network. Float32 noise between two batch shapes is 1e-6, bfloat16's inside the network 1e-2; temperature 1.3
against 1 gives 0.1 and more."""
_KL_OF_RATIO: Final = 0.02  # KL(old || policy) that goes with such ratios, at most; it is of second order in them.
_MAX_DIFFERENCE: Final = 1e-5  # Of rewards, advantages and entropies in float32, taken again from the same numbers.


class InvariantError(AssertionError):
    """Sampler and trainer do not score alike: the run would train a policy that it does not sample."""


def assert_own_rewards(batch: Batch[States], config: GrpoConfig) -> None:
    """Raise InvariantError unless each move has the reward and the advantage of its own state, and entropy is an entropy.

    `assert_on_policy` cannot see whose reward it is: probabilities are right, and the policy learns from another state's values.
    """
    assert batch.old is not None
    is_real = batch.weights > 0
    own = batch.states.values.gather(1, batch.columns)
    if config.num_own_moves > 1:
        own = own - batch.states.values.amax(1, keepdim=True)
    _refuse((batch.rewards - own)[is_real], "rewards", "a move's reward is not the value of that move in its own state")
    if config.num_own_moves == 1:
        again = group_advantages(batch.rewards)
        _refuse((batch.advantages - again)[is_real], "advantages", "an advantage is not that of its own group")
    else:
        # Each ply of a board's trajectories sums to 0, and so do all.
        weights = batch.weights * batch.state_weights[:, None]
        _refuse((weights * batch.advantages).sum()[None] / weights.sum(), "mean advantage", "trajectories are not compared with each other")
    entropies = batch.old.entropy()
    beyond = torch.maximum(entropies - batch.old.num_legal().to(entropies.dtype).log(), -entropies)
    _refuse(beyond.clamp(min=0), "entropy", "it lies outside of 0 and ln(legal moves), and is therefore no entropy")


def _refuse(differences: torch.Tensor, what: str, meaning: str) -> None:
    worst = differences.abs().max().item() if differences.numel() else 0.0
    # Written so that NaN passes on: what is not finite is skipped and counted, not taken for a fault of the code.
    if worst > _MAX_DIFFERENCE:
        raise InvariantError(f"{what} of a rollout: off by {worst:.3g}: {meaning}; its groups or states are mixed up")


def assert_on_policy(measured: Measured, *, max_log_ratio: float) -> None:
    """Raise InvariantError unless every ratio is 1, nothing is clipped and KL(old || policy) is 0.

    Holds before the first optimiser step on a rollout. It fails when sampling and scoring differ in temperature, dropout, precision,
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

"""What must hold of every rollout, asserted in every run: cheap, and each breach would train something else than the settings say."""

import math
from typing import Final

import torch

from grpo.settings.grpo import GrpoConfig
from grpo.train.advantages import group_advantages
from grpo.train.measurements import InnerStep
from grpo.train.rollouts import Rollout

_MAX_LOG_RATIO: Final = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""Float32 noise between two batch shapes is 1e-6, bfloat16's inside the network 1e-2; temperature 1.3 against 1 gives 0.1 and more."""
_MAX_KL: Final = {torch.float32: 1e-5, torch.bfloat16: 1e-3}
_MAX_DIFFERENCE: Final = 1e-5  # Of rewards, advantages and entropies in float32, taken again from the same numbers.


class InvariantError(AssertionError):
    """Sampler and trainer do not score alike: the run would train a policy that it does not sample."""


def assert_rollout(rollout: Rollout, config: GrpoConfig) -> None:
    """Raise InvariantError unless each move has the reward and the advantage of its own state, and entropy is an entropy.

    `assert_on_policy` cannot see whose reward it is: probabilities are right, and the policy learns from another state's values.
    """
    moves, old = rollout.moves, rollout.old
    is_real = moves.weights > 0
    values = rollout.states.values.masked_fill(~old.is_legal, 0)
    own = values.gather(1, moves.columns)
    if config.num_own_moves > 1:
        own = own - values.amax(1, keepdim=True)
    _refuse((rollout.rewards - own)[is_real], "rewards", "a move's reward is not the value of that move in its own state")
    if config.num_own_moves == 1:
        again = group_advantages(rollout.rewards)
        _refuse((moves.advantages - again)[is_real], "advantages", "an advantage is not that of its own group")
    else:
        # Each ply of a board's trajectories sums to 0, and so do all.
        weights = moves.weights * rollout.state_weights[:, None]
        _refuse((weights * moves.advantages).sum()[None] / weights.sum(), "mean advantage", "trajectories are not compared with each other")
    entropies = old.entropy()
    beyond = torch.maximum(entropies - old.num_legal().to(entropies.dtype).log(), -entropies)
    _refuse(beyond.clamp(min=0), "entropy", "it lies outside of 0 and ln(legal moves), and is therefore no entropy")


def _refuse(differences: torch.Tensor, what: str, meaning: str) -> None:
    worst = differences.abs().max().item() if differences.numel() else 0.0
    # Written so that NaN passes on: what is not finite is skipped and counted, not taken for a fault of the code.
    if worst > _MAX_DIFFERENCE:
        raise InvariantError(f"{what} of a rollout: off by {worst:.3g}: {meaning}; its groups or states are mixed up")


def assert_on_policy(step: InnerStep, precision: torch.dtype = torch.float32) -> None:
    """Raise InvariantError unless every ratio is 1, nothing is clipped and KL(old || policy) is 0.

    Holds before the first optimiser step on a rollout. It fails when sampling and scoring differ in temperature, dropout, precision,
    weights, or in which move belongs to which state.
    """
    worst = max(abs(math.log(ratio)) if ratio > 0 else math.inf for ratio in (step.ratio_min, step.ratio_max))
    clipped = step.mean("clip_low") + step.mean("clip_high")
    # Written so that NaN fails too.
    if not (worst <= _MAX_LOG_RATIO[precision] and abs(step.kl_old) <= _MAX_KL[precision] and clipped == 0):
        raise InvariantError(
            f"before the first update the policy does not score as it sampled: largest |log ratio| {worst:.3g}, KL(old) {step.kl_old:.3g},"
            f" clip fraction {clipped:.3g}, where all must be 0. Sampling and loss use different temperatures, weights, masks or"
            " modes; training would be of another policy than the one that plays"
        )

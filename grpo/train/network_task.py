"""GRPO of a chess network: what `Trainer` asks of a task, for a policy that gives every legal move a probability."""

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from grpo.policy.distribution import PRECISIONS, MoveDistribution, joined, on_device
from grpo.policy.policy import NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.train import probes
from grpo.train.batch import Batch, States, select_rows
from grpo.train.control import Knobs
from grpo.train.invariants import MAX_LOG_RATIO, assert_own_rewards
from grpo.train.rollout import Sampler, sampled_groups, sampled_trajectories
from grpo.train.self_play import SelfPlay
from grpo.train.states import DatasetStates, Values

MAX_STATES_PER_FORWARD: Final = 4_096
"""Gradients of more are accumulated: it decides how much memory a step takes, and not its result."""


class NetworkTask:
    """Groups of moves, or trajectories, from boards of the dataset and of self-play."""

    name = "grpo"
    kl_warmup_steps = 0
    is_sequential = False

    def __init__(
        self,
        reference: NetworkPolicy,
        dataset: DatasetStates,
        config: GrpoConfig,
        *,
        seed: int,
        self_play: SelfPlay | None = None,
        values: Values | None = None,
    ) -> None:
        """Prepare.

        Args:
            reference: the frozen healthy policy of the KL terms.
            dataset: where initial states come from.
            config: GRPO's settings.
            seed: root of all random streams.
            self_play: where further initial states come from.
            values: values moves in states beyond the initial ones; needed for trajectories of several own moves.
        """
        self.reference = reference.at_precision(PRECISIONS[config.precision])
        self.max_log_ratio = MAX_LOG_RATIO[config.precision]
        self._dataset, self._self_play, self._values = dataset, self_play, values
        self._config, self._seed = config, seed

    def states(self, policy: NetworkPolicy, step: int) -> States:
        """Return the states of a step; if a round of self-play begins, the policy plays it as it is now."""
        states = self._dataset.states(step)
        return states if self._self_play is None else joined([states, self._self_play.states(step, policy)])

    def rollout(self, policy: NetworkPolicy, states: States, knobs: Knobs, step: int) -> Batch[States]:
        """Return the moves that are sampled in these states.

        Raises NonFiniteError when probabilities are NaN or infinite, InvariantError unless rewards and advantages are each move's own.
        """
        config = self._config
        sampler = Sampler(policy=policy, temperature=knobs.temperature, seed=self._seed, step=step, max_states=MAX_STATES_PER_FORWARD)
        if config.num_own_moves == 1:
            batch = sampled_groups(sampler, states, config.group_size)
        else:
            assert self._values is not None
            batch = sampled_trajectories(sampler, states, self._values, config.group_size, config.num_own_moves)
        assert_own_rewards(batch, config)
        return on_device(batch, policy.device)

    def rollout_metrics(self, rollout: Batch[States]) -> dict[str, float]:
        """Return what is measured of a rollout, and of the games that were played for it."""
        return probes.rollout_metrics(rollout) | ({} if self._self_play is None else self._self_play.round_metrics())

    def parts(self, rollout: Batch[States], rows: Tensor) -> Iterator[Batch[States]]:
        """Yield the states of a minibatch in pieces that one forward pass takes."""
        for chosen in torch.split(rows.sort().values, MAX_STATES_PER_FORWARD):
            yield select_rows(rollout, chosen.to(rollout.columns.device))

    def distribution(self, policy: NetworkPolicy, part: Batch[States]) -> MoveDistribution:
        """Return the policy on the part's states."""
        return policy.distribution(part.states.positions, temperature=part.temperature)

    def log_num_legal(self, metrics: Mapping[str, float]) -> float:
        """Return the mean ln(legal moves) of a rollout."""
        return metrics["grpo/log_num_legal"]

    def state(self) -> dict[str, Tensor]:
        """Return what cannot be made again on resuming."""
        return {} if self._self_play is None else self._self_play.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        if self._self_play is not None:
            self._self_play.restore(tensors)

"""From boards to groups of moves: each group is several moves sampled from one state, and compared only with each other.

Legend: B boards, A legal moves (padded), G moves of a group.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from grpo.boards import BoardArrays
from grpo.errors import NonFiniteError
from grpo.policy import MoveDistribution, Policy, PositionBatch
from grpo.seeding import torch_stream


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class States:
    """Boards to learn from, with the value of every legal move."""

    positions: PositionBatch
    values: Tensor
    """[B, A] win probability for the mover; 0 on padding."""
    phases: Tensor
    """[B] index into `phases.PHASES`."""

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, rows: Tensor) -> "States":
        """Return the given rows, no wider than they need to be."""
        positions = self.positions.take(rows)
        width = positions.is_legal.shape[1]
        return States(positions=positions, values=self.values[rows][:, :width], phases=self.phases[rows])

    def to(self, device: torch.device) -> "States":
        """Return the states on another device."""
        return States(positions=self.positions.to(device), values=self.values.to(device), phases=self.phases.to(device))


class StateSource(Protocol):
    """Where GRPO's states come from: dataset boards now, the policy's own games as well."""

    def states(self, step: int) -> States:
        """Return the states of a step; the same step gives the same states, whatever was asked before."""


class DatasetStates:
    """Dataset boards with their value tables, in a new order each epoch."""

    def __init__(self, arrays: BoardArrays, *, states_per_step: int, seed: int) -> None:
        self._all = States(
            positions=PositionBatch.from_arrays(arrays),
            values=torch.from_numpy(arrays.values),
            phases=torch.from_numpy(arrays.phases),
        )
        self._size = states_per_step
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def states(self, step: int) -> States:
        """Return the states of a step; an epoch's last few boards are left for the next."""
        epoch, place = divmod(step, len(self._all) // self._size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self._all), generator=torch_stream(self._seed, "states", epoch))
        return self._all.take(self._order[place * self._size : (place + 1) * self._size])


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Rollout:
    """What was sampled, with what the sampler itself recorded; nothing here is computed again by the trainer."""

    states: States
    columns: Tensor
    """[B, G] column of each sampled move."""
    old_log_probs: Tensor
    """[B, G] the sampler's log-probability of each sampled move, at its temperature."""
    old: MoveDistribution
    """The whole distribution that was sampled from."""
    rewards: Tensor
    """[B, G] win probability after each move, for the player who moved."""
    temperature: float
    """Of the policy that was sampled, and that the loss must therefore use."""

    def __len__(self) -> int:
        return len(self.states)

    def take(self, rows: Tensor) -> "Rollout":
        """Return the given states with their groups."""
        states = self.states.take(rows)
        width = states.positions.is_legal.shape[1]
        return Rollout(
            states=states,
            columns=self.columns[rows],
            old_log_probs=self.old_log_probs[rows],
            old=MoveDistribution(log_probs=self.old.log_probs[rows][:, :width], is_legal=self.old.is_legal[rows][:, :width]),
            rewards=self.rewards[rows],
            temperature=self.temperature,
        )

    def to(self, device: torch.device) -> "Rollout":
        """Return the rollout on another device."""
        return Rollout(
            states=self.states.to(device),
            columns=self.columns.to(device),
            old_log_probs=self.old_log_probs.to(device),
            old=MoveDistribution(log_probs=self.old.log_probs.to(device), is_legal=self.old.is_legal.to(device)),
            rewards=self.rewards.to(device),
            temperature=self.temperature,
        )


@torch.no_grad()
def sample_groups(policy: Policy, states: States, *, group_size: int, temperature: float, rng: torch.Generator) -> Rollout:
    """Return `group_size` moves for each state, drawn with replacement at this temperature, with their rewards.

    Raises NonFiniteError when the policy's probabilities are no numbers.
    """
    distribution = policy.distribution(states.positions, temperature=temperature)
    if not torch.isfinite(distribution.log_probs).all():
        raise NonFiniteError("the policy's probabilities are not finite: its weights are spoilt; go on from an earlier checkpoint")
    on_cpu = MoveDistribution(log_probs=distribution.log_probs.cpu(), is_legal=distribution.is_legal.cpu())
    columns = on_cpu.sample(group_size, rng)
    return Rollout(
        states=states,
        columns=columns,
        old_log_probs=on_cpu.log_prob(columns),
        old=on_cpu,
        rewards=states.values.gather(1, columns),
        temperature=temperature,
    )

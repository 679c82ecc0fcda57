"""What one step learns from: states with the value of every legal move, and the moves that were sampled in them with what they are worth.

Legend: B states, A legal moves of a state (padded), M moves of a state in the surrogate (its group; padded with weight 0), G moves of a
full group.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import torch
from torch import Tensor

from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.train.mirror import reflected

_OF_MOVES: Final = ("columns", "weights", "old_log_probs", "rewards", "advantages")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class States:
    """Boards with a choice between moves, and the value of every legal move.

    A board with the three legal moves a, b, c, of which b wins, has `values` [0.5, 1.0, 0.4, 0, ...].
    """

    positions: PositionBatch
    values: Tensor
    """[B, A] win probability for the mover; 0 on padding."""
    phases: Tensor
    """[B] index into `phases.PHASES`."""

    def __len__(self) -> int:
        return len(self.positions)

    def select_rows(self, rows: Tensor) -> "States":
        """Return the given rows, no wider than they need to be."""
        positions = self.positions.select_rows(rows)
        width = positions.is_legal.shape[1]
        return States(positions=positions, values=self.values[rows][:, :width], phases=self.phases[rows])

    def reflected(self, wanted_B: Tensor) -> "States":
        """Return the states, those that are wanted so and have no castling rights as their left-right mirror image."""
        return replace(self, positions=reflected(self.positions, wanted_B))


_States = TypeVar("_States")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Batch(Generic[_States]):
    """States, the moves that were sampled in each, and all that the objective needs of them.

    A group of two moves from the board above, a and b at T = 1 from probabilities 0.5, 0.3, 0.2: `columns` [0, 1], `weights` [0.5, 0.5],
    `old_log_probs` [ln 0.5, ln 0.3], `rewards` [0.5, 1.0], `advantages` [-0.25, 0.25].

    For a language model a state is a place in an answer, its moves are the tokens of the vocabulary, and M is 1.
    """

    states: _States
    """B of them: `States` of a network; of a language model the answers, whose tokens are the states."""
    state_weights: Tensor
    """[B] how much a state counts in means: 1, but in the initial states of trajectories, which stand for G states, G."""
    columns: Tensor
    """[B, M] column of each move."""
    weights: Tensor
    """[B, M] its weight in the state's surrogate: 1/G, or 1 where a trajectory has one move from the state; 0 on padding."""
    old_log_probs: Tensor
    """[B, M] the sampler's own log-probability of each move, at its temperature."""
    rewards: Tensor
    """[B, M] of each move, for the player who moved; 0 on padding."""
    advantages: Tensor
    """[B, M]."""
    temperature: float
    """Of the policy that was sampled, and that the loss must therefore use."""
    old: MoveDistribution | None
    """The whole distribution that was sampled from, [B, A]; None for a language model, of which the sampled tokens' are known."""
    num_dropped: int = 0
    """States of trajectories that were left out, because the engine failed on them."""

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Tensor:
        """Rows that may be trained on: all."""
        return torch.arange(len(self))

    @property
    def row_weights(self) -> Tensor:
        """Weight of each row in means, [B], on the CPU."""
        return self.state_weights.cpu()


def select_rows(batch: Batch[States], rows: Tensor) -> Batch[States]:
    """Return the given states with their moves; the states are no wider than they need to be."""
    assert batch.old is not None
    states = batch.states.select_rows(rows)
    width = states.positions.is_legal.shape[1]
    of_moves: dict[str, Any] = {name: getattr(batch, name)[rows] for name in _OF_MOVES}
    old = MoveDistribution(log_probs=batch.old.log_probs[rows][:, :width], is_legal=batch.old.is_legal[rows][:, :width])
    return replace(batch, states=states, state_weights=batch.state_weights[rows], old=old, **of_moves)


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

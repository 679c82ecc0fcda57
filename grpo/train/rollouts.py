"""From states to groups of moves, or to trajectories of several own moves.

Legend: B states, A legal moves (padded), G moves of a group, M moves of a state that are in the surrogate.

With one own move, G moves from one state are compared with each other. With more, G trajectories begin in one board, each with one move
from each of its states; the policy itself replies. A move's reward is then what it changes, Q(s, a) - max Q(s), and the G rewards of one
ply are compared with each other, although their states differ after the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import chess
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.policy.distribution import MoveDistribution, Policy, PositionBatch
from grpo.settings.grpo import GrpoConfig
from grpo.train.advantages import group_advantages
from grpo.train.objective import Moves
from grpo.train.states import States, ValueSource, joined, valued_states


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Rollout:
    """What was sampled, with what the sampler itself recorded; nothing here is computed again by the trainer."""

    states: States
    state_weights: Tensor
    """[B] how much a state counts in means: 1, but in the initial states of trajectories, which stand for G states, G."""
    moves: Moves
    rewards: Tensor
    """[B, M] of each move, for the player who moved; 0 on padding."""
    old: MoveDistribution
    """The whole distribution that was sampled from."""
    temperature: float
    """Of the policy that was sampled, and that the loss must therefore use."""
    num_dropped: int = 0
    """States of trajectories that were left out, because the engine failed on them."""

    def __len__(self) -> int:
        return len(self.states)

    def select_rows(self, rows: Tensor) -> "Rollout":
        """Return the given states with their moves."""
        states = self.states.select_rows(rows)
        width = states.positions.is_legal.shape[1]
        num_moves = int((self.moves.weights[rows] > 0).sum(1).max()) if len(rows) else 0
        return Rollout(
            states=states,
            state_weights=self.state_weights[rows],
            moves=Moves(
                columns=self.moves.columns[rows][:, :num_moves],
                weights=self.moves.weights[rows][:, :num_moves],
                old_log_probs=self.moves.old_log_probs[rows][:, :num_moves],
                advantages=self.moves.advantages[rows][:, :num_moves],
            ),
            rewards=self.rewards[rows][:, :num_moves],
            old=MoveDistribution(log_probs=self.old.log_probs[rows][:, :width], is_legal=self.old.is_legal[rows][:, :width]),
            temperature=self.temperature,
            num_dropped=self.num_dropped,
        )

    def to(self, device: torch.device) -> "Rollout":
        """Return the rollout on another device."""
        moves = self.moves
        return Rollout(
            states=self.states.to(device),
            state_weights=self.state_weights.to(device),
            moves=Moves(
                columns=moves.columns.to(device),
                weights=moves.weights.to(device),
                old_log_probs=moves.old_log_probs.to(device),
                advantages=moves.advantages.to(device),
            ),
            rewards=self.rewards.to(device),
            old=MoveDistribution(log_probs=self.old.log_probs.to(device), is_legal=self.old.is_legal.to(device)),
            temperature=self.temperature,
            num_dropped=self.num_dropped,
        )


@torch.no_grad()
def sampling_distribution(policy: Policy, positions: PositionBatch, *, temperature: float, max_states: int) -> MoveDistribution:
    """Return what is sampled from, on the CPU, by forward passes of at most `max_states` states.

    Raises NonFiniteError when the policy's probabilities are NaN or infinite.
    """
    parts = [
        policy.distribution(positions.select_rows(rows), temperature=temperature)
        for rows in torch.split(torch.arange(len(positions)), max_states)
    ]
    width = positions.is_legal.shape[1]
    log_probs = torch.cat([torch.nn.functional.pad(part.log_probs.cpu(), (0, width - part.log_probs.shape[1])) for part in parts])
    if not torch.isfinite(log_probs).all():
        raise NonFiniteError("the policy's probabilities are not finite: its weights are spoilt; go on from an earlier checkpoint")
    return MoveDistribution(log_probs=log_probs, is_legal=positions.is_legal)


class Roller:
    """Makes rollouts."""

    def __init__(self, config: GrpoConfig, *, seed: int, values: ValueSource | None = None) -> None:
        """Take the settings, the root of all random streams, and what values the states that trajectories reach.

        Raises ValueError when the settings need values and there are none.
        """
        if config.num_own_moves > 1 and values is None:
            raise ValueError("grpo.num_own_moves above 1 needs a source of values")
        self._config, self._seed, self._values = config, seed, values

    def rollout(self, policy: Policy, states: States, *, step: int, temperature: float) -> Rollout:
        """Return the rollout from these initial states.

        Args:
            policy: sampled as it is.
            states: the initial states.
            step: names the random streams.
            temperature: of the policy.

        Raises NonFiniteError when the policy's probabilities are NaN or infinite.
        """
        size = self._config.group_size
        old = self._sampled_from(policy, states.positions, temperature)
        columns = old.sample_at(self._uniforms("moves", step, 0, len(states) * size).view(-1, size))
        rewards = states.values.gather(1, columns)
        if self._config.num_own_moves == 1:
            return _rollout(states, old, columns, rewards_BM=rewards, advantages_BM=group_advantages(rewards), temperature=temperature)
        return self._trajectories(policy, states, old, columns, step=step, temperature=temperature)

    def _trajectories(
        self, policy: Policy, states: States, old: MoveDistribution, columns_BG: Tensor, *, step: int, temperature: float
    ) -> Rollout:
        assert self._values is not None
        size, num_dropped = self._config.group_size, 0
        # By number of the trajectory: G of the first board, then G of the next.
        starts = [decode(row) for row in states.positions.encodings.numpy() for _ in range(size)]
        moves = _moves_of(states.positions.action_ids.repeat_interleave(size, 0), columns_BG.flatten(), starts)
        games = _played(dict(enumerate(starts)), dict(enumerate(moves)))
        rewards = _changes(states, columns_BG)
        advantages = group_advantages(rewards)
        levels = [_rollout(states, old, columns_BG, rewards_BM=rewards, advantages_BM=advantages, temperature=temperature, weight=size)]

        def drawn(boards: Mapping[int, chess.Board], positions: PositionBatch, purpose: str, level: int) -> tuple[MoveDistribution, Tensor]:
            found = self._sampled_from(policy, positions, temperature)
            return found, found.sample_at(self._uniforms(purpose, step, level, len(starts))[list(boards)][:, None])

        for level in range(1, self._config.num_own_moves):
            if games:
                positions = PositionBatch.from_boards([*games.values()])
                _, columns = drawn(games, positions, "replies", level)
                games = _played(games, dict(zip(games, _moves_of(positions.action_ids, columns[:, 0], [*games.values()]), strict=True)))
            # A state with one legal move teaches nothing; it is played on from.
            next_moves = {number: next(iter(board.legal_moves)) for number, board in games.items() if board.legal_moves.count() == 1}
            free = {number: board for number, board in games.items() if number not in next_moves}
            found, kept, failed = valued_states([*free.values()], self._values) if free else (None, [], 0)
            num_dropped += failed
            if found is not None:
                numbers = [[*free][index] for index in kept]
                here = {number: free[number] for number in numbers}
                old, columns = drawn(here, found.positions, "moves", level)
                rewards = _changes(found, columns)
                advantages = _by_ply(rewards, torch.tensor(numbers), len(starts), size)
                levels.append(_rollout(found, old, columns, rewards_BM=rewards, advantages_BM=advantages, temperature=temperature))
                next_moves |= zip(numbers, _moves_of(found.positions.action_ids, columns[:, 0], [*here.values()]), strict=True)
            games = _played({number: board for number, board in games.items() if number in next_moves}, next_moves)
        return replace(_stacked(levels), num_dropped=num_dropped)

    def _sampled_from(self, policy: Policy, positions: PositionBatch, temperature: float) -> MoveDistribution:
        return sampling_distribution(policy, positions, temperature=temperature, max_states=self._config.max_states_per_forward)

    def _uniforms(self, purpose: str, step: int, level: int, count: int) -> Tensor:
        return torch.rand(count, dtype=torch.float64, generator=torch_stream(self._seed, purpose, step, level))


def _rollout(
    states: States,
    old: MoveDistribution,
    columns_BM: Tensor,
    *,
    rewards_BM: Tensor,
    advantages_BM: Tensor,
    temperature: float,
    weight: float = 1.0,
) -> Rollout:
    """Return the moves that were drawn in some states."""
    return Rollout(
        states=states,
        state_weights=torch.full((len(states),), float(weight)),
        moves=Moves(
            columns=columns_BM,
            weights=torch.full_like(rewards_BM, 1 / columns_BM.shape[1]),
            old_log_probs=old.log_prob(columns_BM),
            advantages=advantages_BM,
        ),
        rewards=rewards_BM,
        old=old,
        temperature=temperature,
    )


def _changes(states: States, columns_BM: Tensor) -> Tensor:
    """Return what each move changes: its value less the best one's."""
    return states.values.gather(1, columns_BM) - states.values.amax(1, keepdim=True)  # Padding is 0, and no value is less.


def _by_ply(rewards_N1: Tensor, numbers_N: Tensor, num_trajectories: int, size: int) -> Tensor:
    """Return the advantages, [N, 1], of one reward of each of these trajectories: compared with those of its board's others."""
    rewards = torch.zeros(num_trajectories, dtype=rewards_N1.dtype).index_put((numbers_N,), rewards_N1[:, 0])
    is_member = torch.zeros(num_trajectories, dtype=torch.bool).index_fill(0, numbers_N, True)
    compared = group_advantages(rewards.view(-1, size), is_member_BG=is_member.view(-1, size))
    return compared.flatten()[numbers_N][:, None]


def _moves_of(action_ids_BA: Tensor, columns_B: Tensor, boards: Sequence[chess.Board]) -> list[chess.Move]:
    ids = action_ids_BA.gather(1, columns_B[:, None])[:, 0].tolist()
    return [action_move(index, board.turn) for index, board in zip(ids, boards, strict=True)]


def _played(games: Mapping[int, chess.Board], moves: Mapping[int, chess.Move]) -> dict[int, chess.Board]:
    """Play a move in each game, and return those that are not over."""
    for number, board in games.items():
        board.push(moves[number])
    return {number: board for number, board in games.items() if not board.is_game_over()}


def _stacked(levels: Sequence[Rollout]) -> Rollout:
    """Return the states of all levels as one rollout, as wide as the widest."""
    width = max(level.old.log_probs.shape[1] for level in levels)
    num_moves = max(level.rewards.shape[1] for level in levels)

    def stacked(parts: Sequence[Tensor], size: int) -> Tensor:
        return torch.cat([torch.nn.functional.pad(part, (0, size - part.shape[1])) for part in parts])

    return Rollout(
        states=joined([level.states for level in levels]),
        state_weights=torch.cat([level.state_weights for level in levels]),
        moves=Moves(
            columns=stacked([level.moves.columns for level in levels], num_moves),
            weights=stacked([level.moves.weights for level in levels], num_moves),
            old_log_probs=stacked([level.moves.old_log_probs for level in levels], num_moves),
            advantages=stacked([level.moves.advantages for level in levels], num_moves),
        ),
        rewards=stacked([level.rewards for level in levels], num_moves),
        old=MoveDistribution(
            log_probs=stacked([level.old.log_probs for level in levels], width),
            is_legal=stacked([level.old.is_legal for level in levels], width),
        ),
        temperature=levels[0].temperature,
    )

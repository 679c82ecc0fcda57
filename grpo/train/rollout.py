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
from grpo.policy.distribution import MoveDistribution, MovePolicy, PositionBatch, joined, on_device
from grpo.train.batch import Batch, States, group_advantages
from grpo.train.states import Values, valued_states


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Draws moves for one rollout from a policy as it is, each from a stream that its step, its ply and its purpose name."""

    policy: MovePolicy
    temperature: float
    seed: int
    step: int
    max_states: int
    """Of a forward pass; it decides nothing."""

    @torch.no_grad()
    def distribution(self, positions: PositionBatch) -> MoveDistribution:
        """Return what is sampled from, on the CPU; raises NonFiniteError when the policy's probabilities are NaN or infinite."""
        pieces = [positions.select_rows(rows) for rows in torch.split(torch.arange(len(positions)), self.max_states)]
        found = [self.policy.distribution(piece, temperature=self.temperature) for piece in pieces]
        whole = joined([on_device(one, torch.device("cpu")) for one in found])
        if not torch.isfinite(whole.log_probs).all():
            raise NonFiniteError("the policy's probabilities are not finite: its weights are spoilt; go on from an earlier checkpoint")
        return whole

    def draw(
        self, positions: PositionBatch, purpose: str, ply: int, *, count: int, rows: Sequence[int] | None = None
    ) -> tuple[MoveDistribution, Tensor]:
        """Return the distribution and the columns of the moves that are drawn, [B, moves of a state].

        Args:
            positions: B of them.
            purpose: `moves` or `replies`.
            ply: of the trajectory.
            count: uniform numbers of the stream.
            rows: which of them are used, one a state; else all, equally many a state.
        """
        old = self.distribution(positions)
        uniforms = torch.rand(count, dtype=torch.float64, generator=torch_stream(self.seed, purpose, self.step, ply))
        return old, old.sample_at(uniforms.view(len(positions), -1) if rows is None else uniforms[list(rows)][:, None])


def sampled_groups(sampler: Sampler, states: States, group_size: int) -> Batch[States]:
    """Return G moves from each state; their rewards are their values."""
    old, columns = sampler.draw(states.positions, "moves", 0, count=len(states) * group_size)
    rewards = states.values.gather(1, columns)
    return _batch(states, old, columns, rewards, group_advantages(rewards), temperature=sampler.temperature)


def sampled_trajectories(sampler: Sampler, states: States, values: Values, group_size: int, num_own_moves: int) -> Batch[States]:
    """Return G trajectories from each state, as the states of all their plies; `values` values those beyond the first."""
    num_dropped, count = 0, len(states) * group_size
    old, columns_BG = sampler.draw(states.positions, "moves", 0, count=count)
    # By number of the trajectory: G of the first board, then G of the next.
    starts = [decode(row) for row in states.positions.encodings.numpy() for _ in range(group_size)]
    moves = _moves_of(states.positions.action_ids.repeat_interleave(group_size, 0), columns_BG.flatten(), starts)
    games = _played(dict(enumerate(starts)), dict(enumerate(moves)))
    rewards = _changes(states, columns_BG)
    first = _batch(states, old, columns_BG, rewards, group_advantages(rewards), temperature=sampler.temperature)
    plies = [replace(first, state_weights=first.state_weights * group_size)]
    for ply in range(1, num_own_moves):
        if games:
            positions = PositionBatch.from_boards([*games.values()])
            _, columns = sampler.draw(positions, "replies", ply, count=count, rows=[*games])
            games = _played(games, dict(zip(games, _moves_of(positions.action_ids, columns[:, 0], [*games.values()]), strict=True)))
        # A state with one legal move teaches nothing; it is played on from.
        next_moves = {number: next(iter(board.legal_moves)) for number, board in games.items() if board.legal_moves.count() == 1}
        free = {number: board for number, board in games.items() if number not in next_moves}
        found, kept = valued_states([*free.values()], values) if free else (None, [])
        num_dropped += len(free) - len(kept)
        if found is not None:
            numbers = [[*free][index] for index in kept]
            old, columns = sampler.draw(found.positions, "moves", ply, count=count, rows=numbers)
            rewards = _changes(found, columns)
            advantages = _by_ply(rewards, torch.tensor(numbers), count, group_size)
            plies.append(_batch(found, old, columns, rewards, advantages, temperature=sampler.temperature))
            here = [free[number] for number in numbers]
            next_moves |= zip(numbers, _moves_of(found.positions.action_ids, columns[:, 0], here), strict=True)
        games = _played({number: board for number, board in games.items() if number in next_moves}, next_moves)
    return replace(joined(plies), num_dropped=num_dropped)


def _batch(
    states: States, old: MoveDistribution, columns_BM: Tensor, rewards_BM: Tensor, advantages_BM: Tensor, *, temperature: float
) -> Batch[States]:
    return Batch(
        states=states,
        state_weights=torch.ones(len(states)),
        columns=columns_BM,
        weights=torch.full_like(rewards_BM, 1 / columns_BM.shape[1]),
        old_log_probs=old.log_prob(columns_BM),
        rewards=rewards_BM,
        advantages=advantages_BM,
        temperature=temperature,
        old=old,
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

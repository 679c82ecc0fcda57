"""From states to groups of moves and on to the next states, by one of three named estimators.

Legend: B states, A legal moves (padded), G moves of a group, M moves of a state that are in the surrogate.

`sampled`: G moves from one state, compared with each other. `exact`: all legal moves, weighted by their probabilities. With depth, one of
the moves (in `exact` a sampled one) is played, an opponent replies, and each further own-move state that is reached has a group of its own.
`trajectory`: G trajectories from one board, each with one move from each of its states; a move's reward is what it changes,
Q(s, a) - max Q(s), and the G rewards of one ply are compared with each other, although their states differ after the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import chess
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.engine.answers import EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.learning.advantages import exact_advantages, group_advantages
from grpo.learning.objective import Moves
from grpo.learning.states import States, ValueSource, joined, valued_states
from grpo.policy.distribution import MoveDistribution, Policy, PositionBatch
from grpo.settings.grpo import GrpoConfig


class Replies(Protocol):
    """An opponent, or a teacher, that is no policy."""

    def replies(self, boards: Sequence[chess.Board]) -> list[chess.Move | None]:
        """Return a move for each board; None where it failed."""


class EngineReplies:
    """Stockfish at fixed nodes."""

    def __init__(self, pool: EnginePool, *, nodes: int) -> None:
        self._pool, self._nodes = pool, nodes

    def replies(self, boards: Sequence[chess.Board]) -> list[chess.Move | None]:
        """Return the engine's moves."""
        answers = self._pool.search([Query(fen=board.fen(), limit=f"nodes {self._nodes}", board=board) for board in boards])
        return [
            None if isinstance(answer, EngineError) else board.parse_uci(answer.best_move)
            for board, answer in zip(boards, answers, strict=True)
        ]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Rollout:
    """What was sampled, with what the sampler itself recorded; nothing here is computed again by the trainer."""

    states: States
    indices: Tensor
    """[B] number of each state, rising: the initial states from 0, then one for each trajectory at each further own move."""
    state_weights: Tensor
    """[B] how much a state counts in means: 1, but in the initial states of trajectories, which stand for G states, G."""
    moves: Moves
    rewards: Tensor
    """[B, M] of each move, for the player who moved; 0 on padding."""
    old: MoveDistribution
    """The whole distribution that was sampled from."""
    temperature: float
    """Of the policy that was sampled, and that the loss must therefore use."""
    num_dropped: int
    """States that were reached and left out, because the engine failed on them; and trajectories that it failed to reply to."""
    num_forced: int
    """States that were reached and left out, because they have one legal move."""

    def __len__(self) -> int:
        return len(self.states)

    def select_rows(self, rows: Tensor) -> "Rollout":
        """Return the given states with their moves."""
        states = self.states.select_rows(rows)
        width = states.positions.is_legal.shape[1]
        # Up to the last one that counts: in `exact` a move whose probability is 0 in float32 may lie between others.
        is_used = (self.moves.weights[rows] > 0).any(0)
        num_moves = int(is_used.nonzero().max()) + 1 if is_used.any() else 0
        return Rollout(
            states=states,
            indices=self.indices[rows],
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
            num_forced=self.num_forced,
        )

    def to(self, device: torch.device) -> "Rollout":
        """Return the rollout on another device."""
        moves = self.moves
        return Rollout(
            states=self.states.to(device),
            indices=self.indices.to(device),
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
            num_forced=self.num_forced,
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

    def __init__(self, config: GrpoConfig, *, seed: int, values: ValueSource | None = None, opponent: Replies | None = None) -> None:
        """Take the settings, the root of all random streams, and what states beyond the initial ones need: values, and an engine.

        Raises ValueError when the settings need one that is not there.
        """
        depth = config.depth
        needs_engine = depth.opponent == "engine" or depth.teacher_probability > 0
        if depth.num_own_moves > 1 and (values is None or (needs_engine and opponent is None)):
            raise ValueError("depth.num_own_moves above 1 needs a source of values, and an engine where it is opponent or teacher")
        self._config, self._seed, self._values, self._opponent = config, seed, values, opponent
        self._per_state = config.group_size if config.estimator == "trajectory" else 1
        """Trajectories that begin in one state."""

    def rollout(self, policy: Policy, states: States, *, step: int, temperature: float) -> Rollout:
        """Return the rollout from these initial states.

        Args:
            policy: sampled as it is.
            states: the initial states.
            step: names the random streams.
            temperature: of the policy.

        Raises NonFiniteError when the policy's probabilities are NaN or infinite.
        """
        num_states = len(states)
        draw = _Draw(self._seed, step, num_states * self._per_state, temperature)
        old = self._sampled_from(policy, states.positions, temperature)
        uniforms = torch.rand(
            num_states, self._config.group_size, dtype=torch.float64, generator=torch_stream(self._seed, "moves", step, 0)
        )
        columns = old.sample_at(uniforms)
        levels = [self._level(states, old, columns, torch.arange(num_states), temperature)]
        num_dropped = num_forced = 0
        if self._config.depth.num_own_moves > 1:
            walk = _Trajectories.from_states(states, columns[:, : self._per_state])
            for level in range(1, self._config.depth.num_own_moves):
                num_dropped += self._reply(policy, walk, draw, level)
                found, dropped, forced = self._visit(policy, walk, draw, level)
                num_dropped, num_forced = num_dropped + dropped, num_forced + forced
                if found is not None:
                    levels.append(found)
        if self._config.estimator == "trajectory":
            levels = [self._compared_by_ply(level, num_states) for level in levels]
        return _stacked(levels, num_dropped=num_dropped, num_forced=num_forced)

    def _sampled_from(self, policy: Policy, positions: PositionBatch, temperature: float) -> MoveDistribution:
        return sampling_distribution(policy, positions, temperature=temperature, max_states=self._config.max_states_per_forward)

    def _level(self, states: States, old: MoveDistribution, columns_BG: Tensor, indices: Tensor, temperature: float) -> Rollout:
        """Return the groups of some states, with the moves that were drawn."""
        config, weight = self._config, 1.0
        if config.estimator == "exact":
            columns, weights, rewards = torch.arange(states.values.shape[1]).expand(len(states), -1), old.probs, states.values
            advantages = exact_advantages(weights, rewards, config)
        else:
            columns, rewards = columns_BG, states.values.gather(1, columns_BG)
            weights = torch.full_like(rewards, 1 / columns.shape[1])
            if config.estimator == "trajectory":
                weight = float(columns.shape[1])
                rewards = rewards - states.values.masked_fill(~old.is_legal, 0).amax(1, keepdim=True)
                advantages = torch.zeros_like(rewards)  # Known when all trajectories of a board are.
            else:
                advantages = group_advantages(rewards, config)
        return Rollout(
            states=states,
            indices=indices,
            state_weights=torch.full((len(states),), weight),
            moves=Moves(columns=columns, weights=weights, old_log_probs=old.log_prob(columns), advantages=advantages),
            rewards=rewards,
            old=old,
            temperature=temperature,
            num_dropped=0,
            num_forced=0,
        )

    def _reply(self, policy: Policy, walk: "_Trajectories", draw: "_Draw", level: int) -> int:
        """Play each trajectory's own move and the opponent's reply; games that end leave.

        Returns how many ended because the opponent failed.
        """
        walk.play()
        if not walk.boards:
            return 0
        depth = self._config.depth
        by_engine = torch.full((len(walk.boards),), depth.opponent == "engine")
        if 2 * level - 1 < depth.teacher_plies:
            by_engine |= draw.uniforms("teacher", level)[walk.ids] < depth.teacher_probability
        chosen: list[chess.Move | None] = [None] * len(walk.boards)
        for is_engine in (True, False):
            rows = (by_engine == is_engine).nonzero()[:, 0].tolist()
            if not rows:
                continue
            boards = [walk.boards[row] for row in rows]
            if is_engine:
                assert self._opponent is not None
                moves = self._opponent.replies(boards)
            else:
                moves = self._sampled_moves(policy, boards, draw.uniforms("replies", level)[walk.ids[rows]], draw.temperature)
            for row, move in zip(rows, moves, strict=True):
                chosen[row] = move
        walk.moves = chosen
        walk.play()
        return chosen.count(None)

    def _sampled_moves(
        self, policy: Policy, boards: Sequence[chess.Board], uniforms: Tensor, temperature: float
    ) -> list[chess.Move | None]:
        positions = PositionBatch.from_boards(boards)
        columns = self._sampled_from(policy, positions, temperature).sample_at(uniforms[:, None])
        return list(_moves_of(positions, columns[:, 0], boards))

    def _visit(self, policy: Policy, walk: "_Trajectories", draw: "_Draw", level: int) -> tuple[Rollout | None, int, int]:
        """Return the groups of the states that trajectories stand in, and how many states were dropped and forced."""
        assert self._values is not None
        legal = [list(board.legal_moves) for board in walk.boards]
        forced = [row for row, moves in enumerate(legal) if len(moves) == 1]
        free = [row for row, moves in enumerate(legal) if len(moves) > 1]
        chosen: list[chess.Move | None] = [None] * len(legal)
        for row in forced:
            chosen[row] = legal[row][0]
        states, kept, num_dropped = valued_states([walk.boards[row] for row in free], self._values) if free else (None, [], 0)
        found = None
        if states is not None:
            rows = [free[index] for index in kept]
            ids = walk.ids[rows]
            old = self._sampled_from(policy, states.positions, draw.temperature)
            num_draws = 1 if self._config.estimator == "trajectory" else self._config.group_size
            columns = old.sample_at(draw.uniforms("moves", level, num_columns=num_draws)[ids])
            first = draw.num_trajectories // self._per_state + (level - 1) * draw.num_trajectories
            found = self._level(states, old, columns, ids + first, draw.temperature)
            moves = _moves_of(states.positions, columns[:, 0], [walk.boards[row] for row in rows])
            for row, move in zip(rows, moves, strict=True):
                chosen[row] = move
        walk.moves = chosen
        walk.leave()
        return found, num_dropped, len(forced)

    def _compared_by_ply(self, level: Rollout, num_states: int) -> Rollout:
        """Return the level with its advantages: each reward compared with those of its board's other trajectories at this ply."""
        size = self._per_state
        if int(level.indices[0]) < num_states:
            advantages = group_advantages(level.rewards, self._config)
        else:
            ids = (level.indices - num_states) % (num_states * size)
            rewards = torch.zeros(num_states * size, dtype=level.rewards.dtype).index_put_((ids,), level.rewards[:, 0])
            is_member = torch.zeros(num_states * size, dtype=torch.bool).index_fill_(0, ids, True)
            compared = group_advantages(rewards.view(num_states, size), self._config, is_member_BG=is_member.view(num_states, size))
            advantages = compared.flatten()[ids][:, None]
        return replace(level, moves=replace(level.moves, advantages=advantages))


@dataclass(frozen=True, slots=True)
class _Draw:
    """The random numbers of one rollout, by trajectory."""

    seed: int
    step: int
    num_trajectories: int
    temperature: float

    def uniforms(self, purpose: str, level: int, *, num_columns: int | None = None) -> Tensor:
        shape = (self.num_trajectories,) if num_columns is None else (self.num_trajectories, num_columns)
        return torch.rand(shape, dtype=torch.float64, generator=torch_stream(self.seed, purpose, self.step, level))


@dataclass(slots=True)
class _Trajectories:
    """Games that continue from states of a rollout."""

    ids: Tensor
    """[N] number of each trajectory, rising."""
    boards: list[chess.Board]
    moves: list[chess.Move | None]
    """What is played next; a trajectory without one ends."""

    @classmethod
    def from_states(cls, states: States, columns_BN: Tensor) -> "_Trajectories":
        per_state = columns_BN.shape[1]
        boards = [decode(row) for row in states.positions.encodings.numpy()]
        moves = [
            action_move(int(states.positions.action_ids[row, column]), boards[row].turn)
            for row in range(len(boards))
            for column in columns_BN[row].tolist()
        ]
        return cls(torch.arange(len(moves)), [board.copy() for board in boards for _ in range(per_state)], list(moves))

    def play(self) -> None:
        """Play the moves; what has none leaves, and what is over leaves."""
        self.leave()
        for board, move in zip(self.boards, self.moves, strict=True):
            assert move is not None
            board.push(move)
        self._keep([not board.is_game_over() for board in self.boards])

    def leave(self) -> None:
        """Let those without a move leave."""
        self._keep([move is not None for move in self.moves])

    def _keep(self, is_kept: Sequence[bool]) -> None:
        rows = [row for row, kept in enumerate(is_kept) if kept]
        self.ids, self.boards, self.moves = self.ids[rows], [self.boards[row] for row in rows], [self.moves[row] for row in rows]


def _moves_of(positions: PositionBatch, columns: Tensor, boards: Sequence[chess.Board]) -> list[chess.Move]:
    ids = positions.action_ids.gather(1, columns[:, None])[:, 0].tolist()
    return [action_move(index, board.turn) for index, board in zip(ids, boards, strict=True)]


def _stacked(levels: Sequence[Rollout], *, num_dropped: int, num_forced: int) -> Rollout:
    """Return the states of all levels as one rollout, as wide as the widest."""
    if len(levels) == 1:
        return replace(levels[0], num_dropped=num_dropped, num_forced=num_forced)
    width = max(level.old.log_probs.shape[1] for level in levels)
    num_moves = max(level.rewards.shape[1] for level in levels)

    def stacked(parts: Sequence[Tensor], size: int) -> Tensor:
        return torch.cat([torch.nn.functional.pad(part, (0, size - part.shape[1])) for part in parts])

    return Rollout(
        states=joined([level.states for level in levels]),
        indices=torch.cat([level.indices for level in levels]),
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
        num_dropped=num_dropped,
        num_forced=num_forced,
    )

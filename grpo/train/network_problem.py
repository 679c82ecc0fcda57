"""GRPO of a chess network: gives the trainer states, sampled moves and their rewards.

A state is a board whose legal moves all have a value, 0 to 1, from the engine. The setting `num_own_moves` chooses what is sampled:

- 1: G moves (a group) from each state. A move's reward is its value.
- Above 1: G continued games (trajectories) from each board; the policy also plays the opponent's replies. An own move's reward is its value
  minus the state's best value. A group is the moves of a board's trajectories at one `ply`, the number of earlier own moves.

Legend: B states, A legal moves (padded), G moves of a group, M sampled moves of a state. A column is a move's index among the A.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import chess
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.board.features import joined
from grpo.policy.distribution import PRECISIONS, MoveDistribution, MovePolicy, PositionBatch, on_device
from grpo.policy.policy import NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.train import probes
from grpo.train.control import Knobs
from grpo.train.objective import Batch, InvariantError, Measured, Terms, group_advantages
from grpo.train.self_play import SelfPlay
from grpo.train.states import DatasetStates, States, Values, valued_states

MAX_STATES_PER_FORWARD: Final = 4_096
"""Limits memory; changes results only by rounding."""
MAX_LOG_RATIO: Final = {"float32": 1e-3, "bfloat16": 0.05}
"""`grpo.precision` -> largest |ln(new / sampled probability)| that counts as rounding.

Batches of different shapes in sampler and loss cause up to 1e-6 in float32 and 1e-2 in bfloat16. Temperature 1.3 instead of 1 causes 0.1 or
more.
"""
_MAX_DIFFERENCE: Final = 1e-5  # Rounding of a float32 number that is computed twice.
_MOVE_FIELDS: Final = ("columns", "weights", "old_log_probs", "rewards", "advantages")  # Fields of `Batch` that are [B, M].


class NetworkProblem:
    """`grpo.train.trainer.Problem` describes the methods."""

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
        """`values` is needed only if `num_own_moves` is above 1."""
        self.reference = reference.at_precision(PRECISIONS[config.precision])
        self.max_log_ratio = MAX_LOG_RATIO[config.precision]
        self._dataset, self._self_play, self._values = dataset, self_play, values
        self._config, self._seed = config, seed

    def states(self, policy: NetworkPolicy, step: int) -> States:
        states = self._dataset.states(step)
        return states if self._self_play is None else joined([states, self._self_play.states(step, policy.on_cpu())])

    def rollout(self, policy: NetworkPolicy, states: States, knobs: Knobs, step: int) -> Batch[States]:
        """Return the batch on the policy's device."""
        config = self._config
        sampler = Sampler(policy=policy, temperature=knobs.temperature, seed=self._seed, step=step, max_states=MAX_STATES_PER_FORWARD)
        if config.num_own_moves == 1:
            batch = sampled_groups(sampler, states, config.group_size)
        else:
            assert self._values is not None
            batch = sampled_trajectories(sampler, states, self._values, config.group_size, config.num_own_moves)
        assert_own_rewards(batch, config)
        return on_device(batch, policy.device)

    def entropies(self, rollout: Batch[States]) -> tuple[float, float]:
        sampled = rollout.at_one()
        return rollout.mean(sampled.entropy()), rollout.mean(sampled.num_legal().to(sampled.log_probs.dtype).log())

    def kl_reference(self, rollout: Batch[States], first: Measured | None) -> float:  # noqa: ARG002
        return math.nan if first is None else first.kl_reference

    def rollout_metrics(self, rollout: Batch[States]) -> dict[str, float]:
        return probes.move_metrics(rollout) | ({} if self._self_play is None else self._self_play.round_metrics())

    def parts(self, rollout: Batch[States], rows: Tensor) -> Iterator[Batch[States]]:
        for part in torch.split(rows.sort().values, MAX_STATES_PER_FORWARD):
            yield select_rows(rollout, part.to(rollout.columns.device))

    def distribution(self, policy: NetworkPolicy, part: Batch[States]) -> MoveDistribution:
        positions = part.states.positions
        if policy is self.reference and positions.reference is not None:
            return MoveDistribution.from_logits(positions.reference, positions.is_legal, temperature=part.temperature)
        return policy.distribution(positions, temperature=part.temperature)

    def probe(
        self, part: Batch[States], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs
    ) -> dict[str, Tensor]:
        return probes.columns(part, terms, new, reference, knobs)

    def step_metrics(self, taken: Sequence[Measured], refused: Measured | None) -> dict[str, float]:
        return probes.loss_metrics(self.name, taken, refused) | probes.network_metrics(taken, refused)

    def state(self) -> dict[str, Tensor]:
        return {} if self._self_play is None else self._self_play.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        if self._self_play is not None:
            self._self_play.restore(tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Samples moves. In each step, each `purpose` and `ply` of `draw` has its own random stream."""

    policy: MovePolicy
    temperature: float
    seed: int
    step: int
    max_states: int  # Per forward pass.

    @torch.no_grad()
    def distribution(self, positions: PositionBatch) -> MoveDistribution:
        """Return the distribution on the CPU. Raises NonFiniteError for NaN or infinity."""
        pieces = [positions.select_rows(rows) for rows in torch.split(torch.arange(len(positions)), self.max_states)]
        distributions = [self.policy.distribution(piece, temperature=self.temperature) for piece in pieces]
        joint = joined([on_device(distribution, torch.device("cpu")) for distribution in distributions])
        if not torch.isfinite(joint.log_probs).all():
            raise NonFiniteError("the policy's probabilities are NaN or infinite, so its weights are spoiled; use an earlier checkpoint")
        return joint

    def draw(
        self, positions: PositionBatch, purpose: str, ply: int, *, count: int, rows: Sequence[int] | None = None
    ) -> tuple[MoveDistribution, Tensor]:
        """Return the distribution of B positions, and the columns of the sampled moves, [B, moves per position].

        Position i gets one move, by number `rows[i]` of `count` random numbers. Without `rows`, each position gets `count` / B moves.
        """
        old = self.distribution(positions)
        uniforms = torch.rand(count, dtype=torch.float64, generator=torch_stream(self.seed, purpose, self.step, ply))
        return old, old.sample_at(uniforms.view(len(positions), -1) if rows is None else uniforms[list(rows)][:, None])


def sampled_groups(sampler: Sampler, states: States, group_size: int) -> Batch[States]:
    old, columns = sampler.draw(states.positions, "moves", 0, count=len(states) * group_size)
    rewards = states.values.gather(1, columns)
    return _batch(states, old, columns, rewards, group_advantages(rewards), temperature=sampler.temperature)


def sampled_trajectories(sampler: Sampler, states: States, values: Values, group_size: int, num_own_moves: int) -> Batch[States]:
    """Play G trajectories of at most `num_own_moves` own moves from each state. Return all their states, ordered by `ply`.

    A trajectory ends early with its game, or if the engine fails.
    """
    # Drop what boards reached later lack, because a batch has it for all its boards or for none.
    states = replace(states, positions=replace(states.positions, cached_replies=None, reference=None))
    num_dropped, count = 0, len(states) * group_size
    old, columns_BG = sampler.draw(states.positions, "moves", 0, count=count)
    # Trajectories 0 to G - 1 start at the first board, G to 2G - 1 at the second.
    starts = [decode(row) for row in states.positions.encodings.numpy() for _ in range(group_size)]
    moves = _moves_of(states.positions.action_ids.repeat_interleave(group_size, 0), columns_BG.flatten(), starts)
    games = _played(dict(enumerate(starts)), dict(enumerate(moves)))
    rewards = _relative_values(states, columns_BG)
    first = _batch(states, old, columns_BG, rewards, group_advantages(rewards), temperature=sampler.temperature)
    # An initial state counts once per trajectory.
    plies = [replace(first, state_weights=first.state_weights * group_size)]
    for ply in range(1, num_own_moves):
        if games:
            positions = PositionBatch.from_boards([*games.values()])
            _, columns = sampler.draw(positions, "replies", ply, count=count, rows=[*games])
            games = _played(games, dict(zip(games, _moves_of(positions.action_ids, columns[:, 0], [*games.values()]), strict=True)))
        # A single legal move is played, but not trained on.
        next_moves = {number: next(iter(board.legal_moves)) for number, board in games.items() if board.legal_moves.count() == 1}
        with_choice = {number: board for number, board in games.items() if number not in next_moves}
        reached, kept_indices = valued_states([*with_choice.values()], values) if with_choice else (None, [])
        num_dropped += len(with_choice) - len(kept_indices)
        if reached is not None:
            numbers = [[*with_choice][index] for index in kept_indices]
            # Each trajectory has its own random number, so its move does not depend on which others have ended.
            old, columns = sampler.draw(reached.positions, "moves", ply, count=count, rows=numbers)
            rewards = _relative_values(reached, columns)
            advantages = _ply_advantages(rewards, torch.tensor(numbers), count, group_size)
            plies.append(_batch(reached, old, columns, rewards, advantages, temperature=sampler.temperature))
            boards = [with_choice[number] for number in numbers]
            next_moves |= zip(numbers, _moves_of(reached.positions.action_ids, columns[:, 0], boards), strict=True)
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


def _relative_values(states: States, columns_BM: Tensor) -> Tensor:
    return states.values.gather(1, columns_BM) - states.values.amax(1, keepdim=True)  # Padding's 0 is never above the maximum.


def _ply_advantages(rewards_N1: Tensor, numbers_N: Tensor, num_trajectories: int, size: int) -> Tensor:
    """Return the advantages of the trajectories `numbers_N`, [N, 1]. A board's `size` successive numbers are a group."""
    rewards = torch.zeros(num_trajectories, dtype=rewards_N1.dtype).index_put((numbers_N,), rewards_N1[:, 0])
    is_member = torch.zeros(num_trajectories, dtype=torch.bool).index_fill(0, numbers_N, True)
    compared = group_advantages(rewards.view(-1, size), is_member_BG=is_member.view(-1, size))
    return compared.flatten()[numbers_N][:, None]


def _moves_of(action_ids_BA: Tensor, columns_B: Tensor, boards: Sequence[chess.Board]) -> list[chess.Move]:
    ids = action_ids_BA.gather(1, columns_B[:, None])[:, 0].tolist()
    return [action_move(index, board.turn) for index, board in zip(ids, boards, strict=True)]


def _played(games: Mapping[int, chess.Board], moves: Mapping[int, chess.Move]) -> dict[int, chess.Board]:
    """Push a move on each board, in place. Return the games that are not over."""
    for number, board in games.items():
        board.push(moves[number])
    return {number: board for number, board in games.items() if not board.is_game_over()}


def select_rows(batch: Batch[States], rows: Tensor) -> Batch[States]:
    assert batch.old is not None
    states = batch.states.select_rows(rows)
    width = states.positions.is_legal.shape[1]
    moves: dict[str, Any] = {name: getattr(batch, name)[rows] for name in _MOVE_FIELDS}
    old = MoveDistribution(log_probs=batch.old.log_probs[rows][:, :width], is_legal=batch.old.is_legal[rows][:, :width])
    return replace(batch, states=states, state_weights=batch.state_weights[rows], old=old, **moves)


def assert_own_rewards(batch: Batch[States], config: GrpoConfig) -> None:
    """Raise InvariantError for another state's reward, a wrong advantage, or an impossible entropy."""
    assert batch.old is not None
    is_real = batch.weights > 0
    rewards = batch.states.values.gather(1, batch.columns)
    if config.num_own_moves > 1:
        rewards = rewards - batch.states.values.amax(1, keepdim=True)
    _refuse((batch.rewards - rewards)[is_real], "rewards", "a reward is not the move's value in its own state")
    if config.num_own_moves == 1:
        advantages = group_advantages(batch.rewards)
        _refuse((batch.advantages - advantages)[is_real], "advantages", "an advantage is not its own group's")
    else:
        # A group's advantages sum to 0, so the rollout's weighted mean is 0.
        weights = batch.weights * batch.state_weights[:, None]
        _refuse((weights * batch.advantages).sum()[None] / weights.sum(), "mean advantage", "trajectories are not compared with each other")
    entropies = batch.old.entropy()
    beyond = torch.maximum(entropies - batch.old.num_legal().to(entropies.dtype).log(), -entropies)
    _refuse(beyond.clamp(min=0), "entropy", "an entropy is not between 0 and ln(legal moves)")


def _refuse(differences: torch.Tensor, what: str, meaning: str) -> None:
    worst = differences.abs().max().item() if differences.numel() else 0.0
    # A NaN passes, because the trainer handles non-finite steps.
    if worst > _MAX_DIFFERENCE:
        raise InvariantError(f"{what} of a rollout: off by {worst:.3g}: {meaning}; its groups or states are mixed up")

"""GRPO of a chess network: what `Trainer` asks of a problem, for a policy that gives every legal move a probability.

Legend: B states, A legal moves (padded), G moves of a group, M moves of a state that are in the surrogate.

With one own move, G moves from one state are compared with each other. With more, G trajectories begin in one board, each with one move
from each of its states; the policy itself replies. A move's reward is then what it changes, Q(s, a) - max Q(s), and the G rewards of one
ply are compared with each other, although their states differ after the first.
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
from grpo.policy.distribution import PRECISIONS, MoveDistribution, MovePolicy, PositionBatch, joined, on_device
from grpo.policy.policy import NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.train import probes
from grpo.train.control import Knobs
from grpo.train.objective import Batch, InvariantError, Measured, Terms, group_advantages
from grpo.train.self_play import SelfPlay
from grpo.train.states import DatasetStates, States, Values, valued_states

MAX_STATES_PER_FORWARD: Final = 4_096
"""Most states of one forward pass. Gradients of more states are accumulated: memory changes, the result does not."""
MAX_LOG_RATIO: Final = {"float32": 1e-3, "bfloat16": 0.05}
"""`grpo.precision` -> largest |ln ratio| that is rounding. Float32 noise between two batch shapes is 1e-6, bfloat16's inside the network
1e-2; temperature 1.3 against 1 gives 0.1 and more."""
_MAX_DIFFERENCE: Final = 1e-5  # Of rewards, advantages and entropies in float32, taken again from the same numbers.
_OF_MOVES: Final = ("columns", "weights", "old_log_probs", "rewards", "advantages")


class NetworkProblem:
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

    def entropies(self, rollout: Batch[States]) -> tuple[float, float]:
        """Return the mean entropy at T = 1, and the mean ln(legal moves)."""
        one = rollout.at_one()
        return rollout.mean(one.entropy()), rollout.mean(one.num_legal().to(one.log_probs.dtype).log())

    def kl_reference(self, rollout: Batch[States], first: Measured | None) -> float:  # noqa: ARG002
        """Return the first minibatch's mean KL(policy || reference); NaN without an optimizer step."""
        return math.nan if first is None else first.kl_reference

    def rollout_metrics(self, rollout: Batch[States]) -> dict[str, float]:
        """Return the metrics of a rollout, and of the games that were played for it."""
        return probes.move_metrics(rollout) | ({} if self._self_play is None else self._self_play.round_metrics())

    def parts(self, rollout: Batch[States], rows: Tensor) -> Iterator[Batch[States]]:
        """Yield the states of a minibatch in pieces that one forward pass takes."""
        for chosen in torch.split(rows.sort().values, MAX_STATES_PER_FORWARD):
            yield select_rows(rollout, chosen.to(rollout.columns.device))

    def distribution(self, policy: NetworkPolicy, part: Batch[States]) -> MoveDistribution:
        """Return the policy on the part's states."""
        return policy.distribution(part.states.positions, temperature=part.temperature)

    def probe(
        self, part: Batch[States], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs
    ) -> dict[str, Tensor]:
        """Return the columns of the gradient budget and of the gain over the reference, [B] each."""
        return probes.columns(part, terms, new, reference, knobs)

    def step_metrics(self, taken: Sequence[Measured], refused: Measured | None) -> dict[str, float]:
        """Return the metrics of the optimizer steps."""
        return probes.loss_metrics(self.name, taken, refused) | probes.network_metrics(taken, refused)

    def state(self) -> dict[str, Tensor]:
        """Return what cannot be made again on resuming."""
        return {} if self._self_play is None else self._self_play.state()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if self._self_play is not None:
            self._self_play.restore(tensors)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampler:
    """Draws moves for one rollout from a policy as it is, each from a stream that its step, its ply and its purpose name."""

    policy: MovePolicy
    temperature: float
    seed: int
    step: int
    max_states: int
    """Most states in one forward pass; limits memory and does not change the result."""

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
        reached, kept_indices = valued_states([*free.values()], values) if free else (None, [])
        num_dropped += len(free) - len(kept_indices)
        if reached is not None:
            numbers = [[*free][index] for index in kept_indices]
            old, columns = sampler.draw(reached.positions, "moves", ply, count=count, rows=numbers)
            rewards = _changes(reached, columns)
            advantages = _by_ply(rewards, torch.tensor(numbers), count, group_size)
            plies.append(_batch(reached, old, columns, rewards, advantages, temperature=sampler.temperature))
            boards = [free[number] for number in numbers]
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


def select_rows(batch: Batch[States], rows: Tensor) -> Batch[States]:
    """Return the given states with their moves; the states are no wider than they need to be."""
    assert batch.old is not None
    states = batch.states.select_rows(rows)
    width = states.positions.is_legal.shape[1]
    of_moves: dict[str, Any] = {name: getattr(batch, name)[rows] for name in _OF_MOVES}
    old = MoveDistribution(log_probs=batch.old.log_probs[rows][:, :width], is_legal=batch.old.is_legal[rows][:, :width])
    return replace(batch, states=states, state_weights=batch.state_weights[rows], old=old, **of_moves)


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

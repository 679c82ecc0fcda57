"""States and groups: every move keeps its own value and its own probability, and only the seed and the step decide what is drawn.

Legend: B boards, A legal moves (padded), G moves of a group.
"""

import chess
import numpy as np
import pytest
import torch
from torch import Tensor

from grpo.actions import legal_action_ids
from grpo.boards import BoardArrays
from grpo.config import PolicyConfig
from grpo.encoding import decode, encode, position_key
from grpo.phases import PHASES, phase_of
from grpo.policy import MoveDistribution, NetworkPolicy, PositionBatch, new_policy
from grpo.rollouts import DatasetStates, Rollout, States, sample_groups
from grpo.seeding import torch_stream

CPU = torch.device("cpu")


def value_of(board: chess.Board, index: int) -> float:
    """Return a made-up value of a move, in steps that float32 holds exactly."""
    return (sum(map(ord, position_key(board))) * 31 + index * 7) % 1_024 / 1_024


def arrays_of(boards: list[chess.Board]) -> BoardArrays:
    """Return a dataset of these boards with made-up values."""
    positions = PositionBatch.from_boards(boards)
    values = np.zeros(positions.is_legal.shape, dtype=np.float32)
    for row, board in enumerate(boards):
        for column, index in enumerate(legal_action_ids(board)):
            values[row, column] = value_of(board, index)
    return BoardArrays(
        encodings=encode(boards),
        action_ids=positions.action_ids.numpy(),
        is_legal=positions.is_legal.numpy(),
        values=values,
        played=np.zeros(len(boards), dtype=np.int64),
        phases=np.array([PHASES.index(phase_of(board)) for board in boards]),
    )


@pytest.fixture(scope="module")
def boards(random_boards: list[chess.Board]) -> list[chess.Board]:
    """Return 50 different boards."""
    made = {position_key(board): board for board in random_boards[::83]}
    return list(made.values())[:50]


@pytest.fixture(scope="module")
def policy() -> NetworkPolicy:
    """Return a small policy with uneven probabilities."""
    policy = new_policy(PolicyConfig(channels=16, num_blocks=1, num_heads=2), seed=0, device=CPU)
    rng = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=rng) * 0.2)
    return policy


def check_states(states: States) -> None:
    """Check that moves, values, phases and boards of states belong together."""
    for row in range(len(states)):
        board = decode(states.positions.encodings[row].numpy())
        ids = legal_action_ids(board)
        assert states.positions.action_ids[row, : len(ids)].tolist() == ids
        assert states.positions.is_legal[row].sum() == len(ids)
        assert states.values[row, : len(ids)].tolist() == [value_of(board, index) for index in ids]
        assert PHASES[int(states.phases[row])] == phase_of(board)


def names(states: States) -> list[str]:
    """Return the key of each board."""
    return [position_key(decode(row.numpy())) for row in states.positions.encodings]


# Which states.


def test_an_epoch_shows_no_board_twice_and_leaves_only_the_remainder_out(boards: list[chess.Board]) -> None:
    source = DatasetStates(arrays_of(boards), states_per_step=16, seed=0)
    for epoch in range(3):
        seen = [name for place in range(3) for name in names(source.states(3 * epoch + place))]
        assert len(set(seen)) == len(seen) == 48


def test_each_epoch_has_an_order_of_its_own_and_each_seed_too(boards: list[chess.Board]) -> None:
    arrays = arrays_of(boards)
    orders = [names(DatasetStates(arrays, states_per_step=50, seed=seed).states(step)) for seed in (0, 1) for step in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert len({frozenset(order) for order in orders}) == 1


def test_the_states_of_a_step_do_not_depend_on_what_was_asked_before(boards: list[chess.Board]) -> None:
    arrays = arrays_of(boards)
    straight = DatasetStates(arrays, states_per_step=16, seed=0)
    expected = [names(straight.states(step)) for step in range(8)]
    for step in (7, 2, 3, 2, 0, 6):
        assert names(straight.states(step)) == expected[step]
        assert names(DatasetStates(arrays, states_per_step=16, seed=0).states(step)) == expected[step]


def test_states_keep_their_own_moves_values_and_phases(boards: list[chess.Board]) -> None:
    source = DatasetStates(arrays_of(boards), states_per_step=16, seed=0)
    for step in range(4):
        check_states(source.states(step))
    some = source.states(0).take(torch.tensor([9, 2, 2]))
    check_states(some)
    assert some.values.shape[1] == int(some.positions.is_legal.sum(1).max()), "no wider than needed"


# Which moves.


def rollout_of(
    boards: list[chess.Board], policy: NetworkPolicy, *, temperature: float = 1.3, group_size: int = 8, seed: int = 0
) -> Rollout:
    """Return groups for all boards."""
    states = DatasetStates(arrays_of(boards), states_per_step=len(boards), seed=0).states(0)
    return sample_groups(policy, states, group_size=group_size, temperature=temperature, rng=torch_stream(seed, "moves"))


def check_rollout(rollout: Rollout) -> None:
    """Check that each sampled move has its own reward and its own probability."""
    check_states(rollout.states)
    assert rollout.columns.shape == rollout.rewards.shape == rollout.old_log_probs.shape
    for row in range(len(rollout)):
        board = decode(rollout.states.positions.encodings[row].numpy())
        ids = legal_action_ids(board)
        moves = [ids[column] for column in rollout.columns[row].tolist()]
        assert rollout.rewards[row].tolist() == [value_of(board, move) for move in moves]
        assert rollout.old_log_probs[row].tolist() == [
            rollout.old.log_probs[row, column].item() for column in rollout.columns[row].tolist()
        ]


def test_each_move_of_a_group_is_rewarded_with_its_own_value(boards: list[chess.Board], policy: NetworkPolicy) -> None:
    rollout = rollout_of(boards, policy)
    assert rollout.columns.shape == (len(boards), 8)
    check_rollout(rollout)


def test_shuffled_and_cut_groups_still_belong_to_their_states(boards: list[chess.Board], policy: NetworkPolicy) -> None:
    rollout = rollout_of(boards, policy)
    order = torch.randperm(len(boards), generator=torch.Generator().manual_seed(1))
    for rows in torch.split(order, 7):
        part = rollout.take(rows)
        check_rollout(part)
        assert part.temperature == 1.3
        assert part.old.log_probs.shape == part.states.values.shape == part.old.is_legal.shape
        assert torch.allclose(part.old.probs.sum(1), torch.ones(len(rows)), atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("split", [50, 16, 1])
def test_what_the_sampler_recorded_is_what_the_policy_scores(
    temperature: float, split: int, boards: list[chess.Board], policy: NetworkPolicy
) -> None:
    rollout = rollout_of(boards, policy, temperature=temperature)
    for rows in torch.split(torch.arange(len(boards)), split):
        part = rollout.take(rows)
        scored = policy.distribution(part.states.positions, temperature=part.temperature)
        assert torch.allclose(scored.log_prob(part.columns), part.old_log_probs, atol=1e-5)
        assert torch.allclose(scored.log_probs, part.old.log_probs, atol=1e-5)
    at_another = policy.distribution(rollout.states.positions, temperature=temperature * 1.3)
    assert (at_another.log_prob(rollout.columns) - rollout.old_log_probs).abs().max() > 0.01, "the test has teeth"


def test_moves_are_drawn_at_the_temperature_of_the_rollout() -> None:
    class Fixed:
        """A policy with probabilities proportional to 4, 2, 1 at T = 1."""

        def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
            logits = torch.tensor([[4.0, 2.0, 1.0]]).log().expand(len(positions), 3)
            return MoveDistribution.from_logits(logits, positions.is_legal, temperature=temperature)

    count = 20_000
    states = States(
        positions=PositionBatch(
            encodings=torch.zeros(1, 71, dtype=torch.uint8),
            action_ids=torch.tensor([[1, 2, 3]]),
            is_legal=torch.ones(1, 3, dtype=torch.bool),
        ),
        values=torch.tensor([[0.1, 0.2, 0.3]]),
        phases=torch.zeros(1, dtype=torch.int64),
    )
    rollout = sample_groups(Fixed(), states, group_size=count, temperature=2.0, rng=torch_stream(0, "moves"))
    expected = np.array([2, 2**0.5, 1]) / (3 + 2**0.5)
    found = np.bincount(rollout.columns[0].numpy(), minlength=3) / count
    assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / count)).all()
    assert rollout.temperature == 2.0
    mean_reward = rollout.rewards.double().mean().item()
    assert mean_reward == pytest.approx(float(found @ [0.1, 0.2, 0.3]), abs=1e-6)


def test_one_seed_draws_the_same_moves_and_another_seed_others(boards: list[chess.Board], policy: NetworkPolicy) -> None:
    one, again, other = (rollout_of(boards, policy, seed=seed).columns for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_sampling_leaves_no_gradient_behind(boards: list[chess.Board], policy: NetworkPolicy) -> None:
    rollout = rollout_of(boards[:4], policy)
    tensors: list[Tensor] = [rollout.old_log_probs, rollout.rewards, rollout.old.log_probs]
    assert not any(tensor.requires_grad for tensor in tensors)
    assert all(parameter.grad is None for parameter in policy.network.parameters())

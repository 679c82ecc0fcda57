"""Groups and trajectories: every move keeps its own value and probability, and only the seed and the step decide what is drawn.

Legend: B states, A legal moves (padded), G moves of a group, M moves of a state that are in the surrogate.
"""

import chess
import pytest
import torch
from doubles import MadeUpValues, WrittenPolicy, boards_of, fake_arrays, lively_policy, made_up_number, some_boards

from grpo.board.actions import action_move
from grpo.policy.distribution import MovePolicy, PositionBatch
from grpo.policy.policy import NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.train.network_problem import Sampler, sampled_groups, sampled_trajectories, select_rows
from grpo.train.objective import Batch
from grpo.train.states import States, Values

BOARDS = some_boards(40)
CONFIG = GrpoConfig(group_size=8)
SMALL = GrpoConfig(group_size=4, num_own_moves=3)


@pytest.fixture(scope="module")
def policy() -> NetworkPolicy:
    """Return a policy with uneven probabilities; a test must not change it."""
    return lively_policy()


def states_of(boards: list[chess.Board]) -> States:
    arrays = fake_arrays(boards)
    return States(
        positions=PositionBatch.from_arrays(arrays), values=torch.from_numpy(arrays.values), phases=torch.from_numpy(arrays.phases)
    )


def roll(policy: MovePolicy, states: States, config: GrpoConfig = CONFIG, *, values: Values | None = None) -> Batch[States]:
    sampler = Sampler(policy=policy, temperature=1.3, seed=0, step=0, max_states=16)
    if config.num_own_moves == 1:
        return sampled_groups(sampler, states, config.group_size)
    return sampled_trajectories(sampler, states, values or MadeUpValues(), config.group_size, config.num_own_moves)


def moves_of(rollout: Batch[States]) -> list[list[chess.Move]]:
    return [
        [action_move(int(rollout.states.positions.action_ids[row, column]), board.turn) for column in rollout.columns[row, real]]
        for row, (board, real) in enumerate(zip(boards_of(rollout.states), rollout.weights > 0, strict=True))
    ]


def check(rollout: Batch[States], *, is_trajectory: bool = False) -> None:
    """Check that each move in the surrogate has its own reward and its own probability."""
    assert torch.allclose(rollout.weights.sum(1), torch.ones(len(rollout)), atol=1e-6)
    for row, (board, found) in enumerate(zip(boards_of(rollout.states), moves_of(rollout), strict=True)):
        best = max(made_up_number(board, move) for move in board.legal_moves) if is_trajectory else 0.0
        real = rollout.weights[row] > 0
        assert rollout.rewards[row, real].tolist() == pytest.approx([made_up_number(board, move) - best for move in found], abs=1e-6)
        assert torch.equal(rollout.old_log_probs[row, real], rollout.old.log_probs[row, rollout.columns[row, real]])


@pytest.mark.parametrize("num_own_moves", [1, 2])
def test_shuffled_and_cut_groups_still_belong_to_their_states(num_own_moves: int, policy: NetworkPolicy) -> None:
    rollout = roll(policy, states_of(BOARDS[:20]), GrpoConfig(group_size=4, num_own_moves=num_own_moves))
    if num_own_moves == 1:
        assert torch.allclose(rollout.advantages, rollout.rewards - rollout.rewards.mean(1, keepdim=True), atol=1e-6)
    order = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(1))
    for rows in torch.split(order, 7):
        part = select_rows(rollout, rows)
        check(part, is_trajectory=num_own_moves > 1)
        assert torch.equal(part.state_weights, rollout.state_weights[rows])
        scored = policy.distribution(part.states.positions, temperature=part.temperature)
        assert torch.allclose(scored.log_prob(part.columns), part.old_log_probs, atol=1e-5) or num_own_moves > 1


def test_each_step_ply_purpose_and_seed_draws_from_a_stream_of_its_own_and_one_of_them_again_the_same(policy: NetworkPolicy) -> None:
    positions = states_of(BOARDS[:2]).positions

    def drawn(seed: int, step: int, purpose: str, ply: int) -> tuple[int, ...]:
        sampler = Sampler(policy=policy, temperature=1.3, seed=seed, step=step, max_states=3)
        return tuple(sampler.draw(positions, purpose, ply, count=128)[1].flatten().tolist())

    names = [*[(0, 0, purpose, ply) for purpose in ("moves", "replies") for ply in (0, 1)], (0, 1, "moves", 0), (1, 0, "moves", 0)]
    assert len({drawn(*name) for name in names}) == len(names)
    assert drawn(*names[-1]) == drawn(*names[-1])


# Trajectories.


def after(board: chess.Board) -> set[str]:
    """Return the boards after every move and every reply, as what of a board its bytes hold."""
    found = set()
    for move in list(board.legal_moves):
        board.push(move)
        for reply in list(board.legal_moves):
            board.push(reply)
            found.add(" ".join(board.fen().split()[:5]))
            board.pop()
        board.pop()
    return found


def test_trajectories_go_on_from_their_own_boards_and_are_compared_by_board_and_ply(policy: NetworkPolicy) -> None:
    boards = [board for board in BOARDS if board.turn == chess.WHITE and board.legal_moves.count() > 9][:4]
    values = MadeUpValues()
    rollout = roll(policy, states_of(boards), SMALL.model_copy(update={"num_own_moves": 2}), values=values)
    check(rollout, is_trajectory=True)
    reached = boards_of(rollout.states)[4:]
    assert rollout.state_weights.tolist() == [4.0] * 4 + [1.0] * len(reached)
    assert {board.turn for board in values.asked} == {chess.WHITE}, "the opponent's plies are never valued and never in the loss"
    assert len(reached) == len(values.asked) > 12
    reachable = [after(board) for board in boards]
    origins = [next(index for index, found in enumerate(reachable) if " ".join(board.fen().split()[:5]) in found) for board in reached]
    assert origins == sorted(origins)
    for origin in range(4):
        rows = [4 + index for index, of in enumerate(origins) if of == origin]
        rewards, advantages = rollout.rewards[rows, 0], rollout.advantages[rows, 0]
        assert torch.allclose(advantages, rewards - rewards.mean(), atol=1e-6)
        assert torch.allclose(rollout.advantages[origin], rollout.rewards[origin] - rollout.rewards[origin].mean(), atol=1e-6)


def test_a_failing_engine_is_counted_and_a_forced_state_is_passed_through() -> None:
    # The rook holds the second rank: from h1 the king has one move, back to g1, where it has a choice again.
    corner = chess.Board("7k/8/8/8/8/8/r7/6K1 w - - 0 1")
    line = {"g1h1", "h1g1", "a2b2", "b2c2"}
    shuffling = WrittenPolicy(lambda board, move: 0.0 if move.uci() in line else -80.0)
    values = MadeUpValues()
    rollout = roll(shuffling, states_of([corner]), SMALL, values=values)
    assert [board.board_fen() for board in boards_of(rollout.states)] == ["7k/8/8/8/8/8/r7/6K1", *["7k/8/8/8/8/8/2r5/6K1"] * 4]
    failing = MadeUpValues(fails_on=lambda _: True)
    rollout = roll(shuffling, states_of([corner]), SMALL, values=failing)
    assert (len(rollout), rollout.num_dropped) == (1, 4)


@pytest.mark.parametrize(
    "fen", ["6k1/5ppp/8/8/8/8/8/R6K w - - 0 1", "k7/8/1K6/8/8/8/8/2Q5 w - - 0 1", "7k/r7/8/8/8/8/1P3PPP/6K1 w - - 0 1"]
)
def test_games_that_end_by_either_sides_move_leave(fen: str) -> None:
    # White mates; stalemate; Black mates.
    ending = WrittenPolicy(lambda board, move: 0.0 if move.uci() in ("a1a8", "c1c7", "b2b3", "a7a1") else -80.0)
    assert len(roll(ending, states_of([chess.Board(fen)]), SMALL)) == 1

"""Groups and trajectories: every move keeps its own value and probability, and only the seed and the step decide what is drawn.

Legend: B states, A legal moves (padded), G moves of a group, M moves of a state that are in the surrogate.
"""

from collections.abc import Callable, Iterable

import chess
import pytest
import torch
from doubles import (
    MadeUpValues,
    WrittenPolicy,
    WrittenReplies,
    arrays_in_float64,
    fake_arrays,
    in_float64,
    legal_moves,
    lively_policy,
    made_up_number,
    some_boards,
)

from grpo.base.errors import NonFiniteError
from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.board.phases import PHASES, phase_of
from grpo.engine.answers import EngineAnswer, EngineError
from grpo.engine.pool import EnginePool, Query
from grpo.learning.objective import exact_policy_ascent
from grpo.learning.rollouts import EngineReplies, Replies, Roller, Rollout, sampling_distribution
from grpo.learning.states import States, ValueSource
from grpo.policy.distribution import NetworkPolicy, Policy, PositionBatch
from grpo.settings.grpo import GrpoConfig

BOARDS = some_boards(40)
CONFIG = GrpoConfig(group_size=8)
ESTIMATORS = ("sampled", "exact", "trajectory")

BoardMove = Callable[[chess.Board, chess.Move], float]


@pytest.fixture(scope="module")
def policy() -> NetworkPolicy:
    """Return a policy with uneven probabilities; a test must not change it."""
    return lively_policy()


def config_of(**changes: object) -> GrpoConfig:
    """Return the settings with some changed; those of depth by `depth`."""
    return GrpoConfig(**{**CONFIG.model_dump(), **changes})


def states_of(boards: list[chess.Board], value: BoardMove = made_up_number, *, double: bool = False) -> States:
    """Return the boards as states, in their order."""
    arrays = fake_arrays(boards, value)
    if double:
        arrays = arrays_in_float64(arrays)
    return States(
        positions=PositionBatch.from_arrays(arrays), values=torch.from_numpy(arrays.values), phases=torch.from_numpy(arrays.phases)
    )


def roll(
    policy: Policy,
    states: States,
    config: GrpoConfig = CONFIG,
    *,
    temperature: float = 1.3,
    seed: int = 0,
    step: int = 0,
    values: ValueSource | None = None,
    opponent: Replies | None = None,
) -> Rollout:
    """Return the rollout from these states."""
    roller = Roller(config, seed=seed, values=values or MadeUpValues(), opponent=opponent)
    return roller.rollout(policy, states, step=step, temperature=temperature)


def boards_of(rollout: Rollout) -> list[chess.Board]:
    """Return the board of each state."""
    return [decode(row.numpy()) for row in rollout.states.positions.encodings]


def moves_of(rollout: Rollout) -> list[list[chess.Move]]:
    """Return the moves of each state's surrogate."""
    return [
        [action_move(int(rollout.states.positions.action_ids[row, column]), board.turn) for column in rollout.moves.columns[row, real]]
        for row, (board, real) in enumerate(zip(boards_of(rollout), rollout.moves.weights > 0, strict=True))
    ]


def check(rollout: Rollout, value: BoardMove = made_up_number, *, estimator: str = "sampled") -> None:
    """Check that each move in the surrogate has its own reward and its own probability."""
    moves = rollout.moves
    assert moves.columns.shape == moves.weights.shape == moves.old_log_probs.shape == moves.advantages.shape == rollout.rewards.shape
    assert rollout.states.values.shape == rollout.old.log_probs.shape == rollout.old.is_legal.shape
    assert torch.allclose(rollout.old.probs.sum(1), torch.ones(len(rollout)), atol=1e-6)
    assert torch.allclose(moves.weights.sum(1), torch.ones(len(rollout)), atol=1e-6)
    for row, (board, found) in enumerate(zip(boards_of(rollout), moves_of(rollout), strict=True)):
        best = max(value(board, move) for move in board.legal_moves) if estimator == "trajectory" else 0.0
        real = moves.weights[row] > 0
        assert rollout.rewards[row, real].tolist() == pytest.approx([value(board, move) - best for move in found], abs=1e-6)
        assert torch.equal(moves.old_log_probs[row, real], rollout.old.log_probs[row, moves.columns[row, real]])
        assert PHASES[int(rollout.states.phases[row])] == phase_of(board)


# Groups of one state.


@pytest.mark.parametrize("estimator", ["sampled", "exact"])
def test_each_move_of_a_group_is_rewarded_with_its_own_value(estimator: str, policy: NetworkPolicy) -> None:
    rollout = roll(policy, states_of(BOARDS), config_of(estimator=estimator))
    check(rollout)
    if estimator == "sampled":
        assert rollout.moves.columns.shape == (40, 8)
        assert torch.allclose(rollout.moves.advantages, rollout.rewards - rollout.rewards.mean(1, keepdim=True), atol=1e-6)
    else:
        assert all(set(found) == set(board.legal_moves) for board, found in zip(boards_of(rollout), moves_of(rollout), strict=True))
        assert (rollout.moves.weights * rollout.moves.advantages).sum(1).abs().max() < 1e-7
    assert rollout.state_weights.tolist() == [1] * 40
    assert (rollout.num_dropped, rollout.num_forced, rollout.temperature) == (0, 0, 1.3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_shuffled_and_cut_groups_still_belong_to_their_states(estimator: str, policy: NetworkPolicy) -> None:
    rollout = roll(policy, states_of(BOARDS[:20]), config_of(estimator=estimator, group_size=4, depth={"num_own_moves": 2}))
    order = torch.randperm(len(rollout), generator=torch.Generator().manual_seed(1))
    for rows in torch.split(order, 7):
        part = rollout.select_rows(rows)
        check(part, estimator=estimator)
        assert part.temperature == 1.3
        assert torch.equal(part.indices, rollout.indices[rows])
        assert torch.equal(part.state_weights, rollout.state_weights[rows])
        assert part.states.values.shape[1] == int(part.old.is_legal.sum(1).max()), "no wider than needed"
    assert len(rollout.select_rows(order[:0])) == 0


def test_a_move_whose_probability_is_zero_in_float32_does_not_push_another_out_of_the_sum() -> None:
    # A collapsed policy: exp(-200) is 0 in float32. The moves that count are the first and the last of the table.
    boards = BOARDS[:6]
    ends = {board.epd(): {legal_moves(board)[0], legal_moves(board)[-1]} for board in boards}
    collapsed = WrittenPolicy(lambda board, move: 0.0 if move in ends[board.epd()] else -200.0)
    rollout = roll(collapsed, states_of(boards), config_of(estimator="exact"), temperature=1.0)
    for rows in torch.split(torch.arange(6), 1):
        part = rollout.select_rows(rows)
        assert part.moves.weights.sum().item() == pytest.approx(1)
        assert {move for moves in moves_of(part) for move in moves} == ends[boards_of(part)[0].epd()]


@pytest.mark.parametrize(("temperature", "split"), [(0.5, 16), (2.0, 1)])
def test_what_the_sampler_recorded_is_what_the_policy_scores(temperature: float, split: int, policy: NetworkPolicy) -> None:
    rollout = roll(policy, states_of(BOARDS), temperature=temperature)
    for rows in torch.split(torch.arange(len(BOARDS)), split):
        part = rollout.select_rows(rows)
        scored = policy.distribution(part.states.positions, temperature=part.temperature)
        assert torch.allclose(scored.log_prob(part.moves.columns), part.moves.old_log_probs, atol=1e-5)
        assert torch.allclose(scored.log_probs, part.old.log_probs, atol=1e-5)
    at_another = policy.distribution(rollout.states.positions, temperature=temperature * 1.3)
    assert (at_another.log_prob(rollout.moves.columns) - rollout.moves.old_log_probs).abs().max() > 0.01, "the test has teeth"


def test_one_seed_and_step_draw_the_same_moves_and_others_draw_others(policy: NetworkPolicy) -> None:
    states = states_of(BOARDS)
    one, again, seed, step = (roll(policy, states, seed=seed, step=step).moves.columns for seed, step in ((0, 0), (0, 0), (1, 0), (0, 1)))
    assert torch.equal(one, again)
    assert (one == seed).float().mean() < 0.5
    assert (one == step).float().mean() < 0.5


@pytest.mark.parametrize("max_states", [1, 7, 40, 512])
def test_the_number_of_states_a_forward_pass_changes_nothing_that_is_sampled_from(max_states: int) -> None:
    policy, positions = in_float64(lively_policy()), PositionBatch.from_boards(BOARDS)
    whole = policy.distribution(positions, temperature=1.3).detach()
    pieces = sampling_distribution(policy, positions, temperature=1.3, max_states=max_states)
    assert torch.allclose(pieces.log_probs, whole.log_probs, rtol=0, atol=1e-12)
    assert torch.equal(pieces.is_legal, whole.is_legal)


def test_probabilities_that_are_no_numbers_are_refused_by_name(policy: NetworkPolicy) -> None:
    spoilt = WrittenPolicy(lambda board, move: float("nan") if board.epd() == BOARDS[3].epd() else 0.0)
    assert len(roll(spoilt, states_of(BOARDS[:3]))) == 3
    with pytest.raises(NonFiniteError, match="not finite"):
        roll(spoilt, states_of(BOARDS[:4]))


def test_the_exact_gradient_is_the_limit_of_the_sampled_one() -> None:
    # Per state and logit, the mean over G draws of A (e - p) / T lies within 5 standard errors of p (Q - V) / T, up to the factor 1 - 1/G.
    size, temperature = 4_096, 1.3
    policy, states = in_float64(lively_policy()), states_of(BOARDS, double=True)
    gradients = {}
    for estimator in ("sampled", "exact"):
        rollout = roll(policy, states, config_of(estimator=estimator, group_size=size), temperature=temperature)
        flow = (rollout.moves.weights * rollout.moves.advantages).double()
        gradient = torch.zeros_like(rollout.old.probs).scatter_add_(1, rollout.moves.columns, flow)
        gradients[estimator] = (gradient - flow.sum(1, keepdim=True) * rollout.old.probs) / temperature
    p, exact = rollout.old.probs, gradients["exact"]
    assert torch.allclose(exact, exact_policy_ascent(rollout.old, states.values, temperature=temperature), atol=1e-7)
    advantages = (states.values - rollout.old.expectation(states.values)[:, None]) * rollout.old.is_legal
    # Draw a changes logit j by A_a (1[a = j] - p_j) / T.
    second = (p * advantages**2).sum(1, keepdim=True) * p**2 + p * advantages**2 * (1 - 2 * p)
    error = ((second / temperature**2 - exact**2).clamp(min=0) / size).sqrt()
    distance = (gradients["sampled"] - exact * (1 - 1 / size)).abs()
    assert (distance <= 5 * error + 1e-6).all()
    assert distance.max() > 1e-5, "it was sampled"
    assert (error.sum() < 0.2 * exact.abs().sum()).item(), "the bound has teeth"


# Trajectories.


def after(board: chess.Board, moves: Iterable[chess.Move]) -> dict[str, chess.Board]:
    """Return the boards after each of these moves and every reply, by what of a board its bytes hold."""
    found = {}
    for move in moves:
        board.push(move)
        for reply in list(board.legal_moves):
            board.push(reply)
            found[" ".join(board.fen().split()[:5])] = board.copy()
            board.pop()
        board.pop()
    return found


def check_reached(rollout: Rollout, num_first: int, *, per_state: int, played_is_known: bool) -> int:
    """Check that each further state follows from the one before by its move and a legal reply; return how many passed a forced state."""
    count = num_first * per_state
    boards, moves = boards_of(rollout), moves_of(rollout)
    place = {int(index): row for row, index in enumerate(rollout.indices)}
    assert len(place) == len(rollout)
    assert rollout.indices.tolist() == sorted(place)
    num_through_forced = 0
    for index, row in place.items():
        if index < num_first:
            continue
        level, number = divmod(index - num_first, count)
        before = place.get(num_first + (level - 1) * count + number) if level else place[number // per_state]
        if before is not None:
            played = [moves[before][number % per_state if not level else 0]] if played_is_known else list(boards[before].legal_moves)
            reachable = after(boards[before], played)
        else:
            # One own state between was forced: its only move was played.
            origin = place[number // per_state] if level == 1 else place[num_first + (level - 2) * count + number]
            played = [moves[origin][number % per_state if level == 1 else 0]] if played_is_known else list(boards[origin].legal_moves)
            forced = [board for board in after(boards[origin], played).values() if board.legal_moves.count() == 1]
            reachable = {name: found for board in forced for name, found in after(board, list(board.legal_moves)).items()}
            num_through_forced += 1
        board = boards[row]
        assert " ".join(board.fen().split()[:5]) in reachable
        assert board.legal_moves.count() > 1
        assert board.turn == boards[place[number // per_state]].turn
    return num_through_forced


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_each_further_state_is_an_own_one_reached_by_the_move_and_a_legal_reply_and_has_its_own_group(
    estimator: str, policy: NetworkPolicy
) -> None:
    config = config_of(estimator=estimator, group_size=4, depth={"num_own_moves": 3})
    per_state = 4 if estimator == "trajectory" else 1
    rollout = roll(policy, states_of(BOARDS[:6]), config)
    check(rollout, estimator=estimator)
    check_reached(rollout, 6, per_state=per_state, played_is_known=estimator != "exact")
    later = rollout.indices >= 6
    assert 0.8 * 2 * 6 * per_state < later.sum() <= 2 * 6 * per_state
    assert rollout.state_weights.tolist() == [per_state if not is_later else 1 for is_later in later]
    sizes = (rollout.moves.weights > 0).sum(1)
    if estimator == "sampled":
        assert (sizes == 4).all()
    elif estimator == "trajectory":
        assert (sizes[later] == 1).all()
        assert (sizes[~later] == 4).all()
    else:
        assert torch.equal(sizes, rollout.old.num_legal())


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_opponents_plies_are_never_valued_and_never_in_the_loss(estimator: str, policy: NetworkPolicy) -> None:
    boards = [board for board in BOARDS if board.turn == chess.WHITE][:8]
    config = config_of(estimator=estimator, group_size=4, depth={"num_own_moves": 3})
    rollouts = []
    for at_opponents in (0.0, 0.9):

        def value(board: chess.Board, move: chess.Move, at_opponents: float = at_opponents) -> float:
            return made_up_number(board, move) if board.turn == chess.WHITE else at_opponents

        values = MadeUpValues(value)
        rollouts.append(roll(policy, states_of(boards), config, values=values))
        assert {board.turn for board in values.asked} == {chess.WHITE}
        assert len(rollouts[-1]) == len(boards) + len(values.asked)
    assert {board.turn for board in boards_of(rollouts[0])} == {chess.WHITE}
    assert torch.equal(rollouts[0].moves.advantages, rollouts[1].moves.advantages)


# The rook holds the second rank, so that the white king walks between f1, g1 and h1; from h1 there is one legal move.
CORNER = chess.Board("7k/8/8/8/8/8/r7/6K1 w - - 0 1")


def test_forced_states_are_counted_and_passed_through() -> None:
    # White: Kg1-h1 at once, then Kh1-g1 is forced while the rook waits on the second rank; then a choice again.
    preferred = {"g1h1", "h1g1"}
    policy = WrittenPolicy(lambda board, move: 0.0 if move.uci() in preferred else -80.0)
    waiting = WrittenReplies(lambda board: next(move for move in board.legal_moves if move.uci() in ("a2b2", "b2c2", "c2d2")))
    config = config_of(depth={"num_own_moves": 3, "opponent": "engine"})
    values = MadeUpValues()
    rollout = roll(policy, states_of([CORNER]), config, values=values, opponent=waiting)
    # g1h1 a2b2, h1g1 (the only move) b2c2, and a choice again.
    assert [board.board_fen() for board in boards_of(rollout)] == ["7k/8/8/8/8/8/r7/6K1", "7k/8/8/8/8/8/2r5/6K1"]
    assert (rollout.num_forced, rollout.num_dropped) == (1, 0)
    assert rollout.indices.tolist() == [0, 2]
    assert check_reached(rollout, 1, per_state=1, played_is_known=True) == 1
    assert len(values.asked) == 1, "a forced state needs no value"


@pytest.mark.parametrize(
    ("fen", "own", "reply", "num_states", "num_forced"),
    [
        ("6k1/5ppp/8/8/8/8/8/R6K w - - 0 1", "a1a8", None, 1, 0),  # White mates.
        ("k7/8/1K6/8/8/8/8/2Q5 w - - 0 1", "c1c7", None, 1, 0),  # Stalemate.
        ("7k/r7/8/8/8/8/1P3PPP/6K1 w - - 0 1", "b2b3", "a7a1", 1, 0),  # Black mates.
        ("7k/r7/8/8/8/8/1P3PPP/6K1 w - - 0 1", "h2h3", "a7a1", 1, 1),  # Kh2 is the only move.
        ("7k/r7/8/8/8/8/1P3PPP/6K1 w - - 0 1", "h2h3", "h8g8", 2, 0),
    ],
)
def test_games_that_end_leave(fen: str, own: str, reply: str | None, num_states: int, num_forced: int) -> None:
    policy = WrittenPolicy(lambda board, move: 0.0 if move.uci() == own else -80.0)
    opponent = WrittenReplies(lambda board: board.parse_uci(str(reply)))
    rollout = roll(policy, states_of([chess.Board(fen)]), config_of(depth={"num_own_moves": 2, "opponent": "engine"}), opponent=opponent)
    assert len(opponent.asked) == (reply is not None)
    assert (len(rollout), rollout.num_forced) == (num_states, num_forced)


def greedy(board: chess.Board) -> chess.Move:
    """Return the first legal move by name."""
    return min(board.legal_moves, key=lambda move: move.uci())


def played(board: chess.Board, move: chess.Move) -> chess.Board:
    """Return the board after a move."""
    board = board.copy()
    board.push(move)
    return board


def last(board: chess.Board) -> chess.Move:
    """Return the last legal move by name."""
    return max(board.legal_moves, key=lambda move: move.uci())


CERTAIN = WrittenPolicy(lambda board, move: 0.0 if move == greedy(board) else -80.0)


def replayed(board: chess.Board, *, num_own_moves: int, reply: Callable[[int, chess.Board], chess.Move]) -> list[str]:
    """Return the own states with a choice of a game in which the policy is certain, and replies depend on the ply."""
    board, found = board.copy(), []
    for level in range(num_own_moves):
        if board.is_game_over():
            break
        if board.legal_moves.count() > 1:
            found.append(" ".join(board.fen().split()[:5]))
        board.push(greedy(board))
        if board.is_game_over():
            break
        board.push(reply(2 * level + 1, board))
    return found


@pytest.mark.parametrize("teacher_plies", [1, 4])
def test_forced_replies_are_the_teachers_on_exactly_the_first_plies_and_the_policys_own_on_others(teacher_plies: int) -> None:
    depth = {"num_own_moves": 4, "teacher_probability": 1.0, "teacher_plies": teacher_plies}
    teacher = WrittenReplies(last)
    rollout = roll(CERTAIN, states_of(BOARDS[:8]), config_of(depth=depth), opponent=teacher, temperature=1.0)
    expected = sorted(
        name
        for board in BOARDS[:8]
        for name in replayed(board, num_own_moves=4, reply=lambda ply, board: last(board) if ply < teacher_plies else greedy(board))
    )
    assert sorted(" ".join(board.fen().split()[:5]) for board in boards_of(rollout)) == expected
    assert bool(teacher.asked) == (teacher_plies > 1)


def test_the_engine_is_asked_at_fixed_nodes_and_its_failure_is_no_move() -> None:
    asked: list[Query] = []

    class Pool:
        """Answers the first board and fails on the second."""

        def search(self, queries: list[Query]) -> list[EngineAnswer | EngineError]:
            asked.extend(queries)
            return [EngineAnswer(best_move="e2e4", scores={}), EngineError("died")]

    boards = [chess.Board(), chess.Board(CORNER.fen())]
    pool: EnginePool = Pool()  # type: ignore[assignment]
    assert EngineReplies(pool, nodes=7).replies(boards) == [chess.Move.from_uci("e2e4"), None]
    assert [(query.fen, query.limit) for query in asked] == [(board.fen(), "nodes 7") for board in boards]


def by_index(rollout: Rollout) -> dict[int, tuple[list[float], ...]]:
    """Return all numbers of each state, by the state's number, without padding."""
    found = {}
    for row, index in enumerate(rollout.indices.tolist()):
        real, legal = rollout.moves.weights[row] > 0, rollout.old.is_legal[row]
        found[index] = (
            rollout.moves.columns[row, real].tolist(),
            rollout.rewards[row, real].tolist(),
            rollout.moves.advantages[row, real].tolist(),
            rollout.states.values[row, legal].tolist(),
            rollout.old.log_probs[row, legal].tolist(),
            rollout.states.positions.encodings[row].tolist(),
            [float(rollout.state_weights[row])],
        )
    return found


def assert_same_rows(found: dict[int, tuple[list[float], ...]], expected: dict[int, tuple[list[float], ...]]) -> None:
    """Check that these states have the same numbers as in another rollout."""
    for index, columns in found.items():
        for one, other in zip(columns, expected[index], strict=True):
            assert one == pytest.approx(other, abs=1e-9), index


@pytest.mark.parametrize("estimator", ["sampled", "exact"])
def test_a_state_that_the_engine_fails_on_is_dropped_and_counted_and_all_others_are_as_without_the_fault(estimator: str) -> None:
    config = config_of(estimator=estimator, group_size=4, depth={"num_own_moves": 3})
    policy, states = in_float64(lively_policy()), states_of(BOARDS, double=True)
    healthy = by_index(roll(policy, states, config))
    values = MadeUpValues(fails_on=lambda board: made_up_number(board, chess.Move.null()) < 0.3)
    faulty = roll(policy, states, config, values=values)
    rest = by_index(faulty)
    num_failed = sum(made_up_number(board, chess.Move.null()) < 0.3 for board in values.asked)
    assert faulty.num_dropped == num_failed > 5
    assert_same_rows(rest, healthy)
    gone = healthy.keys() - rest.keys()
    first_dropped = [index for index in gone if index < 80]
    assert {index for index in gone if index >= 80} >= {index + 40 for index in first_dropped} & healthy.keys(), "its trajectory leaves"
    assert not any(value == 0 for columns in rest.values() for value in columns[3]), "no failure is a value of zero"
    assert len(values.asked) == faulty.num_dropped + len(rest) - 40


def test_an_opponent_that_fails_ends_that_trajectory_and_no_other() -> None:
    config = config_of(group_size=4, depth={"num_own_moves": 3, "opponent": "engine"})
    policy, states = in_float64(lively_policy()), states_of(BOARDS, double=True)
    fails = 0.4
    healthy = by_index(roll(policy, states, config, opponent=WrittenReplies(last)))
    opponent = WrittenReplies(lambda board: None if made_up_number(board, chess.Move.null()) < fails else last(board))
    rest = by_index(roll(policy, states, config, opponent=opponent))
    assert_same_rows(rest, healthy)
    num_failed = sum(made_up_number(board, chess.Move.null()) < fails for board in opponent.asked)
    assert num_failed > 10
    assert len(healthy) - 2 * num_failed <= len(rest) <= len(healthy) - num_failed // 2


# Trajectories from one board, compared with each other ply by ply.

# White's rook may mate on a8, or go to b1 or c1; Black's king then has a move, and White's king f6 always too.
ENDING = chess.Board("6k1/8/6K1/8/8/8/8/R7 w - - 0 1")
FIRST_VALUES = {"a1a8": 0.9, "a1b1": 0.6, "a1c1": 0.3}


def ending_value(board: chess.Board, move: chess.Move) -> float:
    """Return a value by what the rook did."""
    if board.piece_at(chess.A1):
        return FIRST_VALUES.get(move.uci(), 0.0)
    king, best = (0.5, 0.8) if chess.square_file(next(iter(board.pieces(chess.ROOK, chess.WHITE)))) == 1 else (0.4, 0.5)
    return king if move.uci() == "g6f6" else best


def ending_logit(board: chess.Board, move: chess.Move) -> float:
    """Return a logit by which White first plays one of three rook moves, each as likely, then the king to f6; Black plays anything."""
    wanted = FIRST_VALUES if board.piece_at(chess.A1) else {"g6f6"}
    return 0.0 if board.turn == chess.BLACK or move.uci() in wanted else -80.0


def endings(wanted: list[str], **changes: object) -> Rollout:
    """Return the first rollout of three trajectories whose first moves are these, in any order."""
    config = config_of(**{"estimator": "trajectory", "group_size": 3, "depth": {"num_own_moves": 2}, **changes})
    states = states_of([ENDING], ending_value)
    for step in range(300):
        rollout = roll(WrittenPolicy(ending_logit), states, config, step=step, values=MadeUpValues(ending_value), temperature=1.0)
        if sorted(move.uci() for move in moves_of(rollout)[0]) == sorted(wanted):
            return rollout
    raise AssertionError(wanted)


def advantages_by_move(rollout: Rollout) -> dict[str, float]:
    """Return the advantages of the first moves by UCI, and those of second moves by the rook's square."""
    first = {move.uci(): value for move, value in zip(moves_of(rollout)[0], rollout.moves.advantages[0].tolist(), strict=True)}
    later = {
        chess.square_name(next(iter(board.pieces(chess.ROOK, chess.WHITE)))): rollout.moves.advantages[row, 0].item()
        for row, board in enumerate(boards_of(rollout))
        if row
    }
    return first | later


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        # First rewards 0.9 - 0.9, 0.6 - 0.9, 0.3 - 0.9, less their mean -0.3; second ones 0.5 - 0.8 and 0.4 - 0.5, less -0.2.
        ("mean", {"a1a8": 0.3, "a1b1": 0.0, "a1c1": -0.3, "b1": -0.1, "c1": 0.1}),
        # The same times 3 / 2, and 2 / 1.
        ("leave_one_out", {"a1a8": 0.45, "a1b1": 0.0, "a1c1": -0.45, "b1": -0.2, "c1": 0.2}),
    ],
)
def test_trajectories_are_compared_ply_by_ply_with_those_that_are_still_there(baseline: str, expected: dict[str, float]) -> None:
    rollout = endings(["a1a8", "a1b1", "a1c1"], baseline=baseline)
    assert advantages_by_move(rollout) == pytest.approx(expected, abs=1e-6)
    assert rollout.state_weights.tolist() == [3, 1, 1]
    assert rollout.moves.weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert rollout.moves.weights[1:].tolist() == [[1, 0, 0], [1, 0, 0]]


def test_whichever_trajectories_are_left_each_is_compared_with_those_of_its_board_at_its_ply(policy: NetworkPolicy) -> None:
    # The engine fails on a third of the states, so that no level is whole; the means are taken here from scratch.
    config = config_of(estimator="trajectory", group_size=3, depth={"num_own_moves": 3})
    values = MadeUpValues(fails_on=lambda board: made_up_number(board, chess.Move.null()) < 1 / 3)
    rollout = roll(policy, states_of(BOARDS), config, values=values)
    later = [row for row in range(len(rollout)) if rollout.indices[row] >= 40]
    # Level by level 120 trajectories, three from each board.
    board_and_level = {row: divmod((int(rollout.indices[row]) - 40) // 3, 40)[::-1] for row in later}
    assert {level for _, level in board_and_level.values()} == {0, 1}
    sizes = set()
    for row in later:
        members = [float(rollout.rewards[other, 0]) for other in later if board_and_level[other] == board_and_level[row]]
        sizes.add(len(members))
        assert rollout.moves.advantages[row, 0].item() == pytest.approx(
            float(rollout.rewards[row, 0]) - sum(members) / len(members), abs=1e-6
        )
    assert sizes >= {1, 2}


# What is needed.


@pytest.mark.parametrize(
    "depth", [{"num_own_moves": 2}, {"num_own_moves": 2, "opponent": "engine"}, {"num_own_moves": 2, "teacher_probability": 0.1}]
)
def test_depth_without_values_or_engine_is_refused(depth: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="needs a source of values"):
        Roller(config_of(depth=depth), seed=0, opponent=WrittenReplies(last))
    if len(depth) > 1:
        with pytest.raises(ValueError, match="an engine where it is opponent or teacher"):
            Roller(config_of(depth=depth), seed=0, values=MadeUpValues())
    else:
        Roller(config_of(depth=depth), seed=0, values=MadeUpValues())
    Roller(config_of(depth={"num_own_moves": 1}), seed=0)

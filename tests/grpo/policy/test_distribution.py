"""Distributions over legal moves, computed from logits: closed forms, gradients, everything that must make no difference; the network.

Legend: B boards, A legal moves (padded), G moves of a group.
"""

import math
from collections.abc import Callable

import chess
import pytest
import torch
from doubles import CPU, TINY, lively_policy, some_boards
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo.board.actions import action_move, legal_action_ids
from grpo.policy.distribution import MoveDistribution, PositionBatch
from grpo.policy.networks.afterstates import Network
from grpo.policy.policy import new_policy

TEMPERATURES = [0.3, 1.0, 1.3, 2.5]
LOGITS = st.lists(st.floats(-30, 30), min_size=1, max_size=12)


def batch(*counts: int, seed: int = 0, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    """Return float64 logits and mask of boards with these numbers of legal moves, with rubbish on the padding."""
    rng = torch.Generator().manual_seed(seed)
    logits_BA = torch.randn(len(counts), max(counts) + 2, generator=rng, dtype=torch.float64) * spread
    is_legal_BA = torch.arange(logits_BA.shape[1]) < torch.tensor(counts)[:, None]
    return logits_BA, is_legal_BA


def of(logits_BA: Tensor, is_legal_BA: Tensor | None = None, *, temperature: float = 1.0) -> MoveDistribution:
    mask = torch.ones_like(logits_BA, dtype=torch.bool) if is_legal_BA is None else is_legal_BA
    return MoveDistribution.from_logits(logits_BA, mask, temperature=temperature)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def gradient(term: Callable[[MoveDistribution], Tensor], logits_BA: Tensor, is_legal_BA: Tensor, temperature: float) -> Tensor:
    """Return the gradient of the sum of a term over boards, in the logits."""
    logits = logits_BA.clone().requires_grad_(True)
    [result] = torch.autograd.grad(term(of(logits, is_legal_BA, temperature=temperature)).sum(), logits)
    return result


# Numbers worked by hand.


def test_entropies_and_divergences_worked_by_hand() -> None:
    third = of(row(math.log(2), 0))  # (2/3, 1/3)
    assert third.entropy().item() == pytest.approx(math.log(3) - 2 / 3 * math.log(2), abs=1e-12)
    half, quarter = of(row(0, 0)), of(row(0, math.log(3)))
    assert half.kl_to(quarter).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-12)
    assert quarter.kl_to(half).item() == pytest.approx(0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2), abs=1e-12)
    assert third.expectation(row(0.9, 0.3)).item() == pytest.approx(0.7, abs=1e-12)


# Identities.


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_temperature_is_a_power_of_the_probabilities_at_one(temperature: float) -> None:
    logits, legal = batch(5, 3)
    power = of(logits, legal).probs ** (1 / temperature) * legal
    assert torch.allclose(of(logits, legal, temperature=temperature).probs, power / power.sum(1, keepdim=True), atol=1e-12)


def test_logits_of_low_precision_are_made_probabilities_in_float32() -> None:
    logits, is_legal = batch(30, 7)
    low = of(logits.bfloat16(), is_legal)
    assert low.log_probs.dtype == torch.float32
    assert torch.allclose(low.probs.sum(1), torch.ones(2), atol=1e-6)


def test_a_move_is_marked_where_it_returns_to_a_position_of_its_own_game() -> None:
    returning, fresh = chess.Board(), chess.Board("4k3/8/8/8/8/8/8/4K2R w K - 0 1")
    for move in ("g1f3", "g8f6", "f3g1"):
        returning.push_uci(move)
    positions = PositionBatch.from_boards([fresh, returning])
    marked = positions.repeats.nonzero().tolist()
    assert [(row, action_move(int(positions.action_ids[row, column]), chess.BLACK).uci()) for row, column in marked] == [(1, "f6g8")]


def test_the_likeliest_move_is_the_first_among_equals() -> None:
    assert of(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, 1.0, 2.0]])).best().tolist() == [1, 0, 2]


# What must make no difference.


@pytest.mark.parametrize("rubbish", [1e4, -math.inf, math.nan])
def test_the_logits_of_illegal_moves_have_no_effect_and_no_gradient(rubbish: float) -> None:
    logits, legal = batch(6, 3, 1)
    values = torch.rand(logits.shape, dtype=torch.float64)
    reference = of(batch(6, 3, 1, seed=9)[0], legal)

    def term(made: MoveDistribution) -> Tensor:
        return made.entropy() + made.kl_to(reference) + made.expectation(values)

    spoilt = torch.where(legal, logits, torch.full_like(logits, rubbish))
    assert torch.equal(of(logits, legal).log_probs, of(spoilt, legal).log_probs)
    found = gradient(term, spoilt, legal, 1.3)
    assert torch.equal(found, gradient(term, logits, legal, 1.3))
    assert not found[~legal].any()


def test_a_certain_move_has_entropy_zero_and_no_nan_anywhere() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e30, 1e30, 3.0]])
    legal = torch.ones(2, 3, dtype=torch.bool)
    reference = of(torch.zeros(2, 3))
    made = of(logits, legal)
    assert made.entropy().tolist() == [0, 0]
    assert made.kl_to(reference).tolist() == pytest.approx([math.log(3)] * 2)
    found = gradient(lambda made: made.entropy() + made.kl_to(reference), logits[:1], legal[:1], 1.0)
    assert torch.isfinite(found).all()


def test_boards_without_a_choice_have_no_entropy_and_no_gradient_and_no_nan() -> None:
    fens = ["7k/6Q1/6K1/8/8/8/8/8 b - - 0 1", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1", "7k/8/5K2/6Q1/8/8/8/8 b - - 0 1"]
    batch = PositionBatch.from_boards([chess.Board(), *map(chess.Board, fens)])
    logits = torch.randn(batch.is_legal.shape, requires_grad=True, generator=torch.Generator().manual_seed(0))
    found = MoveDistribution.from_logits(logits, batch.is_legal, temperature=0.7)
    (found.entropy().sum() + found.log_probs[:, 0].sum()).backward()
    assert torch.isfinite(found.log_probs).all()
    assert found.probs[1:].sum(1).tolist() == [0, 0, 1], "mate, stalemate, a single move"
    assert found.entropy()[1:].tolist() == found.kl_to(found)[1:].tolist() == [0, 0, 0]
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[1:].any()
    assert logits.grad[0].any()


# Sampling.


LAST_UNIFORM = 1 - 2**-53
"""The largest number below 1 that a generator can give."""


def written(*rows: list[float]) -> MoveDistribution:
    """Return the distribution with these probabilities; a negative one is padding."""
    probs = torch.tensor(rows, dtype=torch.float64)
    return MoveDistribution(log_probs=torch.where(probs >= 0, probs, 1.0).log(), is_legal=probs >= 0)


@pytest.mark.parametrize(
    ("probs", "first", "last"),
    [
        ([0.0, 0.5, 0.5], 1, 2),
        ([0.5, 0.5, 0.0], 0, 1),
        ([0.0, 0.0, 1.0, 0.0, 0.0], 2, 2),
        ([0.0, 0.3, 0.0, 0.7, 0.0, -1.0, -1.0], 1, 3),
        ([1.0, -1.0], 0, 0),
    ],
)
def test_the_ends_of_the_scale_stand_for_the_first_and_last_move_that_have_a_probability(probs: list[float], first: int, last: int) -> None:
    made = written(probs)
    assert made.sample_at(torch.tensor([[0.0, LAST_UNIFORM]], dtype=torch.float64)).tolist() == [[first, last]]
    everything = made.sample_at(torch.linspace(0, LAST_UNIFORM, 1_001, dtype=torch.float64)[None])[0]
    assert {column for column, prob in enumerate(probs) if prob > 0} == set(everything.tolist()), "and no other is ever drawn"


@given(LOGITS, st.sampled_from(TEMPERATURES), st.sampled_from([torch.float32, torch.float64]))
def test_the_last_number_below_one_stands_for_a_move_that_has_a_probability_however_the_sum_is_rounded(
    logits: list[float], temperature: float, dtype: torch.dtype
) -> None:
    # A last move that is impossible, 200 nats below: rounding must not reach it, nor the padding behind.
    padded = torch.nn.functional.pad(row(*logits, max(logits) - 200 * temperature), (0, 3)).to(dtype)
    legal = torch.arange(padded.shape[1])[None] <= len(logits)
    made = of(padded, legal, temperature=temperature)
    if dtype == torch.float32:
        assert made.probs[0, len(logits)] == 0
    [columns] = made.sample_at(torch.tensor([[0.0, LAST_UNIFORM]], dtype=torch.float64)).tolist()
    assert all(made.probs[0, column] > 0 and column < len(logits) for column in columns)


def test_each_move_has_as_many_of_even_numbers_as_its_probability_says() -> None:
    made = of(*batch(6, 3, 1), temperature=1.3)
    count = 10_000
    uniforms = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    columns = made.sample_at(uniforms.expand(3, count))
    for index in range(3):
        found = torch.bincount(columns[index], minlength=8) / count
        assert ((found - made.probs[index]).abs() <= 1 / count).all()
    assert (columns.diff(dim=1) >= 0).all(), "a larger number never stands for an earlier move"


# The network as a policy.


LIVELY = lively_policy()


def test_a_position_and_its_mirror_have_one_distribution(random_boards: list[chess.Board]) -> None:
    boards = random_boards[::41]
    own = LIVELY.distribution(PositionBatch.from_boards(boards), temperature=1.3)
    mirrored = LIVELY.distribution(PositionBatch.from_boards([board.mirror() for board in boards]), temperature=1.3)
    assert torch.equal(own.log_probs, mirrored.log_probs)
    assert own.entropy().std() > 0.05, "the test has teeth: boards differ"
    for board, column in zip(boards, own.best().tolist(), strict=True):
        move = action_move(legal_action_ids(board)[column], board.turn)
        twin = board.mirror()
        assert board.is_legal(move)
        assert twin.is_legal(action_move(legal_action_ids(twin)[column], twin.turn))


def test_a_board_is_scored_alike_alone_and_in_company(random_boards: list[chess.Board]) -> None:
    boards = random_boards[::151]
    together = LIVELY.distribution(PositionBatch.from_boards(boards), temperature=1.0)
    for index, board in enumerate(boards):
        alone = LIVELY.distribution(PositionBatch.from_boards([board]), temperature=1.0)
        count = int(alone.num_legal())
        assert torch.allclose(together.log_probs[index, :count], alone.log_probs[0], atol=1e-5)


def test_the_temperature_reaches_the_distribution() -> None:
    positions = PositionBatch.from_boards([chess.Board()])
    at_one = LIVELY.distribution(positions, temperature=1.0)
    at_two = LIVELY.distribution(positions, temperature=2.0)
    assert torch.allclose(of(at_one.log_probs / 2, at_one.is_legal).log_probs, at_two.log_probs, atol=1e-6)
    assert at_two.entropy() > at_one.entropy()


def test_a_policy_comes_in_evaluation_mode_and_refuses_to_score_in_training_mode() -> None:
    policy = new_policy(TINY, seed=0, device=CPU)
    assert not policy.network.training
    policy.network.train()
    with pytest.raises(RuntimeError, match="the policy's network is in training mode"):
        policy.distribution(PositionBatch.from_boards([chess.Board()]), temperature=1.0)


def test_fresh_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = new_policy(TINY, seed=3, device=CPU).network.state_dict()
    assert torch.equal(torch.get_rng_state(), before), "and disturb no other stream"
    torch.manual_seed(2)
    again, other = (new_policy(TINY, seed=seed, device=CPU).network.state_dict() for seed in (3, 4))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["moves.embedding"], other["moves.embedding"])


ENDGAME = chess.Board("4k3/1P6/8/8/8/8/8/R3K2R w KQ - 3 1")


@pytest.fixture
def network() -> Network:
    return lively_policy().network


def logits_of(network: Network, *boards: chess.Board) -> Tensor:
    positions = PositionBatch.from_boards(boards)
    return network(positions)


def back_and_forth() -> chess.Board:
    """Return a game in which one move of White's knight returns to an earlier position."""
    board = chess.Board()
    for move in ("g1f3", "g8f6", "f3g1"):
        board.push_uci(move)
    return board


def test_a_move_that_returns_to_an_earlier_position_has_another_score_and_a_fresh_network_ignores_it(network: Network) -> None:
    game = back_and_forth()
    positions, without = (PositionBatch.from_boards([board]) for board in (game, game.copy(stack=False)))
    assert int(positions.repeats.sum()) == 1
    assert not without.repeats.any()
    for made, differs in ((network, True), (Network(TINY), False)):
        scores, plain = (made(each) for each in (positions, without))
        assert torch.equal(scores[~positions.repeats], plain[~positions.repeats])
        assert torch.equal(scores, plain) is not differs


def test_every_weight_is_reached_by_the_gradient(network: Network) -> None:
    logits_of(network, ENDGAME, back_and_forth(), *some_boards(20)).square().sum().backward()
    without = [name for name, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert without == []

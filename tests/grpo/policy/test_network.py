"""The network: what it sees, what it must not see, and that the fast sum of an afterstate is the plain one.

Legend: B boards, A moves.
"""

import chess
import pytest
import torch
from doubles import TINY, lively_policy, some_boards
from torch import Tensor

from grpo.board.afterstates import NUM_CONTROLS, afterstates
from grpo.policy.distribution import PositionBatch
from grpo.policy.networks.afterstates import Network

ENDGAME = chess.Board("4k3/1P6/8/8/8/8/8/R3K2R w KQ - 3 1")


@pytest.fixture
def network() -> Network:
    return lively_policy().network


def logits_of(network: Network, *boards: chess.Board) -> Tensor:
    positions = PositionBatch.from_boards(boards)
    return network(*positions.inputs)


def test_the_sum_of_an_afterstate_by_its_changes_is_the_plain_sum_over_its_squares(network: Network) -> None:
    positions = PositionBatch.from_boards(some_boards(60))
    rows, columns = positions.is_legal.nonzero(as_tuple=True)
    ids = positions.action_ids[rows, columns]
    wide = network.double()

    fast, _ = wide._sums(positions.encodings, rows, ids)
    after = afterstates(positions.encodings, rows, ids)
    codes = after.board[:, rows].clone()
    codes[:, after.moves, after.squares] = after.after
    pieces, ours, theirs = codes
    control = wide.control_embedding[(pieces * NUM_CONTROLS + ours) * NUM_CONTROLS + theirs].sum(1)
    plain = control + wide.piece_embedding[pieces * 64 + torch.arange(64)].sum(1)

    torch.testing.assert_close(fast, plain, rtol=0, atol=1e-12)


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
        scores, plain = (made(*each.inputs) for each in (positions, without))
        assert torch.equal(scores[~positions.repeats], plain[~positions.repeats])
        assert torch.equal(scores, plain) is not differs


def test_every_weight_is_reached_by_the_gradient(network: Network) -> None:
    logits_of(network, ENDGAME, back_and_forth(), *some_boards(20)).square().sum().backward()
    without = [name for name, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert without == []

"""The network that looks at replies: worked by hand, and equal to `afterstates` until it looks."""

import copy

import chess
import pytest
import torch
from doubles import CPU, fake_arrays, some_boards

from grpo.board.actions import action_id
from grpo.board.features import MoveFeatures
from grpo.policy.distribution import PositionBatch
from grpo.policy.networks import replies
from grpo.policy.networks.afterstates import padded
from grpo.policy.policy import NetworkPolicy, new_policy
from grpo.settings.tree import PolicyConfig, PretrainConfig
from grpo.train.imitation import imitate

CONFIG = PolicyConfig(network="replies", width=16, hidden_width=8)


def policy_that_looks(*, scale: float = 1.0) -> NetworkPolicy:
    policy = new_policy(CONFIG, seed=1, device=CPU)
    generator = torch.Generator().manual_seed(0)
    for weights in (policy.network.threats.score.weight, policy.network.threats.short_cut.weight):
        torch.nn.init.normal_(weights, std=scale, generator=generator)
    return policy


class GivenScores(torch.nn.Module):
    def forward(self, sums: torch.Tensor) -> torch.Tensor:
        return sums[:, 0]


def test_a_candidate_loses_its_largest_threat_over_the_mean_of_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    board = chess.Board("6k1/5ppp/8/8/8/8/r7/2KR4 w - - 0 1")
    positions = PositionBatch.from_boards([board])
    monkeypatch.setattr(replies, "NUM_CANDIDATES", 3)
    network = replies.Network(CONFIG)
    columns = {move: [*positions.action_ids[0].tolist()].index(action_id(move, board.turn)) for move in board.legal_moves}
    mate, king, rook = (columns[chess.Move.from_uci(uci)] for uci in ("d1d8", "c1b1", "d1e1"))
    logits = torch.zeros(positions.is_legal.shape)
    logits[0, [mate, king, rook]] = torch.tensor([3.0, 2.0, 1.0])
    # The sums are given as logits.
    monkeypatch.setattr(MoveFeatures, "sums", lambda *_: logits[positions.is_legal][:, None])
    network.moves.scorer = GivenScores()
    asked: list[int] = []

    def threats(features: MoveFeatures) -> torch.Tensor:
        """Give the replies to each move 0, 1, 2, ..., so the largest threat of a move is its number of replies less 1."""
        asked.append(int((features.counts > 0).sum()))
        numbers = torch.arange(features.counts.shape[1]).expand(features.counts.shape)
        return numbers[features.counts > 0].float() if features.counts.shape[1] > 1 else largest

    after = []
    for uci in ("c1b1", "d1e1"):
        board.push_uci(uci)
        after.append(board.legal_moves.count())
        board.pop()
    largest = torch.tensor([float(number - 1) for number in after])
    monkeypatch.setattr(network, "_threats", threats)
    network.looks_ahead = False
    assert torch.equal(network(positions), logits)
    assert not asked
    network.looks_ahead = True
    found = network(positions)
    assert asked == [sum(after), 2], "the mate has no reply; only the largest threats get a gradient"
    mean = largest.mean().item()
    expected = logits.clone()
    expected[0, [king, rook]] += mean - largest
    torch.testing.assert_close(found, expected)


def test_untrained_threats_and_a_cache_change_no_logit() -> None:
    positions = PositionBatch.from_boards(some_boards(30))
    policy = new_policy(CONFIG, seed=1, device=CPU)
    policy.look_ahead(False)
    before = policy.distribution(positions, temperature=1.0).log_probs
    assert policy.prepared(positions).cached_replies is None
    policy.look_ahead(True)
    assert torch.equal(policy.distribution(positions, temperature=1.0).log_probs, before)
    looking = policy_that_looks()
    after = looking.distribution(positions, temperature=1.0).log_probs
    assert not torch.allclose(after, before)
    prepared = looking.prepared(positions)
    assert prepared.cached_replies is not None
    assert torch.equal(looking.distribution(prepared, temperature=1.0).log_probs, after)
    other = policy_that_looks(scale=2.0)
    other.network.moves.embedding.data.mul_(-1)  # Other moves are likely, so some replies are not cached.
    expected = other.distribution(positions, temperature=1.0).log_probs
    assert torch.equal(other.distribution(prepared, temperature=1.0).log_probs, expected)


def test_the_gradient_is_that_of_the_logits() -> None:
    policy, positions = policy_that_looks(), PositionBatch.from_boards(some_boards(6))
    policy.network.double()
    weights = torch.randn(positions.is_legal.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def value() -> torch.Tensor:
        total: torch.Tensor = (policy.network(positions) * weights * positions.is_legal).sum()
        return total

    value().backward()
    for parameter in (policy.network.threats.score.weight, policy.network.threats.bias, policy.network.moves.scorer.bias):
        assert parameter.grad is not None
        direction = torch.randn(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-6)
            above = value()
            parameter.sub_(direction, alpha=2e-6)
            below = value()
            parameter.add_(direction, alpha=1e-6)
        torch.testing.assert_close((above - below) / 2e-6, (parameter.grad * direction).sum(), rtol=1e-5, atol=1e-6)


def test_imitation_looks_at_replies_in_its_last_quarter() -> None:
    policy = new_policy(CONFIG, seed=0, device=CPU)
    config = PretrainConfig(batch_size=8, learning_rate=1e-3, steps_per_validation=1, num_steps=16)
    arrays = fake_arrays(some_boards(24, seed=1))
    moved = []
    for _ in imitate(policy, arrays, fake_arrays(some_boards(16, seed=2)), config, seed=0):
        moved.append(bool(policy.network.threats.score.weight.any()))
        assert policy.network.looks_ahead == (len(moved) > 12)
    assert moved == [False] * 12 + [True] * 4
    assert policy.network.looks_ahead, "also if the best weights are of an earlier step"


def test_candidates_are_chosen_in_float64() -> None:
    policy, positions = policy_that_looks(), PositionBatch.from_boards(some_boards(30))
    chosen = policy.network.candidates(positions, 2)
    precise = copy.deepcopy(policy.network).double()
    sums = positions.move_features().sums(policy.network.moves.embedding).double()
    logits = padded(precise.moves.scorer(sums), positions.is_legal).masked_fill(~positions.is_legal, -torch.inf)
    assert torch.equal(chosen, logits.topk(2).indices)
    nearly = torch.tensor([[1.0], [1.0 + 1e-12], [0.5]], dtype=torch.float64)
    network = replies.Network(CONFIG)
    network.moves.scorer = GivenScores()
    assert network._likeliest(nearly, torch.ones(1, 3, dtype=torch.bool), 1).tolist() == [[1]]
    assert network._likeliest(nearly[[0, 2]], torch.ones(1, 2, dtype=torch.bool), 3).tolist() == [[0, 1, -1]]

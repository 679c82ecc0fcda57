"""The network: which square is which, what it sees, and what it must not see.

Legend: B boards, A moves, C channels.
"""

import chess
import pytest
import torch
from torch import Tensor, nn

from grpo.board.actions import ACTIONS, NUM_ACTIONS, action_id
from grpo.board.encoding import BLACK_TO_MOVE, CASTLING, EN_PASSANT, HALFMOVE_CLOCK, encode
from grpo.policy.network import PolicyNetwork
from grpo.settings.tree import PolicyConfig

CONFIG = PolicyConfig(channels=16, num_blocks=2, num_heads=2)
ALL_IDS = torch.arange(NUM_ACTIONS)[None]


def white_id(uci: str) -> int:
    """Return the id of White's move."""
    return action_id(chess.Move.from_uci(uci), chess.WHITE)


def lively(config: PolicyConfig) -> PolicyNetwork:
    """Return a network in which every weight matters: fresh ones begin with layers that are zero."""
    torch.manual_seed(0)
    made = PolicyNetwork(config).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


@pytest.fixture
def network() -> PolicyNetwork:
    return lively(CONFIG)


def captured(network: PolicyNetwork, module: nn.Module, encodings: Tensor, *, before: bool) -> Tensor:
    """Return what goes into or comes out of a module, [B, 64, C]."""
    seen: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0] if before else output))
    network(encodings, torch.zeros(len(encodings), 1, dtype=torch.int64))
    handle.remove()
    return seen[0].detach()


def test_a_move_is_scored_by_its_two_squares_and_an_underpromotion_by_its_piece_too(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board(), chess.Board("4k3/1P6/8/8/8/8/8/4K3 w - - 0 1")]))
    logits = network(encodings, ALL_IDS.expand(2, -1))
    squares = captured(network, network.norm, encodings, before=False)
    start, end, under = (head(squares) for head in (network.from_head, network.to_head, network.underpromotion_head))
    slots: dict[int | None, int] = {chess.KNIGHT: 0, chess.BISHOP: 1, chess.ROOK: 2}
    for index in range(0, NUM_ACTIONS, 7):
        move = ACTIONS[index]
        expected = (start[:, move.from_square] * end[:, move.to_square]).sum(1) / 16**0.5
        if move.promotion in slots:
            expected = expected + under[:, move.to_square, slots[move.promotion]]
        assert torch.allclose(logits[:, index], expected, atol=1e-5), move.uci()


def test_a_queen_promotion_is_the_plain_move_and_the_others_are_not(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board("4k3/1P6/8/8/8/8/8/4K3 w - - 0 1")]))
    ids = [white_id(uci) for uci in ("b7b8", "b7b8q", "b7b8n", "b7b8b", "b7b8r")]
    [logits] = network(encodings, torch.tensor([ids])).tolist()
    assert logits[0] == logits[1]
    assert len(set(logits)) == 4


def test_the_score_of_a_move_depends_neither_on_which_others_are_asked_for_nor_on_their_order(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board()]))
    everything = network(encodings, ALL_IDS)
    some = torch.tensor([[1_900, 3, 3, 700]])
    assert torch.equal(network(encodings, some), everything.gather(1, some))


@pytest.mark.parametrize("byte", [0, 27, 63, *range(CASTLING.start, CASTLING.stop), EN_PASSANT, HALFMOVE_CLOCK])
def test_every_byte_of_the_encoding_matters(byte: int, network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board()]))
    changed = encodings.clone()
    changed[0, byte] = 0 if changed[0, byte] else 1
    assert (network(encodings, ALL_IDS) - network(changed, ALL_IDS)).abs().max() > 1e-3


def test_the_colour_of_the_mover_is_never_seen(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board()]))
    changed = encodings.clone()
    changed[0, BLACK_TO_MOVE] = 1
    assert torch.equal(network(encodings, ALL_IDS), network(changed, ALL_IDS))


def test_a_convolution_sees_the_neighbours_of_a_square_and_nothing_else() -> None:
    network = lively(CONFIG.model_copy(update={"sees_attacks": False}))
    # Two blocks of two 3x3 convolutions reach 4 squares in each direction; a file beside the wrong rank would reach farther.
    encodings = torch.from_numpy(encode([chess.Board()]))
    changed = encodings.clone()
    changed[0, chess.B1] = 0
    difference = captured(network, network.attention, encodings, before=True) - captured(network, network.attention, changed, before=True)
    touched = {square for square in chess.SQUARES if difference[0, square].abs().max() > 1e-6}
    assert touched == {square for square in chess.SQUARES if chess.square_distance(square, chess.B1) <= 4}


def test_attacks_are_seen_from_afar_before_any_layer_and_only_if_asked_for() -> None:
    boards = [chess.Board("k7/8/8/8/8/8/8/K6R w - - 0 1"), chess.Board("k7/8/8/8/8/8/8/K6N w - - 0 1")]
    encodings = torch.from_numpy(encode(boards))
    for sees_attacks in (True, False):
        network = lively(CONFIG.model_copy(update={"sees_attacks": sees_attacks}))
        into_first = captured(network, network.blocks[0], encodings, before=True).flatten(2).transpose(1, 2)
        differing = {square for square in chess.SQUARES if (into_first[0, square] - into_first[1, square]).abs().max() > 1e-6}
        # The rook attacks its file and its rank up to the king; the knight f2 and g3, which the rook does not.
        expected = {chess.H1, *(chess.square(7, rank) for rank in range(1, 8)), *range(chess.A1, chess.H1), chess.F2, chess.G3}
        assert differing == (expected if sees_attacks else {chess.H1})


def test_attention_is_softmax_of_scaled_products_over_all_squares_plus_a_short_cut(network: PolicyNetwork) -> None:
    squares = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(1))
    layer = network.attention
    projected = layer.project_in(layer.norm(squares))
    expected = []
    for head in range(2):
        query, key, value = (projected[..., part * 16 + head * 8 : part * 16 + head * 8 + 8] for part in range(3))
        weights = (query @ key.transpose(1, 2) / 8**0.5).softmax(2)
        expected.append(weights @ value)
    assert torch.allclose(layer(squares), squares + layer.project_out(torch.cat(expected, dim=2)), atol=1e-5)


def test_fresh_blocks_and_attention_begin_as_the_identity() -> None:
    fresh = PolicyNetwork(CONFIG)
    planes = torch.randn(2, 16, 8, 8)
    assert all(torch.equal(block(planes), planes) for block in fresh.blocks)
    squares = torch.randn(2, 64, 16)
    assert torch.equal(fresh.attention(squares), squares)


def test_no_layer_behaves_otherwise_in_training_than_in_play(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board(), chess.Board().mirror()]))
    in_play = network(encodings, ALL_IDS.expand(2, -1))
    assert torch.equal(network.train()(encodings, ALL_IDS.expand(2, -1)), in_play)
    random_or_batchwise = (nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.modules.batchnorm._BatchNorm)
    assert not any(isinstance(module, random_or_batchwise) for module in network.modules())


def test_every_weight_is_reached_by_the_gradient(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board("4k3/1P6/8/8/8/8/8/R3K2R w KQ - 3 1")]))
    encodings = torch.cat([encodings, encodings])
    encodings[1, EN_PASSANT] = 4
    network(encodings, ALL_IDS.expand(2, -1)).square().sum().backward()
    without = [name for name, parameter in network.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert without == []


@pytest.mark.parametrize("num_blocks", [0, 1, 2])
def test_freezing_takes_the_input_layer_and_the_first_blocks_out_of_training(num_blocks: int) -> None:
    network = PolicyNetwork(CONFIG)
    network.freeze(num_blocks)
    frozen = {name.split(".weight")[0].split(".bias")[0] for name, parameter in network.named_parameters() if not parameter.requires_grad}
    expected = {f"blocks.{index}.{part}" for index in range(num_blocks) for part in ("first", "second")}
    if num_blocks:
        expected |= {"piece_embedding", "square_embedding", "side_projection", "attack_projection"}
    assert frozen == expected


def test_under_bfloat16_the_inside_is_coarse_and_the_heads_are_not(network: PolicyNetwork) -> None:
    encodings = torch.from_numpy(encode([chess.Board()]))
    seen: dict[str, torch.dtype] = {}
    layers = {"block": network.blocks[0].first, "attention": network.attention.project_in, "norm": network.norm}
    layers |= {"from": network.from_head, "to": network.to_head, "under": network.underpromotion_head}
    handles = [
        layer.register_forward_hook(lambda _, __, output, name=name: seen.update({name: output.dtype})) for name, layer in layers.items()
    ]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = network(encodings, ALL_IDS)
    for handle in handles:
        handle.remove()
    heads = dict.fromkeys(("norm", "from", "to", "under"), torch.float32)
    assert seen == {"block": torch.bfloat16, "attention": torch.bfloat16} | heads
    assert logits.dtype == torch.float32
    assert (logits != logits.bfloat16().float()).float().mean() > 0.9, "and the logits have more than bfloat16's digits"
    assert 0 < (logits - network(encodings, ALL_IDS)).abs().max() < 0.05 * logits.abs().max()


def test_the_file_of_the_action_table_is_no_part_of_a_checkpoint(network: PolicyNetwork) -> None:
    # The table is code, guarded by its own hash; saved with the weights it could silently be another one.
    assert not {"move_slot", "promotion_slot"} & set(network.state_dict())

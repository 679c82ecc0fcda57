"""Exports a network policy as safetensors, ONNX and JSON, with a parity check of ONNX against torch."""

import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import chess
import numpy as np
import torch
from torch import Tensor, nn

from grpo.base.errors import PlainError
from grpo.base.files import sha256_file, write_json
from grpo.base.seeding import numpy_stream
from grpo.board.actions import ACTIONS, action_move
from grpo.board.encoding import ENCODING_SIZE, position_key
from grpo.board.onnx_policy import ACTIONS_INPUT, INPUT, ONNX, OUTPUT, REPEATS_INPUT, OnnxPolicy
from grpo.learning.checkpoints import load_policy, weights_hash
from grpo.policy.distribution import NetworkPolicy, PositionBatch, new_policy
from grpo.policy.files import ACTION_TABLE_HASH, POLICY, WEIGHTS
from grpo.settings.tree import PolicyConfig

NUM_PARITY_POSITIONS: Final = 1_000
_NUM_FEW_POSITIONS: Final = 100
LOG_PROB_TOLERANCE: Final = 1e-4
"""Nats. Float32 sums in another order differ by about 1e-6 for logits of size 10; a wrong table or mask differs by whole nats."""

_OPSET: Final = 20
_PARITY_SEED: Final = 0
_PARITY_MAX_PLIES: Final = 160
_PARITY_STRIDE: Final = 3  # Consecutive positions of a game are similar.
_EXAMPLES: Final = (
    chess.STARTING_FEN,
    "rnbqkbnr/ppp1pppp/8/8/3pP3/2N5/PPPP1PPP/R1BQKBNR b KQkq e3 0 3",  # Black to move, who may take en passant.
    "r3k2r/P7/8/8/8/8/6p1/R3K2R b Kq - 37 60",  # Half the castling rights, castling, a clock, and promotions.
)
_LAYOUT: Final = (
    ("0-63", "piece on a1, b1, ..., h1, a2, ..., h8: 0 none, 1-6 the mover's pawn, knight, bishop, rook, queen, king, 7-12 the opponent's"),
    ("64-67", "castling rights, 1 or 0: mover's king side, mover's queen side, opponent's king side, opponent's queen side"),
    ("68", "0, or 1-8 for the file a-h of the square onto which the mover can capture en passant; only where that capture is legal"),
    ("69", "half-move clock (plies since a capture or pawn move), at most 100"),
    ("70", "1 when the mover is Black, else 0; the network does not read it"),
)
_MIRROR: Final = (
    "The network knows only a mover who is White. When Black is to move: swap the colors, turn the ranks round (square ^ 56, with a1 = 0"
    " and h8 = 63), and encode that. Action ids then name moves of the turned board: to play one, turn the ranks of both its squares"
    " (e2e4 becomes e7e5)."
)
_USE: Final = (
    "Ask for the ids of the legal moves and no others; softmax(logits / T) over them is the policy at temperature T, the largest the best"
    " move. A move repeats if it returns to a position of the game since the last capture or pawn move; without a history none does. In a"
    " batch, pad a board that has fewer moves with any of them, and leave these logits out. Castling is the king's move of two"
    " squares; a promotion to a queen has its letter (a7a8q)."
)


class ParityError(PlainError, RuntimeError):
    """The exported model does not play as the policy does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """Differences between the ONNX file and the policy, over the same positions."""

    num_positions: int
    num_best_moves_equal: int
    """Positions in which the likeliest legal move is the same."""
    max_log_prob_difference: float
    """Nats, over all legal moves of all positions."""
    tolerance: float
    """Nats: a larger difference is refused."""

    @property
    def is_met(self) -> bool:
        """Whether all best moves are equal and all log-probabilities differ by at most the tolerance."""
        return self.num_best_moves_equal == self.num_positions and self.max_log_prob_difference <= self.tolerance

    def __str__(self) -> str:
        return (
            f"{self.num_best_moves_equal:,} of {self.num_positions:,} best moves equal, log-probabilities within"
            f" {self.max_log_prob_difference:.2g} nats (allowed: {self.tolerance:g})"
        )


def export_policy(source: Path, folder: Path, *, facts: Mapping[str, Any]) -> Parity:
    """Write the policy in `source` to an existing, empty folder: weights, JSON and ONNX, each read back and compared.

    `load_policy` reads the folder, so all commands accept it as a model.

    Args:
        source: a folder with a policy.
        folder: the folder to write.
        facts: facts about the policy (run, step, hash) for the JSON and the ONNX file.

    Raises ParityError when the written model differs from the policy; the caller removes the folder.
    """
    policy, config = load_policy(source, torch.device("cpu"))
    expected = weights_hash(policy)
    for name in (WEIGHTS, POLICY):
        shutil.copyfile(source / name, folder / name)
    write_onnx(folder / ONNX, policy, config, {**facts, "weights_hash": expected})
    parity = onnx_parity(folder / ONNX, policy, random_play_positions(NUM_PARITY_POSITIONS, seed=_PARITY_SEED))
    if not parity.is_met:
        raise _parity_error(source, parity)
    _describe(folder / POLICY, policy, config, facts=facts, parity=parity)
    found = weights_hash(load_policy(folder, torch.device("cpu"))[0])
    if found != expected:
        raise ParityError(f"{WEIGHTS} reads back as {found[:12]}, and the policy of {source} is {expected[:12]}: nothing is written")
    return parity


def export_onnx(source: Path, path: Path) -> None:
    """Write the network of a folder as ONNX; raises ParityError when its log-probabilities on a few positions differ from the network's."""
    policy, config = load_policy(source, torch.device("cpu"))
    write_onnx(path, policy, config, {"weights_hash": weights_hash(policy)})
    parity = onnx_parity(path, policy, random_play_positions(_NUM_FEW_POSITIONS, seed=_PARITY_SEED))
    if not parity.max_log_prob_difference <= parity.tolerance:  # Or not a number. Best moves may be equally likely to the last digit.
        raise _parity_error(source, parity)


def _parity_error(source: Path, parity: Parity) -> ParityError:
    return ParityError(
        f"{ONNX} does not play as the policy of {source} does: {parity}. Nothing is written. Where two moves are equally likely to the"
        " last digit, another checkpoint helps; else onnxruntime or the exporter is at fault: install the versions of requirements.lock"
    )


class _AskedActions(nn.Module):
    """The network for ONNX runtimes, as a function of its weights: it scores every action that it is asked for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._network = (network,)  # In a tuple it is no part of this module, and its weights are no constants of the graph.

    def forward(self, encodings: Tensor, action_ids: Tensor, repeats: Tensor, weights: dict[str, Tensor]) -> Tensor:
        asked = encodings, action_ids, torch.ones_like(action_ids, dtype=torch.bool), repeats
        logits: Tensor = torch.func.functional_call(self._network[0], weights, asked)
        return logits


def write_onnx(path: Path, policy: NetworkPolicy, config: PolicyConfig, facts: Mapping[str, Any]) -> None:
    """Write the network as ONNX, from the tensors of a `PositionBatch` to `logits` [batch, moves] float32.

    Its inputs are `encodings` [batch, 71] uint8, `action_ids` [batch, moves] int64 and `repeats` [batch, moves] bool. Batch size and number
    of moves are free. A board with fewer moves than others repeats any of them. Initializers have the names of `weights.safetensors`.
    """
    import onnx

    model = onnx.ModelProto.FromString(_graph(config))
    weights = {name: tensor.cpu().numpy() for name, tensor in policy.network.state_dict().items()}
    inputs = [one for one in model.graph.input if one.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    shapes = f"{INPUT}: [batch, {ENCODING_SIZE}] uint8; {ACTIONS_INPUT}: [batch, moves] int64; {REPEATS_INPUT}: [batch, moves] bool"
    model.doc_string = f"{shapes}; {OUTPUT}: [batch, moves] float32. {_USE} {_MIRROR} Layout: {POLICY}."
    onnx.helper.set_model_props(model, {name: str(value) for name, value in sorted(facts.items())})
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


@cache
def _graph(config: PolicyConfig) -> bytes:
    """Return the serialized ONNX model of all networks of one shape; their weights are inputs. The exporter needs ten seconds for it.

    Equal shapes give equal bytes: the exporter's notes on this machine (stack traces with paths) are removed.
    """
    network = new_policy(config, seed=0, device=torch.device("cpu")).network.eval()
    positions = PositionBatch.from_boards([chess.Board()] * 2)  # Two boards: the exporter would treat a batch of one as a constant.
    batch, moves = torch.export.Dim("batch"), torch.export.Dim("moves")
    weights = dict(network.state_dict())
    with torch.no_grad(), _quiet_exporter():
        program = torch.onnx.export(
            _AskedActions(network).eval(),
            (positions.encodings, positions.action_ids, positions.repeats),
            kwargs={"weights": weights},
            input_names=[INPUT, ACTIONS_INPUT, REPEATS_INPUT, *weights],
            output_names=[OUTPUT],
            dynamic_shapes={
                INPUT: {0: batch},
                ACTIONS_INPUT: {0: batch, 1: moves},
                REPEATS_INPUT: {0: batch, 1: moves},
                "weights": {name: {} for name in weights},
            },
            opset_version=_OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    _remove_machine_facts(model.graph)
    del model.metadata_props[:]
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence what torch 2.13's exporter says of its own code, of the missing torchvision, and of two inputs with one batch size."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="# The axis name: (batch|moves) will not be used", category=UserWarning)
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)` is deprecated", category=FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _remove_machine_facts(graph: Any) -> None:
    del graph.metadata_props[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""


@torch.no_grad()
def onnx_parity(path: Path, policy: NetworkPolicy, boards: Sequence[chess.Board], *, tolerance: float = LOG_PROB_TOLERANCE) -> Parity:
    """Compare an ONNX file with its policy by the distributions over each board's legal moves."""
    expected = policy.distribution(PositionBatch.from_boards(boards), temperature=1.0)
    found = OnnxPolicy(path, num_threads=torch.get_num_threads()).log_probs(boards)
    rows = [row[: len(each)] for row, each in zip(expected.log_probs.double().numpy(), found, strict=True)]
    return Parity(
        num_positions=len(boards),
        num_best_moves_equal=sum(int(each.argmax()) == best for each, best in zip(found, expected.best().tolist(), strict=True)),
        max_log_prob_difference=float(np.max([np.abs(each - row).max() for each, row in zip(found, rows, strict=True)])),
        tolerance=tolerance,
    )


def random_play_positions(count: int, *, seed: int) -> list[chess.Board]:
    """Return distinct positions with legal moves from games of random moves: both colours, all phases, checks, promotions."""
    rng = numpy_stream(seed, "parity_positions")
    boards: list[chess.Board] = []
    seen: set[str] = set()
    while True:
        board = chess.Board()
        for ply in range(_PARITY_MAX_PLIES):
            legal = sorted(board.legal_moves, key=chess.Move.uci)
            if not legal:
                break
            key = position_key(board)
            if ply % _PARITY_STRIDE == 0 and key not in seen:
                seen.add(key)
                boards.append(board.copy(stack=False))
                if len(boards) == count:
                    return boards
            board.push(legal[int(rng.integers(len(legal)))])


def _describe(path: Path, policy: NetworkPolicy, config: PolicyConfig, *, facts: Mapping[str, Any], parity: Parity) -> None:
    """Write the policy's JSON: what `load_policy` reads, and what a program without this code needs."""
    write_json(
        path,
        {
            **facts,
            "policy": config.model_dump(mode="json"),
            "action_table": ACTION_TABLE_HASH,
            "weights_hash": weights_hash(policy),
            "weights_file": {"name": WEIGHTS, "sha256": sha256_file(path.with_name(WEIGHTS))},
            "actions": [move.uci() for move in ACTIONS],
            "encoding": {
                "size": ENCODING_SIZE,
                "dtype": "uint8",
                "layout": [{"bytes": which, "content": content} for which, content in _LAYOUT],
                "mirror": _MIRROR,
            },
            "use": _USE,
            "onnx": {
                "file": ONNX,
                "opset": _OPSET,
                "inputs": [
                    {"name": INPUT, "dtype": "uint8", "shape": ["batch", ENCODING_SIZE]},
                    {"name": ACTIONS_INPUT, "dtype": "int64", "shape": ["batch", "moves"]},
                    {"name": REPEATS_INPUT, "dtype": "bool", "shape": ["batch", "moves"]},
                ],
                "output": {"name": OUTPUT, "dtype": "float32", "shape": ["batch", "moves"]},
                "parity": asdict(parity),
            },
            "network": {name: list(tensor.shape) for name, tensor in policy.network.state_dict().items()},
            "num_parameters": sum(tensor.numel() for tensor in policy.network.parameters()),
            "examples": [_example(chess.Board(fen), policy) for fen in _EXAMPLES],
        },
    )


@torch.no_grad()
def _example(board: chess.Board, policy: NetworkPolicy) -> dict[str, Any]:
    """Return a worked example: a position with its encoding, action ids, log-probabilities and best move."""
    positions = PositionBatch.from_boards([board])
    distribution = policy.distribution(positions, temperature=1.0)
    best = int(distribution.best()[0])
    ids = positions.action_ids[0].tolist()
    return {
        "fen": board.fen(),
        "encoding": positions.encodings[0].tolist(),
        "legal_action_ids": ids,
        "legal_moves": [action_move(index, board.turn).uci() for index in ids],
        "log_probs": distribution.log_probs[0].tolist(),
        "best_move": action_move(ids[best], board.turn).uci(),
    }

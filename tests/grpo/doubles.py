"""Stand-ins for tests of learning and playing: a few boards with made-up values, and policies whose numbers are written down."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import chess
import numpy as np
import torch
from torch import Tensor

from grpo.actions import action_move
from grpo.boards import BoardArrays
from grpo.config import PolicyConfig
from grpo.encoding import decode, encode
from grpo.phases import PHASES, phase_of
from grpo.policy import MoveDistribution, PositionBatch

TINY: Final = PolicyConfig(channels=16, num_blocks=1, num_heads=2)
CPU: Final = torch.device("cpu")

BoardMove = Callable[[chess.Board, chess.Move], float]


def made_up_number(board: chess.Board, move: chess.Move) -> float:
    """Return a number in [0, 1) that depends on position and move alone."""
    digest = hashlib.sha256(f"{board.epd()} {move.uci()}".encode()).digest()
    return int.from_bytes(digest[:3], "big") / 2**24


def some_boards(count: int, *, seed: int = 0, max_plies: int = 120) -> list[chess.Board]:
    """Return distinct positions of random play, each with at least two legal moves, Black to move in about half."""
    rng = np.random.default_rng(seed)
    boards: dict[str, chess.Board] = {}
    while len(boards) < count:
        board = chess.Board()
        for _ in range(int(rng.integers(4, max_plies))):
            legal = list(board.legal_moves)
            if not legal:
                break
            board.push(legal[int(rng.integers(len(legal)))])
        if board.legal_moves.count() >= 2:
            boards[board.epd()] = board.copy(stack=False)
    return list(boards.values())


def legal_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves in the order of a table's columns."""
    batch = PositionBatch.from_boards([board])
    return [action_move(index, board.turn) for index in batch.action_ids[0].tolist()]


def fake_arrays(boards: Sequence[chess.Board], value: BoardMove = made_up_number, played: Sequence[str] | None = None) -> BoardArrays:
    """Return the boards with these values; the move played is the first of the table where no UCI is given."""
    batch = PositionBatch.from_boards(boards)
    values = np.zeros(tuple(batch.is_legal.shape), dtype=np.float32)
    columns = np.zeros(len(boards), dtype=np.int64)
    for index, board in enumerate(boards):
        moves = legal_moves(board)
        values[index, : len(moves)] = [value(board, move) for move in moves]
        if played is not None:
            columns[index] = [move.uci() for move in moves].index(played[index])
    return BoardArrays(
        encodings=encode(boards),
        action_ids=batch.action_ids.numpy(),
        is_legal=batch.is_legal.numpy(),
        values=values,
        played=columns,
        phases=np.array([PHASES.index(phase_of(board)) for board in boards], dtype=np.int64),
    )


class WrittenPolicy:
    """A policy whose logit of each move is given by a function of the board and the move, as they stand on the real board."""

    def __init__(self, logit: BoardMove) -> None:
        self._logit = logit

    def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
        """Return the softmax of the written logits."""
        logits: Tensor = torch.zeros(positions.is_legal.shape, dtype=torch.float64)
        for row, (encoding, ids, is_legal) in enumerate(
            zip(positions.encodings.numpy(), positions.action_ids, positions.is_legal, strict=True)
        ):
            board = decode(encoding)
            for column in range(int(is_legal.sum())):
                logits[row, column] = self._logit(board, action_move(int(ids[column]), board.turn))
        return MoveDistribution.from_logits(logits.float(), positions.is_legal, temperature=temperature)


def written_probabilities(table: Mapping[str, Mapping[str, float]]) -> WrittenPolicy:
    """Return the policy with these probabilities: placement of the pieces -> UCI -> probability; a move left out is impossible."""
    return WrittenPolicy(lambda board, move: float(np.log(table[board.board_fen()].get(move.uci(), 0.0) or 1e-30)))

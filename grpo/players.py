"""Whoever moves in a match: a policy, Stockfish at fixed nodes, or chance; each answers for many boards at once."""

from collections.abc import Sequence
from typing import Protocol

import chess
import numpy as np
import torch

from grpo.actions import action_move
from grpo.engine import EngineError, EnginePool, Query
from grpo.policy import Policy, PositionBatch

_BOARDS_PER_FORWARD = 1_024


class Player(Protocol):
    """Chooses a legal move on each of many boards, from games that have nothing to do with each other."""

    name: str

    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return a legal move for each board; each board has one."""


class BestMovePlayer:
    """A policy's likeliest move."""

    def __init__(self, policy: Policy, name: str) -> None:
        self.name = name
        self._policy = policy

    @torch.no_grad()
    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return the likeliest moves."""
        moves: list[chess.Move] = []
        for start in range(0, len(boards), _BOARDS_PER_FORWARD):
            part = boards[start : start + _BOARDS_PER_FORWARD]
            positions = PositionBatch.from_boards(part)
            columns = self._policy.distribution(positions, temperature=1.0).best().cpu()
            moves += _moves(part, positions, columns)
        return moves


class SamplingPlayer:
    """A policy's moves drawn at a temperature."""

    def __init__(self, policy: Policy, name: str, *, temperature: float, rng: torch.Generator) -> None:
        self.name = name
        self._policy = policy
        self._temperature = temperature
        self._rng = rng

    @torch.no_grad()
    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return sampled moves."""
        moves: list[chess.Move] = []
        for start in range(0, len(boards), _BOARDS_PER_FORWARD):
            part = boards[start : start + _BOARDS_PER_FORWARD]
            positions = PositionBatch.from_boards(part)
            distribution = self._policy.distribution(positions, temperature=self._temperature)
            moves += _moves(part, positions, distribution.sample(1, self._rng)[:, 0])
        return moves


class RandomPlayer:
    """Any legal move with equal chance."""

    name = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return random moves."""
        chosen = []
        for board in boards:
            legal = sorted(board.legal_moves, key=chess.Move.uci)
            chosen.append(legal[int(self._rng.integers(len(legal)))])
        return chosen


class EnginePlayer:
    """Stockfish at full strength with a fixed number of nodes a move; the same position always gets the same answer."""

    def __init__(self, pool: EnginePool, *, nodes: int) -> None:
        self.name = f"stockfish-{nodes}-nodes"
        self._pool = pool
        self._nodes = nodes

    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return the engine's moves.

        Raises EngineError when it fails on a board: a game cannot go on with an invented move.
        """
        answers = self._pool.search([Query(fen=board.fen(), limit=f"nodes {self._nodes}") for board in boards])
        moves = []
        for board, answer in zip(boards, answers, strict=True):
            if isinstance(answer, EngineError):
                raise answer
            moves.append(board.parse_uci(answer.best_move))
        return moves


def _moves(boards: Sequence[chess.Board], positions: PositionBatch, columns: torch.Tensor) -> list[chess.Move]:
    ids = positions.action_ids.gather(1, columns[:, None])[:, 0].tolist()
    return [action_move(index, board.turn) for index, board in zip(ids, boards, strict=True)]

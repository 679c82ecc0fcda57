"""Whoever moves in a match: a policy, Stockfish at fixed nodes, or chance; each answers for many boards at once."""

from collections.abc import Callable, Sequence
from typing import Protocol

import chess
import numpy as np
import torch

from grpo.actions import action_move
from grpo.engine import EngineError, EnginePool, Query
from grpo.policy import MoveDistribution, Policy, PositionBatch

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

    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return the likeliest moves."""
        return _policy_moves(self._policy, boards, temperature=1.0, pick=MoveDistribution.best)


class SamplingPlayer:
    """A policy's moves drawn at a temperature."""

    def __init__(self, policy: Policy, name: str, *, temperature: float, rng: torch.Generator) -> None:
        self.name = name
        self._policy = policy
        self._temperature = temperature
        self._rng = rng

    def choose(self, boards: Sequence[chess.Board]) -> list[chess.Move]:
        """Return sampled moves."""
        return _policy_moves(
            self._policy, boards, temperature=self._temperature, pick=lambda distribution: distribution.sample(1, self._rng)[:, 0]
        )


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
        answers = self._pool.search([Query(fen=board.fen(), limit=f"nodes {self._nodes}", board=board) for board in boards])
        moves = []
        for board, answer in zip(boards, answers, strict=True):
            if isinstance(answer, EngineError):
                raise answer
            moves.append(board.parse_uci(answer.best_move))
        return moves


@torch.no_grad()
def _policy_moves(
    policy: Policy, boards: Sequence[chess.Board], *, temperature: float, pick: Callable[[MoveDistribution], torch.Tensor]
) -> list[chess.Move]:
    moves: list[chess.Move] = []
    for start in range(0, len(boards), _BOARDS_PER_FORWARD):
        part = boards[start : start + _BOARDS_PER_FORWARD]
        positions = PositionBatch.from_boards(part)
        columns = pick(policy.distribution(positions, temperature=temperature)).cpu()
        ids = positions.action_ids.gather(1, columns[:, None])[:, 0].tolist()
        moves += [action_move(index, board.turn) for index, board in zip(ids, part, strict=True)]
    return moves

"""Choice of a served policy's move: the most likely, or a sampled move."""

from dataclasses import dataclass
from typing import Protocol

import chess
import torch

from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.policy.distribution import MoveDistribution, MovePolicy, PositionBatch
from grpo.uci.options import BEST_MOVE, UciOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class UciSearchResult:
    best: chess.Move | None  # None resigns.
    shown: tuple[chess.Move, ...]  # MultiPV lines: `best`, then others by probability.
    remark: str  # Text of an `info string` line.


class MoveFinder(Protocol):
    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Choose from the UCI moves `allowed` (empty: all legal moves). `board` has a legal move.

        Random numbers depend only on `seed`, `num_games` (`ucinewgame` commands so far) and the ply.
        """


class PolicyMoveFinder:
    def __init__(self, policy: MovePolicy) -> None:
        self._policy = policy

    @torch.no_grad()
    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Probabilities are at temperature 1 with `BEST_MOVE`."""
        positions = PositionBatch.from_boards([board])
        moves = [action_move(index, board.turn) for index in positions.action_ids[0].tolist()]
        is_best = options.temperature == BEST_MOVE
        distribution = self._policy.distribution(positions, temperature=1.0 if is_best else options.temperature)
        if allowed:
            kept = [column for column, move in enumerate(moves) if move.uci() in allowed]
            moves = [moves[column] for column in kept]
            # The columns of `distribution` must be those of `moves`.
            log_probs = distribution.log_probs[:, kept]
            distribution = MoveDistribution.from_logits(log_probs, torch.ones_like(log_probs, dtype=torch.bool), temperature=1.0)
        chosen = int(distribution.best() if is_best else distribution.sample(1, torch_stream(seed, "uci", num_games, board.ply())))
        probabilities = distribution.probs[0].tolist()
        columns = sorted(range(len(moves)), key=lambda column: (column != chosen, -probabilities[column], column))
        shown = columns[: options.multipv]
        remark = " ".join(["policy", *(f"{moves[column].uci()} {probabilities[column]:.4f}" for column in shown)])
        return UciSearchResult(best=moves[chosen], shown=tuple(moves[column] for column in shown), remark=remark)

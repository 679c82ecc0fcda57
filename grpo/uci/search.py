"""Move choice of the UCI engine: a policy's most likely or sampled move, with the probabilities of the others."""

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
    """The result of one `go`."""

    best: chess.Move | None
    """The move to play, or None to resign."""
    shown: tuple[chess.Move, ...]
    """Moves to show as MultiPV lines, the best first."""
    remark: str
    """Text of an `info string` line."""


class MoveFinder(Protocol):
    """Chooses the engine's moves, one board at a time."""

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the move to play and the lines to show; a sample depends on seed, game and ply alone.

        The board has a legal move. Only the `allowed` moves (UCI) are chosen among, all if there are none; `num_games` have begun.
        """


class PolicyMoveFinder:
    """Chooses moves with a policy that gives every legal move a probability."""

    def __init__(self, policy: MovePolicy) -> None:
        self._policy = policy

    @torch.no_grad()
    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the most likely or a sampled move, and `MultiPV` lines by falling probability over the allowed moves.

        The probabilities shown with a most likely move are those at the training temperature, 1.
        """
        positions = PositionBatch.from_boards([board])
        moves = [action_move(index, board.turn) for index in positions.action_ids[0].tolist()]
        is_best = options.temperature == BEST_MOVE
        distribution = self._policy.distribution(positions, temperature=1.0 if is_best else options.temperature)
        if allowed:
            kept = [column for column, move in enumerate(moves) if move.uci() in allowed]
            moves = [moves[column] for column in kept]
            # Sampling takes the legal moves to be the first columns.
            log_probs = distribution.log_probs[:, kept]
            distribution = MoveDistribution.from_logits(log_probs, torch.ones_like(log_probs, dtype=torch.bool), temperature=1.0)
        chosen = int(distribution.best() if is_best else distribution.sample(1, torch_stream(seed, "uci", num_games, board.ply())))
        probabilities = distribution.probs[0].tolist()
        columns = sorted(range(len(moves)), key=lambda column: (column != chosen, -probabilities[column], column))
        shown = columns[: options.multipv]
        remark = " ".join(["policy", *(f"{moves[column].uci()} {probabilities[column]:.4f}" for column in shown)])
        return UciSearchResult(best=moves[chosen], shown=tuple(moves[column] for column in shown), remark=remark)

"""Move choice of the UCI engine: a policy's most likely or sampled move, with the probabilities of the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import chess
import torch

from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.policy.distribution import MoveDistribution, Policy, PositionBatch
from grpo.uci.options import BEST_MOVE, UciOptions

_SHOWN_TEMPERATURE = 1.0  # Probabilities shown with a best move are those at the training temperature.


@dataclass(frozen=True, kw_only=True, slots=True)
class UciSearchResult:
    """The result of one `go`."""

    best: chess.Move | None
    """The move to play, or None to resign."""
    shown: tuple[chess.Move, ...]
    """Moves to show as MultiPV lines, the best first."""
    remarks: tuple[str, ...]
    """Texts for `info string` lines."""


class MoveFinder(Protocol):
    """Chooses the engine's moves, one board at a time."""

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the move to play and the lines to show.

        Args:
            board: Position with at least one legal move.
            allowed: Moves in UCI to choose among; all if empty.
            options: Current option values.
            seed: Root of the random streams.
            num_games: Number of `ucinewgame` commands so far.
        """


class PolicyMoveFinder:
    """Chooses moves with a policy that gives every legal move a probability."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> UciSearchResult:
        """Return the most likely or a sampled move, and `MultiPV` lines with their probabilities."""
        ranked = ranked_moves(self._policy, board, allowed=allowed, options=options, seed=seed, num_games=num_games)
        shown = ranked[: options.multipv]
        probabilities = " ".join(f"{row.move.uci()} {row.probability:.4f}" for row in shown)
        return UciSearchResult(best=ranked[0].move, shown=tuple(row.move for row in shown), remarks=(f"policy {probabilities}",))


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedMove:
    """A move and its probability."""

    move: chess.Move
    probability: float


@torch.no_grad()
def ranked_moves(
    policy: Policy, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int
) -> list[RankedMove]:
    """Return the move to play, followed by the other moves in descending order of probability.

    The sample depends on the seed, the game and the number of moves played, so that a repeated `go` on the same board gives the same move.

    Args:
        policy: The policy.
        board: Position with at least one legal move.
        allowed: Moves in UCI to choose among, all if empty; probabilities are renormalised over them.
        options: The temperature; at `BEST_MOVE` the probabilities are those at temperature 1.
        seed: Root of the random streams.
        num_games: Number of `ucinewgame` commands so far.
    """
    positions = PositionBatch.from_boards([board])
    moves = [action_move(index, board.turn) for index in positions.action_ids[0].tolist()]
    is_best = options.temperature == BEST_MOVE
    distribution = policy.distribution(positions, temperature=_SHOWN_TEMPERATURE if is_best else options.temperature)
    if allowed:
        distribution = _among(distribution, [move.uci() in allowed for move in moves])
    drawn = distribution.best() if is_best else distribution.sample(1, torch_stream(seed, "uci", num_games, board.ply()))
    chosen = int(drawn)
    probabilities = distribution.probs[0].tolist()
    columns = [column for column in range(len(moves)) if not allowed or moves[column].uci() in allowed]
    columns.sort(key=lambda column: (column != chosen, -probabilities[column], column))
    return [RankedMove(move=moves[column], probability=probabilities[column]) for column in columns]


def _among(distribution: MoveDistribution, is_allowed: Sequence[bool]) -> MoveDistribution:
    """Return the distribution renormalised over the allowed moves; the temperature is applied already."""
    mask = torch.tensor([is_allowed], device=distribution.is_legal.device)
    return MoveDistribution.from_logits(distribution.log_probs, mask, temperature=1.0)

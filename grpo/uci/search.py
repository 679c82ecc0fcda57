"""What the UCI engine plays: what finds its moves; and a policy's likeliest move or one drawn from it, and the shares of the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import chess
import torch

from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.policy.distribution import MoveDistribution, Policy, PositionBatch
from grpo.uci.options import BEST_MOVE, UciOptions

_SHOWN_TEMPERATURE = 1.0  # Of a best move's share: the distribution that the policy was trained as.


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A search's result."""

    best: chess.Move | None
    """The move to play; None gives the game up."""
    shown: tuple[chess.Move, ...]
    """Moves to show as lines, the best first."""
    remarks: tuple[str, ...]
    """What else there is to say, each in one line."""


class MoveFinder(Protocol):
    """Finds the engine's moves, one board at a time."""

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> Found:
        """Return the move to play, with what is to be shown.

        Args:
            board: with at least one legal move.
            allowed: moves in UCI to choose among, all when empty.
            options: as the chess program has set them.
            seed: root of the random streams.
            num_games: how many games the engine has been told of.
        """


class PolicyMoveFinder:
    """A policy that gives every legal move a probability."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def find(self, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int) -> Found:
        """Return the likeliest move or one drawn, with as many lines as the options ask for, and their shares."""
        ranked = ranked_moves(self._policy, board, allowed=allowed, options=options, seed=seed, num_games=num_games)
        shown = ranked[: options.multipv]
        shares = " ".join(f"{row.move.uci()} {row.share:.4f}" for row in shown)
        return Found(best=ranked[0].move, shown=tuple(row.move for row in shown), remarks=(f"policy {shares}",))


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveShare:
    """A move and its probability."""

    move: chess.Move
    share: float


@torch.no_grad()
def ranked_moves(
    policy: Policy, board: chess.Board, *, allowed: frozenset[str], options: UciOptions, seed: int, num_games: int
) -> list[MoveShare]:
    """Return the move to play, and behind it the other moves by falling probability.

    The draw depends on seed, game and number of moves played, so that asking again about the same board gives the same move.

    Args:
        policy: whose moves they are.
        board: with at least one legal move.
        allowed: moves in UCI to choose among, all when empty; probabilities are of these alone.
        options: the temperature; at `BEST_MOVE` shares are those at temperature 1.
        seed: root of the random streams.
        num_games: how many games the engine has been told of.
    """
    positions = PositionBatch.from_boards([board])
    moves = [action_move(index, board.turn) for index in positions.action_ids[0].tolist()]
    is_best = options.temperature == BEST_MOVE
    distribution = policy.distribution(positions, temperature=_SHOWN_TEMPERATURE if is_best else options.temperature)
    if allowed:
        distribution = _among(distribution, [move.uci() in allowed for move in moves])
    drawn = distribution.best() if is_best else distribution.sample(1, torch_stream(seed, "uci", num_games, board.ply()))
    chosen = int(drawn)
    shares = distribution.probs[0].tolist()
    columns = [column for column in range(len(moves)) if not allowed or moves[column].uci() in allowed]
    columns.sort(key=lambda column: (column != chosen, -shares[column], column))
    return [MoveShare(move=moves[column], share=shares[column]) for column in columns]


def _among(distribution: MoveDistribution, is_allowed: Sequence[bool]) -> MoveDistribution:
    """Return the distribution given that the move is one of those allowed; it is at its temperature already."""
    mask = torch.tensor([is_allowed], device=distribution.is_legal.device)
    return MoveDistribution.from_logits(distribution.log_probs, mask, temperature=1.0)

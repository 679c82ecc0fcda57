"""Annotates each position of a match's highlights (games worth looking at)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import chess

from grpo.board import MAX_LEGAL_MOVES
from grpo.engine.answers import EngineError, Score
from grpo.engine.move_values import value_tables, win_chance
from grpo.engine.pool import EnginePool
from grpo.match.matches import MatchResult, PlayedGame
from grpo.viewer.highlights import choose_highlights

MoveProbabilities = Callable[[Sequence[chess.Board]], Sequence[Mapping[str, float]] | None]
"""Takes boards with legal moves. Returns each board's probabilities (UCI move -> probability) at temperature 1, or None if unknown."""
Policies = tuple[MoveProbabilities | None, MoveProbabilities | None]  # First and second player.


@dataclass(frozen=True, kw_only=True, slots=True)
class MoveNote:
    probabilities: Mapping[str, float]  # UCI move -> the mover's probability; empty if unknown.
    scores: Mapping[str, Score]  # UCI move -> score for the mover; empty if the search failed.

    def chance(self, move: str | None) -> float | None:
        """Return the mover's win probability after a move; None if unknown."""
        return None if move is None or move not in self.scores else win_chance(self.scores[move])

    def best(self) -> str | None:
        """Return the move of highest win probability, or the first of several (every mate counts 1); None if the search failed."""
        return max(self.scores, key=lambda move: win_chance(self.scores[move]), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnnotatedGame:
    why: str  # Rule that chose the game.
    notes: tuple[MoveNote, ...]  # For the position before each move.


def round_number(index: int) -> str:
    """Return the PGN round of a game: index 3 (from 0) is `2.2`, game 2 of pair 2."""
    return f"{index // 2 + 1}.{index % 2 + 1}"


def annotate(result: MatchResult, policies: Policies, pool: EnginePool, *, depth: int) -> dict[int, AnnotatedGame]:
    """Return the highlights with notes, by index of the game. The engine searches every legal move to `depth` plies.

    The engines of `pool` must run with `move_values.engine_options()`. Raises EngineError if too many searches fail.
    """
    games = ((index, result.games[index], why) for index, why in choose_highlights(result).items())
    return {index: AnnotatedGame(why=why, notes=_notes(game, policies, pool, depth=depth)) for index, game, why in games}


def _notes(game: PlayedGame, policies: Policies, pool: EnginePool, *, depth: int) -> tuple[MoveNote, ...]:
    boards = [board.copy() for board in game.boards()][:-1]  # No move follows the final position.
    probabilities: dict[int, Mapping[str, float]] = {}
    for policy, color in zip(game.white_and_black(*policies), (chess.WHITE, chess.BLACK), strict=True):
        plies = [ply for ply, board in enumerate(boards) if board.turn == color]
        by_board = policy([boards[ply] for ply in plies]) if policy is not None and plies else None
        if by_board is not None:
            probabilities.update(zip(plies, by_board, strict=True))
    notes = []
    for ply, table in enumerate(value_tables(boards, pool, depth=depth, num_deep=MAX_LEGAL_MOVES)):
        scores = {} if isinstance(table, EngineError) else dict(zip(table.moves, table.scores, strict=True))
        notes.append(MoveNote(probabilities=probabilities.get(ply, {}), scores=scores))
    return tuple(notes)

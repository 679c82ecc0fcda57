"""Chooses the games of a match that are worth looking at, by results and material."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import chess

from grpo.board.material import material_lead
from grpo.match.matches import MatchResult, PlayedGame

NUM_HIGHLIGHTS: Final = 6


@dataclass(frozen=True, slots=True)
class _Course:
    """Summary of a game. Its leads in material are in pawns and count for the first player."""

    index: int
    score: float
    num_plies: int
    highest: int  # Largest lead; above 0 if the first player led at some ply.
    lowest: int  # Smallest lead; below 0 if the second player led at some ply.

    @property
    def swing(self) -> tuple[int, int]:
        """First the smaller of both players' largest leads, which is above 0 if both led. Then the range of leads, which decides ties."""
        return min(self.highest, -self.lowest), self.highest - self.lowest


_RULES: Final[tuple[tuple[str, Callable[[_Course], bool], Callable[[_Course], tuple[int, ...]]], ...]] = (
    ("biggest swing", lambda game: game.swing[0] > 0, lambda game: game.swing),
    ("shortest win", lambda game: game.score == 1, lambda game: (-game.num_plies,)),
    ("shortest loss", lambda game: game.score == 0, lambda game: (-game.num_plies,)),
    ("drawn with the largest lead", lambda game: game.score == 0.5 and game.highest > 0, lambda game: (game.highest, game.num_plies)),
    ("longest win", lambda game: game.score == 1, lambda game: (game.num_plies,)),
    ("closest", lambda game: game.num_plies > 0, lambda game: (-max(game.highest, -game.lowest), game.num_plies)),
)
"""Rules: name, condition on a game, and measure. A rule chooses the game with the largest measure."""


def choose_highlights(result: MatchResult) -> dict[int, str]:
    """Choose up to `NUM_HIGHLIGHTS` distinct games. Return the index of each game -> name of the rule that chose it.

    Wins, losses and leads are the first player's. Each rule chooses one game; ties go to the earlier game. If rules find no game, the next
    biggest swings fill their places. A lead is a difference in material that lasts two plies, so an exchange in progress does not count.
    """
    # Deterministic players repeat games, so equal games count once.
    distinct: dict[tuple[str, bool, tuple[str, ...]], int] = {}
    for index, game in enumerate(result.games):
        if game.moves:
            distinct.setdefault((game.opening, game.first_is_white, game.moves), index)
    remaining = [_course(index, result.games[index]) for index in distinct.values()]
    chosen: dict[int, str] = {}
    for rule, is_met, measure in (*_RULES, *([("next biggest swing", lambda _: True, lambda game: game.swing)] * NUM_HIGHLIGHTS)):
        candidates = [game for game in remaining if is_met(game)]
        if candidates and len(chosen) < NUM_HIGHLIGHTS:
            best = max(candidates, key=measure)  # `max` returns the first of ties.
            remaining.remove(best)
            chosen[best.index] = rule
    return chosen


def _course(index: int, game: PlayedGame) -> _Course:
    leads = [lead if game.first_is_white else -lead for lead in _leads(game)]
    return _Course(index, game.score, len(game.moves), max(leads), min(leads))


def _leads(game: PlayedGame) -> Iterator[int]:
    """Yield White's lead at each ply: the smaller of the last two differences in material, or 0 if not the same side is ahead in both."""
    leads = (material_lead(board, chess.WHITE) for board in game.boards())
    yield (before := next(leads))
    for now in leads:
        yield min(before, now, key=abs) if before * now > 0 else 0
        before = now

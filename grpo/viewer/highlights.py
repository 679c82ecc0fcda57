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
    """A game's lead in material, in pawns, from the first player's side."""

    index: int
    score: float
    num_plies: int
    highest: int
    lowest: int

    @property
    def swing(self) -> tuple[int, int]:
        """Smaller of both sides' largest leads; for ties, the range from `lowest` to `highest`."""
        return min(self.highest, -self.lowest), self.highest - self.lowest


_RULES: Final[tuple[tuple[str, Callable[[_Course], bool], Callable[[_Course], tuple[int, ...]]], ...]] = (
    ("biggest swing", lambda game: game.swing[0] > 0, lambda game: game.swing),
    ("shortest win", lambda game: game.score == 1, lambda game: (-game.num_plies,)),
    ("shortest loss", lambda game: game.score == 0, lambda game: (-game.num_plies,)),
    ("drawn with the largest lead", lambda game: game.score == 0.5 and game.highest > 0, lambda game: (game.highest, game.num_plies)),
    ("longest win", lambda game: game.score == 1, lambda game: (game.num_plies,)),
    ("closest", lambda game: game.num_plies > 0, lambda game: (-max(game.highest, -game.lowest), game.num_plies)),
)
"""Name, whether the rule may choose a game, and the measure that it maximizes. In a swing both sides led."""


def choose_highlights(result: MatchResult) -> dict[int, str]:
    """Return index -> name of the rule for up to `NUM_HIGHLIGHTS` distinct games; ties go to the earlier game.

    Wins, losses and leads are the first player's. If a rule finds no game, the next biggest swing is added. A lead is a difference in
    material that lasts two plies, so an exchange in progress does not count.
    """
    # Deterministic players repeat games.
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
    """Yield White's lead at each ply: the smaller of this and the previous ply's, 0 if they differ in sign."""
    leads = (material_lead(board, chess.WHITE) for board in game.boards())
    yield (before := next(leads))
    for now in leads:
        yield min(before, now, key=abs) if before * now > 0 else 0
        before = now

"""Chooses the games of a match that are worth looking at."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import chess

from grpo.board.material import material_lead
from grpo.match.matches import MatchResult, PlayedGame

NUM_HIGHLIGHTS: Final = 6


@dataclass(frozen=True, slots=True)
class _Course:
    """Leads in material are in pawns, above 0 if the match's first player is ahead."""

    index: int
    score: float
    num_plies: int
    highest: int
    lowest: int

    @property
    def swing(self) -> tuple[int, int]:
        """Smaller of both players' largest leads (above 0 if both led), and the range of leads."""
        return min(self.highest, -self.lowest), self.highest - self.lowest


_RULES: Final[tuple[tuple[str, Callable[[_Course], bool], Callable[[_Course], tuple[int, ...]]], ...]] = (
    ("biggest swing", lambda game: game.swing[0] > 0, lambda game: game.swing),
    ("shortest win", lambda game: game.score == 1, lambda game: (-game.num_plies,)),
    ("shortest loss", lambda game: game.score == 0, lambda game: (-game.num_plies,)),
    ("drawn with the largest lead", lambda game: game.score == 0.5 and game.highest > 0, lambda game: (game.highest, game.num_plies)),
    ("longest win", lambda game: game.score == 1, lambda game: (game.num_plies,)),
    ("closest", lambda game: game.num_plies > 0, lambda game: (-max(game.highest, -game.lowest), game.num_plies)),
)
"""Name, condition on a game, measure. Each rule, in order, chooses the game with the largest measure."""


def choose_highlights(result: MatchResult) -> dict[int, str]:
    """Choose up to `NUM_HIGHLIGHTS` distinct games with moves. Return index -> name of the rule.

    Wins and leads are the first player's. The next biggest swings take the places of rules without a game.
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
            best = max(candidates, key=measure)
            remaining.remove(best)
            chosen[best.index] = rule
    return chosen


def _course(index: int, game: PlayedGame) -> _Course:
    leads = [lead if game.first_is_white else -lead for lead in _leads(game)]
    return _Course(index, game.score, len(game.moves), max(leads), min(leads))


def _leads(game: PlayedGame) -> Iterator[int]:
    """Yield White's lead at the opening and after each ply, below 0 if Black leads.

    Of the last two differences in material, the one nearer to 0 counts; 0 if the side ahead changed.
    """
    leads = (material_lead(board, chess.WHITE) for board in game.boards())
    yield (before := next(leads))
    for now in leads:  # Two differences, so an exchange in progress does not count.
        yield min(before, now, key=abs) if before * now > 0 else 0
        before = now

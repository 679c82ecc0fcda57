"""Chooses the games of a match that are worth looking at, by rules over results and material; no engine is asked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import chess

from grpo.board.material import material_lead
from grpo.match.matches import MatchResult, PlayedGame

NUM_HIGHLIGHTS: Final = 6


@dataclass(frozen=True, slots=True)
class _Course:
    """The course of one game, in pawns of material, from the first player's side."""

    index: int
    score: float
    num_plies: int
    highest: int
    lowest: int

    @property
    def swing(self) -> tuple[int, int]:
        """The lead that each side had at some time, the smaller of the two; then the whole range."""
        return min(self.highest, -self.lowest), self.highest - self.lowest


_RULES: Final[tuple[tuple[str, Callable[[_Course], bool], Callable[[_Course], tuple[int, ...]]], ...]] = (
    ("biggest swing", lambda game: game.swing[0] > 0, lambda game: game.swing),
    ("shortest win", lambda game: game.score == 1, lambda game: (-game.num_plies,)),
    ("shortest loss", lambda game: game.score == 0, lambda game: (-game.num_plies,)),
    ("drawn with the largest lead", lambda game: game.score == 0.5 and game.highest > 0, lambda game: (game.highest, game.num_plies)),
    ("longest win", lambda game: game.score == 1, lambda game: (game.num_plies,)),
    ("closest", lambda game: game.num_plies > 0, lambda game: (-max(game.highest, -game.lowest), game.num_plies)),
)
"""Name, which games it may choose, and what it maximizes; ties go to the earlier game."""


def choose_highlights(result: MatchResult) -> dict[int, str]:
    """Return up to six distinct games with moves, as index -> the rule that chose it; equal matches give equal choices.

    The rules, all of the match's first player, are: biggest swing (both sides led, by as much as possible), shortest win, shortest loss,
    drawn with the largest lead, longest win, closest game (neither side ever led by much). A rule that no game meets is replaced by the
    next biggest swing. A lead is a difference in material that stood for two plies, so that an exchange in progress does not count.
    """
    # Deterministic players repeat games; one of each is enough.
    distinct: dict[tuple[str, bool, tuple[str, ...]], int] = {}
    for index, game in enumerate(result.games):
        if game.moves:
            distinct.setdefault((game.opening, game.first_is_white, game.moves), index)
    left = [_course(index, result.games[index]) for index in distinct.values()]
    chosen: dict[int, str] = {}
    for why, is_met, measure in (*_RULES, *([("next biggest swing", lambda _: True, lambda game: game.swing)] * NUM_HIGHLIGHTS)):
        fitting = [game for game in left if is_met(game)]
        if fitting and len(chosen) < NUM_HIGHLIGHTS:
            best = max(fitting, key=measure)  # The first of several.
            left.remove(best)
            chosen[best.index] = why
    return chosen


def _course(index: int, game: PlayedGame) -> _Course:
    sign = 1 if game.first_is_white else -1
    leads = [sign * lead for lead in _leads(game)]
    return _Course(index, game.score, len(game.moves), max(leads), min(leads))


def _leads(game: PlayedGame) -> Iterator[int]:
    """Yield White's lead that stood for two plies, 0 where the two differ in sign."""
    leads = (material_lead(board, chess.WHITE) for board in game.boards())
    yield (before := next(leads))
    for now in leads:
        yield min(before, now, key=abs) if before * now > 0 else 0
        before = now

"""Filters of games from files, by their tags; each counts what it drops."""

import re
from collections.abc import Mapping
from typing import Final

from grpo.dataset.pgn import rating
from grpo.settings.tree import GameFilters, TimeControl

# Lichess's classes by estimated duration, base + 40 increments, in seconds: https://lichess.org/faq#time-controls.
_CLASSES: Final = (
    (30, TimeControl.ULTRABULLET),
    (180, TimeControl.BULLET),
    (480, TimeControl.BLITZ),
    (1_500, TimeControl.RAPID),
)
_DAY: Final = 86_400
# `300+3`, `300`, `40/7200`, `40/7200+30`; the first of several periods (`40/7200:3600`).
_PERIOD: Final = re.compile(r"(?:([0-9]{1,4})/)?([0-9]{1,8}(?:\.[0-9]{1,6})?)(?:\+([0-9]{1,8}(?:\.[0-9]{1,6})?))?(?::.*)?")


def dropped_by(headers: Mapping[str, str], filters: GameFilters) -> str | None:
    """Return the first filter that drops a game for its tags, or None; its moves need not be read.

    A game without a known rating of both players has too low a one. A game whose time control is not known passes: many files lack the tag.
    """
    ratings = rating(headers.get("WhiteElo", "")), rating(headers.get("BlackElo", ""))
    if filters.min_rating is not None and any(known is None or known < filters.min_rating for known in ratings):
        return "min_rating"
    found = time_control(headers.get("TimeControl")) if filters.time_controls else None
    return "time_controls" if found is not None and found not in filters.time_controls else None


def time_control(tag: str | None) -> TimeControl | None:
    """Return the class of a TimeControl tag, or None if it is unknown.

    `-` is correspondence, as on Lichess; so is a period of a day or more for one move (`1/86400`, chess.com's daily games). Sandclocks
    (`*60`) have no class.
    """
    text = (tag or "").strip()
    if text == "-":
        return TimeControl.CORRESPONDENCE
    period = _PERIOD.fullmatch(text)
    if period is None:
        return None
    num_moves, base, increment = period.groups()
    if num_moves is not None and int(num_moves) == 1 and float(base) >= _DAY:
        return TimeControl.CORRESPONDENCE
    duration = float(base) + 40 * float(increment or 0)
    if not duration:
        return None  # `0` and `0+0` are not playable, so the tag means something else.
    return next((name for limit, name in _CLASSES if duration < limit), TimeControl.CLASSICAL)

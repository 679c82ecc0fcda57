"""Filters of games and positions from files; each counts what it drops. Only `max_centipawns` is applied elsewhere: it needs the engine."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from grpo.reading.games import Game, Reason, Rejection
from grpo.reading.pgn import PgnGame
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

# Engines that play under their own name, as whole words, with or without a version: `Stockfish 16`, `Stockfish_16`, `lichess AI level 5`.
# Names that people have too (Fritz, Maia, Dragon, Junior) are not listed; titles identify those.
_PROGRAM: Final = re.compile(
    r"(?<![a-z])(?:lichess ai|stockfish|komodo|houdini|rybka|leela chess zero|leela zero|lc0|lczero|alphazero|deep blue|deep fritz"
    r"|deep junior|gnu ?chess|crafty)(?![a-z])"
)
_RATED: Final = re.compile(r"\brated\b", re.IGNORECASE)
_UNRATED: Final = re.compile(r"\b(?:unrated|casual)\b", re.IGNORECASE)


def filtered(pgn_game: PgnGame, filters: GameFilters, dropped_positions: Counter[str]) -> Game | Rejection:
    """Return the game with labels only on positions that pass the filters, or a Rejection with the first filter that drops the game.

    Each dropped position is counted in `dropped_positions` under the first filter that drops it. A game without any position left is
    still returned.
    """
    game = pgn_game.game
    for name, drops in _GAME_FILTERS.items():
        if drops(pgn_game, filters):
            return Rejection(source=game.source, offset=game.offset, reason=Reason.FILTERED, detail=name)
    if filters.first_ply is None and filters.last_ply is None and filters.min_clock_seconds is None:
        return game
    is_label = list(game.is_label)
    for ply, clock in enumerate(pgn_game.clocks):
        dropped_by = _position_filter(ply, clock, filters)
        if is_label[ply] and dropped_by is not None:
            is_label[ply] = False
            dropped_positions[dropped_by] += 1
    return replace(game, is_label=tuple(is_label))


def _position_filter(ply: int, clock: float | None, filters: GameFilters) -> str | None:
    """Return the first filter that drops a position, or None."""
    if filters.first_ply is not None and ply < filters.first_ply:
        return "first_ply"
    if filters.last_ply is not None and ply > filters.last_ply:
        return "last_ply"
    if filters.min_clock_seconds is not None and (clock is None or clock < filters.min_clock_seconds):
        return "min_clock_seconds"
    return None


def is_rated(headers: Mapping[str, str]) -> bool:
    """Return whether a game is rated by its Rated tag, or else by its Event tag (Lichess: `Rated Blitz game`)."""
    tag = headers.get("Rated")
    if tag is not None:
        return tag.strip().lower() in ("true", "1")
    event = headers.get("Event", "")
    return _RATED.search(event) is not None and _UNRATED.search(event) is None


def has_program(headers: Mapping[str, str]) -> bool:
    """Return whether a player is a program by title (BOT), by the WhiteType or BlackType tag, or by name."""
    return any(
        headers.get(f"{color}Title", "").strip().upper() == "BOT"
        or headers.get(f"{color}Type", "").strip().lower() == "program"
        or _PROGRAM.search(headers.get(color, "").lower()) is not None
        for color in ("White", "Black")
    )


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


def _is_rating_too_low(game: Game, least: int | None) -> bool:
    return least is not None and any(rating is None or rating < least for rating in (game.white_rating, game.black_rating))


def _is_rating_too_high(game: Game, most: int | None) -> bool:
    return most is not None and any(rating is None or rating > most for rating in (game.white_rating, game.black_rating))


def _is_gap_too_wide(game: Game, most: int | None) -> bool:
    return most is not None and (
        game.white_rating is None or game.black_rating is None or abs(game.white_rating - game.black_rating) > most
    )


# Filter -> whether it drops a game, in the order of `GameFilters`; the first one that drops a game counts it.
_GAME_FILTERS: Final[Mapping[str, Callable[[PgnGame, GameFilters], bool]]] = {
    "rated_only": lambda pgn, filters: filters.rated_only and not is_rated(pgn.headers),
    "humans_only": lambda pgn, filters: filters.humans_only and has_program(pgn.headers),
    "min_rating": lambda pgn, filters: _is_rating_too_low(pgn.game, filters.min_rating),
    "max_rating": lambda pgn, filters: _is_rating_too_high(pgn.game, filters.max_rating),
    "max_rating_gap": lambda pgn, filters: _is_gap_too_wide(pgn.game, filters.max_rating_gap),
    "time_controls": lambda pgn, filters: (
        bool(filters.time_controls) and time_control(pgn.headers.get("TimeControl")) not in filters.time_controls
    ),
    "terminations": lambda pgn, filters: (
        bool(filters.terminations) and pgn.headers.get("Termination", "").strip().lower() not in filters.terminations
    ),
    "min_plies": lambda pgn, filters: filters.min_plies is not None and len(pgn.game.moves) < filters.min_plies,
}

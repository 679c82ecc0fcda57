"""Filters of games and positions from files; each counts what it drops. Only `max_centipawns` is applied elsewhere: it needs the engine.

A filter drops a game for what its tags say. Sites leave out most tags (Chess.com has no Rated tag, broadcasts no Termination, studies no
ratings), so a game that does not say passes; only an unknown rating is too low, too high and too far, unless `unknown_ratings` keeps it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from grpo.reading.games import Game, Reason, Rejection
from grpo.reading.pgn import PgnGame, rating
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
# Names that people have too (Fritz, Maia, Dragon, Junior) are not listed; titles identify those. Chess.com's bots end in `-BOT`.
_PROGRAM: Final = re.compile(
    r"(?<![a-z])(?:lichess ai|stockfish|komodo|houdini|rybka|leela chess zero|leela zero|lc0|lczero|alphazero|deep blue|deep fritz"
    r"|deep junior|gnu ?chess|crafty)(?![a-z])|-bot\Z"
)
_NOT_RATED: Final = re.compile(r"\b(?:unrated|casual|not rated|non-rated)\b", re.IGNORECASE)
# Chess.com writes a sentence in Termination: "anna won by resignation", "Game drawn by repetition", "boris won on time".
_SENTENCES: Final = (
    (re.compile(r"\babandoned\b"), "abandoned"),
    (re.compile(r"\bwon on time\b|\btimeout\b"), "time forfeit"),
    (re.compile(r"\b(?:won by (?:resignation|checkmate)|drawn by)\b"), "normal"),
)


def dropped_by_tags(headers: Mapping[str, str], filters: GameFilters) -> str | None:
    """Return the first filter that drops a game for its tags, or None; its moves need not be read."""
    return next((name for name, drops in _TAG_FILTERS.items() if drops(headers, filters)), None)


def filtered(pgn_game: PgnGame, filters: GameFilters, dropped_positions: Counter[str]) -> Game | Rejection:
    """Return the game with labels only on positions that pass the filters, or a Rejection with the first filter that drops the game.

    Each dropped position is counted in `dropped_positions` under the first filter that drops it. A game without any position left is
    still returned.
    """
    game = pgn_game.game
    is_too_short = filters.min_plies is not None and len(game.moves) < filters.min_plies
    if name := dropped_by_tags(pgn_game.headers, filters) or ("min_plies" if is_too_short else None):
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
    if filters.min_clock_seconds is not None and clock is not None and clock < filters.min_clock_seconds:
        return "min_clock_seconds"
    return None


def is_unrated(headers: Mapping[str, str]) -> bool:
    """Return whether a game is called unrated or casual: by its Rated tag, or else by its Event tag (Lichess: `Casual Blitz game`)."""
    tag = headers.get("Rated", "").strip().lower()
    if tag in ("true", "1", "yes"):
        return False
    return tag in ("false", "0", "no") or _NOT_RATED.search(headers.get("Event", "")) is not None


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


def termination(tag: str | None) -> str | None:
    """Return how a game ended, in lower case and the words of the PGN standard, or None if the tag does not say.

    >>> termination("Time forfeit"), termination("anna won on time"), termination("?")
    ('time forfeit', 'time forfeit', None)
    """
    text = (tag or "").strip().lower()
    if text in ("", "?", "-"):
        return None
    return next((name for sentence, name in _SENTENCES if sentence.search(text)), text)


def _is_rating_too_low(headers: Mapping[str, str], filters: GameFilters) -> bool:
    return filters.min_rating is not None and any(
        filters.unknown_ratings == "drop" if known is None else known < filters.min_rating for known in _ratings(headers)
    )


def _is_rating_too_high(headers: Mapping[str, str], filters: GameFilters) -> bool:
    return filters.max_rating is not None and any(
        filters.unknown_ratings == "drop" if known is None else known > filters.max_rating for known in _ratings(headers)
    )


def _is_gap_too_wide(headers: Mapping[str, str], filters: GameFilters) -> bool:
    if filters.max_rating_gap is None:
        return False
    white, black = _ratings(headers)
    return filters.unknown_ratings == "drop" if white is None or black is None else abs(white - black) > filters.max_rating_gap


def _ratings(headers: Mapping[str, str]) -> tuple[int | None, int | None]:
    return rating(headers.get("WhiteElo", "")), rating(headers.get("BlackElo", ""))


def _is_other_time_control(headers: Mapping[str, str], filters: GameFilters) -> bool:
    found = time_control(headers.get("TimeControl")) if filters.time_controls else None
    return found is not None and found not in filters.time_controls


def _is_other_termination(headers: Mapping[str, str], filters: GameFilters) -> bool:
    found = termination(headers.get("Termination")) if filters.terminations else None
    return found is not None and found not in filters.terminations


# Filter -> whether it drops a game, in the order of `GameFilters`; the first one that drops a game counts it.
_TAG_FILTERS: Final[Mapping[str, Callable[[Mapping[str, str], GameFilters], bool]]] = {
    "rated_only": lambda headers, filters: filters.rated_only and is_unrated(headers),
    "humans_only": lambda headers, filters: filters.humans_only and has_program(headers),
    "min_rating": _is_rating_too_low,
    "max_rating": _is_rating_too_high,
    "max_rating_gap": _is_gap_too_wide,
    "time_controls": _is_other_time_control,
    "terminations": _is_other_termination,
}

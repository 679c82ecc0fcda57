"""Rules on one row of the table of games."""

import calendar
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from data_checks.rules import JOIN_REMEDY, MADE_BY_OTHER_CODE, GameReading, RowRule, missing_columns, start_fault
from grpo.dataset.engine_games import ENGINE
from grpo.dataset.quotas import split_fractions, split_of_game
from grpo.dataset.table import GAME_SCHEMA, Split
from grpo.settings.tree import BoardsConfig

PGN_RESULTS: Final = ("1-0", "0-1", "1/2-1/2", "*")
_MAX_RATING: Final = 4_000
_ESSENTIAL: Final = tuple(field.name for field in GAME_SCHEMA if not field.nullable)
_DATE: Final = re.compile(r"(\d{4})\.(\d{2}|\?\?)\.(\d{2}|\?\?)", re.ASCII)
_PARSER_REMEDY: Final = "the file's header was misread; look at the game that source and offset name, and make the boards again"


def game_rules(config: BoardsConfig) -> tuple[RowRule[GameReading], ...]:
    """Return the rules, in the order in which to fix violations."""
    return (
        RowRule(
            name="game_complete",
            meaning="Every column of a game that must be filled is filled.",
            remedy="the shard was written by other code or cut short; make its part of the boards again",
            breach=_missing,
        ),
        RowRule(
            name="start_legal",
            meaning="Every game begins with a position that can occur.",
            remedy=_PARSER_REMEDY,
            breach=lambda reading: _said(reading, start_fault(reading.row["start_fen"])) if reading.row["start_fen"] is not None else None,
        ),
        RowRule(
            name="plies_possible",
            meaning="No number of plies is negative; 0 plies has a listed position alone, with one board, nobody's move, and no result.",
            remedy=MADE_BY_OTHER_CODE,
            breach=_impossible_plies,
        ),
        RowRule(
            name="moves_complete",
            meaning="Every game has a move and a key for each ply, and its labels are of plies that it has, in order.",
            remedy=MADE_BY_OTHER_CODE,
            breach=_incomplete_moves,
        ),
        RowRule(
            name="offset_possible",
            meaning="No offset in a source is negative.",
            remedy=MADE_BY_OTHER_CODE,
            breach=_negative_offset,
        ),
        RowRule(
            name="ratings_possible",
            meaning=f"A rating is unknown or within 1 and {_MAX_RATING:,}.",
            remedy=_PARSER_REMEDY,
            breach=_impossible_rating,
        ),
        RowRule(
            name="date_well_formed",
            meaning="A date is unknown or a day of the calendar, YYYY.MM.DD, with ?? for an unknown month or day.",
            remedy=_PARSER_REMEDY,
            breach=_bad_date,
        ),
        RowRule(
            name="game_has_boards",
            meaning="Every game has boards.",
            remedy=JOIN_REMEDY,
            breach=lambda reading: "" if reading.boards is not None else f"{reading.name} has no board",
        ),
        RowRule(
            name="split_as_boards",
            meaning="The boards of a game are in the game's split.",
            remedy=JOIN_REMEDY,
            breach=_other_split,
        ),
        RowRule(
            name="split_as_drawn",
            meaning="Games are in the split that the settings give them, by a hash of the game's id.",
            remedy="the games were split under other settings; make the boards again with these",
            breach=_split_not_as_drawn(config),
        ),
        RowRule(
            name="boards_per_phase",
            meaning=f"At most {config.max_per_game_and_phase} boards of a phase come from one game.",
            remedy="the boards were made with another max_per_game_and_phase, or a part of them is there twice; make them again",
            breach=_too_many_boards(config.max_per_game_and_phase),
        ),
    )


def _said(reading: GameReading, fault: str) -> str:
    return f"{reading.name}: {fault}" if fault else ""


def _missing(reading: GameReading) -> str:
    missing = missing_columns(reading.row, _ESSENTIAL)
    return f"row {reading.row_number} of the games (id {reading.row['game_id']}) has no {missing}" if missing else ""


def _impossible_plies(reading: GameReading) -> str | None:
    row, boards = reading.row, reading.boards
    if row["num_plies"] is None:
        return None
    if row["num_plies"] < 0:
        return f"{reading.name} has {row['num_plies']} plies"
    if row["num_plies"] > 0:
        return ""
    not_listed = [
        f"{name} {row[name]}"
        for name, is_odd in (
            ("source", row["source"] == ENGINE),
            ("result", row["result"] != "*"),
            ("white_rating", row["white_rating"] is not None),
            ("black_rating", row["black_rating"] is not None),
            ("date", row["date"] is not None),
        )
        if is_odd
    ]
    if boards is not None and boards.num_boards > 1:
        not_listed.append(f"{boards.num_boards} boards")
    if boards is not None and boards.labels_from["game"]:
        not_listed.append("labels that were played")
    return f"{reading.name} has 0 plies, and is no listed position: {', '.join(not_listed)}" if not_listed else ""


def _incomplete_moves(reading: GameReading) -> str | None:
    row = reading.row
    num_plies, moves, keys, plies = (row[name] for name in ("num_plies", "moves", "keys", "label_plies"))
    if None in (num_plies, moves, keys, plies) or num_plies <= 0:
        return None
    if not len(moves) == len(keys) == num_plies:
        return f"{reading.name} has {num_plies} plies, {len(moves)} moves and {len(keys)} keys"
    if None in moves or None in keys:
        return f"{reading.name} lacks a move or a key"
    is_rising = all(one < other for one, other in pairwise(plies))
    return _said(reading, "" if is_rising and set(plies) <= set(range(num_plies)) else f"labels at plies {plies} of {num_plies}")


def _negative_offset(reading: GameReading) -> str | None:
    offset = reading.row["offset"]
    return None if offset is None else _said(reading, f"offset {offset}" if offset < 0 else "")


def _impossible_rating(reading: GameReading) -> str:
    ratings = {name: reading.row[name] for name in ("white_rating", "black_rating")}
    bad = [f"{name} {rating}" for name, rating in ratings.items() if rating is not None and not 1 <= rating <= _MAX_RATING]
    return _said(reading, ", ".join(bad))


def _bad_date(reading: GameReading) -> str | None:
    date = reading.row["date"]
    return None if date is None else _said(reading, "" if is_date(date) else f"date {date!r}")


def is_date(text: str) -> bool:
    """Return whether this is a calendar date, in which month and day may be unknown."""
    found = _DATE.fullmatch(text)
    if found is None or found[1] == "0000":
        return False
    year, month, day = found.groups()
    if month != "??" and not 1 <= int(month) <= 12:
        return False
    num_days = 31 if month == "??" else calendar.monthrange(int(year), int(month))[1]
    return day == "??" or 1 <= int(day) <= num_days


def _other_split(reading: GameReading) -> str | None:
    split, boards = reading.row["split"], reading.boards
    if boards is None or split is None:
        return None
    others = sorted(set(boards.splits) - {split})
    return _said(reading, f"of the {split} split, with boards in {', '.join(others)}" if others else "")


def _split_not_as_drawn(config: BoardsConfig) -> Callable[[GameReading], str | None]:
    fractions = split_fractions(config)

    def breach(reading: GameReading) -> str | None:
        split, game_id = reading.row["split"], reading.row["game_id"]
        if game_id is None or split not in tuple(Split):
            return None
        drawn = split_of_game(game_id, fractions)
        return "" if split == drawn else f"{reading.name} is in {split}, and belongs to {drawn}"

    return breach


def _too_many_boards(most: int) -> Callable[[GameReading], str | None]:
    def breach(reading: GameReading) -> str | None:
        if reading.boards is None:
            return None
        found = [f"{count} boards of its {phase}" for phase, count in reading.boards.by_phase.items() if count > most]
        return _said(reading, ", ".join(found))

    return breach

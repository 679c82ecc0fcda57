"""Rules on the position of one row of the table of boards."""

from typing import Final

from data_checks.rules import ENGINE_REMEDY, MADE_BY_OTHER_CODE, REPLAY_REMEDY, BoardReading, RowRule, missing_columns
from grpo.board.encoding import position_key
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BOARD_SCHEMA

_ESSENTIAL: Final = tuple(field.name for field in BOARD_SCHEMA if not field.nullable)


def _missing(reading: BoardReading) -> str:
    missing = missing_columns(reading.row, _ESSENTIAL)
    return f"row {reading.row_number} (FEN {reading.row['fen']}) has no {missing}" if missing else ""


def _illegal_fen(reading: BoardReading) -> str | None:
    return reading.fen_fault


def _wrong_phase(reading: BoardReading) -> str | None:
    stated = reading.row["phase"]
    if reading.board is None or stated not in PHASES:
        return None
    phase = phase_of(reading.board)
    return "" if stated == phase else f"{reading.row['fen']} is stated as {stated} but is {phase}"


def _wrong_key(reading: BoardReading) -> str | None:
    stated = reading.row["key"]
    if reading.board is None or stated is None:
        return None
    key = position_key(reading.board)
    return "" if stated == key else f"{reading.row['fen']} has the key {stated!r} but should have {key!r}"


def _wrong_moves(reading: BoardReading) -> str | None:
    moves, legal = reading.row["moves"], reading.legal_moves
    if legal is None or moves is None:
        return None
    if moves == legal:
        return ""
    illegal = [str(move) for move in moves if move not in legal]
    missing = [move for move in legal if move not in moves]
    if not illegal and not missing:
        return f"{reading.row['fen']}: a move twice, or not in rising order of action id: {', '.join(moves)}"
    return f"{reading.row['fen']}: illegal {', '.join(illegal) or 'none'}; missing {', '.join(missing) or 'none'}"


def _impossible_ply(reading: BoardReading) -> str | None:
    ply, num_plies = reading.row["ply"], reading.num_plies
    if ply is None or num_plies is None or num_plies < 0:
        return None
    if 0 <= ply < max(1, num_plies):
        return ""
    return f"{reading.row['fen']} is stated as ply {ply} of game {reading.row['game_id']}, which has {num_plies}"


BOARD_RULES: Final[tuple[RowRule[BoardReading], ...]] = (
    RowRule(
        name="nothing_missing",
        meaning="Every column that must be filled is filled.",
        remedy="the shard was written by other code or cut short; make its part of the boards again",
        breach=_missing,
    ),
    RowRule(
        name="fen_legal",
        meaning="Every FEN has all six fields and is a position that can occur in a game.",
        remedy="a source holds broken positions; repair or drop the game that the row's source and offset name",
        breach=_illegal_fen,
    ),
    RowRule(
        name="phase_as_stated",
        meaning="The stated phase is the one that the phase rule gives the board.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_wrong_phase,
    ),
    RowRule(
        name="key_as_computed",
        meaning="The key is the board's own, so that looking for duplicates by key finds them.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_wrong_key,
    ),
    RowRule(
        name="moves_legal",
        meaning="The moves are exactly the legal ones, each once, in rising order of action id.",
        remedy=ENGINE_REMEDY,
        breach=_wrong_moves,
    ),
    RowRule(
        name="ply_in_game",
        meaning="The board stands before one of its game's plies; a listed position stands at 0.",
        remedy=REPLAY_REMEDY,
        breach=_impossible_ply,
    ),
)
"""In the order in which to fix violations."""

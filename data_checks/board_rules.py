"""What must hold of one row of the board table, rule by rule, with a sentence for each breach.

A rule answers "" where it holds, a sentence naming the offending value where it is broken, and None where it cannot be looked at because
another rule is broken (no legal moves without a legal FEN), so that one fault is reported once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import chess

from grpo.actions import NUM_ACTIONS, action_move, legal_action_ids
from grpo.boards import BOARD_SCHEMA, Split
from grpo.encoding import position_key
from grpo.phases import PHASES, phase_of

_ESSENTIAL: Final = tuple(field.name for field in BOARD_SCHEMA if not field.nullable)
_NUM_FEN_FIELDS: Final = 6
_NUM_SHOWN: Final = 3
_UCI: Final = {turn: [action_move(index, turn).uci() for index in range(NUM_ACTIONS)] for turn in chess.COLORS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A row with its board, set up once for all rules."""

    row_number: int
    """Counted from 0."""
    row: Mapping[str, Any]
    fen_fault: str | None
    board: chess.Board | None
    """None when the FEN is missing or illegal."""
    legal_moves: list[str] | None
    """UCI, in rising order of action id; None without a board."""

    @classmethod
    def of(cls, row_number: int, row: Mapping[str, Any]) -> Self:
        """Return the reading of a row of `grpo.boards.BOARD_SCHEMA`."""
        board, fen_fault = (None, None) if row["fen"] is None else _read(row["fen"])
        legal_moves = None
        if board is not None:
            uci = _UCI[board.turn]
            legal_moves = [uci[index] for index in legal_action_ids(board)]
        return cls(row_number=row_number, row=row, fen_fault=fen_fault, board=board, legal_moves=legal_moves)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardRule:
    """One thing that must hold of every row."""

    name: str
    meaning: str
    remedy: str
    breach: Callable[[Reading], str | None]
    """See the module's docstring."""


def _read(fen: str) -> tuple[chess.Board | None, str]:
    """Return the board and "", or no board and what is wrong with the FEN."""
    try:
        board = chess.Board(fen)
    except ValueError as error:
        return None, f"{fen!r} is not a FEN: {error}"
    if not board.is_valid():
        return None, f"{fen} cannot occur in a game: {str(board.status().name).lower().replace('_', ' ').replace('|', ', ')}"
    num_fields = len(fen.split())
    if num_fields != _NUM_FEN_FIELDS:
        return None, f"{fen} has {num_fields} of the {_NUM_FEN_FIELDS} fields of a FEN"
    return board, ""


def _missing(reading: Reading) -> str:
    missing = [name for name in _ESSENTIAL if reading.row[name] is None]
    return f"row {reading.row_number} (FEN {reading.row['fen']}) has no {', '.join(missing)}" if missing else ""


def _illegal_fen(reading: Reading) -> str | None:
    return reading.fen_fault


def _wrong_phase(reading: Reading) -> str | None:
    stated = reading.row["phase"]
    if reading.board is None or stated not in PHASES:
        return None
    phase = phase_of(reading.board)
    return "" if stated == phase else f"{reading.row['fen']} is stated as {stated} but is {phase}"


def _wrong_key(reading: Reading) -> str | None:
    stated = reading.row["key"]
    if reading.board is None or stated is None:
        return None
    key = position_key(reading.board)
    return "" if stated == key else f"{reading.row['fen']} has the key {stated!r} but should have {key!r}"


def _wrong_moves(reading: Reading) -> str | None:
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


def _illegal_label(reading: Reading) -> str | None:
    label, legal = reading.row["move_played"], reading.legal_moves
    if legal is None or label is None:
        return None
    return "" if label in legal else f"{reading.row['fen']}: the label {label} is not a legal move"


def _wrong_count(column: str) -> Callable[[Reading], str | None]:
    def breach(reading: Reading) -> str | None:
        values, legal = reading.row[column], reading.legal_moves
        if legal is None or values is None:
            return None
        return "" if len(values) == len(legal) else f"{reading.row['fen']}: {len(values)} {column} for {len(legal)} legal moves"

    return breach


def _not_probability(column: str) -> Callable[[Reading], str | None]:
    def breach(reading: Reading) -> str | None:
        values: Sequence[float | None] | None = reading.row[column]
        if values is None:
            return None
        # NaN is in no range, so that it needs no test of its own.
        bad = [f"{column}[{index}] = {value}" for index, value in enumerate(values) if value is None or not 0 <= value <= 1]
        if not bad:
            return ""
        more = f" and {len(bad) - _NUM_SHOWN} more" if len(bad) > _NUM_SHOWN else ""
        return f"{reading.row['fen']}: {', '.join(bad[:_NUM_SHOWN])}{more}"

    return breach


def _misplaced_strong_values(reading: Reading) -> str | None:
    split, has_strong = reading.row["split"], reading.row["strong_values"] is not None
    if split not in tuple(Split):
        return None
    if has_strong == (split == Split.HELDOUT):
        return ""
    return f"{reading.row['fen']}: a board of the {split} split {'with' if has_strong else 'without'} strong_values"


_ENGINE_REMEDY: Final = "the engine's answers were cut short or mixed up; make the boards again from an empty store, and look at the engine"
MADE_BY_OTHER_CODE: Final = "the boards were made by another version of the code or changed by hand; make them again from an empty store"

BOARD_RULES: Final = (
    BoardRule(
        name="nothing_missing",
        meaning="Every column that must be filled is filled.",
        remedy="the shard was written by other code or cut short; make its part of the boards again",
        breach=_missing,
    ),
    BoardRule(
        name="fen_legal",
        meaning="Every FEN has all six fields and is a position that can occur in a game.",
        remedy="a source holds broken positions; repair or drop the game that the row's source and offset name",
        breach=_illegal_fen,
    ),
    BoardRule(
        name="phase_as_stated",
        meaning="The stated phase is the one that the phase rule gives the board.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_wrong_phase,
    ),
    BoardRule(
        name="key_as_computed",
        meaning="The key is the board's own, so that looking for duplicates by key finds them.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_wrong_key,
    ),
    BoardRule(
        name="moves_legal",
        meaning="The moves are exactly the legal ones, each once, in rising order of action id.",
        remedy=_ENGINE_REMEDY,
        breach=_wrong_moves,
    ),
    BoardRule(
        name="label_legal",
        meaning="The move that was played, the label of imitation, is legal.",
        remedy="a game was replayed from the wrong start; repair or drop the game that the row's source and offset name",
        breach=_illegal_label,
    ),
    BoardRule(
        name="values_complete",
        meaning="There is one value for each legal move.",
        remedy=_ENGINE_REMEDY,
        breach=_wrong_count("values"),
    ),
    BoardRule(
        name="values_in_range",
        meaning="Every value is a number within [0, 1], a win probability.",
        remedy=_ENGINE_REMEDY,
        breach=_not_probability("values"),
    ),
    BoardRule(
        name="strong_values_on_heldout",
        meaning="Held-out boards, and no others, have values by the evaluation's stronger search.",
        remedy=MADE_BY_OTHER_CODE,
        breach=_misplaced_strong_values,
    ),
    BoardRule(
        name="strong_values_complete",
        meaning="Where there are strong values, there is one for each legal move.",
        remedy=_ENGINE_REMEDY,
        breach=_wrong_count("strong_values"),
    ),
    BoardRule(
        name="strong_values_in_range",
        meaning="Every strong value is a number within [0, 1], a win probability.",
        remedy=_ENGINE_REMEDY,
        breach=_not_probability("strong_values"),
    ),
)
"""In the order in which a reader should mend them."""

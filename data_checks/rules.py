"""Row rules: the type of a rule on one row, the parsed rows that rules get, and shared remedies."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, Self, TypeVar

import chess

from grpo.board.actions import ACTION_UCI, legal_action_ids
from grpo.engine.answers import Score

_NUM_FEN_FIELDS: Final = 6
TableRow = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardReading:
    """A row of the table of boards, parsed once for all rules."""

    row_number: int
    """Counted from 0."""
    row: TableRow
    """Row of `grpo.dataset.table.BOARD_SCHEMA`."""
    fen_fault: str | None
    """What is wrong with the FEN: "" if it is valid, None if there is none."""
    board: chess.Board | None
    """None if the FEN is missing or invalid."""
    legal_moves: list[str] | None
    """UCI, in ascending order of action id; None without a board."""
    values: list[float] | None
    """One in [0, 1] for each legal move; None if the row's values are invalid."""
    scores: list[Score] | None
    """One for each legal move; None if the row's scores are invalid."""
    num_plies: int | None
    """Plies of the row's game; None if the game is not in the table of games."""

    @classmethod
    def of(cls, row_number: int, row: TableRow, num_plies: int | None = None) -> Self:
        """Parse a row."""
        board, fen_fault = (None, None) if row["fen"] is None else read_board(row["fen"])
        legal_moves = None
        if board is not None:
            uci = ACTION_UCI[board.turn]
            legal_moves = [uci[index] for index in legal_action_ids(board)]
        return cls(
            row_number=row_number,
            row=row,
            fen_fault=fen_fault,
            board=board,
            legal_moves=legal_moves,
            values=_values(row, legal_moves),
            scores=_scores(row, legal_moves),
            num_plies=num_plies,
        )


@dataclass(slots=True)
class BoardsOfGame:
    """Counts of one game's boards in the table of boards."""

    splits: Counter[str]
    labels_from: Counter[str]
    by_phase: Counter[str]

    @property
    def num_boards(self) -> int:
        """Total number of boards."""
        return self.by_phase.total()


@dataclass(frozen=True, kw_only=True, slots=True)
class GameReading:
    """A row of the table of games, with the counts of its boards."""

    row_number: int
    """Counted from 0."""
    row: TableRow
    """Row of `grpo.dataset.table.GAME_SCHEMA`."""
    boards: BoardsOfGame | None
    """None if the game has no board."""

    @property
    def name(self) -> str:
        """The game's name in messages."""
        return f"game {self.row['game_id']} ({self.row['source']} at {self.row['offset']})"


R = TypeVar("R", BoardReading, GameReading)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowRule(Generic[R]):
    """A rule that must hold for every row."""

    name: str
    meaning: str
    remedy: str
    breach: Callable[[R], str | None]
    """Returns a sentence with the offending value if the rule is violated, and "" if it holds.

    It returns None if the rule cannot be checked because another rule is violated (no legal moves without a valid FEN), so that one fault
    is reported once.
    """


def read_board(fen: str) -> tuple[chess.Board | None, str]:
    """Return the board and "", or None and what is wrong with the FEN."""
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


@lru_cache(maxsize=1_024)
def start_fault(fen: str) -> str:
    """Return what is wrong with the FEN of a game's first position, or ""; cached, because most games share it."""
    return read_board(fen)[1]


def missing_columns(row: TableRow, essential: tuple[str, ...]) -> str:
    """Return the names of the essential columns without a value, or ""."""
    return ", ".join(name for name in essential if row[name] is None)


def _values(row: TableRow, legal_moves: list[str] | None) -> list[float] | None:
    values: list[float] | None = row["values"]
    if values is None or legal_moves is None or row["moves"] != legal_moves or len(values) != len(legal_moves):
        return None
    return values if all(value is not None and 0 <= value <= 1 for value in values) else None


def _scores(row: TableRow, legal_moves: list[str] | None) -> list[Score] | None:
    columns = [row["centipawns"], row["mate_in"], row["expected"]]
    if legal_moves is None or any(column is None or len(column) != len(legal_moves) for column in columns):
        return None
    if any((centipawns is None) == (mate_in is None) for centipawns, mate_in in zip(*columns[:2], strict=True)):
        return None
    return [
        Score(centipawns, expected=expected) if mate_in is None else Score(mate_in, is_mate=True, expected=expected)
        for centipawns, mate_in, expected in zip(*columns, strict=True)
    ]


MADE_BY_OTHER_CODE: Final = "the boards were made by another version of the code or changed by hand; make them again from an empty store"
ENGINE_REMEDY: Final = "the engine's answers were cut short or mixed up; make the boards again from an empty store, and look at the engine"
REPLAY_REMEDY: Final = "a game was replayed from the wrong start; repair or drop the game that the row's source and offset name"
JOIN_REMEDY: Final = "parts of the boards were put together without dropping what they share; join them again"

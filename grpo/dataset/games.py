"""Data types of the parsers: a game with the board before each move, and a rejection with its reason."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import chess

from grpo.base.errors import PlainError

_MAX_DETAIL: Final = 120


class SourceError(PlainError, ValueError):
    """A source cannot be read or has too few boards; the message says how to mend it."""


class Reason(StrEnum):
    """Reasons to reject a game or listed position; every rejection is counted."""

    NOT_A_GAME = "not a game"  # Text outside any game.
    ILLEGAL_POSITION = "illegal position"  # The position cannot occur in standard chess.
    VARIANT = "variant"  # Another variant of chess; the detail names the variant.
    ILLEGAL_MOVE = "illegal move"  # A move is illegal or unreadable.
    NO_MOVES = "no moves"  # The detail is the FEN tag, "" without a tag.
    TOO_LONG = "too long"  # A line or game above `MAX_LINE`.
    DUPLICATE = "duplicate"  # The same game was read before.
    ENGINE_FAILURE = "engine failure"
    GAME_OVER = "game over"  # The listed position is checkmate, stalemate or drawn by rule.
    NOT_AN_EXERCISE = "not an exercise"  # A row of a puzzle table, or a line of a test suite, that is no exercise.
    FILTERED = "filtered"  # A filter of the settings drops the game; the detail names the filter.


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Rejected game or list entry."""

    source: str  # See `Game.source`.
    offset: int  # See `Game.offset`.
    reason: Reason
    detail: str = ""  # Explanation, or the name of a filter or variant.

    def __str__(self) -> str:
        location = f"game {self.offset + 1:,}" if ".pgn" in self.source.lower() else f"byte {self.offset:,}"
        return f"{self.source}, {location}: {self.reason} ({self.detail[:_MAX_DETAIL]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """A game; a listed position is a game without moves."""

    game_id: str  # Hash of players, date, site, start and moves, independent of the file.
    source: str  # `engine`, or the file's name.
    offset: int  # Number of the game in the file or among engine games, from 0; byte offset of the line for a list.
    boards: tuple[chess.Board, ...]  # Board before each move, without move stack; a listed position alone.
    moves: tuple[chess.Move, ...]  # One move per board; none for a listed position.
    is_label: tuple[bool, ...]  # True for each board whose move may become a label (no random move).
    result: str = "*"  # `1-0`, `0-1`, `1/2-1/2` or `*`.
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None  # `YYYY.MM.DD`, with `??` for an unknown month or day.


def standard_board(fen: str) -> chess.Board:
    """Return the board of a FEN. Raises ValueError for a bad FEN, or a position that cannot occur in standard chess."""
    board = chess.Board(fen)
    if not board.is_valid():
        raise ValueError(f"{board.status().name} in {fen}")
    return board

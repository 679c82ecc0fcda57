"""Data types of the parsers: a game with the board before each move, and a rejection with its reason."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import chess

from grpo.base.errors import PlainError

_MAX_DETAIL: Final = 120


class SourceError(PlainError, ValueError):
    """A source cannot be read, or has too few boards; the message says where, why and what to change."""


class Reason(StrEnum):
    """Why a game or a listed position is rejected; every rejection is counted."""

    NOT_A_GAME = "not a game"
    """Text outside any game."""
    ILLEGAL_POSITION = "illegal position"
    """A start, or a listed entry, that cannot occur in standard chess."""
    VARIANT = "variant"
    """A game of a variant of chess; the detail names it."""
    ILLEGAL_MOVE = "illegal move"
    """Or one that cannot be read."""
    NO_MOVES = "no moves"
    """The detail is the start position, if it is one of the game's own."""
    TOO_LONG = "too long"
    """A line or a game longer than any real one."""
    DUPLICATE = "duplicate"
    """The same game was read before."""
    ENGINE_FAILURE = "engine failure"
    GAME_OVER = "game over"
    """A listed position that is checkmate, stalemate or drawn by rule."""
    NOT_AN_EXERCISE = "not an exercise"
    """A row of a table of puzzles, or a line of a suite of tests."""
    FILTERED = "filtered"
    """Excluded by a filter of the settings; the detail names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A rejected game or list entry."""

    source: str
    """Name of the file, as in `Game.source`."""
    offset: int
    """Number of the game in the file, the first being 0; for a list, byte offset of the line."""
    reason: Reason
    detail: str = ""
    """The text found; for `FILTERED` and `VARIANT`, the name of filter or variant."""

    def __str__(self) -> str:
        place = f"game {self.offset + 1:,}" if ".pgn" in self.source.lower() else f"byte {self.offset:,}"
        return f"{self.source}, {place}: {self.reason} ({self.detail[:_MAX_DETAIL]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """The moves of one game, the board before each, and which moves may become labels; a listed position is a game without moves."""

    game_id: str
    """A hash of players, date, start and moves, independent of the file."""
    source: str
    """`engine`, or the file's name."""
    offset: int
    """Number of the game in the file or among engine games, the first being 0; for a list, byte offset of the line."""
    boards: tuple[chess.Board, ...]
    """Before each move, without move stacks; for a listed position, that position alone."""
    moves: tuple[chess.Move, ...]
    """One per board; none for a listed position."""
    is_label: tuple[bool, ...]
    """For each board, whether it may be used: its move was not random."""
    result: str = "*"
    """`1-0`, `0-1`, `1/2-1/2` or `*`."""
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None
    """`YYYY.MM.DD`, with `??` for an unknown month or day."""


def standard_board(fen: str) -> chess.Board:
    """Return the board of a FEN. Raises ValueError if it is none, or a position that cannot occur in a game of standard chess."""
    board = chess.Board(fen)
    if not board.is_valid():
        raise ValueError(f"{board.status().name} in {fen}")
    return board

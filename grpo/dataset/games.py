"""Results of the parsers: games, and rejections (games or lines that are unusable).

A listed position (a line of an .epd or .fen file) is a game without moves.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import chess

from grpo.base.errors import PlainError

ENGINE: Final = "engine"  # `Game.source` of engine games.
_MAX_DETAIL: Final = 120


class SourceError(PlainError, ValueError):
    """A source cannot be read or has too few boards."""


class Reason(StrEnum):
    NOT_A_GAME = "not a game"  # Text outside any game.
    ILLEGAL_POSITION = "illegal position"  # Impossible in standard chess.
    VARIANT = "variant"  # The detail names the chess variant.
    ILLEGAL_MOVE = "illegal move"  # An illegal or unreadable move.
    NO_MOVES = "no moves"  # A game without moves. The detail is the FEN tag, or "".
    TOO_LONG = "too long"  # A line or game of more than 1 MiB.
    DUPLICATE = "duplicate"  # A game that was read before.
    ENGINE_FAILURE = "engine failure"
    GAME_OVER = "game over"  # A listed position that is checkmate, stalemate, or a draw by material or half-move clock.
    NOT_AN_EXERCISE = "not an exercise"  # A row of a puzzle table or a line of a test suite from which no exercise can be made.
    FILTERED = "filtered"  # The detail names the setting that rejects the game: `min_rating` or `time_controls`.


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A rejected game or line. `source` and `offset` have the meaning that they have in `Game`."""

    source: str
    offset: int
    reason: Reason
    detail: str = ""  # Explanation, or what the comment of the reason says.

    def __str__(self) -> str:
        is_numbered = self.source == ENGINE or ".pgn" in self.source.lower()
        location = f"game {self.offset + 1:,}" if is_numbered else f"byte {self.offset:,}"
        return f"{self.source}, {location}: {self.reason} ({self.detail[:_MAX_DETAIL]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    game_id: str  # Hash of players, date, site, start and moves; the same in every file.
    source: str  # `engine`, or the file's name.
    offset: int  # Number of the game, from 0, in its file or among its unit's engine games. Listed position: byte offset of its line.
    boards: tuple[chess.Board, ...]  # Board before each move, without move stack. Listed position: the position alone.
    moves: tuple[chess.Move, ...]  # One per board; none for a listed position.
    is_label: tuple[bool, ...]  # Per board: whether the board may be selected and its move imitated. False for random moves.
    result: str = "*"  # `1-0`, `0-1`, `1/2-1/2` or `*`.
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None  # `YYYY.MM.DD`, with `??` for an unknown month or day.


def standard_board(fen: str) -> chess.Board:
    """Return the board of a FEN. Raises ValueError unless standard chess allows the position."""
    board = chess.Board(fen)
    if not board.is_valid():
        raise ValueError(f"{board.status().name} in {fen}")
    return board

"""Results of the parsers: games, and rejections of unusable games or lines.

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
    NOT_A_GAME = "not a game"
    ILLEGAL_POSITION = "illegal position"
    VARIANT = "variant"  # Detail: the variant's name.
    ILLEGAL_MOVE = "illegal move"  # Or unreadable.
    NO_MOVES = "no moves"  # Detail: the FEN tag, or "".
    TOO_LONG = "too long"  # A line or game of more than 1 MiB.
    DUPLICATE = "duplicate"
    ENGINE_FAILURE = "engine failure"
    GAME_OVER = "game over"  # Listed position: checkmate, stalemate, or a draw by material.
    DRAWN_BY_CLOCK = "drawn by its half-move clock"  # Listed position. Detail: the FEN.
    NOT_AN_EXERCISE = "not an exercise"  # An unusable puzzle or test position for `chess-grpo solve`.
    FILTERED = "filtered"  # Detail: the setting that rejects the game, `min_rating` or `time_controls`.


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """`source` and `offset` are as in `Game`."""

    source: str
    offset: int
    reason: Reason
    detail: str = ""  # See `Reason`; otherwise an explanation.

    def __str__(self) -> str:
        is_numbered = self.source == ENGINE or ".pgn" in self.source.lower()
        location = f"game {self.offset + 1:,}" if is_numbered else f"byte {self.offset:,}"
        return f"{self.source}, {location}: {self.reason} ({self.detail[:_MAX_DETAIL]})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    game_id: str
    source: str  # `engine`, or the file's name.
    offset: int  # Game: number from 0 in its file or unit. Listed position: byte offset of its line.
    boards: tuple[chess.Board, ...]  # Board before each move, without move stack. Listed position: the position alone.
    moves: tuple[chess.Move, ...]  # One per board; none for a listed position.
    is_label: tuple[bool, ...]  # Per board: False before an engine game's random move. Only other boards are selected and imitated.
    result: str = "*"  # `1-0`, `0-1`, `1/2-1/2` or `*`.
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None  # `YYYY.MM.DD`, with `??` for unknown parts.


def standard_board(fen: str) -> chess.Board:
    """Raises ValueError if standard chess does not allow the position."""
    board = chess.Board(fen)
    if not board.is_valid():
        raise ValueError(f"{board.status().name} in {fen}")
    return board

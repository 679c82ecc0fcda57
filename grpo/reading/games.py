"""A game with the board before each of its moves, and the reasons for which a game, or an entry of a list, is left out."""

from dataclasses import dataclass
from enum import StrEnum

import chess

from grpo.base.errors import PlainError


class SourceError(PlainError, ValueError):
    """A source cannot be read, or cannot give the boards that were asked for; the message says where, why, and what to change."""


class Reason(StrEnum):
    """Why a game or a listed position is not used. Each is counted; none is left out in silence."""

    NOT_A_GAME = "not a game"
    """Text outside of any game."""
    TOO_LONG = "too long"
    """More bytes, a longer token, deeper variations or more plies than any real game has."""
    NUL_BYTES = "NUL bytes"
    UNREADABLE_TAG = "unreadable tag"
    VARIANT = "variant"
    CHESS960 = "Chess960"
    IMPOSSIBLE_START = "impossible start position"
    UNREADABLE_MOVE = "unreadable move"
    """A token that is no move, comment, variation, glyph, number or result."""
    ILLEGAL_MOVE = "illegal move"
    AMBIGUOUS_MOVE = "ambiguous move"
    NULL_MOVE = "null move"
    UNCLOSED_COMMENT = "unclosed comment"
    UNBALANCED_VARIATION = "unbalanced variation"
    TEXT_AFTER_RESULT = "text after the result"
    NO_MOVES = "no moves"
    UNKNOWN_RESULT = "unknown result"
    CONTRADICTING_RESULTS = "result in the tag against result after the moves"
    RESULT_AGAINST_BOARD = "result against the board"
    """Checkmate, stalemate or bare kings on the board, and a result that they exclude."""
    DUPLICATE = "duplicate"
    """The same game was met before."""
    NO_DATE = "no date"
    """Only when splits are drawn by date."""
    ENGINE_FAILURE = "engine failure"
    ILLEGAL_POSITION = "illegal position"
    """An entry of a list that is no FEN, or that cannot occur in a game."""
    GAME_OVER = "game over"
    """A listed position in which nobody can move, or that is drawn by the rules."""
    FILTERED = "filtered"
    """Left out by a filter that the settings ask for; the detail names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """A game, or an entry of a list, that is left out."""

    source: str
    """Name of the file, as in `Game.source`."""
    offset: int
    """Byte of the (unpacked) file at which it begins."""
    reason: Reason
    detail: str = ""
    """What exactly was found, at most 120 characters; for `FILTERED`, the filter's name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """The moves of one game, the board before each, and which of them may become labels. A listed position is a game without moves."""

    game_id: str
    """A hash of players, date, start and moves: the same wherever the game is found."""
    source: str
    """`engine`, `endgame`, or the file's name."""
    offset: int
    """Of the game in its source: bytes in the unpacked file, the game's number among engine games."""
    boards: tuple[chess.Board, ...]
    """Before each move, without move stacks; for a listed position, that position alone."""
    moves: tuple[chess.Move, ...]
    """As many as boards; none for a listed position."""
    is_label: tuple[bool, ...]
    """For each board, whether it may be used: its move was meant (not random), and no filter leaves it out."""
    result: str = "*"
    """`1-0`, `0-1`, `1/2-1/2` or `*`."""
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None
    """`YYYY.MM.DD`, with `??` for what is not known."""

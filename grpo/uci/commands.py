"""The two UCI commands with a grammar of their own: `position`, which is taken whole or refused, and `go`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import chess

_LONGEST_QUOTE: Final = 60
_LONGEST_FEN: Final = 128  # 64 squares, 7 slashes, 4 fields and clocks; Python's integers have no limit of their own.
_WITH_A_NUMBER: Final = frozenset({"wtime", "btime", "winc", "binc", "movestogo", "depth", "nodes", "mate", "movetime"})


class PositionError(ValueError):
    """A `position` command does not give a position of standard chess; the message is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoCommand:
    """What a `go` asks that matters to an engine that takes a few milliseconds whatever its limits are."""

    is_infinite: bool
    """Whether the best move is told only after `stop`."""
    is_pondering: bool
    """Whether it is told only after `stop` or `ponderhit`."""
    search_moves: frozenset[str]
    """In UCI; empty for no restriction."""


def read_position(words: Sequence[str]) -> chess.Board:
    """Return the board that the words after `position` describe, with its history.

    Raises PositionError for a FEN that is none or is impossible, and for an illegal move, of which it names the first.
    """
    start, moves = _split_at(words, "moves")
    match start[:1]:
        case ["startpos"] if len(start) == 1:
            board = chess.Board()
        case ["fen"]:
            board = _read_fen(" ".join(start[1:]))
        case _:
            raise PositionError("position: write `position startpos` or `position fen FEN`, and then `moves ...`")
    for number, text in enumerate(moves, start=1):
        board.push(_read_move(board, text, number))
    return board


def read_go(words: Sequence[str]) -> GoCommand:
    """Return what the words after `go` ask; unknown words and broken numbers change nothing."""
    before, after = _split_at(words, "searchmoves")
    others = [word for word in after if _is_keyword(word)]
    first = after.index(others[0]) if others else len(after)
    flags = {*before, *after[first:]}
    return GoCommand(is_infinite="infinite" in flags, is_pondering="ponder" in flags, search_moves=frozenset(after[:first]))


def ascii_quoted(text: str) -> str:
    """Return a piece of what was received as it can be repeated in one line of ASCII."""
    return ascii(text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}...")


def _is_keyword(word: str) -> bool:
    return word in _WITH_A_NUMBER or word in ("infinite", "ponder", "searchmoves")


def _split_at(words: Sequence[str], keyword: str) -> tuple[list[str], list[str]]:
    at = words.index(keyword) if keyword in words else len(words)
    return list(words[:at]), list(words[at + 1 :])


def _read_fen(fen: str) -> chess.Board:
    if len(fen) > _LONGEST_FEN:
        raise PositionError(f"not a FEN: {len(fen)} characters long")
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise PositionError(f"not a FEN: {ascii_quoted(str(error))}") from None
    if not board.is_valid():
        is_chess960 = chess.Board(fen, chess960=True).is_valid()
        reason = "castling of Chess960, which is not supported" if is_chess960 else str(board.status().name)
        raise PositionError(f"impossible position ({reason}): {ascii_quoted(fen)}")
    return board


def _read_move(board: chess.Board, text: str, number: int) -> chess.Move:
    try:
        move = chess.Move.from_uci(text)
    except ValueError:
        move = chess.Move.null()
    # For python-chess castling as king-takes-rook is legal too: only programs that play Chess960 mean it.
    if move not in board.legal_moves or board.uci(move) != text:
        raise PositionError(f"move {number}, {ascii_quoted(text)}, is illegal in {board.fen()}")
    return move

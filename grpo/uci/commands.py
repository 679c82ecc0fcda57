"""Parsers of the UCI commands `position`, which is accepted as a whole or refused, and `go`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import chess

_LONGEST_QUOTE: Final = 60
_LONGEST_FEN: Final = (
    128  # 64 squares, 7 slashes, 4 fields and clocks; limits the digits of the clocks, since Python's integers are unbounded.
)
_WITH_A_NUMBER: Final = frozenset({"wtime", "btime", "winc", "binc", "movestogo", "depth", "nodes", "mate", "movetime"})


class PositionError(ValueError):
    """A `position` command does not give a position of standard chess; the message is one line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GoCommand:
    """The parts of `go` that matter to an engine that answers in a few milliseconds, whatever the limits."""

    is_infinite: bool
    """Whether `bestmove` is sent only after `stop`."""
    is_pondering: bool
    """Whether `bestmove` is sent only after `stop` or `ponderhit`."""
    search_moves: frozenset[str]
    """Moves to choose among, in UCI; empty for no restriction."""


def read_position(words: Sequence[str]) -> chess.Board:
    """Return the board, with its history, for the arguments of `position`.

    Raises PositionError for an invalid or impossible FEN, and for an illegal move; it names the first one.
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
    """Return the parsed arguments of `go`; unknown words and invalid numbers are ignored."""
    before, after = _split_at(words, "searchmoves")
    others = [word for word in after if _is_keyword(word)]
    first = after.index(others[0]) if others else len(after)
    flags = {*before, *after[first:]}
    return GoCommand(is_infinite="infinite" in flags, is_pondering="ponder" in flags, search_moves=frozenset(after[:first]))


def ascii_quoted(text: str) -> str:
    """Return received text as a short quote in one line of ASCII."""
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
    # python-chess also accepts castling as king-takes-rook, which is Chess960 notation.
    if move not in board.legal_moves or board.uci(move) != text:
        raise PositionError(f"move {number}, {ascii_quoted(text)}, is illegal in {board.fen()}")
    return move

"""Parsers of position lists with one position per line (EPD, FEN), and of Lichess's puzzle table (CSV)."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeVar

import chess

from grpo.base.files import sha256_text
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, position_key
from grpo.dataset.games import MAX_DETAIL, Game, Reason, Rejection, SourceError

MAX_LINE_SIZE: Final = 2**16
"""In bytes; far above any real FEN, EPD or puzzle."""
_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"\r\n|\n|\r(?!\Z)")  # The next chunk decides whether a final \r is part of \r\n.
_CLOCKS: Final = re.compile(r"(\d+)(?:\s+(\d+))?(?=[\s;]|\Z)")
_QUOTED: Final = re.compile(r'"[^"]*"')
_OPERATION: Final = re.compile(r"([A-Za-z]\w*)\s*(.*)")

_Parsed = TypeVar("_Parsed")


def read_positions(chunks: Iterable[bytes], source: str, *, is_mine: Callable[[int], bool] = lambda _: True) -> Iterator[Game | Rejection]:
    """Yield each line's position as a game without moves, or a Rejection; skip blank lines and `#` comments.

    A line is a FEN of 4 to 6 fields or an EPD. The EPD operations `hmvc` and `fmvn` set the clocks; a missing half-move clock is 0, and a
    missing move number is 1. The caller drops duplicates: `game_id` is a hash of the position without its clocks.

    Args:
        chunks: The decompressed bytes, split anywhere.
        source: Name of the file.
        is_mine: Whether to read the entry with this number; the first is 0. Other entries are skipped.
    """
    number = -1
    for offset, line in lines(chunks):
        if line.lstrip().startswith(b"#") or (not line.strip() and len(line) <= MAX_LINE_SIZE):
            continue
        number += 1
        if not is_mine(number):
            continue
        found = read_line(line)
        if isinstance(found, chess.Board):
            game_id = sha256_text(f"position/{position_key(found)}")[:20]
            yield Game(game_id=game_id, source=source, offset=offset, boards=(found,), moves=(), is_label=(True,))
        else:
            reason, detail = found
            yield Rejection(source=source, offset=offset, reason=reason, detail=detail[:MAX_DETAIL])


def read_puzzles(chunks: Iterable[bytes], source: str) -> Iterator[chess.Board | Rejection]:
    """Yield the positions of each puzzle (before the opponent's first move, and each one with the solver to move), or a Rejection.

    Raises SourceError for a header without the columns `FEN` and `Moves`.
    """
    for number, offset, found in puzzle_rows(chunks, source, ("FEN", "Moves"), _puzzle_boards):
        if isinstance(found, Exception):
            detail = f"line {number}: not a puzzle: {found}"
            yield Rejection(source=source, offset=offset, reason=Reason.ILLEGAL_POSITION, detail=detail[:MAX_DETAIL])
        else:
            yield from found


def puzzle_rows(
    chunks: Iterable[bytes], source: str, names: Sequence[str], parse: Callable[..., _Parsed]
) -> Iterator[tuple[int, int, _Parsed | Exception]]:
    """Yield line number (the first is 1), byte offset, and the parsed puzzle or what is wrong with it, for each row of Lichess's table.

    Args:
        chunks: The decompressed bytes, split anywhere.
        source: Name of the file.
        names: The columns that are needed, in any order in the table; others are ignored.
        parse: Takes their cells, in the order of `names`; a ValueError says why the row is no puzzle.

    Raises SourceError if there is no header with all of these columns.
    """
    columns: list[int] | None = None
    for number, (offset, line) in enumerate(lines(chunks), start=1):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE_SIZE:
                raise ValueError(f"longer than {MAX_LINE_SIZE:,} bytes")
            (cells,) = csv.reader([line.decode()], strict=True)
            if columns is None:
                columns = [cells.index(name) for name in names]
                continue
            if len(cells) <= max(columns):
                raise ValueError(f"only {len(cells)} cells")
            found: _Parsed | Exception = parse(*(cells[column] for column in columns))
        except (ValueError, csv.Error) as error:
            if columns is None:
                raise SourceError(
                    f"{source}: its first line is no header of a puzzle table, with columns {', '.join(names)}:"
                    f" {str(error)[:MAX_DETAIL]}; download it again from https://database.lichess.org"
                ) from error
            found = error
        yield number, offset, found
    if columns is None:
        raise SourceError(f"{source}: no header and no puzzle in it; download it again from https://database.lichess.org")


def _puzzle_boards(fen: str, moves: str) -> list[chess.Board]:
    board = chess.Board(fen)
    if not board.is_valid():
        raise ValueError(f"impossible position ({board.status().name})")
    if not moves.split():
        raise ValueError("no moves")
    boards = [board.copy(stack=False)]
    for ply, text in enumerate(moves.split()):
        move = board.parse_uci(text)
        if not move:
            raise ValueError("null move")
        board.push(move)
        if ply % 2 == 0:
            boards.append(board.copy(stack=False))
    return boards


def read_line(line: bytes) -> chess.Board | tuple[Reason, str]:
    """Return the board of one line, or the reason and the detail of its rejection."""
    if len(line) > MAX_LINE_SIZE:
        return Reason.TOO_LONG, f"a line of more than {MAX_LINE_SIZE:,} bytes"
    if b"\0" in line:
        return Reason.NUL_BYTES, ""
    # Split as bytes, so that only ASCII white space separates; Latin-1 decodes any byte, and only an id can contain more than ASCII.
    *position, rest = (field.decode("latin-1") for field in (*line.split(None, 4), b"")[:5])
    try:
        halfmove_clock, fullmove_number = _clocks(rest)
        fen = f"{' '.join(position)} {halfmove_clock} {fullmove_number}"
        board = chess.Board(fen)
    except ValueError as error:
        return Reason.ILLEGAL_POSITION, str(error)
    if not board.is_valid():
        if chess.Board(fen, chess960=True).is_valid():
            return Reason.CHESS960, f"castling rights {position[2]} in {position[0]}"
        return Reason.ILLEGAL_POSITION, str(board.status().name)
    if board.halfmove_clock >= MAX_HALFMOVE_CLOCK:
        return Reason.GAME_OVER, f"half-move clock {board.halfmove_clock}"
    if board.is_insufficient_material():
        return Reason.GAME_OVER, "insufficient material"
    if not any(board.legal_moves):
        return Reason.GAME_OVER, "checkmate" if board.is_check() else "stalemate"
    return board


def _clocks(rest: str) -> tuple[str, str]:
    """Return half-move clock and full-move number from the text after the four fields of the position.

    Raises ValueError if that text is neither clocks nor EPD operations.
    """
    clocks = {"hmvc": "0", "fmvn": "1"}
    if numbers := _CLOCKS.match(rest):
        clocks = {"hmvc": numbers[1], "fmvn": numbers[2] or clocks["fmvn"]}
        rest = rest[numbers.end() :]
    for text in filter(None, map(str.strip, _QUOTED.sub('""', rest).split(";"))):
        operation = _OPERATION.fullmatch(text)
        if operation is None:
            raise ValueError(f"neither clocks nor an EPD operation after the position: {text}")
        if operation[1] in clocks:
            if not operation[2].isdecimal():
                raise ValueError(f"no number: {text}")
            clocks[operation[1]] = operation[2]
    return clocks["hmvc"], clocks["fmvn"]


def lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset of each line in the decompressed file, and the line.

    It has neither its line end nor a byte order mark, and no NUL bytes at its end.

    A line longer than `MAX_LINE_SIZE` is truncated to bound memory, but is still longer than `MAX_LINE_SIZE`.
    """
    offset, rest, num_dropped = 0, b"", 0
    for chunk in chain(chunks, (b"\n",)):  # The last line may lack a line end.
        text, start = rest + chunk, 0
        for end in _LINE_END.finditer(text):
            line = text[start : end.start()]
            if line.endswith(b"\0") and len(line) <= MAX_LINE_SIZE:  # Some public suites pad their lines.
                line = line.rstrip(b"\0 \t")
            yield offset, line.removeprefix(_BOM) if offset == 0 else line
            offset += end.end() - start + num_dropped
            start, num_dropped = end.end(), 0
        rest = text[start:]
        if len(rest) > MAX_LINE_SIZE + 2:
            num_dropped += len(rest) - MAX_LINE_SIZE - 2
            rest = rest[: MAX_LINE_SIZE + 1] + rest[-1:]  # The last byte may be a \r that ends the line.

"""Parsers of position lists with one position per line (EPD, FEN), and of Lichess's puzzle table (CSV)."""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final, TypeVar

import chess

from grpo.base.files import sha256_text
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, position_key
from grpo.dataset.games import MAX_DETAIL, Game, Reason, Rejection, SourceError

MAX_LINE_SIZE: Final = 2**16
"""In bytes; far above any real FEN, EPD or puzzle."""
_CLOCKS: Final = re.compile(r"(\d+)(?:\s+(\d+))?(?=[\s;]|\Z)")
_QUOTED: Final = re.compile(r'"[^"]*"')
_CLOCK_OPERATION: Final = re.compile(r"(?:^|;)\s*(hmvc|fmvn)\s+(\d+)\s*(?=;|$)")

_Parsed = TypeVar("_Parsed")


def lines(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield byte offset and text of each line that is neither blank nor a `#` comment.

    White space, NUL bytes (some public suites pad their lines) and a byte order mark around it are left out. A line longer than
    `MAX_LINE_SIZE` is truncated to bound memory, but is still longer than `MAX_LINE_SIZE`.
    """
    end = 0
    while line := stream.readline(MAX_LINE_SIZE + 1):
        offset, rest = end, line
        end += len(rest)
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(MAX_LINE_SIZE)
            end += len(rest)
        text = line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n\0")
        if text and not text.startswith(b"#"):
            yield offset, text


def read_positions(stream: BinaryIO, source: str, *, is_mine: Callable[[int], bool] = lambda _: True) -> Iterator[Game | Rejection]:
    """Yield each line's position as a game without moves, or a Rejection.

    A line is a FEN of 4 to 6 fields or an EPD. The EPD operations `hmvc` and `fmvn` set the clocks; a missing half-move clock is 0, and a
    missing move number is 1. The caller drops duplicates: `game_id` is a hash of the position without its clocks.

    Args:
        stream: The decompressed bytes.
        source: Name of the file.
        is_mine: Whether to read the entry with this number; the first is 0. Other entries are skipped.
    """
    for number, (offset, line) in enumerate(lines(stream)):
        if not is_mine(number):
            continue
        found = read_line(line)
        if isinstance(found, chess.Board):
            game_id = sha256_text(f"position/{position_key(found)}")[:20]
            yield Game(game_id=game_id, source=source, offset=offset, boards=(found,), moves=(), is_label=(True,))
        else:
            reason, detail = found
            yield Rejection(source=source, offset=offset, reason=reason, detail=detail[:MAX_DETAIL])


def read_puzzles(stream: BinaryIO, source: str) -> Iterator[chess.Board | Rejection]:
    """Yield the positions of each puzzle (before the opponent's first move, and each one with the solver to move), or a Rejection.

    Raises SourceError for a header without the columns `FEN` and `Moves`.
    """
    for number, found in puzzle_rows(stream, source, ("FEN", "Moves"), puzzle_positions):
        if isinstance(found, Exception):
            yield Rejection(source=source, offset=number, reason=Reason.ILLEGAL_POSITION, detail=f"not a puzzle: {found}"[:MAX_DETAIL])
        else:
            yield found[0][0]
            yield from (board for board, _ in found[1::2])


def puzzle_rows(
    stream: BinaryIO, source: str, names: Sequence[str], parse: Callable[..., _Parsed]
) -> Iterator[tuple[int, _Parsed | Exception]]:
    """Yield byte offset, and the parsed puzzle or what is wrong with it, for each row of Lichess's table.

    Args:
        stream: The decompressed bytes.
        source: Name of the file.
        names: The columns that are needed, in any order in the table; others are ignored.
        parse: Takes their cells, in the order of `names`; a ValueError says why the row is no puzzle.

    Raises SourceError if there is no header with all of these columns.
    """
    columns: list[int] | None = None
    for offset, line in lines(stream):
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
                break
            found = error
        yield offset, found
    if columns is None:
        raise SourceError(
            f"{source}: it does not begin with the header of a puzzle table, with columns {', '.join(names)}; download it again from"
            " https://database.lichess.org"
        )


def puzzle_positions(fen: str, moves: str) -> list[tuple[chess.Board, chess.Move]]:
    """Return the position before each move of a puzzle, and the move; the first one is the opponent's.

    Raises ValueError if the moves are not those of a solution.
    """
    board = chess.Board(fen.strip())
    if not board.is_valid():
        raise ValueError(f"impossible position ({board.status().name})")
    positions = []
    for text in moves.split():
        move = board.parse_uci(text)
        if not move:
            raise ValueError("a null move")
        positions.append((board.copy(stack=False), move))
        board.push(move)
    if not positions or len(positions) % 2:
        raise ValueError(f"the solution does not end with a move of the solver: {moves!r}")
    return positions


def read_line(line: bytes) -> chess.Board | tuple[Reason, str]:
    """Return the board of one line, or the reason and the detail of its rejection."""
    if len(line) > MAX_LINE_SIZE:
        return Reason.TOO_LONG, f"a line of more than {MAX_LINE_SIZE:,} bytes"
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
    """Return half-move clock and full-move number from the text after the four fields of the position."""
    numbers = _CLOCKS.match(rest)
    clocks = {"hmvc": numbers[1] if numbers else "0", "fmvn": (numbers and numbers[2]) or "1"}
    clocks |= dict(_CLOCK_OPERATION.findall(_QUOTED.sub("", rest)))
    return clocks["hmvc"], clocks["fmvn"]

"""Parsers of position lists (an EPD or FEN per line) and of Lichess's puzzle table (CSV).

EPD is the first four of the six fields of a FEN (a position's text), then operations, such as `bm Nf3;`.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

import chess

from grpo.base.files import sha256_text
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, position_key
from grpo.dataset.games import Game, Reason, Rejection, SourceError, standard_board
from grpo.dataset.streams import MAX_LINE, lines_of

_CLOCKS: Final = re.compile(r"(\d+)(?:\s+(\d+))?(?=[\s;]|\Z)")  # Half-move clock and move number of a FEN.
_CLOCK_OPERATION: Final = re.compile(r"(?:^|;)\s*(hmvc|fmvn)\s+(\d+)\s*(?=;|$)")


def lines(stream: BinaryIO, source: str) -> Iterator[tuple[int, bytes] | Rejection]:
    """Yield byte offset and stripped text of each line, or a Rejection of a too long line. Skips blank lines and `#` comments."""
    for offset, line in lines_of(stream):
        text = line.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n\0")
        if len(line) > MAX_LINE:
            yield Rejection(source=source, offset=offset, reason=Reason.TOO_LONG, detail=f"a line of more than {MAX_LINE:,} bytes")
        elif text and not text.startswith(b"#"):
            yield offset, text


def read_positions(stream: BinaryIO, source: str, *, is_mine: Callable[[int], bool] = lambda _: True) -> Iterator[Game | Rejection]:
    """Yield each line's position (a FEN of 4 to 6 fields, or EPD) as a game without moves, or a Rejection.

    EPD's `hmvc` sets the half-move clock (default 0), `fmvn` the move number (default 1). Lines are numbered from 0, without blank lines
    and comments; lines for which `is_mine` is False are skipped.
    """
    for number, entry in enumerate(lines(stream, source)):
        if not is_mine(number):
            continue
        if isinstance(entry, Rejection):
            yield entry
            continue
        offset, line = entry
        result = read_line(line)
        if isinstance(result, chess.Board):
            game_id = sha256_text(f"position/{position_key(result)}")[:20]
            yield Game(game_id=game_id, source=source, offset=offset, boards=(result,), moves=(), is_label=(True,))
        else:
            reason, detail = result
            yield Rejection(source=source, offset=offset, reason=reason, detail=detail)


def read_puzzles(stream: BinaryIO, source: str) -> Iterator[chess.Board | Rejection]:
    """Yield each puzzle's positions: before the opponent's first move, then before each move of the solver.

    Raises SourceError if the stream is not a puzzle table.
    """
    for entry in puzzle_rows(stream, source, ("FEN", "Moves")):
        if isinstance(entry, Rejection):
            yield entry
            continue
        offset, row = entry
        try:
            positions = puzzle_positions(row["FEN"], row["Moves"])
        except ValueError as error:
            yield Rejection(source=source, offset=offset, reason=Reason.ILLEGAL_POSITION, detail=f"not a puzzle: {error}")
        else:
            yield positions[0][0]
            yield from (board for board, _ in positions[1::2])  # The solver moves at odd indices.


def puzzle_rows(stream: BinaryIO, source: str, names: Sequence[str]) -> Iterator[tuple[int, dict[str, str]] | Rejection]:
    """Yield byte offset and cells of each row: column -> text, "" if missing. Raises SourceError if a column of `names` is missing."""
    rows = lines(stream, source)
    header = next(rows, None)
    columns = [] if header is None or isinstance(header, Rejection) else _cells(header[1])
    if not set(names) <= set(columns):
        raise SourceError(
            f"{source}: the first line is not the header of a puzzle table, with columns {', '.join(names)}; download it again from"
            " https://database.lichess.org"
        )
    for row in rows:
        if isinstance(row, Rejection):
            yield row
        else:
            yield row[0], dict.fromkeys(columns, "") | dict(zip(columns, _cells(row[1]), strict=False))


def _cells(line: bytes) -> list[str]:
    return line.decode("utf-8", "replace").split(",")


def puzzle_positions(fen: str, moves: str) -> list[tuple[chess.Board, chess.Move]]:
    """Return the board before each move, and the move. The opponent makes the first move, the solver the last.

    `moves` is UCI (`e2e4 e7e5`). Raises ValueError for an illegal position or move, or an incomplete solution.
    """
    board = standard_board(fen)
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
    """Return the board of a FEN or EPD, or reason and detail of the rejection."""
    # Split before decoding: `str.split` would also split at 0xA0, a part of some UTF-8 letters. Latin-1 decodes any byte.
    *position, operations = (field.decode("latin-1") for field in (*line.split(None, 4), b"")[:5])
    match = _CLOCKS.match(operations)
    clocks = {"hmvc": match[1] if match else "0", "fmvn": (match and match[2]) or "1"} | dict(_CLOCK_OPERATION.findall(operations))
    try:
        board = standard_board(f"{' '.join(position)} {clocks['hmvc']} {clocks['fmvn']}")
    except ValueError as error:
        return Reason.ILLEGAL_POSITION, str(error)
    if board.halfmove_clock >= MAX_HALFMOVE_CLOCK:
        return Reason.DRAWN_BY_CLOCK, board.fen()
    if board.is_insufficient_material():
        return Reason.GAME_OVER, "insufficient material"
    if not any(board.legal_moves):
        return Reason.GAME_OVER, "checkmate" if board.is_check() else "stalemate"
    return board

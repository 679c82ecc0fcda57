"""Positions that must stay out of the dataset, because policies are measured on them: puzzles, test suites, opening books."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final

import chess

from grpo.board.encoding import position_key
from grpo.dataset.epd import read_positions, read_puzzles
from grpo.dataset.games import Game, Reason, Rejection, SourceError
from grpo.dataset.pgn import read_games
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened

# Entries rejected for these reasons have no position in which a policy must move.
_HARMLESS: Final = frozenset({Reason.GAME_OVER, Reason.NOT_A_GAME})
_MAX_NAMED: Final = 20  # In the error.


def excluded_positions(patterns: Sequence[str]) -> frozenset[str]:
    """Return the `position_key` of each position in the files that `patterns` match.

    Raises SourceError if a file or an entry cannot be read.
    """
    bad: list[str] = []
    keys = frozenset(position_key(board) for file in find_files(patterns) for board in _boards(file, bad))
    if bad:
        raise SourceError(
            f"boards.exclude: {len(bad):,} entries cannot be read, so their positions would not be excluded; fix or remove them. The first:"
            + "".join(f"\n  {entry}" for entry in bad[:_MAX_NAMED])
        )
    return keys


def _boards(file: SourceFile, bad: list[str]) -> Iterator[chess.Board]:
    readers: Mapping[FileKind, Callable[[BinaryIO, str], Iterator[chess.Board | Game | Rejection]]]
    readers = {FileKind.PUZZLES: read_puzzles, FileKind.GAMES: read_games, FileKind.POSITIONS: read_positions}
    with opened(file) as stream:
        for entry in readers[file.kind](stream, file.name):
            if isinstance(entry, chess.Board):
                yield entry
            elif isinstance(entry, Game):
                yield from entry.boards
                if entry.moves:
                    # Games with this opening start after its last move, in a position that `boards` leaves out.
                    last = entry.boards[-1].copy(stack=False)
                    last.push(entry.moves[-1])
                    yield last
            elif entry.reason == Reason.NO_MOVES:  # Tags without moves. `detail` is the FEN; empty for the usual start.
                yield chess.Board(entry.detail or chess.STARTING_FEN)
            elif entry.reason == Reason.DRAWN_BY_CLOCK:  # With a lower half-move clock, the position could be in the dataset.
                yield chess.Board(entry.detail)
            elif entry.reason not in _HARMLESS:
                bad.append(str(entry))

"""Excluded positions: evaluation's puzzles, suites and opening books, which must not become boards of the dataset."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final

import chess

from grpo.board.encoding import position_key
from grpo.dataset.epd import read_positions, read_puzzles
from grpo.dataset.games import Game, Reason, Rejection, SourceError
from grpo.dataset.pgn import read_games
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened

# Entries with these reasons contain no position to exclude.
_HARMLESS: Final = frozenset({Reason.GAME_OVER, Reason.NOT_A_GAME})
_MAX_NAMED: Final = 20


def excluded_positions(patterns: Sequence[str]) -> frozenset[str]:
    """Return the `position_key` of each position in files that match the patterns (see `streams.find_files`).

    Puzzles contribute the positions that `read_puzzles` yields. Raises SourceError, which names the first bad entries, if any file or entry
    cannot be read: a skipped entry could leak an evaluation position into training.
    """
    bad: list[str] = []
    keys = frozenset(position_key(board) for file in find_files(patterns) for board in _boards(file, bad))
    if bad:
        raise SourceError(
            f"boards.exclude: {len(bad):,} entries cannot be read, so their positions may get into the dataset; fix or remove them, such as"
            + "".join(f"\n  {each}" for each in bad[:_MAX_NAMED])
        )
    return keys


def _boards(file: SourceFile, bad: list[str]) -> Iterator[chess.Board]:
    """Yield the positions of a file, and append its unreadable entries to `bad`."""
    readers: Mapping[FileKind, Callable[[BinaryIO, str], Iterator[chess.Board | Game | Rejection]]]
    readers = {FileKind.PUZZLES: read_puzzles, FileKind.GAMES: read_games, FileKind.POSITIONS: read_positions}
    with opened(file) as stream:
        for entry in readers[file.kind](stream, file.name):
            if isinstance(entry, chess.Board):
                yield entry
            elif isinstance(entry, Game):
                yield from entry.boards
                if entry.moves:
                    # The position after the last move counts too, because matches start there if the game is a book's line.
                    last = entry.boards[-1].copy(stack=False)
                    last.push(entry.moves[-1])
                    yield last
            elif entry.reason == Reason.NO_MOVES:  # A chapter of a study: text alone, or a problem (`detail` is its FEN).
                yield chess.Board(entry.detail or chess.STARTING_FEN)
            elif entry.reason not in _HARMLESS:
                bad.append(str(entry))

"""Excluded positions: puzzles, suites and books of the evaluation, which must not become boards of the dataset."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Self

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.board.encoding import position_key
from grpo.dataset.epd import read_positions, read_puzzles
from grpo.dataset.games import Game, Reason, Rejection, SourceError
from grpo.dataset.pgn import read_games
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened

# Entries rejected for these reasons contain no position that needs to be excluded.
_HARMLESS: Final = frozenset({Reason.GAME_OVER, Reason.NOT_A_GAME})
_MAX_NAMED: Final = 20
_LINE: Final = "\n  "


class ExcludedPositions:
    """A set of evaluation positions by `position_key`; 8 bytes of hash are stored for each, so that millions fit into memory.

    There are no false negatives; the probability of a false positive is n / 2**64 for n positions.
    """

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        self._hashes = hashes
        """Sorted, each once, shape [len(self)]."""

    @classmethod
    def read(cls, patterns: Sequence[str]) -> Self:
        """Read the files that the patterns match (see `grpo.dataset.streams.find_files`); without a pattern the set is empty.

        All positions of lists and games count, and those of puzzles that `read_puzzles` yields.

        Raises SourceError if a file, or an entry of one, cannot be read, so that no evaluation position is missed; it names all of them.
        """
        bad: list[str] = []
        hashes = array("Q", (_hash(position_key(board)) for file in find_files(patterns) for board in _boards(file, bad)))
        if bad:
            raise SourceError(
                f"boards.exclude: {len(bad):,} entries cannot be read, so that their positions could not be kept out of the dataset; fix or"
                f" remove them, these first:{''.join(_LINE + each for each in bad[:_MAX_NAMED])}"
            )
        return cls(np.unique(np.frombuffer(hashes, dtype=np.uint64)))

    def __contains__(self, key: object) -> bool:
        """Return whether the position with this `position_key` is excluded."""
        assert isinstance(key, str)
        key_hash = np.uint64(_hash(key))
        index = int(np.searchsorted(self._hashes, key_hash))
        return index < len(self._hashes) and bool(self._hashes[index] == key_hash)

    def __len__(self) -> int:
        return len(self._hashes)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def _boards(file: SourceFile, bad: list[str]) -> Iterator[chess.Board]:
    """Yield the positions of a file, and add its entries that cannot be read to `bad`."""
    with opened(file) as stream:
        entries: Iterator[chess.Board | Game | Rejection]
        if file.kind == FileKind.PUZZLES:
            entries = read_puzzles(stream, file.name)
        elif file.kind == FileKind.GAMES:
            entries = read_games(stream, file.name)
        else:
            entries = read_positions(stream, file.name)
        for entry in entries:
            if isinstance(entry, chess.Board):
                yield entry
            elif isinstance(entry, Game):
                yield from entry.boards
                if entry.moves:
                    # Include the final position: a match starts from the position after the last move of a book's line.
                    last = entry.boards[-1].copy(stack=False)
                    last.push(entry.moves[-1])
                    yield last
            elif entry.reason == Reason.NO_MOVES:  # Chapters of a study: of text alone, or of a problem.
                yield chess.Board(entry.detail or chess.STARTING_FEN)
            elif entry.reason not in _HARMLESS:
                bad.append(f"{file.uri}, {entry.place}: {entry.reason} ({entry.detail})")

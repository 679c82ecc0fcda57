"""What the policy will be judged by, as a set of positions that no board may be."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Self

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.board.encoding import position_key
from grpo.reading.epd import read_positions, read_puzzles
from grpo.reading.games import Game, Reason, Rejection, SourceError
from grpo.reading.streams import FileKind, SourceFile, find_files, fingerprint_of_all, read_chunks

# What is left out for these reasons holds no position that is not met elsewhere, or that anybody could be asked about.
_HARMLESS: Final = frozenset({Reason.GAME_OVER, Reason.DUPLICATE})


class JudgedPositions:
    """Positions, by `position_key`, that judge the policy; of each 8 bytes of a hash are kept, so that millions fit into memory.

    One of n judged positions is taken for an unjudged one never; an unjudged one for a judged one by a chance of n / 2**64.
    """

    def __init__(self, hashes: NDArray[np.uint64], fingerprint: str) -> None:
        self._hashes = hashes
        """Sorted, each once, shape [len(self)]."""
        self.fingerprint = fingerprint
        """A hash of the files' contents, whatever their order and their names."""

    @classmethod
    def read(cls, patterns: Sequence[str]) -> Self:
        """Read the files that the patterns stand for (see `grpo.reading.streams.find_files`); no pattern, no position.

        Of lists each position counts, of puzzles those of `read_puzzles`, of games each position from the start to the end.

        Raises SourceError when a file, or an entry of one, cannot be read: a judge that is misread judges nothing.
        """
        files = find_files(patterns)
        hashes = array("Q", (_hash(position_key(board)) for file in files for board in _boards(file)))
        return cls(np.unique(np.frombuffer(hashes, dtype=np.uint64)), fingerprint_of_all(files))

    def __contains__(self, key: object) -> bool:
        """Return whether this `position_key` is that of a judged position."""
        assert isinstance(key, str)
        wanted = np.uint64(_hash(key))
        place = int(np.searchsorted(self._hashes, wanted))
        return place < len(self._hashes) and bool(self._hashes[place] == wanted)

    def __len__(self) -> int:
        return len(self._hashes)


def _hash(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def _boards(file: SourceFile) -> Iterator[chess.Board]:
    chunks = read_chunks(file)
    if file.kind == FileKind.PUZZLES:
        yield from read_puzzles(chunks, file.name)
        return
    for entry in _games(file, chunks) if file.kind == FileKind.GAMES else read_positions(chunks, file.name):
        if isinstance(entry, Game):
            yield from entry.boards
            if entry.moves:
                # What an opening book is about is the position at which its lines end.
                last = entry.boards[-1].copy(stack=False)
                last.push(entry.moves[-1])
                yield last
        elif entry.reason not in _HARMLESS:
            raise SourceError(
                f"{file.name}, byte {entry.offset:,}: {entry.reason} ({entry.detail}); mend or remove this entry of {file.uri}:"
                " what is judged by it cannot be kept apart"
            )


def _games(file: SourceFile, chunks: Iterator[bytes]) -> Iterator[Game | Rejection]:
    from grpo.reading.pgn import read_games

    return read_games(chunks, file.name)

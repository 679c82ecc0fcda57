"""Files of games, positions and puzzles that were packed in all ways and damaged at random are read, or named in a plain error."""

import bz2
import gzip
import io
import random
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import pytest
import zstandard
from made_games import random_pgn

from grpo.base.errors import PlainError
from grpo.dataset.epd import read_positions, read_puzzles
from grpo.dataset.pgn import read_games
from grpo.dataset.streams import FileKind, find_files, opened

PUZZLE = "p,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1798\n"
CONTENTS: Final = {
    "pgn": random_pgn(2, max_plies=30).encode(),
    "epd": b"8/pp2nkR1/5n1p/3p4/5p2/P2BP3/1PPKN3/8 b - - bm e4;\n" * 20,
    "csv": f"PuzzleId,FEN,Moves,Rating\n{PUZZLE * 10}".encode(),
}
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
STREAMS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
READERS: Final[Mapping[FileKind, Callable[[BinaryIO, str], Iterator[Any]]]] = {
    FileKind.GAMES: read_games,
    FileKind.POSITIONS: read_positions,
    FileKind.PUZZLES: read_puzzles,
}


def zipped(kind: str, method: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name in ("a", "b"):
            archive.writestr(f"{name}.{kind}", CONTENTS[kind])
    return packed.getvalue()


WHOLE: Final = (
    [(f"x.{kind}", content) for kind, content in CONTENTS.items()]
    + [(f"x.{kind}.{suffix}", pack(content)) for kind, content in CONTENTS.items() for suffix, pack in STREAMS.items()]
    + [(f"x.{kind}.zip", zipped(kind, method)) for kind in CONTENTS for method in METHODS]
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with some flipped, replaced, left out or put in, or cut short, often near the end, where a ZIP has its directory."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        at = rng.randrange(max(0, len(found) - rng.choice([150, len(found)])), len(found))
        match rng.randrange(9):
            case 0 | 1:
                found[at] ^= 1 << rng.randrange(8)
            case 2 | 3:
                found[at] = rng.choice(b'\x00\xff\n\r{[;"')
            case 4 | 5:
                del found[at : at + rng.choice([1, 4, 50])]
            case 6 | 7:
                found[at:at] = rng.randbytes(rng.choice([1, 4, 50]))
            case _:
                del found[at + 1 :]
        found = found or bytearray(b"\n")
    return bytes(found)


def read_all(path: Path) -> int:
    """Return the number of entries, of which there is none that is no game, position or rejection."""
    count = 0
    for file in find_files([str(path)]):
        with opened(file) as stream:
            count += sum(1 for _ in READERS[file.kind](stream, file.name))
    return count


@pytest.mark.parametrize("num_files", [150, pytest.param(2_000, marks=pytest.mark.prove)])
def test_damaged_files_are_read_or_told_in_plain_words(num_files: int, tmp_path: Path) -> None:
    rng, num_read, told = random.Random(num_files), 0, list[tuple[str, str]]()
    for number in range(num_files):
        name, whole = WHOLE[number % len(WHOLE)]
        (path := tmp_path / name).write_bytes(damaged(whole, rng))
        try:
            num_read += read_all(path) >= 0
        except PlainError as error:
            told.append((name, str(error)))
    assert num_read > num_files // 10
    assert len(told) > num_files // 10
    assert all(name in message for name, message in told)
    assert {path.name for path in tmp_path.iterdir()} <= {name for name, _ in WHOLE}, "nothing is unpacked to a file"


class Endless(io.RawIOBase):
    """So many bytes of one line, made as they are read."""

    def __init__(self, begin: bytes, size: int) -> None:
        self._begin, self._left = begin, size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self._left)
        text = (self._begin + b"x" * len(buffer))[:count]
        self._begin, self._left = self._begin[count:], self._left - count
        buffer[:count] = text
        return count


@pytest.mark.parametrize(
    ("kind", "begin"),
    [
        (FileKind.GAMES, b'[Event "e"]\n\n1. e4 {'),
        (FileKind.GAMES, b'[White "'),
        (FileKind.POSITIONS, b"8/pp2nkR1/5n1p/3p4/5p2/P2BP3/1PPKN3/8 b - - id "),
        (FileKind.PUZZLES, b"PuzzleId,FEN,Moves\np,"),
    ],
)
def test_a_line_of_64_megabytes_takes_little_memory(kind: FileKind, begin: bytes) -> None:
    tracemalloc.start()
    try:
        [rejection] = READERS[kind](io.BufferedReader(Endless(begin, 1 << 26), 1 << 20), "x")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rejection.reason == "too long"
    assert peak < 32 * 2**20

"""The files of a dataset, read in turns of one game each."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from grpo.dataset.filters import dropped_by
from grpo.reading.epd import read_positions
from grpo.reading.games import Game, Rejection, SourceError
from grpo.reading.pgn import SeenGames, read_games
from grpo.reading.streams import FileKind, SourceFile, find_files, read_chunks
from grpo.settings.tree import BoardsConfig

_MAX_OPEN: Final = 24
"""Files that are open at once: each needs some MiB, and a connection if it is remote."""


def file_games(config: BoardsConfig, *, unit: int) -> Iterator[Game | Rejection]:
    """Yield the usable games and listed positions of the unit's part of all files, and a Rejection for each unusable one.

    Raises SourceError if a file cannot be read, is damaged, or has another content than its name says.
    """
    seen = SeenGames()

    def is_mine(digest: bytes) -> bool:
        return int.from_bytes(digest[:8], "big") % config.num_units == unit

    def entries(file: SourceFile) -> Iterator[Game | Rejection]:
        chunks = read_chunks(file)
        if file.kind == FileKind.GAMES:
            filters = config.filters
            return read_games(chunks, file.name, is_mine=is_mine, seen=seen, dropped_by=lambda headers: dropped_by(headers, filters))
        return read_positions(chunks, file.name, is_mine=is_mine)

    files = find_files(config.files)
    for file in files:
        if file.kind == FileKind.PUZZLES:
            raise SourceError(
                f"{file.uri}: a .csv is read as a table of puzzles, which measure a policy: give it to boards.exclude, or to `chess-grpo"
                " solve`; boards.files takes games (.pgn) and lists of positions, one FEN a line and nothing before it (.epd, .fen)"
            )
    waiting = map(entries, files)
    turns = deque(entry for _, entry in zip(range(_MAX_OPEN), waiting, strict=False))
    while turns:
        reading = turns.popleft()
        if (entry := next(reading, None)) is not None:
            yield entry
            turns.append(reading)
        elif (following := next(waiting, None)) is not None:
            turns.append(following)

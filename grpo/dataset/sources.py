"""The files of a dataset, read in turns of one game each."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from grpo.dataset.epd import read_positions
from grpo.dataset.filters import dropped_by
from grpo.dataset.games import Game, Reason, Rejection, SourceError
from grpo.dataset.pgn import read_games
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened
from grpo.settings.tree import BoardsConfig

_MAX_OPEN: Final = 24
"""Files that are open at once: each needs some MiB, and a connection if it is remote."""


def file_games(config: BoardsConfig, *, unit: int) -> Iterator[Game | Rejection]:
    """Yield the usable games and listed positions of the unit's part of all files, and a Rejection for each unusable one.

    Raises SourceError if a file cannot be read, is damaged, or has another content than its name says.
    """
    files = find_files(config.files)
    for file in files:
        if file.kind == FileKind.PUZZLES:
            raise SourceError(
                f"{file.uri}: a .csv is read as a table of puzzles, which measure a policy: give it to boards.exclude, or to `chess-grpo"
                " solve`; boards.files takes games (.pgn) and lists of positions, one FEN a line and nothing before it (.epd, .fen)"
            )
    seen: set[str] = set()
    for entry in _in_turns(_entries(file, place, unit, config) for place, file in enumerate(files)):
        if isinstance(entry, Game) and entry.game_id in seen:
            yield Rejection(source=entry.source, offset=entry.offset, reason=Reason.DUPLICATE)
            continue
        if isinstance(entry, Game):
            seen.add(entry.game_id)
        yield entry


def _entries(file: SourceFile, place: int, unit: int, config: BoardsConfig) -> Iterator[Game | Rejection]:
    """Yield the unit's part of a file; units begin with different games of different files, since a file may have a single one."""

    def is_mine(number: int) -> bool:
        return (number + place) % config.num_units == unit

    with opened(file) as stream:
        if file.kind == FileKind.POSITIONS:
            yield from read_positions(stream, file.name, is_mine=is_mine)
        else:
            yield from read_games(stream, file.name, is_mine=is_mine, dropped_by=lambda headers: dropped_by(headers, config.filters))


def _in_turns(files: Iterator[Iterator[Game | Rejection]]) -> Iterator[Game | Rejection]:
    turns = deque(islice(files, _MAX_OPEN))
    while turns:
        reading = turns.popleft()
        if (entry := next(reading, None)) is not None:
            yield entry
            turns.append(reading)
        elif (following := next(files, None)) is not None:
            turns.append(following)

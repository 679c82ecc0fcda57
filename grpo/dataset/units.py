"""Units: the parallel parts of a dataset build, each of which fills its own quota from engine games or from files.

Engine games are assigned to units by number, and games of files by their number and their file's place in the order of names. Units can
therefore be built anywhere and in any order with the same result. A game that two files hold can reach two units: each takes its boards,
and `cut_to_quota` removes the equal ones.
"""

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from grpo.dataset.engine_games import MAX_IDLE_GAMES, engine_games
from grpo.dataset.epd import read_positions
from grpo.dataset.games import Game, Reason, Rejection, SourceError
from grpo.dataset.pgn import read_games
from grpo.dataset.quotas import Quota, QuotaCell, boards_per_cell
from grpo.dataset.streams import FileKind, SourceFile, find_files, opened
from grpo.dataset.table import Position
from grpo.engine.pool import EnginePool
from grpo.settings.tree import BoardsConfig

_SURPLUS: Final = 1.06  # A unit collects more than its part, because two units may find the same opening positions ...
_SURPLUS_SPREAD: Final = 2.0  # ... plus this many times the square root of its part, for the random variation of small parts.
_POSITIONS_AT_ONCE: Final = 512
_MAX_OPEN: Final = 24
"""Files that are open at once: each needs some MiB, and a connection if it is remote."""


def unit_boards_per_cell(config: BoardsConfig) -> dict[QuotaCell, int]:
    """Return the number of boards per cell that each of the `config.num_units` units collects: its part and a surplus."""
    wanted = boards_per_cell(config)
    if config.num_units == 1:
        return wanted
    parts = {cell: count / config.num_units for cell, count in wanted.items()}
    return {cell: math.ceil(_SURPLUS * part + _SURPLUS_SPREAD * math.sqrt(part)) for cell, part in parts.items()}


def unit_positions(quota: Quota, config: BoardsConfig, *, unit: int, seed: int, players: EnginePool) -> Iterator[list[Position]]:
    """Yield positions that fill a unit's quota, those of many games at a time, as far as its games go.

    The caller discards unusable ones from the quota before it asks for more. `players` are engines for engine games, without MultiPV.
    """
    games: Iterator[Game | Rejection]
    games = file_games(config, unit=unit) if config.files else engine_games(unit=unit, seed=seed, pool=players, is_wanted=quota.needs)
    pending: list[Position] = []
    num_idle = 0
    for game in games:
        if isinstance(game, Rejection):
            quota.report.reject(game)
            continue
        selected = quota.offer(game)
        pending += selected
        # Files end by themselves, so only engine games count as idle.
        num_idle = 0 if selected or config.files else num_idle + 1
        if pending and (len(pending) >= _POSITIONS_AT_ONCE or quota.is_full):
            yield pending
            pending = []
        if num_idle >= MAX_IDLE_GAMES or quota.is_full:
            break
    if pending:
        yield pending


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
            yield from read_games(stream, file.name, is_mine=is_mine, filters=config)


def _in_turns(files: Iterator[Iterator[Game | Rejection]]) -> Iterator[Game | Rejection]:
    turns = deque(islice(files, _MAX_OPEN))
    while turns:
        reading = turns.popleft()
        if (entry := next(reading, None)) is not None:
            yield entry
            turns.append(reading)
        elif (following := next(files, None)) is not None:
            turns.append(following)

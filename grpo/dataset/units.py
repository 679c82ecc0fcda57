"""Units: parallel parts of a dataset build. Each unit fills its own quota with positions from engine games or files.

`grpo.dataset.quotas` explains cell and quota.
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

# Several units collect more than their parts, because units find equal boards (surplus), and small parts vary at random (spread).
_SURPLUS: Final = 1.06
_SURPLUS_SPREAD: Final = 2.0
_POSITIONS_AT_ONCE: Final = 512
_MAX_OPEN: Final = 24  # Files open at once; each needs some MiB.


def unit_boards_per_cell(config: BoardsConfig) -> dict[QuotaCell, int]:
    wanted = boards_per_cell(config)
    if config.num_units == 1:
        return wanted
    parts = {cell: count / config.num_units for cell, count in wanted.items()}
    return {cell: math.ceil(_SURPLUS * part + _SURPLUS_SPREAD * math.sqrt(part)) for cell, part in parts.items()}


def unit_positions(quota: Quota, config: BoardsConfig, *, unit: int, seed: int, players: EnginePool) -> Iterator[list[Position]]:
    """Yield lists of positions until the quota is full, the files end, or `MAX_IDLE_GAMES` engine games in a row give none.

    The caller must `discard` unusable positions before it takes the next list. `players` must search one line (no MultiPV).
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
        num_idle = 0 if selected or config.files else num_idle + 1
        if pending and (len(pending) >= _POSITIONS_AT_ONCE or quota.is_full):
            yield pending
            pending = []
        if num_idle >= MAX_IDLE_GAMES or quota.is_full:
            break
    if pending:
        yield pending


def file_games(config: BoardsConfig, *, unit: int) -> Iterator[Game | Rejection]:
    """Yield the unit's games and Rejections. Raises SourceError for an unreadable file or a puzzle table."""
    files = find_files(config.files)
    for file in files:
        if file.kind == FileKind.PUZZLES:
            raise SourceError(
                f"{file.uri}: boards.files takes games (.pgn) and lists of positions (.epd, .fen), no puzzles (.csv); give puzzles to"
                " boards.exclude or to `chess-grpo solve`"
            )
    seen: set[str] = set()
    for entry in _in_turns(_entries(file, index, unit, config) for index, file in enumerate(files)):
        if isinstance(entry, Game) and entry.game_id in seen:
            yield Rejection(source=entry.source, offset=entry.offset, reason=Reason.DUPLICATE)
            continue
        if isinstance(entry, Game):
            seen.add(entry.game_id)
        yield entry


def _entries(file: SourceFile, index: int, unit: int, config: BoardsConfig) -> Iterator[Game | Rejection]:
    def is_mine(number: int) -> bool:  # Without `index`, unit 0 would get each file with a single game.
        return (number + index) % config.num_units == unit

    with opened(file) as stream:
        if file.kind == FileKind.POSITIONS:
            yield from read_positions(stream, file.name, is_mine=is_mine)
        else:
            yield from read_games(stream, file.name, is_mine=is_mine, filters=config)


def _in_turns(files: Iterator[Iterator[Game | Rejection]]) -> Iterator[Game | Rejection]:
    turns = deque(islice(files, _MAX_OPEN))
    while turns:
        file = turns.popleft()
        if (entry := next(file, None)) is not None:
            yield entry
            turns.append(file)
        elif (next_file := next(files, None)) is not None:
            turns.append(next_file)

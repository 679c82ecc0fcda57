"""Units: the parallel parts of a dataset build, each of which fills its own quota from engine games or from files.

Engine games are assigned to units by number, and games of files by a hash of their text. Units can therefore be built anywhere and in any
order with the same result.
"""

import math
from collections.abc import Callable, Container, Iterator
from typing import Final

from grpo.board.phases import PHASES, Phase
from grpo.dataset.engine_games import MAX_IDLE_GAMES, engine_games
from grpo.dataset.quotas import Candidate, Quota, QuotaCell, SourceReport, boards_per_cell
from grpo.dataset.sources import file_games
from grpo.engine.pool import EnginePool
from grpo.reading.games import Game, Rejection
from grpo.settings.tree import BoardsConfig

_SURPLUS: Final = 1.06  # A unit collects more than its part, because two units may find the same opening positions ...
_SURPLUS_SPREAD: Final = 2.0  # ... plus this many times the square root of its part, for the random variation of small parts.
_CANDIDATES_AT_ONCE: Final = 512


def unit_boards_per_cell(config: BoardsConfig) -> dict[QuotaCell, int]:
    """Return the number of boards per cell that each of the `config.num_units` units collects: its part and a surplus."""
    wanted = boards_per_cell(config)
    if config.num_units == 1:
        return wanted
    parts = {cell: count / config.num_units for cell, count in wanted.items()}
    return {cell: math.ceil(_SURPLUS * part + _SURPLUS_SPREAD * math.sqrt(part)) for cell, part in parts.items()}


def fill_unit(
    config: BoardsConfig,
    *,
    unit: int,
    seed: int,
    players: EnginePool,
    report: SourceReport,
    excluded: Container[str],
    on_rejection: Callable[[Rejection], None],
    on_candidates: Callable[[list[Candidate], Quota], None],
) -> Quota:
    """Fill the quota of one unit as far as its games go, and return the quota with the boards that are still missing.

    Args:
        config: The dataset's settings.
        unit: Number of the unit.
        seed: Root of its random streams.
        players: Engines for engine games, without MultiPV.
        report: Where positions and rejections are counted.
        excluded: Keys of evaluation positions, which must not be selected.
        on_rejection: Called with each rejected game.
        on_candidates: Called with the candidates of many games at a time; it discards unusable ones from the quota.
    """
    quota = Quota(unit_boards_per_cell(config), config, seed=seed, report=report, excluded=excluded)

    def fill(games: Iterator[Game | Rejection], phases: tuple[Phase, ...]) -> None:
        pending: list[Candidate] = []
        num_idle = 0
        for game in games:
            if isinstance(game, Rejection):
                report.reject(game)
                on_rejection(game)
                continue
            selected = quota.offer(game)
            pending += selected
            # Files end by themselves, so only engine games count as idle.
            num_idle = 0 if selected or (config.source == "files" and game.source != "endgame") else num_idle + 1
            if pending and (len(pending) >= _CANDIDATES_AT_ONCE or not quota.lacks(phases)):
                on_candidates(pending, quota)
                pending = []
            if num_idle >= MAX_IDLE_GAMES or not quota.lacks(phases):
                break
        if pending:
            on_candidates(pending, quota)

    if config.source == "files":
        fill(file_games(config, unit=unit, report=report), PHASES)
    else:
        fill(engine_games(config.games, unit=unit, seed=seed, pool=players, source="engine", is_wanted=quota.needs), PHASES)
    if config.shortage == "endgames" and quota.lacks(endgames := (Phase.ENDGAME,)):
        games = engine_games(
            config.games,
            unit=unit,
            seed=seed,
            pool=players,
            source="endgame",
            is_wanted=lambda game_id: quota.needs(game_id, endgames),
        )
        fill(games, endgames)
    return quota

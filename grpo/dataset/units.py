"""Where positions come from: games of the engine against itself (the embedded default), or files of games and of positions.

A dataset is made in units. Each takes its own games until its own quota is full: engine games by their numbers, games of files by a hash of
their text. So units can be made anywhere, in any order, and give the same boards.
"""

import math
from collections.abc import Callable, Container, Iterator
from typing import Final

from grpo.board.phases import PHASES, Phase
from grpo.dataset.engine_games import MAX_IDLE_GAMES, engine_games
from grpo.dataset.filters import filtered
from grpo.dataset.quotas import Candidate, Quota, QuotaCell, SourceReport, wanted_boards
from grpo.engine.pool import EnginePool
from grpo.reading.epd import read_positions
from grpo.reading.games import Game, Reason, Rejection
from grpo.reading.pgn import PgnGame, SeenGames, read_pgn_games
from grpo.reading.streams import FileKind, SourceFile, find_files, read_chunks
from grpo.settings.tree import BoardsConfig

_SURPLUS: Final = 1.06  # A unit makes a little more than its share, since two units may find the same opening positions ...
_SURPLUS_SPREAD: Final = 2.0  # ... and by chance more of them where a share is small: so many times its square root.
_CANDIDATES_AT_ONCE: Final = 512


def unit_wanted(config: BoardsConfig) -> dict[QuotaCell, int]:
    """Return what each of the `config.num_units` parts of a dataset is to find: its share, and a little more."""
    wanted = wanted_boards(config)
    if config.num_units == 1:
        return wanted
    shares = {cell: count / config.num_units for cell, count in wanted.items()}
    return {cell: math.ceil(_SURPLUS * share + _SURPLUS_SPREAD * math.sqrt(share)) for cell, share in shares.items()}


def fill_unit(
    config: BoardsConfig,
    *,
    unit: int,
    seed: int,
    players: EnginePool,
    report: SourceReport,
    judged: Container[str],
    on_rejection: Callable[[Rejection], None],
    judge: Callable[[list[Candidate], Quota], None],
) -> Quota:
    """Fill the quotas of one unit as far as its games go; what is still missing then is in the quota that is returned.

    Args:
        config: which positions.
        unit: its number.
        seed: root of its random streams.
        players: engines for engine games; without MultiPV.
        report: takes the counts.
        judged: keys of positions that the policy will be judged by.
        on_rejection: is told each game that is left out.
        judge: is handed the candidates of many games at a time; gives those back to the quota that turn out to be of no use.
    """
    quota = Quota(unit_wanted(config), config, seed=seed, report=report, judged=judged)

    def fill(games: Iterator[Game | Rejection], phases: tuple[Phase, ...]) -> None:
        waiting: list[Candidate] = []
        num_idle = 0
        for game in games:
            if isinstance(game, Rejection):
                report.reject(game)
                on_rejection(game)
                continue
            taken = quota.offer(game)
            waiting += taken
            # Games of files come to an end by themselves.
            num_idle = 0 if taken or (config.source == "files" and game.source != "endgame") else num_idle + 1
            if waiting and (len(waiting) >= _CANDIDATES_AT_ONCE or not quota.lacks(phases)):
                judge(waiting, quota)
                waiting = []
            if num_idle >= MAX_IDLE_GAMES or not quota.lacks(phases):
                break
        if waiting:
            judge(waiting, quota)

    if config.source == "files":
        fill(file_games(config, unit=unit, report=report), PHASES)
    else:
        fill(engine_games(config.games, unit=unit, seed=seed, pool=players, source="engine", is_wanted=quota.wants), PHASES)
    if config.shortage == "endgames" and quota.lacks(wanted := (Phase.ENDGAME,)):
        made = engine_games(
            config.games,
            unit=unit,
            seed=seed,
            pool=players,
            source="endgame",
            is_wanted=lambda game_id: quota.wants(game_id, wanted),
        )
        fill(made, wanted)
    return quota


def file_games(config: BoardsConfig, *, unit: int, report: SourceReport) -> Iterator[Game | Rejection]:
    """Yield the usable games and listed positions of the unit's share of all files, and a Rejection for each of the others.

    Raises SourceError when a file cannot be read to its end.
    """
    seen = SeenGames()

    def is_mine(digest: bytes) -> bool:
        return int.from_bytes(digest[:8], "big") % config.num_units == unit

    for file in find_files(config.files):
        for game in _entries(file, is_mine, seen):
            used = filtered(game, config.filters, report.left_out) if isinstance(game, PgnGame) else game
            if isinstance(used, Game) and config.heldout_from and (used.date is None or "?" in used.date):
                yield Rejection(source=used.source, offset=used.offset, reason=Reason.NO_DATE, detail=used.date or "")
            else:
                yield used


def _entries(file: SourceFile, is_mine: Callable[[bytes], bool], seen: SeenGames) -> Iterator[PgnGame | Game | Rejection]:
    if file.kind == FileKind.GAMES:
        return read_pgn_games(read_chunks(file), file.name, is_mine=is_mine, seen=seen)
    return read_positions(read_chunks(file), file.name, is_mine=is_mine)

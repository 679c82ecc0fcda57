"""Build boards: the positions of some units of the dataset, with the value of every legal move."""

import gc
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from grpo.base.files import write_json
from grpo.dataset.exclusions import excluded_positions
from grpo.dataset.quotas import Quota
from grpo.dataset.table import GAME_SCHEMA, Position, Split, board_row, board_table
from grpo.dataset.units import unit_boards_per_cell, unit_positions
from grpo.engine.answers import EngineError
from grpo.engine.identity import EngineIdentity, identify
from grpo.engine.move_values import HASH_MIB, ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.settings.tree import Settings
from steps.names import BOARDS, GAMES, REPORT
from steps.run.step import Step
from steps.run.work import Work

STEP: Final = Step(
    name="build_boards",
    says="Finds positions in games and has Stockfish evaluate every legal move of each: one task's part of the dataset.",
    reads=("seed", "boards", "evaluation.heldout_depth"),
    takes=("sources",),
)


def body(work: Work) -> None:
    """Write boards with the value of every legal move, and their games, for each unit of this task; and a report of all."""
    # What is imported stays; looking through it again and again took a fifth of this step's own time.
    gc.freeze()
    settings, stockfish = work.settings, work.machine.stockfish
    units = work.part.of(range(settings.boards.num_units))
    excluded = excluded_positions(settings.boards.exclude)
    total = sum(unit_boards_per_cell(settings.boards).values()) * len(units)
    # Two engines, because players search one line and values all; they take turns, so that one core is enough.
    players = EnginePool(stockfish, num_processes=1, options={"Hash": HASH_MIB})
    with players, EnginePool(stockfish, num_processes=1, options=engine_options()) as pool:
        valuer = _Valuer(settings, identify(work.machine.stockfish), pool)

        def progress() -> None:
            work.progress(valuer.num_rows, total, "boards")

        reports = {
            str(unit): _build_unit(settings, unit, players, valuer, excluded, progress=progress, folder=work.folder) for unit in units
        }
    write_json(work.folder / REPORT, reports)


def _build_unit(
    settings: Settings,
    unit: int,
    players: EnginePool,
    valuer: "_Valuer",
    excluded: Container[str],
    *,
    progress: Callable[[], None],
    folder: Path,
) -> dict[str, Any]:
    """Write the files of one unit and return the facts of its report."""
    boards = settings.boards
    quota = Quota(unit_boards_per_cell(boards), boards, seed=settings.seed, excluded=excluded)
    parts: list[pa.Table] = [board_table([])]
    for positions in unit_positions(quota, boards, unit=unit, seed=settings.seed, players=players):
        parts.append(board_table(valuer.rows(positions, quota)))
        progress()
    pq.write_table(pa.concat_tables(parts), folder / f"unit-{unit:04d}.{BOARDS}")
    pq.write_table(pa.Table.from_pylist(list(quota.games.values()), schema=GAME_SCHEMA), folder / f"unit-{unit:04d}.{GAMES}")
    return quota.report.as_facts()


class _Valuer:
    """Makes rows of positions, and discards those whose search failed."""

    def __init__(self, settings: Settings, engine: EngineIdentity, pool: EnginePool) -> None:
        self._settings, self._engine, self._pool = settings, str(engine), pool
        self.num_rows = 0
        """Made so far, over all units."""

    def rows(self, positions: Sequence[Position], quota: Quota) -> list[dict[str, Any]]:
        depth = self._settings.boards.depth
        heldout = [position for position in positions if position.split == Split.HELDOUT]
        strong = dict(
            zip([position.key for position in heldout], self._tables(heldout, self._settings.evaluation.heldout_depth), strict=True)
        )
        rows = []
        for position, table in zip(positions, self._tables(positions, depth), strict=True):
            deeper = strong.get(position.key)
            if isinstance(table, EngineError) or isinstance(deeper, EngineError):
                quota.discard(position, "engine failure")
            else:
                rows.append(board_row(position, table, deeper, engine=self._engine, limit=f"depth {depth}"))
        self.num_rows += len(rows)
        return rows

    def _tables(self, positions: Sequence[Position], depth: int) -> Iterator[ValueTable | EngineError]:
        return value_tables([chess.Board(position.fen) for position in positions], self._pool, depth=depth)

"""The step `build_boards`.

A unit is a part of the dataset, built alone until its quota (boards per split and game phase) is full. A task makes some units.
"""

import gc
from collections.abc import Iterator, Sequence
from typing import Any, Final

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from grpo.base.documents import write_document
from grpo.board import MAX_LEGAL_MOVES
from grpo.dataset.exclusions import excluded_positions
from grpo.dataset.quotas import Quota, SourceReport, UnitReports
from grpo.dataset.table import GAME_SCHEMA, Position, Split, board_row, board_table
from grpo.dataset.units import unit_boards_per_cell, unit_positions
from grpo.engine.answers import EngineError
from grpo.engine.identity import identify
from grpo.engine.move_values import HASH_MIB, NUM_DEEP, ValueTable, engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.settings.tree import Settings
from steps.names import BOARDS, GAMES, REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="build_boards",
    says="Makes one task's part of the dataset: positions from games, with Stockfish's value of every legal move.",
    reads=("seed", "boards", "evaluation.heldout_depth"),
    outside=(Outside.SOURCES,),
    is_inherited=True,
)


def body(work: Work) -> None:
    # Without `freeze`, garbage collection takes a fifth of the step's time in Python.
    gc.freeze()
    settings, boards, stockfish = work.settings, work.settings.boards, work.machine.stockfish
    units = work.part.of(range(boards.num_units))
    excluded = excluded_positions(boards.exclude)
    total = sum(unit_boards_per_cell(boards).values()) * len(units)
    # `players` plays games, `pool` evaluates moves. Only one works at a time.
    players = EnginePool(stockfish, num_processes=1, options={"Hash": HASH_MIB})
    with players, EnginePool(stockfish, num_processes=1, options=engine_options()) as pool:
        engine, reports, num_rows = str(identify(stockfish)), dict[str, SourceReport](), 0
        for unit in units:
            quota = Quota(unit_boards_per_cell(boards), boards, seed=settings.seed, excluded=excluded)
            board_tables: list[pa.Table] = [board_table([])]
            for positions in unit_positions(quota, boards, unit=unit, seed=settings.seed, players=players):
                rows = _rows(positions, quota, settings, engine, pool)
                board_tables.append(board_table(rows))
                num_rows += len(rows)
                work.progress(num_rows, total, "boards")
            games = pa.Table.from_pylist(list(quota.games.values()), schema=GAME_SCHEMA)
            pq.write_table(pa.concat_tables(board_tables), work.folder / f"unit-{unit:04d}.{BOARDS}")
            pq.write_table(games, work.folder / f"unit-{unit:04d}.{GAMES}")
            reports[str(unit)] = quota.report
    write_document(work.folder / REPORT, UnitReports(reports))


def _rows(positions: Sequence[Position], quota: Quota, settings: Settings, engine: str, pool: EnginePool) -> list[dict[str, Any]]:
    def tables(searched: Sequence[Position], depth: int, num_deep: int) -> Iterator[ValueTable | EngineError]:
        return value_tables([chess.Board(position.fen) for position in searched], pool, depth=depth, num_deep=num_deep)

    depth, heldout = settings.boards.depth, [position for position in positions if position.split == Split.HELDOUT]
    # GRPO learns moves that the search to `boards.depth` overrates. Only a deeper search of held-out boards shows this.
    deep_tables = tables(heldout, settings.evaluation.heldout_depth, MAX_LEGAL_MOVES)
    deep_table_by_key = dict(zip([position.key for position in heldout], deep_tables, strict=True))
    rows = []
    for position, table in zip(positions, tables(positions, depth, NUM_DEEP), strict=True):
        deep_table = deep_table_by_key.get(position.key)
        if isinstance(table, EngineError) or isinstance(deep_table, EngineError):
            quota.discard(position, "engine failure")
        else:
            rows.append(board_row(position, table, deep_table, engine=engine, limit=f"depth 1, depth {depth} for the best {NUM_DEEP}"))
    return rows

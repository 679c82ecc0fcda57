"""Make the dataset: positions of some units with the value of every legal move, then all units joined and cut to the quotas."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import chess
import pyarrow as pa
import pyarrow.parquet as pq

from grpo.boards import BOARD_SCHEMA, Position, Split, board_row, board_table, phase_histogram
from grpo.config import Settings
from grpo.content import read_json, write_json
from grpo.engine import EngineError, EngineIdentity, EnginePool
from grpo.metrics import Record
from grpo.phases import PHASES, Phase
from grpo.sources import SourceReport, cut_to_quota, unit_positions, wanted_boards
from grpo.values import ValueTable, engine_options, value_tables
from steps.work import Work

BOARDS: Final = "boards.parquet"
REPORT: Final = "report.json"
_ROWS_PER_GROUP: Final = 16_384


def build_units(settings: Settings, units: Sequence[int], engine: EngineIdentity, engine_path: str, work: Work) -> None:
    """Write `unit-NNNN.parquet` and its report for each unit: positions, and the value of every legal move."""
    reports: dict[str, Any] = {}
    total = sum(wanted_boards(settings.boards).values()) * len(units) // settings.boards.num_units
    done = 0
    # Two engines, because players search one line and values all; they take turns, so that one core is enough.
    players = EnginePool(engine_path, num_processes=1, options={"Hash": settings.values.hash_mib})
    with players, EnginePool(engine_path, num_processes=1, options=engine_options(settings.values)) as pool:
        for unit, positions, report in unit_positions(settings.boards, units=units, seed=settings.seed, pool=players):
            rows = []
            for start in range(0, len(positions), _ROWS_PER_GROUP // 16):
                part = positions[start : start + _ROWS_PER_GROUP // 16]
                rows += _valued(part, settings, engine, pool)
                done += len(part)
                work.progress(min(done, total), total, "boards")
            pq.write_table(board_table(rows), work.folder / f"unit-{unit:04d}.parquet")
            reports[str(unit)] = {**report_facts(report), "dropped": len(positions) - len(rows)}
    write_json(work.folder / REPORT, reports)


def _valued(positions: Sequence[Position], settings: Settings, engine: EngineIdentity, pool: EnginePool) -> list[dict[str, Any]]:
    """Return the rows of the positions that the engine could value; the others are dropped, and the caller counts them."""
    boards = [chess.Board(position.fen) for position in positions]
    depth, strong_depth = settings.values.depth, settings.evaluation.heldout_depth
    tables = value_tables(boards, pool, settings.values, depth=depth)
    heldout = [index for index, position in enumerate(positions) if position.split == Split.HELDOUT]
    weak = list(tables)
    strong: dict[int, ValueTable | EngineError] = dict(
        zip(heldout, value_tables([boards[index] for index in heldout], pool, settings.values, depth=strong_depth), strict=True)
    )
    rows = []
    for index, (position, table) in enumerate(zip(positions, weak, strict=True)):
        deeper = strong.get(index)
        if isinstance(table, EngineError) or isinstance(deeper, EngineError):
            continue
        rows.append(board_row(position, table, deeper, engine=str(engine), limit=f"depth {depth}"))
    return rows


def report_facts(report: SourceReport) -> dict[str, Any]:
    """Return a source's report as plain data."""
    return {
        "games": report.num_games,
        "rejected": dict(report.rejected),
        "duplicates": report.num_duplicates,
        "natural_phases": {phase.value: report.natural_phases[phase] for phase in PHASES},
    }


def join_units(settings: Settings, folders: Sequence[Path], work: Work) -> None:
    """Write all units as one table with exactly the boards that were asked for, and a report that accounts for the rest."""
    parts = sorted((path for folder in folders for path in folder.glob("unit-*.parquet")), key=lambda path: path.name)
    table = pa.concat_tables([pq.read_table(path, schema=BOARD_SCHEMA) for path in parts])
    kept, num_joined_duplicates = cut_to_quota(_positions(table), wanted_boards(settings.boards))
    boards = table.take(kept)
    pq.write_table(boards, work.folder / BOARDS, row_group_size=_ROWS_PER_GROUP)
    facts = _joined_facts([read_json(folder / REPORT) for folder in folders])
    facts["duplicates"] += num_joined_duplicates
    facts["rows"] = boards.num_rows
    facts["phases"] = phase_histogram(boards["phase"].to_pylist())
    write_json(work.folder / REPORT, facts)
    work.record(
        Record(
            0,
            {
                "boards/games": facts["games"],
                "boards/rejected_games": sum(facts["rejected"].values()),
                "boards/duplicates": facts["duplicates"],
                "boards/dropped": facts["dropped"],
                "boards/rows": facts["rows"],
                **{f"boards/natural/{phase}": facts["natural_phases"][phase] for phase in PHASES},
            },
        )
    )


def read_boards(folder: Path) -> pa.Table:
    """Return the joined table."""
    return pq.read_table(folder / BOARDS, schema=BOARD_SCHEMA)


def _joined_facts(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    units = [unit for report in reports for unit in report.values()]
    rejected: Counter[str] = Counter()
    natural: Counter[str] = Counter()
    for unit in units:
        rejected.update(unit["rejected"])
        natural.update(unit["natural_phases"])
    return {
        "games": sum(unit["games"] for unit in units),
        "rejected": dict(rejected),
        "duplicates": sum(unit["duplicates"] for unit in units),
        "dropped": sum(unit["dropped"] for unit in units),
        "natural_phases": {phase.value: natural[phase] for phase in PHASES},
    }


def _positions(table: pa.Table) -> list[Position]:
    names = [name for name in table.column_names if name in Position.__dataclass_fields__]
    return [Position(**{**row, "phase": Phase(row["phase"]), "split": Split(row["split"])}) for row in table.select(names).to_pylist()]

"""Join the units, the dataset's parts from `build_boards`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from grpo.base.documents import read_document, write_document
from grpo.board.phases import Phase
from grpo.dataset.games import SourceError
from grpo.dataset.quotas import QuotaCell, SourceReport, UnitReports, boards_per_cell, cut_to_quota, refusal, shortage_text
from grpo.dataset.reports import JoinedBoards
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA, Position, Split, phase_counts
from grpo.metrics.records import Record
from steps.common.dataset import preview
from steps.names import BOARDS, BOARDS_PREVIEW, GAMES, REPORT
from steps.run.step import Outside, Step
from steps.run.work import Work

STEP: Final = Step(
    name="join_boards",
    says="Joins the tasks' boards into one dataset without duplicates, with at most the configured number for each phase and split.",
    reads=("seed", "boards", "evaluation.heldout_depth", "grpo.states_per_step"),
    outside=(Outside.SOURCES,),
    joins="unit-*",
    pages=(REPORT, BOARDS_PREVIEW),
    is_inherited=True,
    is_registered=True,
)
_ROWS_PER_GROUP: Final = 16_384


def body(work: Work) -> None:
    """Raises SourceError if too few boards remain."""
    settings, folders = work.settings, work.parts
    boards = _concatenated(folders, BOARDS, BOARD_SCHEMA)
    wanted = boards_per_cell(settings.boards)
    kept_rows, num_joined_duplicates, missing = cut_to_quota(
        _positions(boards), wanted, max_per_game_and_phase=settings.boards.max_per_game_and_phase
    )
    report = SourceReport.joined(unit for folder in folders for unit in read_document(folder / REPORT, UnitReports).root.values())
    report.duplicates += num_joined_duplicates
    if any(missing.values()):
        shortage = shortage_text(wanted, missing, report, settings.boards)
        if reason := refusal(wanted, missing, states_per_step=settings.grpo.states_per_step):
            raise SourceError(f"{shortage}\n{reason}")
        print(f"{shortage}\nThe run continues with fewer boards: it learns less, and its measurements are less certain.")
    boards = boards.take(kept_rows)
    games = _concatenated(folders, GAMES, GAME_SCHEMA)
    games = games.filter(pc.is_in(games["game_id"], pc.unique(boards["game_id"])))
    # Units can hold the same game. The reversed order keeps the first index.
    first_index = {game_id: index for index, game_id in reversed(list(enumerate(games["game_id"].to_pylist())))}
    games = games.take(sorted(first_index.values()))
    pq.write_table(boards, work.folder / BOARDS, row_group_size=_ROWS_PER_GROUP)
    pq.write_table(games, work.folder / GAMES)
    write_document(work.folder / REPORT, _report(boards, games, report, missing))
    (work.folder / BOARDS_PREVIEW).parent.mkdir(exist_ok=True)
    (work.folder / BOARDS_PREVIEW).write_bytes(preview(work.folder / BOARDS))
    work.log(Record(0, {"boards/rows": boards.num_rows}))


def _report(boards: pa.Table, games: pa.Table, sources: SourceReport, missing: Mapping[QuotaCell, int]) -> JoinedBoards:
    return JoinedBoards(
        **vars(sources),
        rows=boards.num_rows,
        phases=phase_counts(boards["phase"].to_pylist()),
        splits=Counter(boards["split"].to_pylist()),
        sources=Counter(boards["source"].to_pylist()),
        labels=Counter(boards["label_from"].to_pylist()),
        used_games=games.num_rows,
        missing={"/".join(cell): count for cell, count in missing.items() if count},
    )


def _concatenated(folders: Sequence[Path], name: str, schema: pa.Schema) -> pa.Table:
    # Sorted by unit, so the number of tasks does not matter.
    paths = sorted((path for folder in folders for path in folder.glob(f"unit-*.{name}")), key=lambda path: path.name)
    return pa.concat_tables([pq.read_table(path, schema=schema) for path in paths])


def _positions(table: pa.Table) -> list[Position]:
    rows = table.select(list(Position.__slots__)).to_pylist()
    return [Position(**{**row, "phase": Phase(row["phase"]), "split": Split(row["split"])}) for row in rows]

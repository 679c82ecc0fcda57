"""The step `check_boards`, by `data_checks` (Great Expectations)."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_checks.dataset import check_dataset_tables
from data_checks.report import CheckedBoards, Distributions, Histogram
from data_checks.summary import summary_markdown, summary_text
from grpo.base.documents import read_document, write_document
from grpo.base.errors import PlainError
from grpo.base.files import ASIDE
from grpo.board.phases import PHASES
from grpo.dataset.reports import JoinedBoards
from grpo.dataset.table import Split
from grpo.metrics.records import Record
from steps.cards.page import CardPart, Seen, markdown_part, page_part
from steps.common.dataset import read_boards, read_game_table
from steps.names import REPORT, SUMMARY
from steps.run.step import Step
from steps.run.work import Work

STEP: Final = Step(
    name="check_boards",
    says="Validates the dataset, board by board and as a whole; the run stops if a check fails.",
    reads=("boards",),
    inputs=("join_boards",),
    pages=(REPORT, SUMMARY),
    is_inherited=True,
    is_registered=True,
)
DATA_DOCS: Final = f"{ASIDE}/data_docs"  # Great Expectations' pages contain times. The output's hash leaves out `ASIDE`.

_HISTOGRAMS: Final = {
    "values": ("Values of all legal moves", "win probability of the player who moved", "moves"),
    "legal_moves": ("Legal moves", "legal moves of a board", "boards"),
    "plies": ("Plies", "ply of the game", "boards"),
    "ratings": ("Ratings of the players", "Elo in the file", "players"),
}
"""Field of `Distributions` -> titles of chart, x axis and y axis."""


class ChecksError(PlainError, ValueError):
    """The dataset fails a check."""


def body(work: Work) -> None:
    boards, settings = work.inputs["join_boards"], work.settings
    table, games, joined = read_boards(boards), read_game_table(boards), read_document(boards / REPORT, JoinedBoards)
    report = check_dataset_tables(table, games, joined, settings.boards, data_docs=work.folder / DATA_DOCS)
    work.log(Record(0, {"checks/failed": float(len(report.failed))}))
    if report.failed:
        raise ChecksError(f"the dataset is not fit to train on:\n{report.as_text()}\n\n== {boards} ==\n{summary_text(joined)}")
    counted = distributions(table, games)
    write_document(work.folder / REPORT, report.document(joined, counted))
    (work.folder / SUMMARY).write_text(summary_markdown(report, joined, counted.cells), encoding="utf-8")


def distributions(boards: pa.Table, games: pa.Table) -> Distributions:
    """`boards` has at least one row."""
    phases, splits = np.array(boards["phase"].to_pylist()), boards["split"].to_pylist()
    counted = Counter(zip(phases.tolist(), splits, strict=True))
    sizes = np.array([len(moves) for moves in boards["moves"].to_pylist()])
    values = np.concatenate([np.asarray(row) for row in boards["values"].to_pylist()])
    rated = [(color, rating) for color in ("white", "black") for rating in games[f"{color}_rating"].to_pylist() if rating is not None]
    colors, ratings = np.array([color for color, _ in rated]), np.array([rating for _, rating in rated])
    return Distributions(
        cells={phase.value: {split.value: counted[phase, split] for split in Split} for phase in PHASES},
        # 1 would need a bin of its own, because a bin excludes its upper end.
        values=_histogram(np.minimum(values, 0.999), np.repeat(phases, sizes), PHASES, 0.05),
        legal_moves=_histogram(sizes, phases, PHASES, 4),
        plies=_histogram(boards["ply"].to_numpy(), phases, PHASES, 10),
        ratings=_histogram(ratings, colors, ("white", "black"), 100) if rated else None,
    )


def _histogram(numbers: NDArray[Any], classes: NDArray[Any], names: Sequence[str], width: float) -> Histogram:
    bins = np.floor(numbers / width + 1e-6).astype(np.int64)  # 1e-6: rounding must not lower a multiple of `width`.
    low, size = int(bins.min()), int(np.ptp(bins)) + 1
    counts = tuple(tuple(np.bincount(bins[classes == name] - low, minlength=size).tolist()) for name in names)
    return Histogram(low=low * width, width=width, classes=tuple(names), counts=counts)


def card(seen: Seen) -> list[CardPart]:
    from steps.cards.charts import histogram

    head = page_part("dataset", seen=seen)
    if (report := seen.document(CheckedBoards)) is None:
        return [head]
    counted = {name: getattr(report.distributions, name) for name in _HISTOGRAMS}
    charts = [histogram(*titles, counted[name]) for name, titles in _HISTOGRAMS.items() if counted[name] is not None]
    checks = page_part("checks", suites=report.suites, rejected=report.dataset.first_rejected)
    return [head, markdown_part(seen.read(SUMMARY)), *charts, checks]

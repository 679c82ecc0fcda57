"""Gate the dataset by the expectations of `data_checks`, and describe what got through."""

from pathlib import Path
from typing import Final

from data_checks.dataset import check_dataset_tables
from data_checks.summary import summary_markdown, summary_text
from grpo.base.errors import PlainError
from grpo.base.files import ASIDE, read_json, write_json
from grpo.metrics.table import Record
from grpo.settings.tree import Settings
from steps.step_io.dataset import read_boards, read_game_table
from steps.step_io.names import REPORT, SUMMARY
from steps.step_io.names import REPORT as BOARDS_REPORT
from steps.step_io.spec import StepSpec
from steps.step_io.work import Work

SPEC: Final = StepSpec(
    name="check_boards",
    body=__name__,
    reads="check_boards",
    inputs=("boards",),
    published=(REPORT,),
)
DATA_DOCS: Final = f"{ASIDE}/data_docs"
"""Great Expectations' own pages: aside, for there are times in them."""


class ChecksError(PlainError, ValueError):
    """The dataset does not meet its expectations; the message is the report."""


def check_dataset(settings: Settings, boards: Path, work: Work) -> None:
    """Write the report of all expectations, a summary of the dataset for people, and Great Expectations' own pages.

    Raises ChecksError with the report as text when one of them does not hold.
    """
    table, facts = read_boards(boards), read_json(boards / BOARDS_REPORT)
    report = check_dataset_tables(
        table, read_game_table(boards), facts, settings.boards, settings.values, data_docs=work.folder / DATA_DOCS
    )
    work.record(Record(0, {"checks/failed": float(report.num_failed)}))
    if not report.is_met:
        raise ChecksError(f"the dataset is not fit to train on:\n{report.as_text()}\n\n== {boards} ==\n{summary_text(facts)}")
    write_json(work.folder / REPORT, report.to_dict() | {"dataset": facts})
    (work.folder / SUMMARY).write_text(summary_markdown(report, facts), encoding="utf-8")

"""Gate the dataset by the expectations of `data_checks`, and describe what got through."""

from typing import Final

from data_checks.dataset import check_dataset_tables
from data_checks.summary import summary_markdown, summary_text
from grpo.base.errors import PlainError
from grpo.base.files import ASIDE, read_json, write_json
from grpo.diagnosis.records import Record
from steps.cards.page import CardPart, Seen, markdown_part, page_part
from steps.dataset import read_boards, read_game_table
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
DATA_DOCS: Final = f"{ASIDE}/data_docs"
"""Great Expectations' own pages: aside, for there are times in them."""


class ChecksError(PlainError, ValueError):
    """The dataset does not meet its expectations; the message is the report."""


def body(work: Work) -> None:
    """Write the report of all expectations, a summary of the dataset for people, and Great Expectations' own pages.

    Raises ChecksError with the report as text when one of them does not hold.
    """
    boards, settings = work.inputs["join_boards"], work.settings
    table, facts = read_boards(boards), read_json(boards / REPORT)
    report = check_dataset_tables(table, read_game_table(boards), facts, settings.boards, data_docs=work.folder / DATA_DOCS)
    work.log(Record(0, {"checks/failed": float(len(report.failed))}))
    if report.failed:
        raise ChecksError(f"the dataset is not fit to train on:\n{report.as_text()}\n\n== {boards} ==\n{summary_text(facts)}")
    write_json(work.folder / REPORT, report.to_dict() | {"dataset": facts})
    (work.folder / SUMMARY).write_text(summary_markdown(report, facts), encoding="utf-8")


def card(seen: Seen) -> list[CardPart]:
    """Return the card: each check, and the summary of the dataset."""
    report = seen.read()
    head = page_part("checks", seen=seen, suites=report.get("suites", []))
    if not report:
        return [head]
    return [head, markdown_part(seen.read(SUMMARY)), page_part("rejected", games=report["dataset"]["first_rejected"])]

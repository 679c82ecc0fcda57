"""Gate the dataset by the expectations of `data_checks`."""

from pathlib import Path
from typing import Final

from data_checks.boards import check_boards
from grpo.config import Settings
from grpo.content import write_json
from grpo.errors import PlainError
from grpo.metrics import Record
from steps.boards import read_boards
from steps.work import Work

REPORT: Final = "report.json"


class ChecksError(PlainError, ValueError):
    """The dataset does not meet its expectations; the message is the report."""


def check_dataset(settings: Settings, boards: Path, work: Work) -> None:
    """Write the report of all expectations.

    Raises ChecksError with the report as text when one of them does not hold.
    """
    report = check_boards(read_boards(boards), settings.boards)
    work.record(Record(0, {"checks/failed": float(report.num_failed)}))
    if not report.is_met:
        raise ChecksError(f"the dataset is not fit to train on:\n{report.as_text()}")
    write_json(work.folder / REPORT, report.to_dict())

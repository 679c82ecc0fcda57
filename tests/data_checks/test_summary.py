"""The summary of a dataset: short however many sources there are, and names of files are no markup."""

import pytest
from made_datasets import Dataset, sound_dataset

from data_checks.report import CheckResult, DatasetReport
from data_checks.summary import summary_markdown, summary_text

HOSTILE = '<script>alert(1)</script>" onload=x |` [a](b) *.pgn'
FAILED = CheckResult(
    name="source_known", meaning="Known.", remedy="Mend it.", is_met=False, num_checked=18, num_unexpected=1, examples=(HOSTILE,)
)
UNFIT = DatasetReport(suites={"boards": [FAILED]})


@pytest.fixture
def dataset() -> Dataset:
    return sound_dataset()


def test_the_markdown_stays_within_what_a_tracker_takes_however_many_sources_there_are(dataset: Dataset) -> None:
    many = {f"{'x' * 200} {number:04}.pgn": 1_000 - number for number in range(900)}
    dataset.facts |= {"sources": many, "rejected": many, "left_out": many}
    markdown = summary_markdown(UNFIT, dataset.report_facts())
    assert len(markdown) < 5_000
    assert "and 888 more" in markdown
    assert "and 888 more" in summary_text(dataset.report_facts())

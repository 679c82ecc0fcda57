"""The summary of a dataset stays within what a tracker takes, however many sources there are."""

from made_datasets import sound_dataset

from data_checks.report import DatasetReport
from data_checks.summary import summary_markdown, summary_text


def test_the_summary_is_short_however_many_sources_there_are() -> None:
    many = {f"{'x' * 200} {number:04}.pgn": 1_000 - number for number in range(900)}
    facts = sound_dataset().report_facts() | {"sources": many, "rejected": many, "left_out": many}
    for text in (summary_markdown(DatasetReport(suites={}), facts), summary_text(facts)):
        assert len(text) < 5_000
        assert "and 888 more" in text

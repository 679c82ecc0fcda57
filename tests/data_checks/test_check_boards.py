"""The step that checks: what it writes, and what it refuses."""

import html
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_datasets import Dataset, sound_dataset
from made_work import work_in

from grpo.base.files import ASIDE, read_json, verified_manifest, write_json, write_manifest
from grpo.settings.tree import Settings
from steps.cards.page import Seen
from steps.check_boards import DATA_DOCS, body, card
from steps.names import BOARDS, GAMES, REPORT, SUMMARY
from steps.run.work import Work, read_history

SETTINGS = Settings.model_validate(
    {
        "boards": {"files": ("games.pgn", "list.epd"), "num_train": 12, "num_validation": 3, "num_heldout": 3},
        "grpo": {"states_per_step": 12, "num_minibatches": 1},
    }
)
EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>[x](javascript:y)"


def work_on(dataset: Dataset, folder: Path) -> Work:
    """Return the step's work on a dataset that is written beside its folder."""
    (place := folder.with_name(f"{folder.name}-boards")).mkdir()
    for table, name in zip(dataset.tables(), (BOARDS, GAMES), strict=True):
        pq.write_table(table, place / name)
    write_json(place / REPORT, dataset.report_facts())
    return work_in(folder, SETTINGS, inputs={"join_boards": place})


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output on a dataset in whose names there is markup."""
    dataset = sound_dataset()
    dataset.facts = {"rejected": {EVIL: 1}, "first_rejected": [EVIL]}
    for row in dataset.boards:
        row.update(source=EVIL, engine=EVIL)
    for game in dataset.games:
        game["source"] = EVIL
    body(work := work_on(dataset, tmp_path_factory.mktemp("checked") / "output"))
    work.write_history()
    write_manifest(work.folder, {})
    return work.folder


def test_a_report_is_the_output_and_data_docs_which_differ_from_run_to_run_are_aside(checked: Path) -> None:
    manifest, report = verified_manifest(checked), read_json(checked / REPORT)
    assert sorted(manifest["files"]) == ["history.jsonl", REPORT, SUMMARY]
    assert (report["is_met"], report["dataset"]["rows"]) == (True, 18)
    assert {f"{DATA_DOCS}/expectations/{suite['name']}.html" for suite in report["suites"]} <= set(manifest["aside"])
    assert [record.metrics for record in read_history(checked)] == [{"checks/failed": 0.0}]


def test_text_of_files_is_text_on_every_page(checked: Path) -> None:
    docs = {page.name: page.read_text(encoding="utf-8") for page in (checked / ASIDE).rglob("*.html")}
    shown = "".join(part for part in card(Seen({}, folder=checked)) if isinstance(part, str))
    summary = (checked / SUMMARY).read_text(encoding="utf-8")
    assert len(docs) >= 8
    assert html.escape("<script>alert") in shown
    for page in (summary, shown, *docs.values()):
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    assert "](javascript:" not in summary + shown, "Markdown has markup of its own"

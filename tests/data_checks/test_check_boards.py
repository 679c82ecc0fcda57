"""The step that checks: what it writes, the same for the same dataset but for the times in Data Docs, and what it refuses."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_datasets import Dataset, sound_dataset
from made_work import work_in

from grpo.base.files import ASIDE, verified_manifest, write_json, write_manifest
from grpo.settings.tree import Settings, read_settings
from steps.check_boards import DATA_DOCS, ChecksError, body
from steps.run.names import BOARDS, GAMES, REPORT, SUMMARY
from steps.run.names import REPORT as BOARDS_REPORT
from steps.run.work import read_history

SETTINGS = Settings.model_validate(
    read_settings("smoke").model_dump()
    | {
        "boards": {"files": ("games.pgn", "list.epd"), "num_train": 12, "num_validation": 3, "num_heldout": 3},
        "grpo": {"states_per_step": 12, "num_minibatches": 1},
    }
)


def write(dataset: Dataset, folder: Path) -> Path:
    folder.mkdir()
    boards, games = dataset.tables()
    pq.write_table(boards, folder / BOARDS)
    pq.write_table(games, folder / GAMES)
    write_json(folder / BOARDS_REPORT, dataset.report_facts())
    return folder


def checked(boards: Path, folder: Path) -> Path:
    work = work_in(folder, SETTINGS, inputs={"boards": boards})
    body(work)
    work.write_history()
    write_manifest(folder, {})
    return folder


def test_two_equal_datasets_have_equal_outputs_though_their_data_docs_differ(tmp_path: Path) -> None:
    boards = write(sound_dataset(), tmp_path / "boards")
    first, second = (verified_manifest(checked(boards, tmp_path / name)) for name in ("first", "second"))

    assert first["output_hash"] == second["output_hash"]
    assert sorted(first["files"]) == ["history.jsonl", REPORT, SUMMARY]
    assert set(first["aside"]) != set(second["aside"]), "the time is in the names of the pages"
    assert f"{ASIDE}/data_docs/index.html" in first["aside"]
    report = json.loads((tmp_path / "first" / REPORT).read_text())
    assert report["is_met"] is True
    for suite in report["suites"]:
        assert f"{DATA_DOCS}/expectations/{suite['name']}.html" in first["aside"]
    assert report["dataset"]["rows"] == 18
    assert [record.metrics for record in read_history(tmp_path / "first")] == [{"checks/failed": 0.0}]


def test_a_dataset_that_fails_is_refused_with_the_report_and_what_is_in_it(tmp_path: Path) -> None:
    dataset = sound_dataset()
    dataset.boards[0]["label"] = "a1a1"
    work = work_in(tmp_path / "checks", SETTINGS, inputs={"boards": write(dataset, tmp_path / "boards")})
    with pytest.raises(ChecksError) as refusal:
        body(work)

    text = str(refusal.value)
    assert text.startswith("the dataset is not fit to train on:\n2 of 31 checks failed: labels: label_legal, labels: label_as_played")
    for words in (
        f"{dataset.boards[0]['fen']}: label_faults 1",
        "18 boards from 18 games",
        "Splits: train 12, heldout 3, validation 3",
        "list.epd 3",
    ):
        assert words in text
    work.write_history()
    assert [record.metrics for record in read_history(work.folder)] == [{"checks/failed": 2.0}]
    assert not (work.folder / REPORT).exists()

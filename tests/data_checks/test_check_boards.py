"""The step that checks: what it writes, and what it refuses."""

import html
from pathlib import Path

import altair
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_datasets import Dataset, sound_dataset
from made_work import work_in

from data_checks.report import Histogram
from grpo.base.documents import write_document
from grpo.base.files import ASIDE, read_json, verified_manifest, write_manifest
from grpo.dataset.table import board_table
from grpo.settings.tree import Settings
from steps.cards.page import Seen
from steps.check_boards import DATA_DOCS, body, card, distributions
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
    (place := folder.with_name(f"{folder.name}-boards")).mkdir()
    for table, name in zip(dataset.tables(), (BOARDS, GAMES), strict=True):
        pq.write_table(table, place / name)
    write_document(place / REPORT, dataset.report())
    return work_in(folder, SETTINGS, inputs={"join_boards": place})


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dataset = sound_dataset()
    dataset.facts = {"rejected": {EVIL: 1}, "first_rejected": (EVIL,)}
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
    assert "Stockfish's best move" in summary
    assert "](javascript:" not in summary + shown, "Markdown has markup of its own"


def test_the_card_shows_what_is_in_the_boards(checked: Path) -> None:
    found = read_json(checked / REPORT)["distributions"]
    dataset = sound_dataset()
    for phase, splits in found["cells"].items():
        for split, count in splits.items():
            assert count == sum((row["phase"], row["split"]) == (phase, split) for row in dataset.boards)
    numbers = {"legal_moves": 18, "plies": 18, "values": sum(len(row["moves"]) for row in dataset.boards), "ratings": 15}
    assert {name: sum(map(sum, found[name]["counts"])) for name in numbers} == numbers, "each is counted once"
    charts = [part for part in card(Seen({}, folder=checked)) if isinstance(part, dict)]
    for chart in charts:
        altair.Chart.from_dict(chart)  # It checks the schema.
    assert len(charts) == len(numbers)


def test_a_histogram_has_each_number_in_its_bin_and_one_in_the_last() -> None:
    boards = board_table(sound_dataset().boards).slice(0, 2)
    columns = {"phase": ["endgame", "opening"], "split": ["train", "heldout"], "ply": pa.array([29, 0], pa.int32())}
    columns |= {"moves": [["a", "b"], ["a", "b", "c", "d"]], "values": [[0.0, 1.0], [0.5, 0.52, 0.26, 0.95]]}
    boards = pa.table({name: columns.get(name, boards[name]) for name in boards.column_names})
    games = pa.table({"white_rating": [1_500, None], "black_rating": [1_850, 1_599]})
    found = distributions(boards, games)
    assert (found.values.low, found.values.width) == (0, 0.05)
    # Opening, middlegame, endgame.
    assert [{number: count for number, count in enumerate(counts) if count} for counts in found.values.counts] == [
        {5: 1, 10: 2, 19: 1},
        {},
        {0: 1, 19: 1},
    ]
    classes = ("opening", "middlegame", "endgame")
    assert found.legal_moves == Histogram(low=0, width=4, classes=classes, counts=((0, 1), (0, 0), (1, 0)))
    assert found.plies == Histogram(low=0, width=10, classes=classes, counts=((1, 0, 0), (0, 0, 0), (0, 0, 1)))
    assert found.ratings == Histogram(low=1_500, width=100, classes=("white", "black"), counts=((1, 0, 0, 0), (1, 0, 0, 1)))
    assert found.cells["opening"] == {"train": 0, "validation": 0, "heldout": 1}
    unrated = games.set_column(0, "white_rating", [[None, None]]).set_column(1, "black_rating", [[None, None]])
    assert distributions(boards, unrated).ratings is None

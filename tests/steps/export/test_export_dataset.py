"""An exported dataset is read by `datasets` and pandas, split by split, and its card says what is in it."""

import re
from pathlib import Path
from typing import Any

import chess
import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_boards import write_boards

from grpo.base.files import read_json, write_json
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA
from steps.cli.main import main
from steps.step_io.names import BOARDS, GAMES, REPORT


@pytest.fixture
def exported(tmp_path: Path, epd_text: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return an exported dataset of two splits, and the boards that it was made of."""
    dataset = tmp_path / "boards"
    dataset.mkdir()
    boards = [chess.Board.from_epd(line)[0] for line in epd_text.splitlines()[::40][:40]]
    write_boards(dataset, boards, num_train=30)
    row = dict.fromkeys(GAME_SCHEMA.names) | {
        "game_id": "1",
        "source": "a|b.pgn",
        "offset": 5,
        "split": "train",
        "start_fen": chess.STARTING_FEN,
        "num_plies": 1,
        "result": "*",
        "moves": ["e2e4"],
        "keys": ["k"],
        "label_plies": [0],
    }
    pq.write_table(pq.read_table(dataset / GAMES).from_pylist([row], schema=GAME_SCHEMA), dataset / GAMES)
    files = {"a|b.pgn": {"read": 0.5, "games": 7, "rejected": 2}}
    write_json(dataset / REPORT, {"used_games": 1, "sources": {"a|b.pgn": 39, "endgame": 1}, "files": files})
    assert main(["boards", "export", str(dataset), str(tmp_path / "out")]) == 0
    return tmp_path / "out", pq.read_table(dataset / BOARDS).to_pylist()


def test_datasets_and_pandas_read_every_split(
    exported: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder, rows = exported
    for name, part in (("train", "train"), ("test", "heldout")):
        expected = [{key: value for key, value in row.items() if key != "split"} for row in rows if row["split"] == part]
        loaded = datasets.load_dataset(str(folder), "boards", split=name, cache_dir=str(tmp_path / "cache"))
        assert list(loaded) == expected
        frame = pd.read_parquet(folder / "data" / f"{name}.parquet")
        assert list(frame["fen"]) == [row["fen"] for row in expected]
        assert list(frame.columns) == [column for column in BOARD_SCHEMA.names if column != "split"]
    assert not (folder / "data" / "validation.parquet").exists(), "a split without boards is left out"
    assert datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["train"].num_rows == 30, "boards are the default"
    games = datasets.load_dataset(str(folder), "games", split="train", cache_dir=str(tmp_path / "cache"))
    assert games[0]["moves"] == ["e2e4"]


def test_the_card_counts_the_splits_and_names_the_files(exported: tuple[Path, list[dict[str, Any]]]) -> None:
    card = (exported[0] / "README.md").read_text()
    assert "40 positions from 1 games (30 train, 0 validation, 10 test)" in card
    assert re.search(r"\| a.*b\.pgn \| 50\.0% \| 7 \| 2 \| 39 \|", card)
    assert "endgame: 1 boards" in card
    assert "under their publishers' licences" in card
    for column in BOARD_SCHEMA.names:
        assert column == "split" or column in card, column


def test_an_export_overwrites_nothing_and_names_what_is_missing(
    exported: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["boards", "export", str(tmp_path / "boards"), str(exported[0])]) != 0
    assert "already exists" in capsys.readouterr().err
    assert main(["boards", "export", str(tmp_path), str(tmp_path / "new")]) != 0
    assert "no dataset is there" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "new").exists()
    assert read_json(tmp_path / "boards" / REPORT)["used_games"] == 1

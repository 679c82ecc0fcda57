"""What cannot work ends early, naming cause and remedy; what is wrong with a dataset stops the flow at its gate."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import chess.pgn
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_flow import FLOW, FlowRun, run_in_one_process

from grpo.base.files import MANIFEST, read_json, write_manifest
from grpo.dataset.table import BOARD_SCHEMA
from steps.run.step import StepOutput


def write_pgn(path: Path, num_games: int, num_plies: int) -> Path:
    """Write games that differ, are legal, and end long before an endgame."""
    with path.open("w") as file:
        for number in range(num_games):
            board = chess.Board()
            for ply in range(num_plies):
                legal = sorted(board.legal_moves, key=chess.Move.uci)
                if not legal:
                    break
                quiet = [move for move in legal if not board.is_capture(move)] or legal
                board.push(quiet[(number * 7 + ply * 13) % len(quiet)])
            print(chess.pgn.Game.from_board(board), end="\n\n", file=file)
    return path


@pytest.fixture
def home(give_tables: Callable[[Path], Path], tmp_path: Path) -> Path:
    """A home whose tracking store has its tables, and nothing else: making them takes seconds."""
    return give_tables(tmp_path / "home")


def test_a_bad_setting_ends_the_command_with_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, str(FLOW), "--config-value", "settings", "grpo.lerning_rate = 1e-3", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "METAFLOW_USER": "tester"})
    assert done.returncode != 0
    assert "settings: unknown key grpo.lerning_rate; did you mean learning_rate?" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / ".chess_grpo").exists()


def test_without_stockfish_the_run_ends_in_start_with_the_remedy(home: Path, tmp_path: Path) -> None:
    run = run_in_one_process(tmp_path, {"preset": "test"}, home=home, variables={"CHESS_GRPO_STOCKFISH": "/nowhere/stockfish"})
    assert not run.succeeded
    assert "no engine at '/nowhere/stockfish': install Stockfish (apt-get install stockfish)" in run.output
    assert "one process: build_boards" not in run.output
    assert "Traceback" not in run.output


def test_games_that_cannot_fill_the_quotas_end_the_run_with_what_is_missing(home: Path, tmp_path: Path) -> None:
    path = write_pgn(tmp_path / "games.pgn", 60, 40)
    boards = {"source": "files", "files": [str(path)], "num_tasks": 1}
    run = run_in_one_process(tmp_path / "run", {"preset": "test", "boards": boards}, home=home)
    assert not run.succeeded
    assert re.search(r"At least 10 of each split and phase are needed: .*heldout/endgame has \d", run.output)
    assert "one process: check_boards" not in run.output
    assert "Traceback" not in run.output


def with_illegal_label(rows: list[dict[str, Any]]) -> None:
    rows[3]["label"] = "a1a1"


def plant(home: Path, version: str, fault: Callable[[list[dict[str, Any]]], None]) -> StepOutput:
    """Put a fault into the boards of a store, with a manifest that knows of none."""
    folder = home / "outputs" / "join_boards" / version
    rows = pq.read_table(folder / "boards.parquet", schema=BOARD_SCHEMA).to_pylist()
    fault(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=BOARD_SCHEMA), folder / "boards.parquet")
    manifest = read_json(folder / MANIFEST)
    written = write_manifest(folder, {key: manifest[key] for key in ("step", "version", "parts", "code")})
    return StepOutput(step="join_boards", version=version, output_hash=written["output_hash"], reused=True)


def copy_of(home: Path, target: Path) -> Path:
    shutil.copytree(home, target, ignore=shutil.ignore_patterns("mlflow*", "mlartifacts"))
    return target


def test_a_planted_fault_stops_the_flow_with_a_readable_report(
    first_run: FlowRun, give_tables: Callable[[Path], Path], tmp_path: Path
) -> None:
    home = copy_of(first_run.home, tmp_path / "home")
    give_tables(home)
    plant(home, first_run.data.boards["version"], with_illegal_label)
    run = run_in_one_process(tmp_path / "run", {"preset": "test"}, home=home)
    assert not run.succeeded
    boards = pq.read_table(home / "outputs" / "join_boards" / first_run.data.boards["version"] / "boards.parquet", schema=BOARD_SCHEMA)
    for words in ("the dataset is not fit to train on", "label_legal", boards["fen"][3].as_py()):
        assert words in run.output
    assert "Traceback" not in run.output
    assert "one process: check_boards" in run.output
    assert "one process: pretrain" not in run.output

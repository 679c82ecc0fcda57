"""Real games as the source, to a verdict."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard
from real_flow import run_in_one_process

from grpo.base.files import read_json

NUM_GAMES = 1_500


def test_real_games_go_through_to_a_verdict(tmp_path: Path) -> None:
    folder = os.environ.get("CHESS_GRPO_SAMPLE_DATA")
    if not folder:
        pytest.skip("CHESS_GRPO_SAMPLE_DATA is not set: real games are not tested")
    games = (Path(folder) / "lichess_fishnet_games.pgn").read_bytes().split(b"[Event ", NUM_GAMES + 1)[: NUM_GAMES + 1]
    text = b"[Event ".join(games) + b'[Event "e"]\n\n1. e4 e5 2. Ke3 *\n'
    path = tmp_path / "games.pgn.zst"
    path.write_bytes(zstandard.compress(text))
    # More than these games have, so that all are read and the one that cannot be used is met; each split gets games by its share.
    numbers = {"num_train": 24_000, "num_validation": 2_400, "num_heldout": 2_400}
    boards = {"source": "files", "files": [str(path)], "num_units": 2, **numbers}
    run = run_in_one_process(tmp_path / "run", {"preset": "test", "boards": boards | {"max_per_game_and_phase": 1}})
    assert run.succeeded, run.output[-3000:]
    dataset = run.folder(run.data.boards)
    rows = pq.read_table(dataset / "boards.parquet").to_pylist()
    assert {row["source"] for row in rows} == {"games.pgn.zst"}
    assert any(row["white_rating"] or row["black_rating"] for row in rows)
    [rejected] = read_json(dataset / "report.json")["first_rejected"]
    assert rejected.startswith(f"games.pgn.zst, game {NUM_GAMES + 1:,}: illegal move")
    assert run.data.summary.startswith("\nVerdict: ")

"""Real games as the source, to a verdict."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from real_flow import run_flow


def test_real_games_go_through_to_a_verdict(tmp_path: Path) -> None:
    folder = os.environ.get("CHESS_GRPO_SAMPLE_DATA")
    if not folder:
        pytest.skip("CHESS_GRPO_SAMPLE_DATA is not set: real games are not tested")
    path = Path(folder) / "lichess_fishnet_games.pgn"
    run = run_flow(tmp_path, {"preset": "test", "boards": {"source": "pgn", "path": str(path)}})
    assert run.succeeded, run.output[-3000:]
    rows = pq.read_table(run.folder(run.data.boards) / "boards.parquet").to_pylist()
    assert {row["source"] for row in rows} == {"lichess_fishnet_games.pgn"}
    text = path.read_bytes()
    assert all(text[row["offset"] : row["offset"] + 1] == b"[" for row in rows)
    assert any(row["white_rating"] or row["black_rating"] for row in rows)
    assert run.data.summary.startswith("GRPO against the pretrained policy: ")

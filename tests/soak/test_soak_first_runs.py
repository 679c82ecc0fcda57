"""Three first flows at one moment, on one empty home, all come to their end: one computes, the others wait and take what it made."""

import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from forking import MARK, marked
from presets import TEST
from soaking import STEPS, Place, leftovers_of, missing_of, part, still_there

pytestmark = pytest.mark.soak

FLOW = Path(__file__).resolve().parents[2] / "flows" / "chess_grpo.py"
NUM_RUNS = 3


def test_three_first_flows_at_once(stockfish: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CHESS_GRPO_", "MLFLOW_", "SOAK_"))}
    variables = {"CHESS_GRPO_STOCKFISH": stockfish, "CHESS_GRPO_HOME": str(home := tmp_path / "home"), "CHESS_GRPO_DEVICE": "cpu"}
    variables[MARK] = uuid.uuid4().hex
    settings = ["--config-value", "settings", f'preset = "{TEST}"']
    with part("three first flows at once, by Metaflow") as row:
        row.injected = NUM_RUNS
        processes = {}
        for number in range(NUM_RUNS):
            (cwd := tmp_path / f"cwd-{number}").mkdir()
            with (cwd / "log").open("w") as log:
                processes[number] = subprocess.Popen(
                    [sys.executable, str(FLOW), *settings, "run"], cwd=cwd, env=kept | variables, stdout=log, stderr=log
                )
        for number, process in processes.items():
            assert process.wait(1800) == 0, (tmp_path / f"cwd-{number}" / "log").read_text()
        row.leaked += still_there(lambda: marked(variables[MARK]))
        row.runs = row.recovered = NUM_RUNS
        outputs = outputs_of(home / "mlflow.db")
        row.is_equal = sorted((step, num_runs) for step, _, num_runs in outputs) == [(step, NUM_RUNS) for step in sorted(STEPS)]
        row.lost = missing_of(home, {step: output for step, output, _ in outputs}, tracked=home) + leftovers_of(Place(tmp_path, home))
        assert not row.lost
        assert not row.leaked
        assert row.is_equal, outputs


def outputs_of(tracking: Path) -> list[tuple[str, str, int]]:
    """Return each step with the version and hash of an output, and how many flow runs have that."""
    query = """
        SELECT step.value, version.value || ' ' || hash.value, count(DISTINCT parent.value)
        FROM tags step JOIN tags version USING (run_uuid) JOIN tags hash USING (run_uuid) JOIN tags parent USING (run_uuid)
        WHERE step.key = 'chess_grpo.step' AND version.key = 'chess_grpo.version' AND hash.key = 'chess_grpo.output_hash'
        AND parent.key = 'mlflow.parentRunId' GROUP BY 1, 2
    """
    with closing(sqlite3.connect(tracking)) as opened:
        return [row for row in opened.execute(query) if row[0] in STEPS]

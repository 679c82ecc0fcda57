"""Faults of the configuration end a run early and name cause and remedy; a bad dataset stops the flow at `check_boards`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from presets import TEST
from real_flow import FLOW, FlowRun, run_in_one_process

from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, StorageError, read_json, write_manifest
from grpo.dataset.table import BOARD_SCHEMA
from grpo.engine.identity import EngineMissingError
from steps.run.objects import StoreError


@pytest.mark.parametrize(("error", "code"), [(EngineMissingError("no engine"), 202), (StorageError("full"), 202), (StoreError("503"), 75)])
def test_the_exit_code_says_whether_another_try_may_help(error: PlainError, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    from flows.chess_grpo import plainly

    def body(flow: object) -> None:
        raise error

    # A task tells its processes which it is; here there is none.
    with patch.dict(os.environ), pytest.raises(SystemExit) as caught:
        plainly(body)(None)
    assert caught.value.code == code
    assert capsys.readouterr().err == f"body: {error}\n"


def test_a_bad_setting_ends_the_command_with_one_clear_line(tmp_path: Path) -> None:
    command = [sys.executable, str(FLOW), "--config-value", "settings", "grpo.lerning_rate = 1e-3", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "METAFLOW_USER": "tester"})
    assert done.returncode != 0
    assert "settings: unknown key grpo.lerning_rate; did you mean learning_rate?" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / ".chess_grpo").exists()


@pytest.mark.parametrize(
    ("environment", "words", "said"),
    [
        ({}, ["resume", "--origin-run-id", "999"], "Metaflow has no run '999'"),
        ({"METAFLOW_PROFILE": "nowhere"}, ["run"], "METAFLOW_PROFILE=nowhere: there is no "),
        ({"METAFLOW_DEFAULT_METADATA": "service", "METAFLOW_SERVICE_URL": "http://127.0.0.1:1"}, ["run"], "does not answer"),
    ],
)
def test_what_metaflow_answers_with_a_traceback_is_one_line(
    environment: dict[str, str], words: list[str], said: str, tmp_path: Path
) -> None:
    given = {**os.environ, "METAFLOW_USER": "tester", "METAFLOW_HOME": str(tmp_path), "CHESS_GRPO_HOME": str(tmp_path), **environment}
    done = subprocess.run([sys.executable, str(FLOW), *words], cwd=tmp_path, capture_output=True, text=True, check=False, env=given)
    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stdout


def test_a_planted_fault_stops_the_flow_with_a_readable_report(
    first_run: FlowRun, give_tables: Callable[[Path], Path], tmp_path: Path
) -> None:
    home, boards = tmp_path / "home", first_run.data.join_boards_output
    shutil.copytree(first_run.home, home, ignore=shutil.ignore_patterns("mlflow*", "mlartifacts"))
    give_tables(home)
    folder = home / "outputs" / "join_boards" / boards["version"]
    rows = pq.read_table(folder / "boards.parquet", schema=BOARD_SCHEMA).to_pylist()
    rows[3]["label"] = "a1a1"
    pq.write_table(pa.Table.from_pylist(rows, schema=BOARD_SCHEMA), folder / "boards.parquet")
    manifest = read_json(folder / MANIFEST)  # The new one knows of no fault.
    write_manifest(folder, {key: manifest[key] for key in ("step", "version", "parts", "code")})
    run = run_in_one_process(tmp_path / "run", {"preset": TEST}, home=home)
    assert not run.succeeded
    for words in ("the dataset is not fit to train on", "label_legal", rows[3]["fen"], "begins check_boards"):
        assert words in run.output
    for words in ("Traceback", "begins pretrain"):
        assert words not in run.output

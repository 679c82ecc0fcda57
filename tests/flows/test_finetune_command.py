"""`chess-grpo finetune`: the flow's own step by itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_flow import ROOT, FlowRun

from grpo.base.files import read_json, verified_manifest


def command(run: FlowRun, home: Path, out: Path) -> subprocess.CompletedProcess[str]:
    data = run.data
    words = ["finetune", str(run.folder(data.boards)), str(run.folder(data.pretrained)), str(out), "--config", "test"]
    environment = {**os.environ, "CHESS_GRPO_HOME": str(home), "CHESS_GRPO_DEVICE": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "steps.cli.main", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=3_600,
    )


@pytest.fixture(scope="module")
def alone(first_run: FlowRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone") / "deep" / "out"
    done = command(first_run, first_run.home, out)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"written: {out}" in done.stdout
    return out


def test_it_does_what_the_flow_does(first_run: FlowRun, alone: Path) -> None:
    flow = first_run.folder(first_run.data.finetuned)
    assert read_json(alone / "report.json") == read_json(flow / "report.json"), "the weights' hash among them"
    assert (alone / "history.jsonl").read_bytes() == (flow / "history.jsonl").read_bytes()
    assert read_json(alone / "learnability.json") == read_json(flow / "learnability.json")
    verified_manifest(alone)
    assert [path.name for path in alone.parent.iterdir()] == ["out"], "nothing is left beside it"


def test_a_folder_that_is_there_and_a_beginning_of_another_kind_are_refused(first_run: FlowRun, alone: Path, tmp_path: Path) -> None:
    done = command(first_run, tmp_path, alone)
    assert done.returncode == 1
    assert "already exists" in done.stderr
    progress = tmp_path / ".out.in_progress"
    progress.mkdir()
    (progress / "begun.json").write_text(json.dumps({"settings": {}}))
    done = command(first_run, tmp_path, tmp_path / "out")
    assert done.returncode == 1
    assert "was started with other settings, boards, pretrained, engine, machine" in done.stderr
    assert not (tmp_path / "out").exists()

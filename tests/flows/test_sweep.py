"""A real sweep of the preset `test` over two seeds: killed in its second run, started again, and read back."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from presets import TEST
from real_flow import inherited

from steps.run.code import ROOT
from steps.run.records import Runs
from steps.run.store import Store
from steps.track.sweep import SWEEP

COMMAND = (sys.executable, "-m", "steps.cli.main", "sweep", TEST, "--seeds", "0", "1")
PATIENCE = 1_800


def environment(home: Path) -> dict[str, str]:
    return inherited() | {"CHESS_GRPO_HOME": str(home), "CHESS_GRPO_DEVICE": "cpu", "METAFLOW_USER": "tester", "PYTHONPATH": str(ROOT)}


def wait_for(text: str, folder: Path, pattern: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        if any(text in path.read_text() for path in folder.glob(pattern)):
            return
        time.sleep(0.5)
    pytest.fail(f"{text!r} is not in {folder}/{pattern} after {PATIENCE} s or at the end of {process.args}")


@pytest.mark.prove
def test_a_sweep_over_two_seeds_goes_on_after_a_kill_and_pools_what_its_runs_found(tmp_path: Path, stockfish: str) -> None:
    home = tmp_path / "home"
    with (tmp_path / "first.txt").open("w") as said, subprocess.Popen(COMMAND, cwd=tmp_path, env=environment(home), stdout=said) as sweep:
        wait_for("pretrain: step", home, "sweeps/*/run-2.log", sweep)
        sweep.send_signal(signal.SIGKILL)
    assert "[1/2] seed 0: its output is in" in (tmp_path / "first.txt").read_text()

    done = subprocess.run(COMMAND, cwd=tmp_path, env=environment(home), capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs, of which 1 have finished already" in done.stdout
    assert len(re.findall(r"^\[2/2\] seed 1: its output is in", done.stdout, re.MULTILINE)) == 1
    assert "mean over 2, between runs" in done.stdout

    runs = list(Runs(Store(home, home)).all())
    assert [run.status for run in runs] == ["finished", "killed", "finished"]
    [name] = {run.facts["tags"][SWEEP].partition("/")[0] for run in runs}
    assert (home / "sweeps" / name).is_dir()
    again, killed, _ = runs
    assert again.facts["tags"] == killed.facts["tags"]
    joined = again.output_of("join_boards")
    assert joined is not None
    assert joined["reused"], "what the killed run had made is not made again"

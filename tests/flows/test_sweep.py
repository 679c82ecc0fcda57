"""A real sweep of the preset `test` over two seeds: killed in its second run, started again, and read back."""

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


@pytest.mark.prove
@pytest.mark.usefixtures("stockfish")
def test_a_sweep_over_two_seeds_goes_on_after_a_kill_and_pools_what_its_runs_found(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ours = {"CHESS_GRPO_HOME": str(home), "CHESS_GRPO_DEVICE": "cpu", "METAFLOW_USER": "tester", "PYTHONPATH": str(ROOT)}
    with (tmp_path / "first.txt").open("w") as said, subprocess.Popen(COMMAND, cwd=tmp_path, env=inherited() | ours, stdout=said) as sweep:
        while not any("pretrain: step" in log.read_text() for log in home.glob("sweeps/*/run-2.log")):
            assert sweep.poll() is None
            time.sleep(0.5)
        sweep.send_signal(signal.SIGKILL)
    done = subprocess.run(COMMAND, cwd=tmp_path, env=inherited() | ours, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs, of which 1 have finished already" in done.stdout
    assert "mean over 2, between runs" in done.stdout
    runs = list(Runs(Store(home, home)).all())
    assert [run.status for run in runs] == ["finished", "killed", "finished"]
    assert len({run.facts["tags"][SWEEP].partition("/")[0] for run in runs}) == 1

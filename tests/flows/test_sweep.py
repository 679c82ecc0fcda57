"""A real sweep of the preset `test` over two seeds: killed in its second run, started again, and read back."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from real_flow import inherited
from scipy import stats

from grpo.base.files import read_json
from steps.store.versions import ROOT
from steps.tracking.tags import PARENT, REUSED, STEP

COMMAND = (sys.executable, "-m", "steps.cli.main", "sweep", "test", "--seeds", "0", "1")
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
    assert "2 runs (combinations of settings: 1, seeds: 2), of which 1 have finished already" in done.stdout
    assert len(re.findall(r"^\[2/2\] seed 1: its output is in", done.stdout, re.MULTILINE)) == 1

    [folder] = (path.parent for path in home.glob("sweeps/*/sweep.json"))
    facts = read_json(folder / "sweep.json")
    assert [(run["seed"], run["is_finished"]) for run in facts["runs"]] == [(0, True), (1, True)]
    for run in facts["runs"]:
        assert run["values"].keys() >= {"gain_as_played", "gain_adjudicated", "ladder_candidate", "ladder_gain_as_played"}
        told = subprocess.run(
            [sys.executable, "-m", "steps.cli.main", "show", run["run"]],
            cwd=tmp_path,
            env=environment(home),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert f"Results: {run['verdict']}" in told.splitlines()
        rating = run["values"]["ladder_candidate"]
        assert f"{rating['value']:+,.0f} [{rating['low']:+,.0f}, {rating['high']:+,.0f}]" in told
    [pooled] = facts["pooled"]
    for name, value in pooled["values"].items():
        numbers = [run["values"][name]["value"] for run in facts["runs"]]
        if numbers[0] != numbers[1]:
            expected = stats.ttest_1samp(numbers, 0).confidence_interval(0.95)
            assert (value["between"]["low"], value["between"]["high"]) == pytest.approx((expected.low, expected.high))
        assert value["mean"] == pytest.approx(sum(numbers) / 2)

    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(uri, registry_uri=uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    [parent] = client.search_runs(experiments, f"tags.`{STEP}` = 'sweep'")
    children = client.search_runs(experiments, f"tags.`{PARENT}` = '{parent.info.run_id}'")
    assert {child.info.run_id for child in children} == {run["mlflow_run"] for run in facts["runs"]}
    assert parent.data.metrics["sweep/gain_as_played"] == pytest.approx(pooled["values"]["gain_as_played"]["mean"])
    again = facts["runs"][1]["mlflow_run"]
    reused = client.search_runs(experiments, f"tags.`{PARENT}` = '{again}' and tags.`{STEP}` = 'join_boards'")
    assert [step.data.tags[REUSED] for step in reused] == ["True"], "what the killed run had made is not made again"

"""The flow with GRPO on two machines, here two tasks on one; and the same by torchrun, and by two processes of one node."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import real_flow
from real_flow import FLOW, ROOT, FlowRun, run_flow
from test_finetune_command import command, numbers

from grpo.base.files import read_json

TWO_THREADS = "2"
"""One for each of two processes, as each node of `on_nodes` has; see `real_flow`."""


@pytest.fixture(scope="module")
def torchrun(first_run: FlowRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes of `chess-grpo finetune` make, each with as many threads as a node has."""
    folder = tmp_path_factory.mktemp("torchrun")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHESS_GRPO_THREADS", TWO_THREADS)
        done = command(first_run, folder / "home", folder / "out", launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "out"


@pytest.fixture(scope="module")
def on_nodes(first_run: FlowRun, tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """The flow on two nodes, from the boards and the policy of the first run."""
    folder = tmp_path_factory.mktemp("nodes")
    shutil.copytree(first_run.home / "outputs", folder / "home" / "outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_flow, "FLOW", FLOW.with_name("chess_grpo_nodes.py"))
        return run_flow(folder / "cwd", {"preset": "test"}, home=folder / "home")


def same(one: Path, other: Path) -> bool:
    """Return whether two fine-tunings are the same: the weights' hash is in the report."""
    return read_json(one / "report.json") == read_json(other / "report.json") and numbers(one) == numbers(other)


@pytest.mark.prove  # A whole flow.
def test_two_nodes_make_what_torchrun_makes_bit_for_bit(on_nodes: FlowRun, torchrun: Path) -> None:
    assert on_nodes.succeeded, on_nodes.output[-3000:]
    assert same(on_nodes.folder(on_nodes.data.finetuned), torchrun)


@pytest.mark.prove  # A whole flow.
def test_what_they_make_is_another_output_than_that_of_one_process_and_close_to_it(first_run: FlowRun, on_nodes: FlowRun) -> None:
    one, two = first_run.folder(first_run.data.finetuned), on_nodes.folder(on_nodes.data.finetuned)
    assert one.name != two.name
    parts = read_json(one / "manifest.json")["parts"], read_json(two / "manifest.json")["parts"]
    assert parts[1]["inputs"] == {**parts[0]["inputs"], "processes": "2"}
    for before, after in zip(numbers(one), numbers(two), strict=True):
        assert after == pytest.approx(before, abs=1e-4, rel=1e-3)
    for name in ("boards", "checks", "pretrained", "calibrated", "baseline_report"):
        assert getattr(on_nodes.data, name)["version"] == getattr(first_run.data, name)["version"]


@pytest.mark.prove  # A whole flow.
def test_the_steps_behind_the_join_go_on_with_it(on_nodes: FlowRun) -> None:
    parts = read_json(on_nodes.folder(on_nodes.data.selected) / "manifest.json")["parts"]
    assert parts["inputs"]["finetuned"] == on_nodes.data.finetuned["output_hash"]
    assert "entropy" in on_nodes.card


@pytest.mark.prove  # Training twice.
def test_a_node_with_two_processes_makes_the_same_and_its_step_process_hears_of_it(
    first_run: FlowRun, torchrun: Path, tmp_path: Path
) -> None:
    shutil.copytree(first_run.home / "outputs", tmp_path / "home" / "outputs")
    names = ("boards", "pretrained", "calibrated", "baseline_report")
    heard = tmp_path / "heard.json"
    heard.write_text(json.dumps({name: getattr(first_run.data, name) for name in names}))
    variables = {"HOME": str(tmp_path / "home"), "DEVICE": "cpu", "THREADS": TWO_THREADS}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("on_two_processes.py")), str(heard)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **{f"CHESS_GRPO_{name}": value for name, value in variables.items()}},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=3_600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_json(heard)
    output = found["output"]
    assert same(tmp_path / "home" / "outputs" / "finetune" / output["version"], torchrun)
    assert found["steps"][-1] == found["progress"][-1][0] == 6
    assert [facts["severity"] for facts in found["assessed"]] == [read_json(torchrun / "learnability.json")["severity"]]
    assert found["again"] == {**output, "reused": True}, "the second process ends where the first reuses an output"

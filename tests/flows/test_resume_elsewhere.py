"""The real flow gone on from on another machine: another home, another checkout, and nothing shared but the tracking store."""

import json
import shutil
from typing import Any

import pytest
import real_flow
from real_flow import ROOT, FlowRun, run_flow

from grpo.settings.tree import read_settings
from steps.step_io.work import read_history

STEP = 4
"""A kept checkpoint of the preset `test`."""
pytestmark = pytest.mark.prove  # A whole flow; test_flow.py goes on from the peak in one process.
THEN = read_settings("test").grpo.learning_rate


@pytest.fixture(scope="module")
def resumed(first_run: FlowRun, tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """A run that goes on from a checkpoint of the first, with other settings that may change."""
    folder = tmp_path_factory.mktemp("elsewhere")
    checkout = folder / "checkout"
    for package in ("flows", "steps", "grpo", "data_checks"):
        shutil.copytree(ROOT / package, checkout / package, ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_flow, "FLOW", checkout / "flows" / "chess_grpo.py")
        patch.delenv("PYTHONPATH", raising=False)
        return run_flow(
            folder / "cwd",
            {"preset": "test", "grpo": {"num_steps": 2, "learning_rate": 2e-3}},
            variables={"MLFLOW_TRACKING_URI": f"sqlite:///{first_run.home / 'mlflow.db'}"},
            resume_from=f"{first_run.run_id}/{STEP}",
        )


def test_it_goes_on_from_the_checkpoint_with_the_origins_boards_and_policy(first_run: FlowRun, resumed: FlowRun) -> None:
    assert resumed.succeeded, resumed.output[-3000:]
    assert resumed.home != first_run.home
    for name in ("boards", "checks", "pretrained", "calibrated", "baseline_report"):
        then, now = getattr(first_run.data, name), getattr(resumed.data, name)
        assert now["output_hash"] == then["output_hash"]
        assert resumed.folder(now).is_dir()
    report = json.loads((resumed.folder(resumed.data.finetuned) / "report.json").read_text())
    assert (report["first_step"], report["last_step"]) == (STEP, STEP + 2)
    before = {record.step: record.metrics for record in read_history(first_run.folder(first_run.data.finetuned))}
    after = read_history(resumed.folder(resumed.data.finetuned))
    assert after[0].metrics["heldout/regret_best"] == before[STEP]["heldout/regret_best"]


def test_what_changed_is_printed_and_recorded(first_run: FlowRun, resumed: FlowRun, tracking: Any) -> None:
    assert f"grpo.learning_rate: origin {THEN}, now 0.002" in resumed.output
    [experiment] = [tracking.get_experiment_by_name("chess-grpo").experiment_id]
    [parent] = tracking.search_runs([experiment], f"tags.`metaflow.run` = '{resumed.run_id}' and tags.`chess_grpo.step` = 'flow'")
    tags = parent.data.tags
    assert (tags["chess_grpo.origin"], tags["chess_grpo.origin_step"]) == (first_run.run_id, str(STEP))
    assert tags["chess_grpo.changed.grpo.num_steps"] == "6 -> 2"
    assert tags["chess_grpo.changed.grpo.learning_rate"] == f"{THEN} -> 0.002"
    assert "chess_grpo.allowed" not in tags


def test_peak_is_the_best_of_all_runs_from_one_initial_policy(first_run: FlowRun, resumed: FlowRun, tracking: Any) -> None:
    # Other tests' runs in this store began with the same policy; bounds of games that count in the same way can be compared.
    def run_of(version: Any) -> str:
        return str(tracking.get_run(version.tags["mlflow.parentRunId"]).data.tags["metaflow.run"])

    low, initial = "chess_grpo.peak_lower_bound", "chess_grpo.initial_weights"
    peaks = [version for version in tracking.search_model_versions("name = 'chess-policy'") if low in version.tags]
    lows = {run_of(version): float(version.tags[low]) for version in peaks}
    for run in (first_run, resumed):
        assert lows[run.run_id] == json.loads((run.folder(run.data.selected) / "report.json").read_text())["peak_low"]
    version = tracking.get_model_version_by_alias("chess-policy", "peak")
    comparable = [peak for peak in peaks if peak.tags[initial] == version.tags[initial]]
    best = max(comparable, key=lambda peak: (float(peak.tags[low]), -int(peak.version)))
    assert version.version == best.version
    assert "select: registry: alias peak " in resumed.output
    assert "peak/manifest.json" in [file.path for file in tracking.list_artifacts(version.run_id, "peak")]

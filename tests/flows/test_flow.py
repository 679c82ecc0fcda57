"""The real flow from an empty directory to a verdict, and what it leaves behind."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from page_code import blocks
from presets import TEST, tiny_settings
from real_flow import FlowRun, outputs_in, run_in_one_process

from grpo.metrics.table import METRICS
from steps import STEPS
from steps.run.records import Runs
from steps.run.store import Store
from steps.run.work import read_history
from steps.start import start
from steps.track.notes import run_name, tracked_name

NEAREST = "smoke"
"""The shipped preset with the fewest differences from that of the tests."""


def outputs(run: FlowRun) -> dict[str, Any]:
    return outputs_in(vars(run.data))


def report(run: FlowRun, step: str) -> Any:
    return json.loads((run.folder(outputs(run)[step]) / ("results.json" if step == "report" else "report.json")).read_text())


def test_the_run_ends_with_the_verdict_and_with_commands_that_work_when_pasted(first_run: FlowRun) -> None:
    assert first_run.succeeded, first_run.output[-3000:]
    lines = first_run.data.summary.splitlines()
    assert lines[1].startswith("Verdict: ")
    cwd = first_run.home.parent
    places = {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}
    assert (cwd / places["Champion"] / "policy.safetensors").is_file()
    assert (cwd / places["Report"]).read_text().startswith("# Verdict: ")
    play, show, card, ui = (line.partition("  # ")[0].strip() for line in lines[lines.index("Next:") + 1 :])
    assert play.endswith(f"chess-grpo play {first_run.run_id}")
    assert ui.endswith("chess-grpo ui")
    environment = os.environ | {"CHESS_GRPO_HOME": str(first_run.home), "HOME": str(cwd), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    for command, said in ((card, f"{first_run.run_id}/report: "), (show, f"Run {first_run.run_id}: finished")):
        done = subprocess.run(command, shell=True, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(said)


def test_no_game_and_no_position_is_in_two_splits(first_run: FlowRun) -> None:
    rows = pq.read_table(
        first_run.folder(first_run.data.join_boards_output) / "boards.parquet", columns=["game_id", "key", "split"]
    ).to_pylist()
    for column in ("game_id", "key"):
        assert len({(row[column], row["split"]) for row in rows}) == len({row[column] for row in rows})
    assert len({row["key"] for row in rows}) == len(rows)


def test_the_same_seed_gives_the_same_dataset_metrics_and_weights(
    first_run: FlowRun, give_tables: Callable[[Path], Path], tmp_path: Path
) -> None:
    second = outputs(run_in_one_process(tmp_path, {"preset": TEST}, home=give_tables(tmp_path / "home")))
    assert {step: output["output_hash"] for step, output in outputs(first_run).items()} == {
        step: output["output_hash"] for step, output in second.items()
    }
    assert not any(output["reused"] for output in second.values())


def test_the_tracker_has_a_parent_with_a_child_for_each_step(first_run: FlowRun, tracking: Any) -> None:
    experiment = tracking.get_experiment_by_name("chess-grpo")
    runs = tracking.search_runs([experiment.experiment_id])
    [parent] = [run for run in runs if run.data.tags["chess_grpo.step"] == "flow"]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.info.run_name for run in children) == sorted(run_name(step) for step in STEPS if step not in ("start", "end"))
    assert parent.data.tags["metaflow.run"] == first_run.run_id
    assert report(first_run, "select")["sentence"] in parent.data.tags["mlflow.note.content"]
    assert parent.data.params["grpo.learning_rate"] == str(tiny_settings().grpo.learning_rate)
    assert {"settings.json", "settings.toml"} <= {file.path for file in tracking.list_artifacts(parent.info.run_id)}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert set().union(*(run.data.metrics for run in runs)) <= {tracked_name(name) for name in METRICS}
    # By the parents runs are compared: a number there is one of a step's last.
    assert parent.data.metrics["selection/score_best"] == report(first_run, "select")["claims"][0]["interval"]["value"]
    made = outputs(first_run)
    for run in children:
        if (step := run.data.tags["chess_grpo.step"]) in made:
            assert run.data.tags["chess_grpo.output_hash"] == made[step]["output_hash"]
    for alias in ("champion", "peak"):
        version = tracking.get_model_version_by_alias(f"chess-policy-{NEAREST}", alias)
        assert json.loads(version.tags["chess_grpo.policy"])["policy_step"] == report(first_run, "select")[f"{alias}_step"]


def test_the_page_on_tracking_loads_the_champion_and_predicts(
    tracking: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.tracking_uri)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's, of the signature.
        exec(blocks("tracking.md")[0].replace("chess-policy-laptop", f"chess-policy-{NEAREST}"), {})
    assert "'e2e4'" in capsys.readouterr().out


def test_metaflows_client_has_results_as_plain_data_and_tags(first_run: FlowRun) -> None:
    results = first_run.data.results
    assert json.loads(json.dumps(results)) == results
    assert {name: results[name] for name in report(first_run, "report")} == report(first_run, "report")
    assert results["run"] == first_run.run_id
    assert all(Path(place).exists() for place in results["where"].values())
    code = [sys.executable, "-c", blocks("tracking.md")[1]]
    done = subprocess.run(code, cwd=first_run.home.parent, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{first_run.run_id} {results['decision']['verdict']} - ")


def test_a_run_that_resumes_begins_with_its_origins_outputs_and_peak(first_run: FlowRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(first_run.home))
    keys = {"grpo": {"learning_rate": 2e-3}}
    given = {"settings": tiny_settings("grpo.learning_rate = 2e-3").model_dump(mode="json"), "keys": keys}
    job = start(given, run="resumed", is_fresh=False, resume_from=first_run.run_id)
    peak, made = report(first_run, "select")["peak_step"], outputs(first_run)
    assert job["settings"] == given["settings"]
    assert (job["origin"]["run"], job["origin"]["step"]) == (first_run.run_id, peak)
    hashes = {step: output["output_hash"] for step, output in job["origin"]["outputs"].items()}
    assert hashes.items() >= {
        (step, made[step]["output_hash"]) for step in ("join_boards", "check_boards", "pretrain", "calibrate", "baseline")
    }
    run = Runs(Store(first_run.home, first_run.home)).get("resumed")
    assert run.facts["tags"]["chess_grpo.origin_step"] == str(peak)


@pytest.mark.prove
def test_resume_from_peak_with_another_rate_takes_boards_and_policy_and_goes_on(first_run: FlowRun, tracking: Any, tmp_path: Path) -> None:
    peak = report(first_run, "select")["peak_step"]
    settings = {"preset": TEST, "grpo": {"learning_rate": 2e-3}}
    resumed = run_in_one_process(tmp_path, settings, home=first_run.home, resume_from=first_run.run_id)
    assert resumed.succeeded, resumed.output[-3000:]
    before, after = outputs(first_run), outputs(resumed)
    reused = {step for step in after if after[step]["reused"]}
    assert reused == {"join_boards", "check_boards", "pretrain", "calibrate", "baseline"}
    assert all(after[step]["output_hash"] == before[step]["output_hash"] for step in reused)
    training = report(resumed, "finetune")
    assert (training["first_step"], training["last_step"]) == (peak, peak + tiny_settings().grpo.num_steps)
    regret = {record.step: record.metrics.get("heldout/regret_best") for record in read_history(first_run.folder(before["finetune"]))}
    assert read_history(resumed.folder(after["finetune"]))[0].metrics["heldout/regret_best"] == regret[peak]
    runs = tracking.search_runs([tracking.get_experiment_by_name("chess-grpo").experiment_id], f"tags.`metaflow.run` = '{resumed.run_id}'")
    [parent] = [run for run in runs if run.data.tags["chess_grpo.step"] == "flow"]
    assert (parent.data.tags["chess_grpo.origin"], parent.data.tags["chess_grpo.origin_step"]) == (first_run.run_id, str(peak))

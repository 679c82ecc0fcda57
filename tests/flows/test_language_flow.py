"""A language model through all steps, from `start` to `end`, as small as it can be: what it leaves is what a network's run leaves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from presets import TEST
from real_flow import FlowRun, run_in_one_process

from grpo.base.files import read_json
from steps.run.work import read_history

SETTINGS: Final[Mapping[str, Any]] = {
    "preset": TEST,
    "policy": {"kind": "language"},
    "language": {
        "small_width": 48,
        "small_num_layers": 1,
        "min_parse_rate": 0.0,  # What such a model writes can hardly be read: steps are tested here, and not its chess.
        "max_questions": 1,
        "num_heldout_boards": 6,
    },
    "pretrain": {"max_steps": 200, "batch_size": 16, "learning_rate": 3e-3, "steps_per_validation": 100},
    "grpo": {"num_steps": 2, "states_per_step": 4, "group_size": 4, "steps_per_checkpoint": 1},
    "evaluation": {"max_plies": 20, "num_baseline_pairs": 1},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FlowRun:
    """Return the steps of the flow, run in one process."""
    found = run_in_one_process(tmp_path_factory.mktemp("language"), SETTINGS)
    assert found.succeeded, found.output[-4_000:]
    return found


def folder(run: FlowRun, name: str) -> Path:
    return run.folder(getattr(run.data, name))


@pytest.mark.prove
def test_every_step_leaves_what_it_leaves_of_a_network(run: FlowRun) -> None:
    cloned = read_json(folder(run, "pretrained") / "report.json")
    assert cloned["parse_rates"].keys() == {"move", "environment"}
    trained = read_json(folder(run, "finetuned") / "report.json")
    assert (trained["first_step"], trained["last_step"], trained["reason"]) == (0, 2, "budget_spent")
    records = read_history(folder(run, "finetuned"))
    assert [record.step for record in records] == [0, 1, 2]
    assert records[1].metrics["language/kl_reference"] < 1e-6
    assert records[1].metrics["language/sampled_scored_gap"] < 1e-4
    answers = read_json(folder(run, "finetuned") / "answers.json")
    assert {answer["whose"] for row in answers for answer in row["answers"]} == {"pretrained", "trained"}
    decision = read_json(folder(run, "selected") / "report.json")
    assert decision["confirmation_best_moves"]["num_pairs"] > 0


@pytest.mark.prove
def test_resume_from_peak_goes_on_from_its_weights_to_its_report(run: FlowRun, tmp_path: Path) -> None:
    peak = read_json(folder(run, "selected") / "report.json")["peak_step"]
    resumed = run_in_one_process(tmp_path, SETTINGS, home=run.home, resume_from=run.run_id)
    assert resumed.succeeded, resumed.output[-4_000:]
    assert resumed.data.pretrained["output_hash"] == run.data.pretrained["output_hash"]
    training = read_json(folder(resumed, "finetuned") / "report.json")
    assert (training["first_step"], training["last_step"]) == (peak, peak + 2)
    before = {record.step: record.metrics for record in read_history(folder(run, "finetuned"))}
    after = read_history(folder(resumed, "finetuned"))
    assert after[0].metrics["heldout/reward"] == before[peak]["heldout/reward"], "the weights are those of the peak"
    assert read_json(folder(resumed, "selected") / "report.json")["confirmation_best_moves"]["num_pairs"] > 0

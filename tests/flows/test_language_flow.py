"""A language model through all steps, as small as it can be, and once more from its peak."""

from pathlib import Path
from typing import Any

import pytest
from presets import TEST
from real_flow import FlowRun, outputs_in, run_in_one_process

from grpo.base.files import read_json
from steps.run.work import read_history

SETTINGS = {"preset": str(Path(TEST).with_name("language-test.toml"))}


def report(run: FlowRun, step: str) -> Any:
    assert run.succeeded, run.output[-4_000:]
    return read_json(run.folder(outputs_in(vars(run.data))[step]) / "report.json")


@pytest.mark.prove
def test_a_language_model_goes_from_games_to_a_verdict_and_on_from_its_peak(tmp_path: Path) -> None:
    run = run_in_one_process(tmp_path / "first", SETTINGS)
    assert report(run, "pretrain")["parse_rates"].keys() == {"move", "environment"}
    before, trained = read_history(run.folder(run.data.finetune_output)), report(run, "finetune")
    assert (trained["last_step"], trained["reason"]) == (len(before) - 1, "budget_spent")
    assert before[1].metrics["language/kl_reference"] < 1e-6
    assert before[1].metrics["language/sampled_scored_gap"] < 1e-4
    peak = report(run, "select")["peak_step"]
    resumed = run_in_one_process(tmp_path / "resumed", SETTINGS, home=run.home, resume_from=run.run_id)
    assert report(resumed, "finetune")["first_step"] == peak
    after = read_history(resumed.folder(resumed.data.finetune_output))
    assert after[0].metrics["heldout/reward"] == before[peak].metrics["heldout/reward"], "the weights are those of the peak"
    assert report(resumed, "select")["confirmation_best_moves"]["score"]["num_pairs"] > 0

"""`chess-grpo diagnose`: exit codes, settings, tables of other trainers, and our histories in folders."""

import json
from pathlib import Path

import pytest

from steps.cli.diagnose import evaluations_of
from steps.cli.main import main

NOTES = Path(__file__).parents[2] / "field_notes"


def test_findings_are_exit_code_1_and_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(json.dumps({"entropy_coef": 0.1}), encoding="utf-8")
    tables = [str(NOTES / name) for name in ("feb04_loss_budget.csv", "feb04_rewards.csv")]
    code = main(["diagnose", *tables, "--evals", str(NOTES / "feb04_evals.csv"), "--settings", str(settings)])
    told = capsys.readouterr().out
    assert code == 1
    assert told.startswith("feb04_loss_budget.csv, feb04_rewards.csv: temperature_mismatch, ")
    assert "`entropy_coef` (here 0.1)" in told
    assert "docs/diagnosis.md#cancelling_terms" in told


def test_a_healthy_run_in_a_folder_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = ({"grpo/entropy": 2.0 - step / 100, "grpo/regret": 0.1 - step / 1000, "grpo/exact_cosine": 0.8} for step in range(1, 40))
    rows = [json.dumps({"step": step, **each}) for step, each in enumerate(metrics, start=1)]
    (tmp_path / "history.jsonl").write_text("\n".join([*rows, ""]))
    assert main(["diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path}: healthy")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.csv", str(NOTES / "jan15_loss.csv")], "nowhere.csv is not a file"),
        (["last", "--evals", "x.csv"], "--evals belongs to"),
        ([str(NOTES / "jan15_loss.csv"), "--settings", "nowhere.json"], "nowhere.json: cannot be read"),
        ([str(NOTES / "jan15_loss.csv"), "--settings", str(NOTES / "jan15_loss.csv")], "is not valid JSON"),
    ],
)
def test_unusable_input_is_exit_code_2_with_the_reason(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_games_of_a_run_count_as_played() -> None:
    games = {"score": 0.5, "low": 0.45, "high": 0.55, "num_pairs": 30, "adjudicated": {"score": 0.8, "low": 0.7, "high": 0.9}}
    start, candidate = evaluations_of({"confirmation_best_moves": games, "candidate_step": 40})
    assert (start.step, start.score, start.low, start.high) == (0, 0.5, 0.5, 0.5)
    assert (candidate.step, candidate.score, candidate.games) == (40, 0.5, 60)
    assert evaluations_of({"confirmation_best_moves": None, "candidate_step": None}) == ()

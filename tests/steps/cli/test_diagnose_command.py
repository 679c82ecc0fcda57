"""`chess-grpo diagnose`: exit codes, tables of other trainers, and our histories in folders."""

import json
from pathlib import Path

import pytest

from steps.cli.main import main

NOTES = Path(__file__).parents[2] / "field_notes"


def test_findings_are_exit_code_1_and_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["diagnose", *(str(NOTES / f"feb04_{name}.csv") for name in ("loss_budget", "rewards", "evals"))])
    told = capsys.readouterr().out
    assert code == 1
    assert told.startswith("feb04_loss_budget.csv, feb04_rewards.csv, feb04_evals.csv: temperature_mismatch, ")
    assert "docs/troubleshooting.md#canceling_terms" in told


def test_a_healthy_run_in_a_folder_is_exit_code_0_one_that_says_too_little_3_and_one_that_is_not_shown_to_learn_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, fall, code, words in (
        (39, 1e-3, 0, "healthy"),
        (5, 1e-3, 3, "not judged: 5 rows are too few"),
        (39, 0, 4, "nothing found; the reward is not shown to rise in 39 rows"),
    ):
        rows = [{"step": step, "grpo/entropy": 2 - step / 100, "grpo/regret": 0.1 - step * fall} for step in range(1, number + 1)]
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["diagnose", str(tmp_path)]) == code
        assert capsys.readouterr().out.startswith(f"{tmp_path}: {words}")


def test_a_journal_whose_metrics_have_other_names_is_judged_by_those_that_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = [{"grpo/entropy": 2 - step / 100, "grpo/regret": 0.1 - step / 1000, "grpo/of_old": 1.0} for step in range(39)]
    rows = [{"time": 1, "aside": False, "record": {"step": step, **metric}} for step, metric in enumerate(metrics)]
    times = {"time": 1, "aside": True, "record": {"step": 38, "time/update": 1.0}}
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*rows, times)) + '{"time": 1, "asi')
    assert main(["diagnose", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{tmp_path}: healthy", "", "not used: grpo/of_old"]


def test_a_file_that_is_not_there_is_exit_code_2_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "nowhere.csv", str(NOTES / "jan15_loss.csv")]) == 2
    assert "nowhere.csv is not a file" in capsys.readouterr().err

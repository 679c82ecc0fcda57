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
    assert "docs/troubleshooting.md#cancelling_terms" in told


def test_a_healthy_run_in_a_folder_is_exit_code_0_and_one_that_says_too_little_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, code, words in ((39, 0, "healthy"), (5, 3, "not judged: 5 rows are too few")):
        rows = [{"step": step, "grpo/entropy": 2 - step / 100, "grpo/regret": 0.1 - step / 1000} for step in range(1, number + 1)]
        (tmp_path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["diagnose", str(tmp_path)]) == code
        assert capsys.readouterr().out.startswith(f"{tmp_path}: {words}")


def test_a_file_that_is_not_there_is_exit_code_2_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "nowhere.csv", str(NOTES / "jan15_loss.csv")]) == 2
    assert "nowhere.csv is not a file" in capsys.readouterr().err

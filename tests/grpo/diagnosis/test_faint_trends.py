"""Histories in other trainers' styles whose trend is faint in any single row, or whose first row was logged after its update."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from grpo.diagnosis.diagnose import Diagnosis, diagnose
from grpo.diagnosis.reading import read_run_history

ROWS = 400
SHARE = np.linspace(0.0, 1.0, ROWS)


def diagnosed(folder: Path, columns: Mapping[str, Sequence[float] | np.ndarray], *, first: int = 1) -> Diagnosis:
    """Return the diagnosis of a CSV file with these columns."""
    lines = [",".join(["step", *columns])]
    for row, values in enumerate(zip(*columns.values(), strict=True)):
        lines.append(",".join([str(first + row), *("" if np.isnan(value) else f"{value:.6g}" for value in values)]))
    path = folder / "history.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return diagnose(read_run_history([path]))


def noise(seed: int, size: float) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, size, ROWS)


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_that_falls_by_less_than_its_noise_falls_and_is_not_flat(tmp_path: Path, seed: int) -> None:
    reward = 0.5 - 0.14 * SHARE + noise(seed, 0.09)
    found = diagnosed(tmp_path, {"critic/score/mean": reward, "actor/lr": np.full(ROWS, 1e-6)})
    assert "falling_reward" in found.names
    assert "flat_reward" not in found.names


@pytest.mark.parametrize("seed", range(3))
def test_a_reward_without_a_trend_is_still_flat(tmp_path: Path, seed: int) -> None:
    found = diagnosed(tmp_path, {"critic/score/mean": 0.5 + noise(seed, 0.09), "actor/lr": np.full(ROWS, 1e-6)})
    assert "flat_reward" in found.names
    assert "falling_reward" not in found.names


@pytest.mark.parametrize("seed", [3, 11, 15, 17])
def test_a_noisy_accuracy_that_falls_while_reward_rises_is_reward_hacking(tmp_path: Path, seed: int) -> None:
    accuracy = np.where(np.arange(ROWS) % 25 == 0, 0.3 - 0.15 * SHARE + noise(seed, 0.04), np.nan)
    columns = {"reward": 0.3 + 0.3 * SHARE + noise(seed + 9, 0.05), "reward_std": np.full(ROWS, 0.4), "eval_reward": accuracy}
    assert "reward_hacking" in diagnosed(tmp_path, columns).names


def test_a_kl_of_ours_that_was_logged_after_its_update_is_none_at_step_zero(tmp_path: Path) -> None:
    kl = 0.004 * np.arange(1, ROWS + 1) ** 0.6
    columns = {"grpo/reward_mean": 0.5 + 0.1 * SHARE + noise(1, 0.01), "grpo/reward_std": np.full(ROWS, 0.12), "grpo/kl_reference": kl}
    assert diagnosed(tmp_path, columns, first=0).is_healthy
    constant = columns | {"grpo/kl_reference": 0.05 + 0.1 * kl}
    assert "kl_at_step_zero" in diagnosed(tmp_path, constant, first=0).names


def test_few_effective_samples_are_told_where_the_number_of_optimiser_steps_is_unknown(tmp_path: Path) -> None:
    columns = {"grpo/reward_mean": 0.5 + 0.1 * SHARE + noise(1, 0.01), "grpo/effective_sample_size": 0.3 + noise(2, 0.02)}
    assert "stale_policy" in diagnosed(tmp_path, columns).names
    assert "stale_policy" not in diagnosed(tmp_path, columns | {"grpo/optimiser_steps": np.ones(ROWS)}).names


def test_openrlhfs_gap_between_sampler_and_trainer_is_read(tmp_path: Path) -> None:
    columns = {"train/reward": 0.3 + 0.3 * SHARE + noise(1, 0.05), "train/actor_lr": np.full(ROWS, 1e-6)}
    assert "scored_otherwise" not in diagnosed(tmp_path, columns | {"train/vllm_kl": np.full(ROWS, 5e-4)}).names
    assert "scored_otherwise" in diagnosed(tmp_path, columns | {"train/vllm_kl": 0.3 + noise(2, 0.02)}).names

"""The diagnosis of a language model's run: healthy, and with the faults of `lm_explosion`."""

import math
from collections.abc import Callable, Mapping

import pytest

from grpo.diagnosis.diagnose import Watch, diagnose
from grpo.diagnosis.history import History
from grpo.settings.metrics import Record
from grpo.settings.tree import read_settings

SETTINGS = read_settings('policy.kind = "language"').model_dump(mode="json")
NUM_STEPS = 60


def healthy(step: int) -> dict[str, float]:
    """Return what a run shows that learns slowly: rewards are points, an answer's entropy is above any of a move's."""
    wave = math.sin(3 * step)
    return {
        "language/loss": -0.002 + 0.001 * wave,
        "language/kl_term": 1e-7 * step,
        "language/reward_mean": 3.1 + 0.01 * step + 0.05 * wave,
        "language/reward_std": 0.9,
        "language/entropy": 14.0 - 0.05 * step + 0.3 * wave,
        "language/entropy/move": 11.0,
        "language/normalised_entropy": 0.06,
        "language/kl_reference": 0.002 * (step - 1),
        "language/kl_max": 0.02 * (step - 1),
        "language/parse_rate": 0.93 + 0.02 * wave,
        "language/truncated": 0.01,
        "language/zero_variance_groups": 0.1,
        "language/agreement": 0.2,
        "language/clip_fraction": 0.0,
        "language/ratio_min": 1.0,
        "language/ratio_max": 1.0,
        "language/optimiser_steps": 1.0,
        "language/skipped": 0.0,
        "language/gradient_norm": 0.4,
        "language/sampled_scored_gap": 2e-6,
        "control/kl_coefficient": 1e-3 * step / 500,
        "control/learning_rate": 1e-6,
    }


def records(num_steps: int = NUM_STEPS, **changed: Callable[[int], float]) -> list[Record]:
    """Return records with these metrics (`__` for `/`) put over the healthy ones, as functions of the step."""
    over = {name.replace("__", "/"): value for name, value in changed.items()}
    rows = [Record(step, {**healthy(step), **{name: value(step) for name, value in over.items()}}) for step in range(1, num_steps + 1)]
    return [Record(0, {"heldout/regret_best": 0.2, "heldout/parse_rate": 0.94}), *rows]


def names_of(rows: list[Record]) -> set[str]:
    return {name for name in diagnose(History.of_records(rows), SETTINGS).names if name not in ("healthy", "no_baseline")}


def told(rows: list[Record]) -> dict[str, int]:
    """Return what is told live: name -> step."""
    watch = Watch(SETTINGS)
    return {finding.name: row.step for row in rows for finding in watch.observe(row)}


FAULTS: Mapping[str, tuple[str, dict[str, Callable[[int], float]], int]] = {
    "pads counted as positions": ("scored_otherwise", {"language__sampled_scored_gap": lambda _: 5.1}, 1),
    "another reference": ("kl_at_step_zero", {"language__kl_reference": lambda step: 15.0 + 0.01 * step}, 1),
    "random weights": (
        "unlearned_language_model",
        {
            "language__parse_rate": lambda _: 0.0,
            "language__truncated": lambda _: 1.0,
            "language__reward_mean": lambda _: -0.3,
            "language__reward_std": lambda _: 0.0,
            "language__zero_variance_groups": lambda _: 1.0,
        },
        1,
    ),
    "a loss that is no number": ("nan_steps", {"language__loss": lambda step: math.nan if step == 1 else -0.002}, 1),
    "steps left out": ("nan_steps", {"language__skipped": lambda step: float(step == 7)}, 20),
    "the format forgotten": ("lost_format", {"language__parse_rate": lambda step: 0.95 - 0.012 * step}, 30),
    "one answer for all": (
        "entropy_collapse",
        {
            "language__entropy": lambda step: 14.0 * math.exp(-0.1 * step),
            "language__reward_mean": lambda step: 3.1 + 0.05 * math.sin(3 * step),
        },
        40,
    ),
    "groups without differences": ("silent_groups", {"language__zero_variance_groups": lambda step: 0.2 + 0.012 * step}, 60),
    "groups of one answer": ("group_agreement", {"language__agreement": lambda step: 0.3 + 0.01 * step}, 60),
    "clipped": ("high_clip_fraction", {"language__clip_fraction": lambda step: 0.4 + 0.02 * math.sin(step)}, 20),
}


def test_a_healthy_run_is_called_so_live_and_afterwards() -> None:
    assert names_of(records()) == set()
    assert names_of(records(600)) == set(), "over the KL warm-up, which is no controller at its bound"
    assert told(records()) == {}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_with_the_first_row_that_shows_it(fault: str) -> None:
    name, changed, step = FAULTS[fault]
    assert name in names_of(records(**changed))
    assert told(records(**changed))[name] <= step


def test_the_explosion_is_told_whole_at_its_first_step() -> None:
    _, random_weights, _ = FAULTS["random weights"]
    rows = records(1, **random_weights, language__loss=lambda _: math.nan, language__kl_reference=lambda _: 15.0)
    assert told(rows).keys() >= {"nan_steps", "unlearned_language_model", "kl_at_step_zero"}

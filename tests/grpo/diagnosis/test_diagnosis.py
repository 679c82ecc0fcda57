"""The diagnosis: failed runs by their true causes in the order in which they begin, and what must not be called ill."""

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from grpo.diagnosis.diagnose import Watch, diagnose
from grpo.diagnosis.history import Evaluation, History, read_tables
from grpo.diagnosis.tables import Table
from grpo.metrics.records import Event, Record
from grpo.settings.tree import Settings

TESTS = Path(__file__).parents[2]
Column = Callable[[float], float]


def tables(folder: str, *names: str) -> History:
    return read_tables([TESTS / folder / (name if "." in name else f"{name}.csv") for name in names])


# Runs that failed: tables -> findings, causes before what may follow from them.
FAILED: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("field_notes", "jan15_collapse", "jan15_loss"): ("entropy_collapse", "falling_reward"),
    ("field_notes", "jan19_kl_trap", "jan19_evals"): (
        *("kl_trap", "entropy_collapse", "impossible_entropy"),
        *("unbelievable_peak", "no_baseline", "group_agreement"),
    ),
    ("field_notes", "feb04_loss_budget", "feb04_rewards", "feb04_evals"): (
        *("temperature_mismatch", "kl_at_step_zero", "saturated_controller", "flat_reward"),
        *("canceling_terms", "loss_budget", "dead_monitor", "no_baseline", "unbelievable_peak"),
    ),
    ("field_notes", "feb05_clean_run", "feb05_summary"): (
        *("temperature_mismatch", "kl_at_step_zero"),
        *("high_clip_fraction", "flat_reward"),
    ),
    ("field_notes", "lm_explosion"): ("nan_steps", "unlearned_language_model", "kl_at_step_zero"),
    # A learning rate that is printed as 0.000 is rounding.
    ("public_reports", "nan_from_83"): ("nan_steps", "falling_reward"),
    ("public_reports", "policy_never_changed"): ("no_gradient",),
    # "No Log" is an empty cell.
    ("public_reports", "no_log"): ("nan_steps",),
    ("public_reports", "zero_gradient"): ("no_gradient", "silent_groups"),
    ("public_reports", "logprob_drift"): ("scored_otherwise", "falling_reward"),
    # Stable-Baselines3's `entropy_loss` is minus the entropy.
    ("public_reports", "sb3_entropy_loss"): (),
    # `timing_s/step` is a time.
    ("public_reports", "verl_seconds_a_step"): ("entropy_collapse", "falling_reward"),
    ("public_reports", "appended_after_resume"): ("entropy_collapse", "diverging", "falling_reward"),
    ("public_reports", "reward_stays"): ("flat_reward",),
    ("public_reports", "every_answer_cut"): ("truncated_answers",),
    ("public_reports", "kl_not_zero_first"): ("kl_at_step_zero", "diverging"),
    ("public_reports", "kl_spikes"): ("extreme_rows",),
    ("public_reports", "nested_rows.jsonl"): ("entropy_collapse", "falling_reward"),
    ("public_reports", "panel_reward", "panel_entropy", "panel_kl"): ("entropy_collapse", "diverging", "falling_reward"),
}


@pytest.mark.parametrize("names", FAILED, ids=lambda names: names[1])
def test_each_run_that_failed_has_its_true_causes_before_what_follows(names: tuple[str, ...]) -> None:
    assert diagnose(tables(*names)).names == FAILED[names]


# A healthy run of another trainer, and what single columns look like when something is wrong.
STEPS = range(0, 1_200, 20)


def share(step: float) -> float:
    return step / STEPS[-1]


HEALTHY: Mapping[str, Column] = {
    "entropy": lambda step: 2.9 - 0.9 * share(step),
    "kl": lambda step: 0.08 * share(step),
    "clip_fraction": lambda step: 0.06 + 0.02 * math.sin(step),
    "reward": lambda step: -0.1 + 0.5 * share(step) + 0.02 * math.sin(3 * step),
    "reward_std": lambda step: 0.8 - 0.1 * share(step),
    "loss": lambda step: -0.02 + 0.004 * math.sin(step),
    "ppo_loss": lambda step: -0.02 + 0.004 * math.sin(step),
    "action_agreement": lambda step: 0.15 + 0.15 * share(step),
    "entropy_coef": lambda _: 0.01,
}


def made(**changed: Column) -> History:
    columns = {name: np.array([column(step) for step in STEPS]) for name, column in (HEALTHY | changed).items()}
    return History.of_tables([Table(Path("made.csv"), {"step": np.array(STEPS, dtype=float), **columns})])


LEVELS_OFF: Column = lambda step: 2.2 * (1 - math.exp(-2 * share(step)))  # noqa: E731
LEARNED: Mapping[str, Column] = {
    "reward": lambda step: 0.54 + 0.34 * share(step) ** 0.5,
    "reward_std": lambda _: 0.2,
    "regret": lambda step: 0.36 * math.exp(-3.5 * share(step)),
}
MADE: Mapping[str, tuple[Mapping[str, Column], tuple[str, ...]]] = {
    "healthy": ({}, ()),
    "a penalty that grows from rounding, against a still bonus": (
        {"kl_penalty": lambda step: 1e-9 + 0.002 * share(step), "entropy_bonus": lambda step: -0.01 * (2.9 - 0.1 * share(step))},
        (),
    ),
    "a quick rise with a plateau behind it": ({"reward": lambda step: 0.2 + 0.3 * min(1.0, step / 60)}, ()),
    "KL within rounding of bfloat16": ({"kl": lambda step: 3e-4 + 0.05 * share(step)}, ()),
    "a language model whose answers grow certain": (
        {"entropy": lambda step: 0.9 - 0.7 * share(step), "completions/mean_length": lambda step: 200 + step / 10},
        (),
    ),
    "a strict format that is never kept, though the reward rises": (
        {"rewards/strict_format_reward_func": lambda _: 0.0, "completion_length": lambda _: 150.0}, (),
    ),
    "a reward that rises, however far from the reference": ({"kl": LEVELS_OFF}, ()),
    "a task that is learned": ({**LEARNED, "kl": LEVELS_OFF}, ()),
    "far from the reference and no better": (
        {"kl": LEVELS_OFF, "reward": lambda step: 0.1 + 0.02 * math.sin(3 * step)}, ("diverging", "flat_reward"),
    ),
    # The finding must not name the learning rate as the cause, because the rate is 0 from step 600 on.
    "a runaway before the schedule ends": (
        {
            "kl": lambda step: step / 40_000 if step < 400 else 3.0,
            "reward": lambda step: 0.5 if step < 500 else 0.1,
            "learning_rate": lambda step: 1e-6 if step < 600 else 0.0,
        },
        ("diverging", "falling_reward"),
    ),
    "a fall that is over early": ({"reward": lambda step: 0.5 if step < 100 else 0.1 + 0.02 * math.sin(3 * step)}, ("falling_reward",)),
    "a collapse before the second row": ({"entropy": lambda step: 0.05 if step else 2.8}, ("entropy_collapse",)),
    "a format that is lost before the second row": (
        {"parse_rate": lambda step: 0.03 + 0.01 * math.sin(step) if step else 0.95}, ("lost_format",),
    ),
    "a parse rate in percent": ({"parse_rate": lambda step: 98 - 0.7 * share(step)}, ()),
    "a format reward in points": ({"parse_rate": lambda step: 2.9 - 0.3 * share(step)}, ()),
    "all that was gained is lost again": ({"reward": lambda step: 0.2 + (0.5 * share(step) if step < 900 else 0.05)}, ("falling_reward",)),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_a_made_history_has_these_findings_and_no_others(case: str) -> None:
    changed, found = MADE[case]
    assert diagnose(made(**changed)).names == found
    assert diagnose(made(**changed)).verdict == ("findings" if found else "healthy")


def of_columns(steps: range, columns: Mapping[str, Column]) -> History:
    cells = {name: np.array([column(step) for step in steps]) for name, column in columns.items()}
    return History.of_tables([Table(Path("made.csv"), {"step": np.array(steps, dtype=float), **cells})])


@pytest.mark.parametrize(("first", "found"), [(0.1, ()), (0.19, ("kl_at_step_zero",))])
def test_a_first_row_of_many_steps_shows_another_reference_only_if_the_kl_does_not_grow(first: float, found: tuple[str, ...]) -> None:
    kl = {"kl": lambda step: first if step == 25 else 0.2 + 0.005 * math.sin(step), "completion_length": lambda _: 150.0}
    assert diagnose(of_columns(range(25, 1_025, 25), HEALTHY | kl)).names == found


@pytest.mark.parametrize(
    ("last", "columns", "found"),
    [
        (0.4, ("train/entropy_loss",), ()),
        (0.4, ("train/entropy_loss", "train/std"), ()),
        (0.01, ("train/entropy_loss", "train/std"), ("entropy_collapse",)),
    ],
    ids=["entropy below 0", "a deviation of two fifths", "a deviation of a hundredth"],
)
def test_of_continuous_actions_the_deviation_collapses_and_not_the_entropy(
    last: float, columns: tuple[str, ...], found: tuple[str, ...]
) -> None:
    made_columns: dict[str, Column] = {
        "rollout/ep_rew_mean": lambda step: -1_200 + step + 20 * math.sin(step),
        "train/approx_kl": lambda step: 0.01 + 0.001 * math.sin(step),
        "train/std": lambda step: last ** share(step),
        "train/entropy_loss": lambda step: -2 * (0.2 + math.log(last) * share(step)),
    }
    kept = {name: column for name, column in made_columns.items() if name in columns or ("entropy" not in name and "std" not in name)}
    assert diagnose(of_columns(STEPS, kept)).names == found


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([(0, 0.05, 64), (500, 0.10, 64), (1_000, 0.06, 64)], ("unbelievable_peak",)),
        ([(0, 0.05, 2_000), (500, 0.10, 2_000), (1_000, 0.06, 2_000)], ()),
        ([(step, 0.30 + step * 1e-4, 64) for step in range(0, 2_100, 100)], ()),
        ([(500, 0.5, 1_000)], ("no_baseline",)),
    ],
    ids=["few games", "many games", "they rise as a whole", "none before training"],
)
def test_a_peak_of_few_games_is_not_believed_and_a_baseline_is_asked_for(
    looks: list[tuple[int, float, int]], found: tuple[str, ...]
) -> None:
    history = made()
    history.evaluations = tuple(Evaluation(step=step, score=score, games=games) for step, score, games in looks)
    assert diagnose(history).names == found


# What our trainer measures, at the end and while it trains.
OURS = {
    "grpo/entropy": 2.0,
    "grpo/normalized_entropy": 0.6,
    "grpo/clip_fraction": 0.001,
    "grpo/kl_reference": 0.1,
    "grpo/kl_old": 0.0,
    "grpo/reward_mean": 0.48,
    "grpo/gradient_norm": 0.04,
    "grpo/logit_cosine/entropy_reference_kl": -0.3,
    "grpo/logit_gradient/entropy": 0.01,
    "grpo/logit_gradient/reference_kl": 0.012,
    "grpo/logit_share/entropy": 0.2,
    "control/entropy_saturated": 0.0,
}


def ours(count: int = 60, **changed: float) -> list[Record]:
    rows = [Record(0, {"heldout/regret_best": 0.08, "heldout/regret_sampled": 0.09})]
    for step in range(1, count + 1):
        started = {"grpo/kl_reference": 0.0} if step == 1 else {}
        rows.append(Record(step, OURS | started | {name.replace("__", "/"): value for name, value in changed.items()}))
    return rows


def told_otherwise(count: int, **changed: Column) -> list[Record]:
    found = {name.replace("__", "/"): column for name, column in changed.items()}
    return [Record(row.step, row.metrics | {name: column(row.step) for name, column in found.items()}) for row in ours(count)]


def spoken(*columns: tuple[str, Column], count: int = 60) -> list[Record]:
    """Return what a language model's run shows that learns slowly, with these columns in place of its own."""
    healthy: dict[str, Column] = {
        "language/reward_mean": lambda step: 3.1 + 0.01 * step + 0.05 * math.sin(3 * step),
        "language/reward_std": lambda _: 0.9,
        "language/entropy": lambda step: 14.0 - 0.05 * min(step, 60) + 0.3 * math.sin(3 * step),
        "language/normalized_entropy": lambda _: 0.06,
        "language/kl_reference": lambda step: 0.002 * (step - 1),
        "language/parse_rate": lambda step: 0.93 + 0.02 * math.sin(3 * step),
        "language/truncated": lambda _: 0.01,
        "language/zero_variance_groups": lambda _: 0.1,
        "language/agreement": lambda _: 0.2,
        "language/clip_fraction": lambda _: 0.0,
        "language/gradient_norm": lambda _: 0.4,
        "language/sampled_scored_gap": lambda _: 2e-6,
    }
    found = healthy | dict(columns)
    rows = [Record(step, {name: column(step) for name, column in found.items()}) for step in range(1, count + 1)]
    return [Record(0, {"heldout/regret_best": 0.2}), *rows]


def told(rows: list[Record]) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the findings during training (name -> step), and the names of the findings at its end."""
    watch = Watch()
    return {finding.name: row.step for row in rows for finding in watch.observe(row)}, watch.diagnosis().names


FLAT: Mapping[str, Column] = {"grpo__reward_std": lambda _: 0.3}
STOPPED = [*ours(), Record(61, OURS, (Event("entropy_critical", "stopped"),))]
EXPLOSION = {"language/parse_rate": 0.0, "language/loss": math.nan, "language/kl_reference": 15.0}
SICK: Mapping[str, tuple[list[Record], dict[str, int], tuple[str, ...]]] = {
    "another reference": (ours(grpo__kl_reference=0.1), {"kl_at_step_zero": 1}, ("kl_at_step_zero",)),
    "little entropy is left": (
        [*ours(10), *(Record(step, OURS | {"grpo/entropy": 0.1}) for step in range(11, 61))],
        {"entropy_collapse": 20},
        ("entropy_collapse",),
    ),
    "terms that cancel": (ours(grpo__logit_cosine__entropy_reference_kl=-0.99), {"canceling_terms": 10}, ("canceling_terms",)),
    "a regulariser that is all": (ours(grpo__logit_share__entropy=0.95), {"loss_budget": 10}, ("loss_budget",)),
    "a controller at its bound": (ours(control__entropy_saturated=0.97), {}, ("saturated_controller",)),
    "steps left out": (ours(grpo__skipped=1.0), {"nan_steps": 1}, ("nan_steps",)),
    "pads counted as positions": (spoken(("language/sampled_scored_gap", lambda _: 5.1)), {"scored_otherwise": 10}, ("scored_otherwise",)),
    "random weights": (
        spoken(("language/parse_rate", lambda _: 0.0), ("language/zero_variance_groups", lambda _: 1.0)),
        {"unlearned_language_model": 1, "silent_groups": 10},
        ("unlearned_language_model", "silent_groups"),
    ),
    "a loss that is no number": (spoken(("language/loss", lambda step: math.nan if step == 7 else 0.0)), {"nan_steps": 7}, ("nan_steps",)),
    "the format forgotten": (spoken(("language/parse_rate", lambda step: 0.95 - 0.012 * step)), {"lost_format": 30}, ("lost_format",)),
    "one answer for all": (
        spoken(("language/entropy", lambda step: 14 * math.exp(-0.1 * step)), ("language/reward_mean", lambda _: 3.1)),
        {"entropy_collapse": 40},
        ("entropy_collapse",),
    ),
    "groups without differences": (
        spoken(("language/zero_variance_groups", lambda step: 0.2 + 0.012 * step)), {"silent_groups": 40}, ("silent_groups",),
    ),
    "groups of one answer": (spoken(("language/agreement", lambda step: 0.3 + 0.01 * step)), {"group_agreement": 60}, ("group_agreement",)),
    "clipped": (spoken(("language/clip_fraction", lambda _: 0.4)), {"high_clip_fraction": 10}, ("high_clip_fraction",)),
    "an explosion at the first step": (
        spoken(*((name, lambda _, value=value: value) for name, value in EXPLOSION.items()), count=1),
        {"nan_steps": 1, "unlearned_language_model": 1, "kl_at_step_zero": 1},
        ("kl_at_step_zero", "nan_steps", "unlearned_language_model"),
    ),
    "little entropy, which comes back": (
        [Record(row.step, row.metrics | {"grpo/entropy": 0.1 if 10 < row.step < 30 else 2.0}) for row in ours(100)],
        {"entropy_collapse": 20},
        ("entropy_collapse", "flat_reward"),
    ),
    "a reward that stands still": (told_otherwise(150, **FLAT), {}, ("flat_reward",)),
    "and regret falls": (told_otherwise(150, **FLAT, grpo__regret=lambda step: 0.1 - step * 2e-4), {}, ()),
    "a gain of a hundredth": (told_otherwise(150, **FLAT, grpo__reward_gain=lambda step: 0.01 * step / 150), {}, ()),
    "a gain of nothing": (told_otherwise(150, **FLAT, grpo__reward_gain=lambda step: 1e-6 * step / 150), {}, ("flat_reward",)),
    "a gain that comes in twenty steps and stays": (
        told_otherwise(400, **FLAT, grpo__reward_gain=lambda step: 0.016 - 0.016 * math.exp((1 - step) / 6) + 0.002 * math.sin(step)),
        {},
        (),
    ),
    "a resumed run's divergence": ([Record(row.step + 50, row.metrics) for row in ours(grpo__kl_reference=0.1)], {}, ()),
    "a stop at critical entropy, wherever the settings draw the line": (STOPPED, {}, ("entropy_collapse",)),
    "a recovery from it": ([*STOPPED, Record(62, OURS, (Event("recovery_ended", "healthy"),))], {}, ()),
    "none, but slow": (spoken(count=600), {}, ()),
}  # fmt: skip


@pytest.mark.parametrize("case", SICK)
def test_a_fault_is_told_once_soon_and_is_still_there_at_the_end(case: str) -> None:
    rows, soon, found = SICK[case]
    while_training, at_end = told(rows)
    assert while_training.keys() == soon.keys()
    assert all(while_training[name] <= soon[name] for name in soon), while_training
    assert at_end == found
    assert told(rows) == (while_training, at_end), "a resumed run finds the same"


@pytest.mark.parametrize("seed", range(2))
def test_a_healthy_run_of_1_200_steps_is_told_nothing_about_and_called_so(seed: int) -> None:
    # Gain, noise and levels of a run with the default settings, measured on 7,000 boards; rewards of other boards swamp the gain.
    rng = random.Random(seed)
    rows = [Record(0, {"heldout/regret_best": 0.032})]
    for step in range(1, 1_201):
        rise = 1 - math.exp(-step / 150)
        metrics = OURS | {
            "grpo/reward_mean": 0.5 + 0.01 * rise - 0.02 * (step // 400) + rng.gauss(0, 0.013),
            "grpo/reward_gain": 0.027 * rise + rng.gauss(0, 0.0015),
            "grpo/reward_std": 0.3,
            "grpo/regret": 0.063 - 0.027 * rise + rng.gauss(0, 0.002),
            "grpo/entropy": 2.13 - 0.2 * rise + rng.gauss(0, 0.03),
            "grpo/kl_reference": 0.0 if step == 1 else 0.2 * rise,
            # The controller stands at its bound at first.
            "control/entropy_saturated": min(1.0, 150 / step),
        }
        rows.append(Record(step, metrics))
    assert told(rows) == ({}, ())


# Texts of findings.


def test_a_cause_is_told_first_with_the_runs_settings_and_what_follows_in_a_line_beneath() -> None:
    rows = told_otherwise(
        120,
        grpo__entropy=lambda step: 2.0 * math.exp(-step / 30),
        grpo__zero_variance_groups=lambda step: min(1.0, step / 60),
        grpo__reward_mean=lambda step: 0.5 - step / 600,
    )
    settings = Settings.model_validate({"grpo": {"learning_rate": 0.05}})
    found = diagnose(History.of_records(rows), settings)
    assert found.names[0] == "entropy_collapse"
    assert {finding.cause for finding in found.findings[1:]} == {"entropy_collapse"}
    assert "`grpo.learning_rate` (here 0.05, the default is 0.001)" in found.findings[0].advice
    assert "`grpo.entropy_coefficient` (here 0.015, the default)" in found.findings[0].advice
    assert len(found.text().splitlines()) == len(found.findings[0].text().strip().splitlines()) + len(found.findings) - 1
    assert "\n  then    silent_groups, from step " in found.text()


def test_what_cannot_be_told_and_what_was_not_recorded_is_listed() -> None:
    found = diagnose(made())
    assert "ratio_not_one (no ratio_mean)" in found.not_judged
    few = History.of_records(ours(30))
    assert any(each.startswith("flat_reward (30 rows; at least") for each in diagnose(few).not_judged)
    assert diagnose(few).tag == "nothing found; the reward is not shown to rise in 31 rows"


def test_metrics_of_other_names_are_no_error() -> None:
    history = History()
    for step in range(30):
        history.add(step, {"grpo/entropy_of_old": 1.0, "grpo/reward_mean": 0.1 * step})
    assert list(history.unused) == ["grpo/entropy_of_old"]
    assert diagnose(history).verdict == "not judged"


TURNS: Mapping[str, tuple[Mapping[str, Column], str]] = {
    "held-out regret that doubles": ({"regret": lambda step: 0.05 * (1 + share(step)) + 1e-3 * math.sin(7 * step)}, "reward_hacking"),
    "a coefficient without end": ({"kl_coef": lambda step: 0.001 * 500 ** share(step)}, "saturated_controller"),
    "a warm-up of a coefficient": ({"kl_coef": lambda step: 0.02 * min(1.0, 0.001 + 3 * share(step))}, ""),
    "learning rate 0 after a fifth": ({"lr": lambda step: 1e-5 if share(step) < 0.2 else 0.0}, "learning_rate_schedule"),
    "a learning rate that is off": ({"lr": lambda _: 0.0}, ""),
    "a ratio off 1": ({"ratio_mean": lambda step: 1.4 + 0.01 * math.sin(step)}, "ratio_not_one"),
    "a negative KL": ({"kl": lambda step: -0.1 + 0.01 * math.sin(step)}, "scored_otherwise"),
    "entropy near that of chance": ({"entropy": lambda step: 2.0 + 1.4 * share(step), "reward": lambda step: 0.1}, "entropy_explosion"),
    "stale rollouts": ({"ess": lambda _: 0.4}, "stale_policy"),
    "exploding advantages": ({"advantages/max": lambda _: 900.0}, "exploding_advantages"),
    "updates of half a nat": ({"approx_kl": lambda step: 0.5 + 0.1 * math.sin(step)}, "diverging"),
}


@pytest.mark.parametrize("case", TURNS)
def test_each_further_check_finds_its_fault_and_not_what_is_like_it(case: str) -> None:
    changed, name = TURNS[case]
    found = diagnose(made(**changed)).names
    assert name in found if name else found == ()


EVIDENCE: Mapping[str, tuple[Mapping[str, Column], str]] = {
    "a negative held-out reward": (
        {"eval_reward": lambda step: -0.5 - share(step)},
        "eval_reward is -0.593 at first, at best -0.551, -1.41 at the end",
    ),
    "a gradient that comes back": (
        {"grad_norm": lambda step: 0.0 if 0.1 < share(step) < 0.9 else 1.0},
        "grad_norm is 0 or almost 0 in 48 of 60 rows",
    ),
    "a ratio off 1 in the middle": (
        {"ratio_mean": lambda step: 1.4 if 0.1 < share(step) < 0.9 else 1.0},
        "ratio_mean has the median 1.4 and ends at 1; it must be 1",
    ),
}


@pytest.mark.parametrize("case", EVIDENCE)
def test_evidence_says_what_the_column_shows(case: str) -> None:
    changed, fact = EVIDENCE[case]
    assert fact in [fact for finding in diagnose(made(**changed)).findings for fact in finding.evidence]


def test_games_that_get_worse_are_told() -> None:
    history = made()
    history.evaluations = tuple(Evaluation(step=step, score=0.52 - step * 1.4e-4, games=200) for step in range(0, 1_300, 300))
    assert diagnose(history).names == ("lost_strength",)


def test_a_trust_region_that_ends_most_rollouts_is_a_finding() -> None:
    rows = [Record(row.step, row.metrics, (Event("trust_region", "KL"),) * (row.step > 3)) for row in ours(40)]
    assert diagnose(History.of_records(rows)).names == ("cut_updates",)

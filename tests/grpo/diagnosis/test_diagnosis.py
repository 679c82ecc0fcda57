"""The diagnosis: failed runs of the field notes by their true causes, made histories by each rule, and what must not be called ill."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from grpo.diagnosis.diagnose import Watch, diagnose
from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import Evaluation, History
from grpo.diagnosis.reading import read_run_history
from grpo.settings.metrics import Event, Record

NOTES = Path(__file__).parents[2] / "field_notes"
SETTINGS = json.loads((NOTES / "configs.json").read_text(encoding="utf-8"))

FIELD_NOTES: dict[str, tuple[tuple[str, ...], str | None, set[str], set[str]]] = {
    # Run: histories, evaluations, what the tables show by themselves, what the settings file recorded of the run besides.
    "jan15_collapse": (("jan15_collapse", "jan15_loss"), None, {"entropy_collapse", "falling_reward"}, set()),
    "jan19_kl_trap": (
        ("jan19_kl_trap",),
        "jan19_evals",
        {"impossible_entropy", "kl_trap", "entropy_collapse", "group_agreement", "unbelievable_peak", "no_baseline"},
        {"saturated_controller"},
    ),
    "feb04_loss_budget": (
        ("feb04_loss_budget", "feb04_rewards"),
        "feb04_evals",
        {
            "temperature_mismatch",
            "kl_at_step_zero",
            "cancelling_terms",
            "loss_budget",
            "saturated_controller",
            "dead_monitor",
            "flat_reward",
            "unbelievable_peak",
            "no_baseline",
        },
        {"high_clip_fraction"},
    ),
    "feb05_clean_run": (
        ("feb05_clean_run", "feb05_summary"),
        None,
        {"temperature_mismatch", "kl_at_step_zero", "high_clip_fraction", "flat_reward"},
        set(),
    ),
    "lm_explosion": (("lm_explosion",), None, {"nan_steps", "unlearned_language_model", "kl_at_step_zero"}, set()),
}


def notes_history(run: str) -> History:
    tables, evals, _, _ = FIELD_NOTES[run]
    return read_run_history([NOTES / f"{name}.csv" for name in tables], evals=NOTES / f"{evals}.csv" if evals else None)


def bad_names(history: History, settings: Mapping[str, Any] | None = None) -> set[str]:
    return {finding.name for finding in diagnose(history, settings).findings if finding.severity != Severity.NOTE}


@pytest.mark.parametrize("run", FIELD_NOTES)
def test_each_run_of_the_field_notes_has_its_true_causes_and_with_its_settings_what_their_file_recorded(run: str) -> None:
    _, _, shown, recorded = FIELD_NOTES[run]
    assert bad_names(notes_history(run)) == shown
    assert bad_names(notes_history(run), SETTINGS[run]) == shown | recorded


@pytest.mark.parametrize(
    ("run", "finding", "words"),
    [
        ("jan15_collapse", "entropy_collapse", ["`learning_rate` (here 0.001)", "`entropy_coef` (here 0.01)", "until step 702"]),
        ("jan19_kl_trap", "kl_trap", ["`entropy_coef` (here 0.1)", "`learning_rate` (here 3e-05)"]),
        ("feb04_loss_budget", "temperature_mismatch", ["`rollout_temperature` (here 1.3)"]),
        ("feb04_loss_budget", "saturated_controller", ["`target_kl` (here 0.012)"]),
        ("feb05_clean_run", "temperature_mismatch", ["`rollout_temperature` (here 1.3)", "1 for the loss"]),
    ],
)
def test_settings_sharpen_the_remedy(run: str, finding: str, words: list[str]) -> None:
    def remedy(settings: Mapping[str, Any] | None) -> str:
        return next(each.remedy for each in diagnose(notes_history(run), settings).findings if each.name == finding)

    assert all(word in remedy(SETTINGS[run]) for word in words)
    assert not any(word in remedy(None) for word in words if "here" in word)


# A healthy run of another trainer, and what single columns look like when something is wrong.
STEPS = range(0, 1_200, 20)
Column = Callable[[float], float | None]


def share(step: float) -> float:
    return step / STEPS[-1]


HEALTHY: dict[str, Column] = {
    "entropy": lambda step: 2.9 - 0.9 * share(step),
    "kl": lambda step: 0.08 * share(step),
    "clip_fraction": lambda step: 0.06 + 0.02 * math.sin(step),
    "reward": lambda step: -0.1 + 0.5 * share(step) + 0.02 * math.sin(3 * step),
    "reward_std": lambda step: 0.8 - 0.1 * share(step),
    "loss": lambda step: -0.02 + 0.004 * math.sin(step),
    "ppo_loss": lambda step: -0.02 + 0.004 * math.sin(step),
    "action_agreement": lambda step: 0.15 + 0.15 * share(step),
    "entropy_coef": lambda step: 0.01,
    "ess": lambda step: 0.95,
}


def made(**changed: Column) -> History:
    """Return a history read from a table of the healthy columns with these put in their place."""
    columns = HEALTHY | changed
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["step", *columns])
    for step in STEPS:
        cells = [column(step) for column in columns.values()]
        writer.writerow([step, *("" if cell is None else cell for cell in cells)])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "history.csv"
        path.write_text(text.getvalue(), encoding="utf-8")
        return read_run_history([path])


def test_a_healthy_run_of_another_trainer_is_called_so() -> None:
    found = diagnose(made())
    assert found.is_healthy
    assert found.tag == "healthy"
    assert [finding.name for finding in found.findings] == ["healthy", "no_baseline"]


# Evaluations by games.
def with_games(*looks: tuple[int, float, float], **changed: Column) -> History:
    history = made(**changed)
    history.evaluations = tuple(Evaluation(step=step, score=score, games=games) for step, score, games in looks)
    return history


def test_a_peak_of_few_games_is_not_believed_and_one_of_many_is() -> None:
    assert "unbelievable_peak" in bad_names(with_games((0, 0.05, 64), (500, 0.10, 64), (1_000, 0.06, 64)))
    assert "unbelievable_peak" not in bad_names(with_games((0, 0.05, 2_000), (500, 0.10, 2_000), (1_000, 0.06, 2_000)))


def test_a_strength_from_before_training_is_asked_for_where_there_are_games() -> None:
    assert "no_baseline" in bad_names(with_games((500, 0.5, 1_000)))
    assert "no_baseline" not in bad_names(with_games((0, 0.5, 1_000), (500, 0.5, 1_000)))


def test_better_moves_that_win_no_games_are_told() -> None:
    falling: dict[str, Column] = {"regret": lambda step: 0.10 - 0.04 * share(step)}
    assert "regret_without_strength" in bad_names(with_games((0, 0.5, 400), (1_180, 0.5, 400), **falling))
    assert "regret_without_strength" not in bad_names(with_games((0, 0.4, 400), (1_180, 0.6, 400), **falling))
    assert "regret_without_strength" not in bad_names(with_games((0, 0.5, 40), (1_180, 0.5, 40), **falling)), "too few games to say so"
    assert "regret_without_strength" not in bad_names(with_games((0, 0.5, 400), (1_180, 0.5, 400)))


def test_a_policy_that_plays_worse_is_told() -> None:
    assert "lost_strength" in bad_names(with_games((0, 0.5, 400), (1_000, 0.3, 400)))
    assert "lost_strength" not in bad_names(with_games((0, 0.5, 40), (1_000, 0.45, 40)))


def test_where_scores_rise_as_a_whole_the_peaks_luck_is_a_note() -> None:
    found = diagnose(with_games(*((step, 0.30 + step * 1e-4, 64) for step in range(0, 2_100, 100))))
    assert found.is_healthy
    assert "unbelievable_peak" in found.names


# What an expert would not call ill.
SOUND: dict[str, dict[str, Column]] = {
    "a penalty that grows from rounding, against a still bonus": {
        "loss": lambda _: None,
        "kl_penalty": lambda step: 1e-9 + 0.002 * share(step),
        "entropy_bonus": lambda step: -0.01 * (2.9 - 0.1 * share(step)),
    },
    "a coefficient that is warmed up in a straight line": {"kl_coef": lambda step: 0.001 + min(step, 400) / 400 * 0.02},
    "a quick rise with a plateau behind it": {"reward": lambda step: 0.2 + 0.3 * min(1.0, step / 60)},
    "KL within rounding of bfloat16": {"kl": lambda step: 3e-4 + 0.05 * share(step)},
    "KL to the policy that was sampled, after some updates": {"approx_kl": lambda _: 0.008},
    "a language model whose answers grow certain": {
        "entropy": lambda step: 0.9 - 0.7 * share(step),
        "completions/mean_length": lambda step: 200 + step / 10,
    },
}


@pytest.mark.parametrize("case", SOUND)
def test_what_is_sound_raises_no_alarm(case: str) -> None:
    assert bad_names(made(**SOUND[case])) == set()


# A task that is learnt, and what looks like it.
LEARNT: dict[str, Column] = {
    "reward": lambda step: 0.54 + 0.34 * share(step) ** 0.5,
    "reward_std": lambda _: 0.2,
    "regret": lambda step: 0.36 * math.exp(-3.5 * share(step)),
}
LEVELS_OFF: Column = lambda step: 2.2 * (1 - math.exp(-2 * share(step)))  # noqa: E731


def test_a_policy_that_learnt_its_task_is_far_from_its_reference_and_does_not_diverge() -> None:
    assert bad_names(made(**LEARNT, kl=LEVELS_OFF)) == set()


@pytest.mark.parametrize(
    "changed",
    [
        {"kl": LEVELS_OFF, "reward": HEALTHY["reward"], "reward_std": HEALTHY["reward_std"]},
        {**LEARNT, "kl": LEVELS_OFF, "regret": lambda step: 0.36 - 0.12 * share(step)},
    ],
    ids=["no regret", "much regret is left"],
)
def test_a_policy_that_runs_away_diverges_whatever_it_has_learnt(changed: dict[str, Column]) -> None:
    assert "diverging" in bad_names(made(**changed))


# What only our trainer measures.
OURS = {
    "grpo/entropy": 2.0,
    "grpo/log_num_legal": 3.2,
    "grpo/normalised_entropy": 0.6,
    "grpo/clip_fraction": 0.001,
    "grpo/kl_reference": 0.1,
    "grpo/kl_old": 0.0005,
    "grpo/kl_old_first": 0.0,
    "grpo/optimiser_steps": 2.0,
    "grpo/exact_cosine": 0.8,
    "grpo/group_std_mean": 0.05,
    "grpo/reward_at_end": 0.02,
    "grpo/reward_mean": 0.48,
    "grpo/states": 500.0,
    "grpo/states_dropped": 0.0,
    "grpo/effective_sample_size": 0.99,
    "grpo/logit_cosine/entropy_reference_kl": -0.3,
    "grpo/logit_gradient/entropy": 0.01,
    "grpo/logit_gradient/reference_kl": 0.012,
    "grpo/logit_share/entropy": 0.2,
    "control/entropy_saturated": 0.0,
}


def records(count: int = 60, **changed: float) -> list[Record]:
    rows = [Record(0, {"heldout/regret_best": 0.08, "heldout/regret_sampled": 0.09})]
    for step in range(1, count + 1):
        started = {"grpo/kl_reference": 0.0} if step == 1 else {}
        rows.append(Record(step, OURS | started | {name.replace("__", "/"): value for name, value in changed.items()}))
    return rows


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("wrong_gradient", {"grpo__exact_cosine": 0.1}),
        ("failed_values", {"grpo__reward_at_end": 0.3}),
        ("failed_values", {"grpo__states_dropped": 40.0}),
        ("temperature_mismatch", {"grpo__kl_old_first": 0.02}),
        ("temperature_mismatch", {"grpo__optimiser_steps": 1.0, "grpo__clip_fraction": 0.1}),
        ("kl_at_step_zero", {"grpo__kl_reference": 0.1}),
        ("impossible_entropy", {"grpo__entropy": 4.5}),
        ("entropy_collapse", {"grpo__normalised_entropy": 0.1}),
        ("cancelling_terms", {"grpo__logit_cosine__entropy_reference_kl": -0.99}),
        ("loss_budget", {"grpo__logit_share__entropy": 0.95}),
        ("saturated_controller", {"control__entropy_saturated": 0.97}),
        ("nan_steps", {"grpo__skipped": 1.0}),
    ],
)
def test_what_our_trainer_measures_is_judged(name: str, changed: dict[str, float]) -> None:
    assert bad_names(History.of_records(records())) == set()
    assert bad_names(History.of_records(records(**changed))) == {name}


def test_reward_may_stand_still_where_regret_falls() -> None:
    flat = [Record(record.step, record.metrics | {"grpo/reward_std": 0.3}) for record in records(150)]
    assert bad_names(History.of_records(flat)) == {"flat_reward"}
    learning = [Record(record.step, record.metrics | {"grpo/regret": 0.1 - record.step * 2e-4}) for record in flat[1:]]
    assert bad_names(History.of_records(learning)) == set()


def test_a_resumed_runs_divergence_at_its_first_step_is_none_at_step_zero() -> None:
    later = [Record(record.step + 50, record.metrics) for record in records(grpo__kl_reference=0.1)]
    assert bad_names(History.of_records(later)) == set()


def test_live_a_finding_is_told_once_and_the_same_after_the_journal_is_read_again() -> None:
    rows = records(grpo__exact_cosine=0.1)

    def told(watch: Watch) -> list[tuple[int, str]]:
        return [(row.step, finding.name) for row in rows for finding in watch.observe(row)]

    watch = Watch()
    first = told(watch)
    assert [name for _, name in first] == ["wrong_gradient"]
    assert first == told(Watch())
    assert watch.diagnosis().names == ("wrong_gradient",)


def test_live_a_number_that_is_none_is_told_at_once() -> None:
    watch = Watch()
    first, second, *_ = records()
    assert watch.observe(first) == ()
    assert [finding.name for finding in watch.observe(Record(1, second.metrics | {"grpo/loss": math.nan}))] == ["nan_steps"]


def test_a_stop_at_critical_entropy_is_a_collapse_wherever_the_settings_draw_the_line() -> None:
    *rows, last = records()
    stopped = [*rows, Record(last.step, last.metrics, (Event("entropy_critical", "stopped"),))]
    assert bad_names(History.of_records(stopped)) == {"entropy_collapse"}

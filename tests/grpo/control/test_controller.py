"""Knobs, critical entropy, recoveries and stops of a whole run, without training anything."""

import copy
import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from doubles import FIELD_NOTES
from hypothesis import given
from hypothesis import strategies as st

from grpo.control.controller import ENTROPY_CRITICAL, NOTHING_TO_LEARN, Action, Control, Knobs, Observation, Outcome
from grpo.metrics.table import TERM_PAIRS, TERMS
from grpo.settings.grpo import GrpoConfig

NOTES = FIELD_NOTES.model_copy(update={"steps_threshold": 3})


# Written out, so that a new default is no new result.
BASE: dict[str, Any] = {
    "num_steps": 300,
    "temperature": 1.0,
    "learning_rate": 5e-4,
    "warmup_steps": 0,
    "learning_rate_decay": "constant",
    "final_learning_rate_fraction": 0.1,
    "entropy_schedule": "constant",
    "entropy_coefficient": 0.015,
    "final_entropy_coefficient": 0.0,
    "entropy_target": {"fraction": 0.4, "rate": 0.1, "dead_band": 0.1, "min_coefficient": 0.005, "max_coefficient": 0.05},
    "kl_schedule": "constant",
    "kl_coefficient": 0.0,
    "kl_target": {"nats": 0.1, "horizon": 10.0, "min_coefficient": 1e-4, "max_coefficient": 0.1},
    "critical_entropy": 0.5,
    "critical_measure": "entropy",
    "critical_window": 3,
    "recovery": {"kind": "stop"},
    "alarms": {"window": 20},
    "max_skipped_steps": 3,
    "skipped_learning_rate_factor": 0.5,
}


def control_of(*, first_step: int = 0, **grpo: Any) -> Control:
    """Return the control of a run with a constant entropy coefficient, critical below 0.5 nats over 3 steps, with changes."""
    return Control(GrpoConfig.model_validate(BASE | grpo), first_step=first_step)


def seen(step: int, entropy: float, **changes: Any) -> Observation:
    """Return an observation with this entropy, in which nothing else is remarkable."""
    fields: dict[str, Any] = {"normalised_entropy": entropy / 3, "log_num_legal": 3.0, "kl": 0.1, "silent_groups": 0.2}
    fields |= {"agreement": 0.3, "agreement_max": 0.5, "cosines": dict.fromkeys(TERM_PAIRS, 0.0)}
    fields |= {"norms": dict.fromkeys(TERMS, 0.0) | {"policy": 1.0}}
    return Observation(step=step, entropy=entropy, **(fields | changes))


def outcomes(control: Control, entropies: Iterable[float], *, first: int = 1, **changes: Any) -> list[Outcome]:
    """Return what the control says of each rollout."""
    return [control.observe(seen(step, entropy, **changes)) for step, entropy in enumerate(entropies, start=first)]


def actions(control: Control, entropies: Iterable[float], **changes: Any) -> list[Action]:
    """Return what the control asks for after each rollout."""
    return [outcome.action for outcome in outcomes(control, entropies, **changes)]


def names(outcome: Outcome) -> list[str]:
    """Return the names of the events."""
    return [event.name for event in outcome.events]


GO_ON, STOP, ROLL_BACK = Action.GO_ON, Action.STOP, Action.ROLL_BACK
STOPS = {"recovery": {"kind": "stop"}}
ROLLS_BACK = {"recovery": {"kind": "rollback", "max_times": 2, "learning_rate_factor": 0.5, "healthy_entropy": 1.0}}


def pulls(**recovery: Any) -> dict[str, Any]:
    """Return the settings of a recovery by KL(reference || policy)."""
    return {"recovery": {"kind": "forward_kl", "coefficient": 0.3, "healthy_entropy": 1.0, "max_times": 3, **recovery}}


# Knobs.


def test_knobs_without_controllers_are_the_settings() -> None:
    control = control_of(temperature=1.3, entropy_coefficient=0.02, kl_coefficient=0.004, learning_rate=1e-4)
    knobs = Knobs(temperature=1.3, entropy_coefficient=0.02, kl_coefficient=0.004, recovery_coefficient=0.0, learning_rate=1e-4)
    outcomes(control, [0.8, 3.0, 0.7] * 100, kl=9.0)
    assert {control.knobs(step) for step in (0, 1, 300)} == {knobs}


def test_schedules_count_from_the_first_step_of_the_run() -> None:
    changes: dict[str, Any] = {"warmup_steps": 1, "learning_rate": 1.0, "num_steps": 10, "learning_rate_decay": "linear"}
    changes |= {"entropy_schedule": "annealed", "entropy_coefficient": 0.1}
    knobs = [control_of(first_step=50, **changes).knobs(50 + step) for step in range(11)]
    assert knobs == [control_of(**changes).knobs(step) for step in range(11)]
    assert [knobs[step].learning_rate for step in (0, 1, 10)] == pytest.approx([0.5, 1.0, 0.1])
    assert [knobs[step].entropy_coefficient for step in (0, 5, 10)] == pytest.approx([0.1, 0.05, 0.0])


def test_the_entropy_target_moves_its_knob_alone() -> None:
    control = control_of(entropy_schedule="target", entropy_coefficient=0.02)
    before = control.knobs(0)
    outcomes(control, [0.7])  # Target 0.4 * 3 = 1.2, so the log rises by 0.05.
    after = control.knobs(1)
    assert after.entropy_coefficient == pytest.approx(0.02 * math.exp(0.05))
    assert (after.temperature, after.kl_coefficient, after.learning_rate) == (
        before.temperature,
        before.kl_coefficient,
        before.learning_rate,
    )


def test_the_kl_target_moves_its_knob_alone() -> None:
    control = control_of(kl_schedule="target", kl_coefficient=0.01)
    outcomes(control, [2.0], kl=0.5)
    assert control.knobs(1) == Knobs(
        temperature=1.0, entropy_coefficient=0.015, kl_coefficient=pytest.approx(0.0102), recovery_coefficient=0.0, learning_rate=5e-4
    )


def test_the_field_notes_move_all_three_knobs_together_and_say_so() -> None:
    control = control_of(entropy_schedule="field_notes", field_notes=NOTES, entropy_coefficient=0.1, kl_coefficient=0.01)
    assert [names(outcome) for outcome in outcomes(control, [1.4, 1.4, 1.4, 1.6])] == [[], [], ["entropy_boost"], []]
    assert control.knobs(4) == Knobs(
        temperature=1.2, entropy_coefficient=pytest.approx(0.15), kl_coefficient=0.005, recovery_coefficient=0.0, learning_rate=5e-4
    )


def test_the_message_of_a_boost_has_its_numbers_and_warns_of_a_coefficient_that_is_0_for_good() -> None:
    notes = {"entropy_schedule": "field_notes", "field_notes": NOTES, "kl_coefficient": 0.01}
    for coefficient, is_stuck in ((0.1, False), (0.0, True)):
        [*_, last] = outcomes(control_of(**notes, entropy_coefficient=coefficient), [1.4] * 3)
        [event] = last.events
        for word in ("entropy_floor = 1.5", "3 steps in a row to 3", "now 1.4", "temperature 1.2", "KL coefficient 0.005"):
            assert word in event.message
        assert ("0 stays 0" in event.message) is is_stuck


# Critical entropy.


def test_it_stops_when_the_mean_over_the_window_falls_below_the_critical_value() -> None:
    control = control_of(**STOPS)
    assert actions(control, [1.0, 0.4, 0.2, 0.3]) == [GO_ON, GO_ON, GO_ON, STOP]  # Means of three: 0.533, then 0.3.
    assert control.mean_entropy() == pytest.approx(0.3)


def test_entropy_can_be_judged_as_a_share_of_what_it_can_be() -> None:
    def critical(measure: str) -> list[Action]:
        control = control_of(critical_measure=measure, critical_entropy=0.2, critical_window=2, **STOPS)
        return [control.observe(seen(step, 0.5, normalised_entropy=0.1)).action for step in (1, 2)]

    assert critical("entropy") == [GO_ON, GO_ON]
    assert critical("normalised_entropy") == [GO_ON, STOP]


@pytest.mark.parametrize(("measure", "said"), [("entropy", "0.3 nats"), ("normalised_entropy", "0.1 of ln(legal moves)")])
def test_a_critical_stop_says_plainly_measure_value_threshold_window_and_agreement(measure: str, said: str) -> None:
    control = control_of(critical_measure=measure, **STOPS)
    [*_, last] = [
        control.observe(seen(step, 0.3, agreement=agreement, agreement_max=most))
        for step, agreement, most in [(1, 0.7, 0.9), (2, 0.8, 1.0), (3, 0.9, 0.95)]
    ]
    assert (last.action, last.reason) == (STOP, ENTROPY_CRITICAL)
    for word in (f"mean {measure} ", said, "critical_entropy = 0.5", "last 3 steps", "at step 3", "mean 0.80, at most 1.00"):
        assert word in last.message
    [event] = [event for event in last.events if event.name == "entropy_critical"]
    assert event.message == last.message


@given(st.lists(st.floats(0, 5.4), min_size=1, max_size=40), st.integers(1, 8), st.floats(0, 2))
def test_it_stops_where_the_definition_says(entropies: list[float], window: int, critical: float) -> None:
    said = actions(control_of(critical_window=window, critical_entropy=critical, **STOPS), entropies)
    for step, action in enumerate(said):
        recent = entropies[max(0, step - window + 1) : step + 1]
        assert (action == STOP) is (len(recent) == window and sum(recent) / window < critical)


def test_below_the_field_notes_critical_value_one_step_stops_whatever_the_recovery() -> None:
    notes: dict[str, Any] = {"entropy_schedule": "field_notes", "field_notes": NOTES, "critical_entropy": 0.0}
    for recovery in ("stop", "forward_kl", "rollback"):
        control = control_of(**notes, recovery={"kind": recovery})
        said = outcomes(control, [3.0, 0.51, 0.49], agreement=0.86, agreement_max=1.0)
        assert [outcome.action for outcome in said] == [GO_ON, GO_ON, STOP]
        assert said[-1].reason == ENTROPY_CRITICAL
        for word in ("step 3", "0.49 nats", "entropy_critical = 0.5", "mean 0.86, at most 1.00"):
            assert word in said[-1].message


# Recovery by KL(reference || policy).


def test_recovery_joins_the_loss_until_entropy_is_healthy() -> None:
    control = control_of(**pulls())
    said, coefficients = [], []
    for step, entropy in enumerate([0.4, 0.4, 0.4, 0.4, 0.8, 1.2, 1.2, 0.9], start=1):  # Means: 0.4, 0.4, 0.53, 0.8, 1.07, 1.1.
        said.append([name for name in names(control.observe(seen(step, entropy))) if name != "entropy_low"])
        coefficients.append(control.knobs(step).recovery_coefficient)
    assert said == [[], [], ["entropy_critical", "recovery_started"], [], [], [], ["recovery_ended"], []]
    assert coefficients == [0, 0, 0.3, 0.3, 0.3, 0.3, 0, 0]
    assert control.metrics()["control/recoveries"] == 1


def test_while_recovering_the_other_knobs_are_as_they_were() -> None:
    control = control_of(**pulls(), kl_coefficient=0.01, entropy_coefficient=0.02)
    before = control.knobs(0)
    outcomes(control, [0.4] * 5)
    after = control.knobs(5)
    assert after.recovery_coefficient == 0.3
    assert (after.temperature, after.entropy_coefficient, after.kl_coefficient, after.learning_rate) == (
        before.temperature, before.entropy_coefficient, before.kl_coefficient, before.learning_rate,
    )  # fmt: skip


def test_a_recovery_that_does_not_end_within_20_windows_stops_the_run() -> None:
    control = control_of(**pulls())
    said = outcomes(control, [0.4] * 63)  # Critical at 3; 20 windows of 3 later it is 63.
    assert [outcome.action for outcome in said] == [GO_ON] * 62 + [STOP]
    assert said[-1].reason == ENTROPY_CRITICAL
    for word in ("60 steps", "healthy_entropy", "0.4 nats", "recovery.coefficient"):
        assert word in said[-1].message


def test_after_so_many_recoveries_the_next_critical_entropy_stops() -> None:
    control = control_of(**pulls(max_times=2))
    collapse = [0.1] * 3 + [1.5] * 3
    said = outcomes(control, collapse * 2 + [0.1] * 3)
    assert [step for step, outcome in enumerate(said, start=1) if "recovery_started" in names(outcome)] == [3, 9]
    assert [outcome.action for outcome in said] == [GO_ON] * 14 + [STOP]  # The mean of 1.5, 0.1 and 0.1 is 0.567, not critical.
    assert "2 recoveries (grpo.recovery.max_times)" in said[-1].message


def test_a_recovery_does_not_end_while_the_measure_is_still_critical() -> None:
    # Settings that contradict each other: healthy, 0.4 nats, lies below critical, 0.5.
    control = control_of(**pulls(healthy_entropy=0.4))
    outcomes(control, [0.45] * 10)
    assert control.metrics()["control/recoveries"] == 1
    assert control.knobs(10).recovery_coefficient == 0.3


# Rollback.


def test_a_rollback_is_asked_for_and_noted_when_done() -> None:
    control = control_of(**ROLLS_BACK, learning_rate=1.0)
    said = outcomes(control, [0.4] * 3)
    assert [outcome.action for outcome in said] == [GO_ON, GO_ON, ROLL_BACK]
    assert names(said[-1]) == ["entropy_critical"]
    assert said[-1].reason == ""
    assert "critical_entropy = 0.5" in said[-1].message
    assert control.metrics()["control/recoveries"] == 0
    control.rolled_back()
    assert control.metrics()["control/recoveries"] == 1
    assert control.knobs(3).learning_rate == 0.5
    assert control.knobs(3).recovery_coefficient == 0.0
    assert math.isnan(control.mean_entropy())
    assert actions(control, [0.4] * 3, first=4) == [GO_ON, GO_ON, ROLL_BACK]  # The window fills anew.


def test_after_so_many_rollbacks_the_next_critical_entropy_stops() -> None:
    control = control_of(**ROLLS_BACK, learning_rate=1.0)
    said = []
    for _ in range(3):
        said += outcomes(control, [0.4] * 3)
        if said[-1].action == ROLL_BACK:
            control.rolled_back()
    assert [outcome.action for outcome in said] == [GO_ON, GO_ON, ROLL_BACK] * 2 + [GO_ON, GO_ON, STOP]
    assert said[-1].reason == ENTROPY_CRITICAL
    assert control.knobs(9).learning_rate == 0.25


def test_without_a_healthy_checkpoint_to_roll_back_to_it_stops() -> None:
    control = control_of(**ROLLS_BACK)
    outcomes(control, [0.4] * 3)
    outcome = control.no_checkpoint()
    assert (outcome.action, outcome.reason, outcome.events) == (STOP, ENTROPY_CRITICAL, ())
    for word in ("mean entropy ", "0.4 nats", "no healthy checkpoint", "grpo.steps_per_checkpoint"):
        assert word in outcome.message


def test_a_rollback_starts_the_field_notes_count_again_but_keeps_what_they_boosted() -> None:
    control = control_of(entropy_schedule="field_notes", field_notes=NOTES, entropy_coefficient=0.1, **ROLLS_BACK)
    outcomes(control, [1.4] * 5)
    control.rolled_back()
    outcomes(control, [1.4] * 2)
    assert control.knobs(7).entropy_coefficient == pytest.approx(0.15)
    outcomes(control, [1.4])
    assert control.knobs(8).entropy_coefficient == pytest.approx(0.225)


def test_after_a_rollback_alarms_begin_anew() -> None:
    control = control_of(**ROLLS_BACK, alarms={"window": 2, "entropy_share": 0.15})
    told = [names(outcome) for outcome in outcomes(control, [0.4] * 3)]
    assert ["entropy_low" in events for events in told] == [False, True, False]
    control.rolled_back()
    told = [names(outcome) for outcome in outcomes(control, [0.4] * 2, first=4)]
    assert ["entropy_low" in events for events in told] == [False, True]


# Silence.


def test_silence_stops_after_its_windows_with_its_own_reason() -> None:
    said = outcomes(control_of(alarms={"window": 4, "silent_share": 0.95, "max_silent_windows": 3}), [2.0] * 12, silent_groups=1.0)
    assert [outcome.action for outcome in said] == [GO_ON] * 11 + [STOP]
    assert [step for step, outcome in enumerate(said, start=1) if "silent_groups" in names(outcome)] == [4]
    assert said[-1].reason == NOTHING_TO_LEARN
    assert "nothing to learn at step 12" in said[-1].message


def test_of_two_reasons_to_stop_critical_entropy_is_the_one_given() -> None:
    said = outcomes(control_of(alarms={"window": 2, "max_silent_windows": 1}, critical_window=2, **STOPS), [0.1] * 2, silent_groups=1.0)
    assert [outcome.reason for outcome in said] == ["", ENTROPY_CRITICAL]


# Non-finite steps.


def test_each_skipped_step_cuts_the_rate_and_the_last_of_too_many_in_a_row_says_so() -> None:
    control = control_of(learning_rate=1.0, max_skipped_steps=3, skipped_learning_rate_factor=0.1)
    assert [control.skipped(), control.skipped()] == [False, False]
    assert control.knobs(0).learning_rate == pytest.approx(0.01)
    control.finite()
    assert control.knobs(0).learning_rate == pytest.approx(0.01)
    assert [control.skipped(), control.skipped(), control.skipped()] == [False, False, True]


# Health.


def test_a_checkpoint_is_healthy_when_mean_entropy_is_and_nothing_is_being_recovered() -> None:
    control = control_of(**pulls(healthy_entropy=1.0))
    healthy = [control.is_healthy]
    for step, entropy in enumerate([1.0, 0.9, 1.1, 0.1, 0.1, 0.1, 2.5, 2.5], start=1):
        control.observe(seen(step, entropy))
        healthy.append(control.is_healthy)
    # Means: 1, 0.95, 1, 0.7, 0.43 (critical), 0.1, 0.9, 1.7.
    assert healthy == [False, True, False, True, False, False, False, False, True]


# What is not finite.


@pytest.mark.parametrize("field", ["entropy", "normalised_entropy", "log_num_legal"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_entropy_that_is_not_finite_is_no_observation(field: str, value: float) -> None:
    control = control_of(entropy_schedule="target", kl_schedule="target", kl_coefficient=0.01, **STOPS)
    outcomes(control, [0.4] * 2)
    before = copy.deepcopy(control.state())
    assert control.observe(seen(3, **({"entropy": 0.4} | {field: value}))) == Outcome(GO_ON)
    assert control.state() == before
    assert control.observe(seen(4, 0.4)).action == STOP


ANY_FLOAT = st.one_of(st.floats(0, 6), st.floats(), st.sampled_from([0.0, math.nan, math.inf]))


def any_observation() -> st.SearchStrategy[Observation]:
    """Return observations in which every number can be anything, and low entropies are frequent."""
    return st.builds(
        Observation,
        step=st.integers(1, 1_000),
        entropy=st.one_of(st.floats(0, 1.6), ANY_FLOAT),
        normalised_entropy=st.one_of(st.floats(0, 1), ANY_FLOAT),
        log_num_legal=st.one_of(st.floats(0.5, 5), ANY_FLOAT),
        kl=ANY_FLOAT,
        silent_groups=st.one_of(st.just(1.0), ANY_FLOAT),
        agreement=ANY_FLOAT,
        agreement_max=ANY_FLOAT,
        norms=st.fixed_dictionaries(dict.fromkeys(TERMS, ANY_FLOAT)),
        cosines=st.fixed_dictionaries({pair: st.one_of(st.just(-1.0), ANY_FLOAT) for pair in TERM_PAIRS}),
    )


BOUNDED = {"critical_entropy": 0.5, "critical_window": 2, "alarms": {"window": 2}, "kl_coefficient": 0.01, "warmup_steps": 3}
RUNS: list[dict[str, Any]] = [
    BOUNDED | {"entropy_schedule": "target", "kl_schedule": "target", **pulls()},
    BOUNDED | {"entropy_schedule": "field_notes", "field_notes": NOTES, **ROLLS_BACK},
    BOUNDED | {"entropy_schedule": "annealed", "critical_measure": "normalised_entropy", **pulls(max_times=1)},
    BOUNDED | {"entropy_schedule": "constant", "kl_schedule": "target", **STOPS},
]


def run(control: Control, steps: list[tuple[Observation, str]], *, first: int = 0) -> list[Any]:
    """Return all that the control says and shows while a run goes on as a trainer would make it, whatever the control asks for."""
    said: list[Any] = []
    for number, (observation, optimiser) in enumerate(steps, start=first):
        outcome = control.observe(observation)
        if outcome.action == ROLL_BACK:
            control.rolled_back()
        said.append((outcome, optimiser == "skipped" and control.skipped()))
        if optimiser == "finite":
            control.finite()
        said.append((control.knobs(number), control.metrics(), control.is_healthy, repr(control.mean_entropy())))
    return said


STEPS = st.lists(st.tuples(any_observation(), st.sampled_from(["finite", "skipped", "neither"])), max_size=25)


@given(st.sampled_from(RUNS), STEPS, st.integers(0, 25))
def test_saved_and_restored_at_any_step_a_run_goes_on_as_if_nothing_had_happened(
    grpo: dict[str, Any], steps: list[tuple[Observation, str]], cut: int
) -> None:
    straight, first, second = (control_of(**grpo) for _ in range(3))
    expected = run(straight, steps)
    before = run(first, steps[:cut])
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert before + run(second, steps[cut:], first=cut) == expected
    assert second.state() == straight.state()


@given(st.sampled_from(RUNS), STEPS)
def test_knobs_are_finite_and_within_bounds_whatever_is_observed(grpo: dict[str, Any], steps: list[tuple[Observation, str]]) -> None:
    control = control_of(**grpo)
    for number, (observation, _) in enumerate(steps):
        outcome = control.observe(observation)
        assert (outcome.reason != "") is (outcome.action == STOP)
        assert (outcome.message != "") is (outcome.action != GO_ON)
        knobs = control.knobs(number)
        assert 0 <= knobs.entropy_coefficient <= 1.5
        assert 0 < knobs.kl_coefficient <= 0.1
        assert 1.0 <= knobs.temperature <= 2.5
        assert 0 < knobs.learning_rate <= 5e-4
        assert knobs.recovery_coefficient in (0.0, 0.3)
        assert all(0 <= value <= 1 for name, value in control.metrics().items() if name != "control/recoveries")


def test_a_saved_state_does_not_change_when_the_run_goes_on() -> None:
    control = control_of(**RUNS[0])
    outcomes(control, [0.4] * 3)
    saved = control.state()
    text = json.dumps(saved)
    outcomes(control, [1.5] * 3, first=4, silent_groups=1.0)
    control.skipped()
    assert json.dumps(saved) == text


def test_a_controller_that_the_saved_run_did_not_have_begins_as_the_settings_say() -> None:
    saved = control_of(entropy_schedule="target", entropy_coefficient=0.02)
    outcomes(saved, [0.6] * 3)
    saved.skipped()
    resumed = control_of(
        entropy_schedule="field_notes", field_notes=NOTES, entropy_coefficient=0.3, kl_coefficient=0.07, first_step=3, learning_rate=1.0
    )
    resumed.restore(json.loads(json.dumps(saved.state())))
    knobs = resumed.knobs(3)
    assert (knobs.entropy_coefficient, knobs.kl_coefficient, knobs.learning_rate) == (0.3, 0.07, 0.5)
    assert resumed.mean_entropy() == pytest.approx(0.6)


def test_a_run_resumed_without_forward_kl_is_not_recovering() -> None:
    saved = control_of(**pulls())
    outcomes(saved, [0.4] * 3)
    resumed = control_of(**STOPS)
    resumed.restore(saved.state())
    assert resumed.knobs(3).recovery_coefficient == 0.0
    assert resumed.observe(seen(4, 0.4)).action == STOP


# Metrics.


def test_the_controllers_usefulness_is_measured_step_by_step() -> None:
    target = {"fraction": 0.4, "rate": 10.0, "dead_band": 0.1, "min_coefficient": 0.01, "max_coefficient": 0.1}
    kl_target = {"nats": 0.1, "horizon": 10.0, "max_coefficient": 0.0102}
    control = control_of(
        entropy_schedule="target",
        entropy_coefficient=0.02,
        entropy_target=target,
        kl_schedule="target",
        kl_coefficient=0.01,
        kl_target=kl_target,
    )
    # Entropy's target is 1.2: idle, idle, to the upper bound, still there (dead band), off it. KL: idle at 0.1, then at its bound.
    for step, (entropy, kl) in enumerate([(1.2, 0.1), (1.25, 0.1), (0.6, 0.5), (1.2, 0.5), (1.32, 0.09)], start=1):
        control.observe(seen(step, entropy, kl=kl))
    assert control.metrics() == {
        "control/entropy_saturated": 0.4,
        "control/entropy_idle": 0.4,
        "control/kl_saturated": 0.4,
        "control/kl_idle": 0.4,
        "control/recoveries": 0.0,
    }

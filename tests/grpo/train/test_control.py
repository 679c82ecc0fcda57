"""The controllers, each by hand, and their decisions about a whole run, without training anything."""

import json
import math
from collections.abc import Iterable
from typing import Any

import pytest
from doubles import FIELD_NOTES
from hypothesis import given
from hypothesis import strategies as st

from grpo.settings.grpo import GrpoConfig
from grpo.train.control import (
    CRITICAL_WINDOW,
    MAX_RECOVERIES,
    MAX_SKIPPED,
    AdaptiveKlController,
    Control,
    Decision,
    EntropyTargetController,
    FieldNotesController,
    scheduled_learning_rate,
)

BASE: dict[str, Any] = {"entropy_schedule": "constant", "learning_rate_decay": "constant", "critical_entropy": 0.5}
NOTES: dict[str, Any] = {"entropy_schedule": "field_notes", "field_notes": FIELD_NOTES.model_copy(update={"steps_threshold": 3})}
STOPS = {"recovery": "stop"}
LOW = [0.4] * CRITICAL_WINDOW


def control_of(*, first_step: int = 0, **grpo: Any) -> Control:
    """Return the control of a run with a constant entropy coefficient, critical below 0.5 nats, with changes."""
    return Control(GrpoConfig.model_validate(BASE | grpo), first_step=first_step)


def seen(entropy: float, *, kl: float = 0.1) -> dict[str, Any]:
    """Return what a controller is shown of a rollout with 20 legal moves."""
    return {"step": 1, "entropy": entropy, "log_num_legal": 3.0, "kl": kl}


def decisions(control: Control, entropies: Iterable[float], *, kl: float = 0.1) -> list[Decision]:
    return [control.observe(step=step, entropy=entropy, log_num_legal=3.0, kl=kl) for step, entropy in enumerate(entropies, start=1)]


def stops(control: Control, entropies: Iterable[float], **changes: Any) -> list[bool]:
    return [bool(stop) for stop, _ in decisions(control, entropies, **changes)]


def names(said: Iterable[Decision]) -> list[tuple[int, str]]:
    return [(step, event.name) for step, (_, events) in enumerate(said, start=1) for event in events]


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ({}, set()),
        ({"entropy_schedule": "target"}, {"entropy_coefficient"}),
        ({"kl_target": 0.1}, {"kl_coefficient"}),
        (NOTES, {"entropy_coefficient", "kl_coefficient", "temperature"}),
    ],
)
def test_knobs_are_the_settings_and_each_controller_moves_its_own(changes: dict[str, Any], moved: set[str]) -> None:
    knobs = {"temperature": 1.3, "entropy_coefficient": 0.02, "kl_coefficient": 0.004}
    control = control_of(**knobs, **changes)
    decisions(control, [0.7] * 3, kl=0.5)
    after = control.knobs(3)
    expected = {**knobs, "recovery_coefficient": 0.0, "learning_rate": 1e-3}
    assert {name for name, value in expected.items() if getattr(after, name) != value} == moved


@given(st.lists(st.floats(0, 5.4), min_size=1, max_size=40), st.floats(0, 2))
def test_it_stops_where_the_mean_over_the_window_falls_below_the_critical_value(entropies: list[float], critical: float) -> None:
    said = stops(control_of(critical_entropy=critical, **STOPS), entropies)
    for step, stop in enumerate(said):
        recent = entropies[max(0, step - CRITICAL_WINDOW + 1) : step + 1]
        assert stop is (len(recent) == CRITICAL_WINDOW and sum(recent) / CRITICAL_WINDOW < critical)


@pytest.mark.parametrize("kind", ["stop", "forward_kl"])
def test_below_the_field_notes_critical_value_one_step_stops_whatever_the_recovery(kind: str) -> None:
    control = control_of(**{**NOTES, "critical_entropy": 0.0}, recovery=kind)
    assert stops(control, [3.0, 0.51, 0.49]) == [False, False, True]


def test_recovery_joins_the_loss_until_entropy_is_healthy() -> None:
    control, coefficients, said = control_of(), [], []
    for entropy in [*LOW, *[1.7] * 5]:  # Means: 0.4, then 0.53, 0.66, 0.79, 0.92, 1.05.
        said += decisions(control, [entropy])
        coefficients.append(control.knobs(0).recovery_coefficient)
    assert names(said) == [(10, "entropy_critical"), (10, "recovery_started"), (15, "recovery_ended")]
    assert coefficients == [0] * 9 + [0.3] * 5 + [0]
    assert control.metrics()["control/recoveries"] == 1


def test_a_recovery_that_takes_too_long_and_one_too_many_stop_the_run() -> None:
    assert stops(control_of(), [0.4] * 210) == [False] * 209 + [True]  # Critical at 10; 20 windows later it is 210.
    said = decisions(control_of(), (LOW + [1.7] * CRITICAL_WINDOW) * (MAX_RECOVERIES + 1))
    assert [name for _, name in names(said)].count("recovery_started") == MAX_RECOVERIES
    [stop] = [stop for stop, _ in said if stop]
    assert f"after {MAX_RECOVERIES} recoveries" in stop
    stop, _ = decisions(control_of(**STOPS), LOW)[-1]
    assert "0.4 nats at T = 1, critical below grpo.critical_entropy = 0.5: lower grpo.learning_rate" in stop, "nothing to recover from"


def test_a_critical_entropy_above_the_healthy_one_is_what_a_recovery_has_to_reach() -> None:
    said = decisions(control_of(critical_entropy=1.5), [1.3] * 210)
    assert "until mean entropy is 1.5 nats" in said[9][1][1].message
    assert "have not brought mean entropy, 1.3 nats, to 1.5" in said[-1][0]


def test_skipped_steps_cut_the_learning_rate_for_good_and_too_many_in_a_row_are_told() -> None:
    control = control_of(learning_rate=1.0)
    assert [control.count_skipped() for _ in range(MAX_SKIPPED - 1)] == [False] * (MAX_SKIPPED - 1)
    control.reset_skipped()
    assert [control.count_skipped() for _ in range(MAX_SKIPPED)] == [False] * (MAX_SKIPPED - 1) + [True]
    control.reset_skipped()
    assert control.knobs(0).learning_rate == 0.5 ** (2 * MAX_SKIPPED - 1)


def test_schedules_count_from_the_runs_first_step_and_the_kl_coefficient_warms_up_on_a_line_from_above_0() -> None:
    config = GrpoConfig(kl_coefficient=0.01, learning_rate=1.0, num_steps=8)
    control = Control(config, first_step=5, kl_warmup_steps=4)
    knobs = [control.knobs(step) for step in range(5, 11)]
    assert [each.kl_coefficient for each in knobs] == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])
    assert [each.learning_rate for each in knobs] == [scheduled_learning_rate(config, steps_done=step) for step in range(6)]


def test_a_mean_at_the_critical_value_is_not_below_it_and_neither_is_an_entropy_at_the_floor() -> None:
    assert not any(stops(control_of(critical_entropy=0.5, **STOPS), [0.5] * 20))
    notes = FieldNotesController(NOTES["field_notes"], entropy_coefficient=0.1, kl_coefficient=0.01, temperature=1.0)
    floor, critical = FIELD_NOTES.entropy_floor, FIELD_NOTES.entropy_critical
    said = [notes.observe(**seen(entropy)) for entropy in [1.0, 1.0, floor, 1.0, critical, floor, 1.0, 1.0, 1.0]]
    assert names(said) == [(9, "entropy_boost")], "only three in a row below the floor"
    assert not any(stop for stop, _ in said)


def test_how_often_a_controller_was_at_a_bound_is_a_fraction_of_the_steps() -> None:
    control = control_of(entropy_schedule="target", entropy_coefficient=0.0499, kl_target=0.1, kl_coefficient=0.01)
    decisions(control, [1.0, 1.0, 2.5, 2.5])  # At the upper bound after the first two.
    assert {name: share for name, share in control.metrics().items() if "saturated" in name} == {
        "control/entropy_saturated": 0.5,
        "control/kl_saturated": 0.0,
    }


def test_an_entropy_that_is_not_finite_is_ignored() -> None:
    control = control_of(entropy_schedule="target")
    before = control.state()
    assert decisions(control, [float("nan"), float("inf")]) == [("", ())] * 2
    assert control.state() == before


@pytest.mark.parametrize("changes", [{"entropy_schedule": "target", "kl_target": 0.1, "kl_coefficient": 0.01}, NOTES])
@given(entropies=st.lists(st.floats(0.3, 3), min_size=2, max_size=60), data=st.data())
def test_a_restored_control_goes_on_as_if_never_stopped(changes: dict[str, Any], entropies: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(entropies) - 1))
    whole, first, second = (control_of(**changes, critical_entropy=2.0) for _ in range(3))  # It is often recovering.
    said = decisions(whole, entropies, kl=0.5)
    decisions(first, entropies[:cut], kl=0.5)
    assert whole.count_skipped() is first.count_skipped() is False
    second.restore(json.loads(json.dumps(first.state())))
    assert stops(second, entropies[cut:], kl=0.5) == [bool(stop) for stop, _ in said[cut:]]
    assert second.state() == whole.state()
    assert second.knobs(9) == whole.knobs(9)


# Each controller by hand.


def test_the_learning_rate_decays_worked_by_hand() -> None:
    config = GrpoConfig(learning_rate=1.0, num_steps=8)
    # 0.05 + 0.95 * (1 + cos(pi * step / 8)) / 2; cos(pi / 4) = 0.70711.
    expected = [1, 0.05 + 0.475 * 1.70711, 0.525, 0.05, 0.05]
    assert [scheduled_learning_rate(config, steps_done=step) for step in (0, 2, 4, 8, 26)] == pytest.approx(expected, abs=1e-5)
    constant = config.model_copy(update={"learning_rate_decay": "constant"})
    assert {scheduled_learning_rate(constant, steps_done=step) for step in range(30)} == {1.0}


def target_controller(coefficient: float = 0.02) -> EntropyTargetController:
    """Return a controller whose target is 1.5 nats when mean ln(legal moves) is 3."""
    return EntropyTargetController(0.5, coefficient)


def test_the_log_of_the_entropy_coefficient_moves_by_rate_times_error_and_not_in_the_dead_band() -> None:
    controller = target_controller()
    controller.observe(**seen(1.41))
    assert controller.state["entropy_coefficient"] == 0.02
    controller.observe(**seen(1.0))
    assert controller.state["entropy_coefficient"] == pytest.approx(0.02 * math.exp(0.05))  # Target 1.5: error 0.5, times 0.1.
    controller.observe(**seen(2.5))
    assert controller.state["entropy_coefficient"] == pytest.approx(0.02 * math.exp(0.05 - 0.1))


def test_the_coefficients_of_jan19_are_its_powers_and_the_notes_bound_caps_them() -> None:
    controller = FieldNotesController(FIELD_NOTES, entropy_coefficient=0.1, kl_coefficient=0.01, temperature=1.0)
    noted = [0.15, 0.225, 0.34, 0.51, 0.76, 1.14, 1.5, 1.5]  # 0.34, 0.51, 0.76 and 1.14 as noted; it had no bound: 1.71 and 2.56 followed.
    boosted: list[float] = []
    for step in range(800):
        assert not controller.is_saturated
        if controller.observe(**seen(1.0))[1]:
            boosted.append(controller.knobs()["entropy_coefficient"])
            assert step % 100 == 99
    assert boosted == pytest.approx(noted, abs=0.005)
    assert controller.knobs()["temperature"] == 2.5  # 1 + 8 * 0.2 = 2.6 is beyond.
    assert controller.knobs()["kl_coefficient"] == pytest.approx(0.01 / 2**8)
    assert controller.is_saturated, "halving never reaches the KL coefficient's bound of 0, so that it is not asked"
    controller.observe(**seen(1.6))
    assert controller.knobs()["temperature"] == 2.5, "boosted values stay"


def test_a_boost_lowers_no_value_that_the_settings_put_above_its_bound() -> None:
    controller = FieldNotesController(NOTES["field_notes"], entropy_coefficient=2.0, kl_coefficient=0.01, temperature=3.0)
    assert names(controller.observe(**seen(1.0)) for _ in range(3)) == [(3, "entropy_boost")]
    assert controller.knobs() == {"entropy_coefficient": 2.0, "kl_coefficient": 0.005, "temperature": 3.0}


@pytest.mark.parametrize(("kl", "factor"), [(0.1, 1.0), (0.11, 1.005), (5.0, 1.01), (0.0, 0.99), (math.nan, 1.0), (math.inf, 1.0)])
def test_the_kl_coefficient_moves_in_proportion_and_by_a_fifth_of_the_horizon_at_most(kl: float, factor: float) -> None:
    controller = AdaptiveKlController(0.1, 0.01)
    controller.observe(**seen(1.0, kl=kl))
    assert controller.state["kl_coefficient"] == pytest.approx(0.01 * factor)


@pytest.mark.parametrize(
    ("controller", "knob", "far", "back", "bound", "factor"),
    [
        (target_controller(), "entropy_coefficient", seen(0.5), seen(2.5), 0.05, math.exp(-0.1)),
        (target_controller(), "entropy_coefficient", seen(2.5), seen(0.5), 0.005, math.exp(0.1)),
        (AdaptiveKlController(0.1, 0.1), "kl_coefficient", seen(1.0, kl=5.0), seen(1.0, kl=0.0), 0.1, 0.99),
        (AdaptiveKlController(0.1, 0.01), "kl_coefficient", seen(1.0, kl=0.0), seen(1.0, kl=5.0), 1e-4, 1.01),
    ],
)
def test_after_a_thousand_saturated_steps_one_of_the_other_sign_leaves_the_bound(
    controller: EntropyTargetController | AdaptiveKlController,
    knob: str,
    far: dict[str, Any],
    back: dict[str, Any],
    bound: float,
    factor: float,
) -> None:
    for _ in range(1_000):
        controller.observe(**far)
    assert controller.state[knob] == bound
    assert controller.is_saturated
    controller.observe(**back)
    assert controller.state[knob] == pytest.approx(bound * factor)
    assert not controller.is_saturated

"""Learning rate, entropy coefficient and KL coefficient, each by itself."""

import itertools
import json
import math

import pytest
from doubles import FIELD_NOTES as NOTES
from hypothesis import given
from hypothesis import strategies as st

from grpo.control.coefficients import (
    EntropyTargetController,
    FieldNotesController,
    KlController,
    LearningRate,
    Usefulness,
    scheduled_entropy_coefficient,
)
from grpo.settings.grpo import EntropyTarget, FieldNotesRecovery, GrpoConfig, KlTarget

# Field notes, runs/jan19_kl_trap.csv: step and "entropy" (the cross-entropy of the sampled moves, hence more than ln(218) = 5.38).
JAN19 = (
    (0, 3.24), (133, 3.01), (283, 2.77), (354, 2.69), (504, 1.91), (567, 1.71), (692, 1.38), (815, 1.14), (974, 0.89), (1082, 0.74),
    (1213, 0.83), (1276, 1.53), (1365, 2.01), (1401, 1.30), (1773, 22.25), (1909, 12.51), (2164, 4.54), (2322, 60.77), (2426, 67.81),
    (2772, 0.10), (2857, 0.22), (3066, 0.08), (3143, 0.04),
)  # fmt: skip


def jan19_at(step: int) -> float:
    """Return the entropy of jan19_kl_trap at a step, in a line between the two that were noted."""
    for (before, entropy), (after, next_entropy) in itertools.pairwise(JAN19):
        if before <= step <= after:
            return entropy + (next_entropy - entropy) * (step - before) / (after - before)
    raise AssertionError(step)


def notes_controller(
    notes: FieldNotesRecovery = NOTES, *, entropy: float = 0.1, kl: float = 0.01, temperature: float = 1.0
) -> FieldNotesController:
    """Return a controller that begins as jan19 did."""
    return FieldNotesController(notes, entropy_coefficient=entropy, kl_coefficient=kl, temperature=temperature)


def values(controller: FieldNotesController) -> tuple[float, float, float]:
    """Return entropy coefficient, KL coefficient and temperature."""
    return controller.entropy_coefficient, controller.kl_coefficient, controller.temperature


# Learning rate.


def rates(first_step: int = 0, **changes: object) -> LearningRate:
    """Return a learning rate of 1 over 8 steps."""
    settings = {
        "learning_rate": 1.0,
        "num_steps": 8,
        "warmup_steps": 0,
        "learning_rate_decay": "constant",
        "final_learning_rate_fraction": 0.1,
    }
    return LearningRate(GrpoConfig.model_validate(settings | changes), first_step=first_step)


def test_without_warm_up_and_decay_the_rate_is_the_setting_at_every_step() -> None:
    assert {rates().at(step) for step in range(30)} == {1.0}


def test_the_linear_decay_is_worked_by_hand() -> None:
    rate = rates(learning_rate_decay="linear", final_learning_rate_fraction=0.2)
    # 1 - 0.8 * step / 8, and no lower afterwards.
    assert [rate.at(step) for step in (0, 2, 4, 8, 20)] == pytest.approx([1, 0.8, 0.6, 0.2, 0.2])


def test_the_cosine_decay_is_worked_by_hand() -> None:
    rate = rates(learning_rate_decay="cosine", final_learning_rate_fraction=0.2)
    # 0.2 + 0.8 * (1 + cos(pi * step / 8)) / 2; cos(pi / 4) = 0.70711.
    assert [rate.at(step) for step in (0, 2, 4, 8, 20)] == pytest.approx([1, 0.2 + 0.4 * 1.70711, 0.6, 0.2, 0.2], abs=1e-5)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_decay_begins_where_the_warm_up_ends(decay: str) -> None:
    rate = rates(warmup_steps=4, learning_rate_decay=decay, final_learning_rate_fraction=0.0)
    assert [rate.at(step) for step in (3, 4, 6, 8)] == pytest.approx([0.8, 1, 0.5, 0])


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_schedules_count_from_the_step_at_which_the_run_began(decay: str) -> None:
    changes = {"warmup_steps": 3, "learning_rate_decay": decay}
    fresh, resumed = rates(**changes), rates(first_step=100, **changes)
    assert [resumed.at(100 + step) for step in range(10)] == [fresh.at(step) for step in range(10)]


def test_a_warm_up_longer_than_the_run_still_ends_at_the_settings_rate() -> None:
    rate = rates(warmup_steps=16, learning_rate_decay="linear")
    assert rate.at(7) == pytest.approx(8 / 17)
    assert rate.at(16) == pytest.approx(1.0)


@given(st.integers(0, 20), st.sampled_from(["constant", "linear", "cosine"]), st.integers(1, 30), st.floats(0, 1))
def test_the_rate_of_every_step_of_a_run_is_positive_and_at_most_the_setting(warmup: int, decay: str, num_steps: int, share: float) -> None:
    rate = rates(warmup_steps=warmup, learning_rate_decay=decay, num_steps=num_steps, final_learning_rate_fraction=share)
    assert all(0 < rate.at(step) <= 1 + 1e-12 for step in range(num_steps))


def test_cuts_multiply_at_every_step_and_are_remembered() -> None:
    rate = rates(warmup_steps=1)
    rate.cut(0.5)
    rate.cut(0.1)
    again = rates(warmup_steps=1)
    again.restore(json.loads(json.dumps(rate.state())))
    assert [rate.at(0), rate.at(1)] == pytest.approx([0.025, 0.05])
    assert [again.at(0), again.at(1)] == [rate.at(0), rate.at(1)]


# Entropy coefficient by schedule.


@pytest.mark.parametrize(("final", "expected"), [(0.0, [0.04, 0.03, 0.02, 0.0, 0.0]), (0.08, [0.04, 0.05, 0.06, 0.08, 0.08])])
def test_an_annealed_coefficient_goes_in_a_line_and_stays_at_its_end(final: float, expected: list[float]) -> None:
    config = GrpoConfig(entropy_schedule="annealed", entropy_coefficient=0.04, final_entropy_coefficient=final, num_steps=8)
    assert [scheduled_entropy_coefficient(config, steps_done=step) for step in (0, 2, 4, 8, 80)] == pytest.approx(expected)


# Entropy coefficient by target.

TARGET = EntropyTarget(fraction=0.5, rate=0.1, dead_band=0.2, min_coefficient=0.01, max_coefficient=0.1)


def target_controller(coefficient: float = 0.02, target: EntropyTarget = TARGET) -> EntropyTargetController:
    """Return a controller whose target is 1.5 nats when mean ln(legal moves) is 3."""
    return EntropyTargetController(target, coefficient=coefficient)


def test_the_log_of_the_coefficient_moves_by_rate_times_error() -> None:
    controller = target_controller()
    controller.observe(entropy=1.0, log_num_legal=3.0)
    assert controller.coefficient == pytest.approx(0.02 * math.exp(0.05))  # Target 1.5: error 0.5, times 0.1.
    controller.observe(entropy=2.5, log_num_legal=3.0)
    assert controller.coefficient == pytest.approx(0.02 * math.exp(0.05 - 0.1))


def test_the_target_is_a_share_of_what_entropy_can_be() -> None:
    controller = target_controller()
    controller.observe(entropy=1.0, log_num_legal=2.0)
    assert controller.coefficient == 0.02
    controller.observe(entropy=1.0, log_num_legal=4.0)
    assert controller.coefficient == pytest.approx(0.02 * math.exp(0.1))


@pytest.mark.parametrize("entropy", [1.31, 1.5, 1.69])
def test_in_the_dead_band_nothing_moves(entropy: float) -> None:
    controller = target_controller()
    controller.observe(entropy=entropy, log_num_legal=3.0)
    assert controller.coefficient == 0.02


@pytest.mark.parametrize(("low", "high", "bound"), [(0.5, 2.5, 0.1), (2.5, 0.5, 0.01)])
def test_after_a_thousand_saturated_steps_one_of_the_other_sign_leaves_the_bound(low: float, high: float, bound: float) -> None:
    controller = target_controller()
    for _ in range(1_000):
        controller.observe(entropy=low, log_num_legal=3.0)
    assert controller.coefficient == bound
    assert controller.is_saturated
    controller.observe(entropy=high, log_num_legal=3.0)
    assert controller.coefficient == pytest.approx(bound * math.exp(0.1 * (1.5 - high)))
    assert not controller.is_saturated


@given(st.lists(st.floats(0, 5.38), max_size=60), st.floats(0.01, 0.1))
def test_the_coefficient_never_leaves_its_bounds(entropies: list[float], coefficient: float) -> None:
    controller = target_controller(coefficient)
    for entropy in entropies:
        controller.observe(entropy=entropy, log_num_legal=3.0)
        assert 0.01 <= controller.coefficient <= 0.1


def test_a_restored_coefficient_is_held_within_new_bounds() -> None:
    restored = target_controller()
    restored.restore({"coefficient": 0.5})
    assert restored.coefficient == 0.1


# The recovery controller of the field notes.


def test_the_coefficients_of_jan19_are_its_powers_and_the_notes_bound_caps_them() -> None:
    controller = notes_controller()
    noted = [0.15, 0.225, 0.34, 0.51, 0.76, 1.14, 1.5, 1.5]  # 0.34, 0.51, 0.76 and 1.14 as noted; it had no bound: 1.71 and 2.56 followed.
    seen: list[float] = []
    for step in range(800):
        if controller.observe(1.0):
            seen.append(controller.entropy_coefficient)
            assert step % 100 == 99
    assert seen == pytest.approx(noted, abs=0.005)
    assert controller.temperature == 2.5  # 1 + 8 * 0.2 = 2.6 is beyond.
    assert controller.kl_coefficient == pytest.approx(0.01 / 2**8)


def test_each_value_stops_at_its_own_bound() -> None:
    controller = notes_controller(NOTES.model_copy(update={"min_kl_coefficient": 0.004, "max_temperature": 1.3, "steps_threshold": 1}))
    seen = []
    for _ in range(3):
        controller.observe(1.0)
        seen.append(values(controller))
    assert [list(each) for each in seen] == [
        pytest.approx([0.15, 0.005, 1.2]),
        pytest.approx([0.225, 0.004, 1.3]),
        pytest.approx([0.3375, 0.004, 1.3]),
    ]


def test_a_value_that_the_settings_put_beyond_its_bound_is_not_moved_the_wrong_way() -> None:
    controller = notes_controller(NOTES.model_copy(update={"min_kl_coefficient": 0.02, "steps_threshold": 1}), entropy=2.0, temperature=3.0)
    assert controller.observe(1.0)
    assert values(controller) == (2.0, 0.01, 3.0)


def test_jan19_step_by_step_with_the_notes_defaults() -> None:
    # In lines between the rows: below 1.5 from 647 (where the best evaluation was) to 1273 and from 1391 to 1404; below 0.5 from 2770.
    controller = notes_controller()
    boosts: list[int] = []
    for step in range(3_144):
        if controller.is_critical(jan19_at(step)):
            break
        if controller.observe(jan19_at(step)):
            boosts.append(step)
    assert boosts == [746, 846, 946, 1046, 1146, 1246]
    assert step == 2770
    assert values(controller) == pytest.approx((0.1 * 1.5**6, 0.01 / 64, 2.2))


def test_it_is_saturated_when_one_more_boost_would_change_nothing() -> None:
    controller = notes_controller(NOTES.model_copy(update={"steps_threshold": 1}))
    saturated = []
    for _ in range(9):
        controller.observe(1.0)
        saturated.append(controller.is_saturated)
    # 1.5 is reached by the 7th boost, temperature 2.5 by the 8th; the KL coefficient, whose bound 0 halving never reaches, is not asked.
    assert saturated == [False] * 7 + [True] * 2


def test_a_reachable_bound_of_the_kl_coefficient_is_asked_for() -> None:
    notes = NOTES.model_copy(
        update={"steps_threshold": 1, "max_entropy_coefficient": 0.1, "max_temperature": 1.0, "min_kl_coefficient": 0.004}
    )
    controller = notes_controller(notes)
    saturated = [controller.is_saturated]
    for _ in range(2):
        controller.observe(1.0)
        saturated.append(controller.is_saturated)
    assert saturated == [False, False, True]


# The KL controller.

KL = KlTarget(nats=0.1, horizon=10.0, min_coefficient=0.001, max_coefficient=0.1)


@pytest.mark.parametrize(("kl", "factor"), [(0.1, 1.0), (0.11, 1.01), (0.09, 0.99), (0.12, 1.02), (5.0, 1.02), (0.08, 0.98), (0.0, 0.98)])
def test_the_coefficient_moves_in_proportion_and_by_a_fifth_at_most(kl: float, factor: float) -> None:
    controller = KlController(KL, coefficient=0.01)
    controller.observe(kl)
    assert controller.coefficient == pytest.approx(0.01 * factor)


@pytest.mark.parametrize(("far", "back", "bound", "factor"), [(5.0, 0.0, 0.1, 0.98), (0.0, 5.0, 0.001, 1.02)])
def test_the_kl_coefficient_leaves_its_bound_in_one_step(far: float, back: float, bound: float, factor: float) -> None:
    controller = KlController(KL, coefficient=0.01)
    for _ in range(1_000):
        controller.observe(far)
    assert controller.coefficient == bound
    assert controller.is_saturated
    controller.observe(back)
    assert controller.coefficient == pytest.approx(bound * factor)
    assert not controller.is_saturated


@pytest.mark.parametrize(("coefficient", "held"), [(1.0, 0.1), (1e-9, 0.001)])
def test_the_kl_coefficient_begins_within_its_bounds(coefficient: float, held: float) -> None:
    assert KlController(KL, coefficient=coefficient).coefficient == held


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf])
def test_a_divergence_that_is_not_finite_moves_nothing(kl: float) -> None:
    controller = KlController(KL, coefficient=0.01)
    controller.observe(kl)
    assert controller.coefficient == 0.01


def test_a_restored_kl_coefficient_is_the_saved_one_within_the_bounds() -> None:
    controller = KlController(KL, coefficient=0.01)
    controller.restore(json.loads(json.dumps(KlController(KL, coefficient=0.0123).state())))
    assert controller.coefficient == 0.0123
    controller.restore({"coefficient": 7.0})
    assert controller.coefficient == 0.1


# Usefulness.


def test_saturated_and_idle_shares_are_counted_over_all_steps() -> None:
    usefulness = Usefulness()
    assert (usefulness.saturated, usefulness.idle) == (0.0, 0.0)
    for flags in ({"is_saturated": True, "has_changed": True}, {"is_saturated": False, "has_changed": False}):
        once = Usefulness()
        once.observe(**flags)
        assert (once.saturated, once.idle) == (float(flags["is_saturated"]), float(not flags["has_changed"]))
    for is_saturated, has_changed in [(True, True), (True, False), (False, False), (False, True), (False, True)]:
        usefulness.observe(is_saturated=is_saturated, has_changed=has_changed)
    assert (usefulness.saturated, usefulness.idle) == (0.4, 0.2)
    again = Usefulness()
    again.restore(json.loads(json.dumps(usefulness.state())))
    again.observe(is_saturated=True, has_changed=False)
    assert (again.saturated, again.idle) == (0.5, pytest.approx(1 / 6))

"""Learning rate, entropy coefficient and KL coefficient, each by itself."""

import math

import pytest
from doubles import FIELD_NOTES as NOTES

from grpo.settings.grpo import EntropyTarget, GrpoConfig
from grpo.train.coefficients import EntropyTargetController, FieldNotesController, KlController, scheduled_learning_rate


def test_the_learning_rate_warms_up_then_decays_worked_by_hand() -> None:
    config = GrpoConfig(learning_rate=1.0, num_steps=12, warmup_steps=4)
    # Fifths of the rate; then 0.05 + 0.95 * (1 + cos(pi * step / 8)) / 2; cos(pi / 4) = 0.70711.
    expected = [0.2, 0.8, 1, 0.05 + 0.475 * 1.70711, 0.525, 0.05, 0.05]
    assert [scheduled_learning_rate(config, steps_done=step) for step in (0, 3, 4, 6, 8, 12, 30)] == pytest.approx(expected, abs=1e-5)
    constant = config.model_copy(update={"learning_rate_decay": "constant"})
    assert {scheduled_learning_rate(constant, steps_done=step) for step in range(4, 30)} == {1.0}


def target_controller(coefficient: float = 0.02) -> EntropyTargetController:
    """Return a controller whose target is 1.5 nats when mean ln(legal moves) is 3."""
    return EntropyTargetController(EntropyTarget(fraction=0.5, min_coefficient=0.01, max_coefficient=0.1), coefficient=coefficient)


def test_the_log_of_the_entropy_coefficient_moves_by_rate_times_error_and_not_in_the_dead_band() -> None:
    controller = target_controller()
    controller.observe(entropy=1.41, log_num_legal=3.0)
    assert controller.coefficient == 0.02
    controller.observe(entropy=1.0, log_num_legal=3.0)
    assert controller.coefficient == pytest.approx(0.02 * math.exp(0.05))  # Target 1.5: error 0.5, times 0.1.
    controller.observe(entropy=2.5, log_num_legal=3.0)
    assert controller.coefficient == pytest.approx(0.02 * math.exp(0.05 - 0.1))


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


def test_the_coefficients_of_jan19_are_its_powers_and_the_notes_bound_caps_them() -> None:
    controller = FieldNotesController(NOTES, entropy_coefficient=0.1, kl_coefficient=0.01, temperature=1.0)
    noted = [0.15, 0.225, 0.34, 0.51, 0.76, 1.14, 1.5, 1.5]  # 0.34, 0.51, 0.76 and 1.14 as noted; it had no bound: 1.71 and 2.56 followed.
    seen: list[float] = []
    for step in range(800):
        assert not controller.is_saturated
        if controller.observe(entropy=1.0, log_num_legal=3.0):
            seen.append(controller.knobs()["entropy_coefficient"])
            assert step % 100 == 99
    assert seen == pytest.approx(noted, abs=0.005)
    assert controller.knobs()["temperature"] == 2.5  # 1 + 8 * 0.2 = 2.6 is beyond.
    assert controller.knobs()["kl_coefficient"] == pytest.approx(0.01 / 2**8)
    assert controller.is_saturated, "halving never reaches the KL coefficient's bound of 0, so that it is not asked"
    controller.observe(entropy=1.6, log_num_legal=3.0)
    assert controller.knobs()["temperature"] == 2.5, "boosted values stay"


@pytest.mark.parametrize(("kl", "factor"), [(0.1, 1.0), (0.11, 1.005), (5.0, 1.01), (0.0, 0.99), (math.nan, 1.0), (math.inf, 1.0)])
def test_the_kl_coefficient_moves_in_proportion_and_by_a_fifth_of_the_horizon_at_most(kl: float, factor: float) -> None:
    controller = KlController(0.1, coefficient=0.01)
    controller.observe(kl)
    assert controller.coefficient == pytest.approx(0.01 * factor)


@pytest.mark.parametrize(("far", "back", "bound", "factor"), [(5.0, 0.0, 0.1, 0.99), (0.0, 5.0, 1e-4, 1.01)])
def test_the_kl_coefficient_leaves_its_bound_in_one_step(far: float, back: float, bound: float, factor: float) -> None:
    controller = KlController(0.1, coefficient=1.0 if far else 0.01)
    for _ in range(1_000):
        controller.observe(far)
    assert controller.coefficient == bound
    assert controller.is_saturated
    controller.observe(back)
    assert controller.coefficient == pytest.approx(bound * factor)

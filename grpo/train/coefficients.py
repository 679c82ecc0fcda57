"""Learning rate schedule, and the controllers of the entropy and KL coefficients by measured entropy and KL.

A controller's state is a plain JSON dict, and a coefficient never leaves its bounds.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from grpo.settings.grpo import EntropyTarget, FieldNotesRecovery, GrpoConfig

_FINAL_FRACTION: Final = 0.05  # Of the learning rate, at the end of its decay.
_ENTROPY_RATE: Final = 0.1  # Each step changes the log of the coefficient by this times the error in nats.
_DEAD_BAND: Final = 0.1  # Nats from the target within which the coefficient does not change.
_MAX_KL_ERROR: Final = 0.2  # Ziegler et al., arXiv 1909.08593, section 2.2: the relative error is clipped to this.
_KL_HORIZON: Final = 20.0  # Steps.
_MIN_KL_COEFFICIENT, _MAX_KL_COEFFICIENT = 1e-4, 0.1  # The lower bound is above 0, so that it can rise again.


def scheduled_learning_rate(config: GrpoConfig, *, steps_done: int) -> float:
    """Return the learning rate of the rollout after `steps_done` rollouts of the run.

    Step s, from 0, has (s + 1) / (warmup + 1) of the rate while s < warmup, so that it is never 0. From s = warmup on it decays, and would
    reach its final fraction at s = num_steps, one after the last step.
    """
    rate, warmup = config.learning_rate, config.warmup_steps
    if steps_done < warmup:
        return rate * (steps_done + 1) / (warmup + 1)
    if config.learning_rate_decay == "constant":
        return rate
    progress = min((steps_done - warmup) / max(config.num_steps - warmup, 1), 1.0)
    left = (1 + math.cos(math.pi * progress)) / 2
    return rate * (_FINAL_FRACTION + (1 - _FINAL_FRACTION) * left)


class EntropyController:
    """Sets some of a rollout's knobs by the entropy of those before; this one none: coefficients are constant."""

    @property
    def is_saturated(self) -> bool:
        """Whether it is at a bound."""
        return False

    def knobs(self) -> dict[str, float]:
        """Return the values of the knobs that it sets, by their names in `grpo.train.controller.Knobs`."""
        return {}

    def observe(self, *, entropy: float, log_num_legal: float) -> str:  # noqa: ARG002
        """Update with the exact entropy at T = 1 and the mean ln(legal moves) of one rollout, in nats; return what it did, or ""."""
        return ""

    def reason_to_stop(self, entropy: float) -> str:  # noqa: ARG002
        """Return why this entropy ends the run, or ""."""
        return ""

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state`."""


class EntropyTargetController(EntropyController):
    """Integral controller of entropy with target = fraction * mean ln(legal moves).

    Outside the dead band, log(coefficient) changes by rate * (target - entropy).

    The clamped coefficient is the integral itself, so there is no wind-up: the first step of the other sign leaves the bound. The lower
    bound is above 0, so the coefficient can always recover.
    """

    def __init__(self, settings: EntropyTarget, *, coefficient: float) -> None:
        self._settings = settings
        self.coefficient = coefficient

    def knobs(self) -> dict[str, float]:
        """Return the entropy coefficient."""
        return {"entropy_coefficient": self.coefficient}

    def observe(self, *, entropy: float, log_num_legal: float) -> str:
        """Update with one rollout."""
        error = self._settings.fraction * log_num_legal - entropy
        if abs(error) > _DEAD_BAND:
            low, high = self._settings.min_coefficient, self._settings.max_coefficient
            log_coefficient = math.log(self.coefficient) + _ENTROPY_RATE * error
            # Compared as logarithms, so that no exponential overflows and a bound is hit exactly.
            if log_coefficient >= math.log(high):
                self.coefficient = high
            elif log_coefficient <= math.log(low):
                self.coefficient = low
            else:
                self.coefficient = math.exp(log_coefficient)
        return ""

    @property
    def is_saturated(self) -> bool:
        """Whether the coefficient is at a bound."""
        return not self._settings.min_coefficient < self.coefficient < self._settings.max_coefficient

    def state(self) -> dict[str, Any]:
        """Return the coefficient."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the coefficient."""
        self.coefficient = float(state["coefficient"])


class FieldNotesController(EntropyController):
    """The recovery controller of the field notes: boosts entropy coefficient, KL coefficient and temperature together.

    After `steps_threshold` steps in a row below the floor, it changes each value once, within its bound, and restarts the count. A step at
    or above the floor also restarts the count, but boosted values stay. A value that the settings put beyond its bound is left unchanged.
    """

    def __init__(self, settings: FieldNotesRecovery, *, entropy_coefficient: float, kl_coefficient: float, temperature: float) -> None:
        self._settings = settings
        self._knobs = {"entropy_coefficient": entropy_coefficient, "kl_coefficient": kl_coefficient, "temperature": temperature}
        self._steps_below = 0

    def knobs(self) -> dict[str, float]:
        """Return both coefficients and the temperature."""
        return dict(self._knobs)

    def observe(self, *, entropy: float, log_num_legal: float) -> str:  # noqa: ARG002
        """Update with one rollout; critical entropy changes nothing."""
        settings = self._settings
        if entropy < settings.entropy_critical:
            return ""
        self._steps_below = self._steps_below + 1 if entropy < settings.entropy_floor else 0
        if self._steps_below < settings.steps_threshold:
            return ""
        self._steps_below, self._knobs = 0, self._boosted()
        values = ", ".join(f"{name.replace('_', ' ')} is {value:.4g}" for name, value in self._knobs.items())
        return f"entropy was below {settings.entropy_floor:g} nats for {settings.steps_threshold} steps in a row: {values} now"

    def reason_to_stop(self, entropy: float) -> str:
        """Return why this entropy ends the run, or ""."""
        critical = self._settings.entropy_critical
        return f"below grpo.field_notes.entropy_critical = {critical:g}, for which one step is enough" if entropy < critical else ""

    def _boosted(self) -> dict[str, float]:
        """Return the values after one more boost."""
        now, settings = self._knobs, self._settings
        entropy, kl, temperature = now["entropy_coefficient"], now["kl_coefficient"], now["temperature"]
        return {
            "entropy_coefficient": max(entropy, min(entropy * settings.entropy_boost_factor, settings.max_entropy_coefficient)),
            "kl_coefficient": min(kl, max(kl * settings.kl_reduction_factor, settings.min_kl_coefficient)),
            "temperature": max(temperature, min(temperature + settings.temperature_boost, settings.max_temperature)),
        }

    @property
    def is_saturated(self) -> bool:
        """Whether one more boost would change nothing; multiplication never takes a KL coefficient to a bound of 0."""
        ignored = "kl_coefficient" if self._settings.min_kl_coefficient == 0 else ""
        return all(value == self._knobs[name] for name, value in self._boosted().items() if name != ignored)

    def state(self) -> dict[str, Any]:
        """Return the three values and the count of steps below the floor."""
        return {"knobs": dict(self._knobs), "steps_below": self._steps_below}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the three values and the count."""
        self._knobs, self._steps_below = dict(state["knobs"]), int(state["steps_below"])


def entropy_controller(config: GrpoConfig) -> EntropyController:
    """Return the controller that `grpo.entropy_schedule` names."""
    match config.entropy_schedule:
        case "constant":
            return EntropyController()
        case "target":
            return EntropyTargetController(config.entropy_target, coefficient=config.entropy_coefficient)
        case "field_notes":
            assert config.field_notes is not None
            return FieldNotesController(
                config.field_notes,
                entropy_coefficient=config.entropy_coefficient,
                kl_coefficient=config.kl_coefficient,
                temperature=config.temperature,
            )


class KlController:
    """Adaptive coefficient of the reference KL: coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) / horizon, within bounds."""

    def __init__(self, target: float, *, coefficient: float) -> None:
        self._target = target
        self.coefficient = self._within_bounds(coefficient)

    def observe(self, kl: float) -> None:
        """Update with the exact reference KL of one rollout, in nats; NaN and infinity are ignored."""
        if math.isfinite(kl):
            error = min(max(kl / self._target - 1, -_MAX_KL_ERROR), _MAX_KL_ERROR)
            self.coefficient = self._within_bounds(self.coefficient * (1 + error / _KL_HORIZON))

    @staticmethod
    def _within_bounds(coefficient: float) -> float:
        return min(max(coefficient, _MIN_KL_COEFFICIENT), _MAX_KL_COEFFICIENT)

    @property
    def is_saturated(self) -> bool:
        """Whether the coefficient is at a bound."""
        return not _MIN_KL_COEFFICIENT < self.coefficient < _MAX_KL_COEFFICIENT

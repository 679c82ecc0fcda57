"""Learning rate schedule, entropy and KL coefficients: schedules of the step, and adaptive controllers of measured entropy and KL.

A controller's state is a plain JSON dict, and a coefficient never leaves its bounds.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

from grpo.control.alarms import Observation
from grpo.settings.grpo import EntropyTarget, FieldNotesRecovery, GrpoConfig, KlTarget

_MAX_KL_ERROR = 0.2  # Ziegler et al., arXiv 1909.08593, section 2.2: the relative error is clipped to this.


class LearningRate:
    """Learning rate: warm-up, then decay, multiplied by all cuts so far (non-finite steps, rollbacks), which are permanent."""

    def __init__(self, config: GrpoConfig, *, first_step: int) -> None:
        self._config = config
        self._first_step = first_step
        self._cut = 1.0

    def at(self, step: int) -> float:
        """Return the learning rate of the rollout after `step` rollouts.

        Step s of the run, from 0, has (s + 1) / (warmup + 1) of the rate while s < warmup, so that it is never 0. From s = warmup on it
        decays and would reach its final fraction at s = num_steps, one after the last step.
        """
        config = self._config
        done = max(step - self._first_step, 0)
        rate = config.learning_rate * self._cut
        if done < config.warmup_steps:
            return rate * (done + 1) / (config.warmup_steps + 1)
        progress = min((done - config.warmup_steps) / max(config.num_steps - config.warmup_steps, 1), 1.0)
        match config.learning_rate_decay:
            case "constant":
                return rate
            case "linear":
                left = 1 - progress
            case "cosine":
                left = (1 + math.cos(math.pi * progress)) / 2
        return rate * (config.final_learning_rate_fraction + (1 - config.final_learning_rate_fraction) * left)

    def cut(self, factor: float) -> None:
        """Multiply the rate by `factor` permanently."""
        self._cut *= factor

    def state(self) -> dict[str, Any]:
        """Return the product of all cuts; everything else follows from the step."""
        return {"cut": self._cut}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the product of all cuts."""
        self._cut = float(state["cut"])


def scheduled_entropy_coefficient(config: GrpoConfig, *, steps_done: int) -> float:
    """Return the entropy coefficient of the schedules `constant` and `annealed` after `steps_done` steps of the run."""
    if config.entropy_schedule == "constant":
        return config.entropy_coefficient
    progress = min(max(steps_done, 0) / config.num_steps, 1.0)
    return config.entropy_coefficient + (config.final_entropy_coefficient - config.entropy_coefficient) * progress


class EntropyController(ABC):
    """Sets some of a rollout's knobs by the entropy of those before; `ENTROPY_CONTROLLERS` has its name."""

    @abstractmethod
    def knobs(self) -> dict[str, float]:
        """Return the values of the knobs that it sets, by their names in `grpo.control.controller.Knobs`."""

    @abstractmethod
    def follow(self, observation: Observation) -> str:
        """Update with one rollout; return the message of an `entropy_boost`, or ""."""

    @property
    @abstractmethod
    def is_saturated(self) -> bool:
        """Whether it is at a bound."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state`, within the bounds of the settings."""

    def reason_to_stop(self, observation: Observation) -> str:  # noqa: ARG002
        """Return why this rollout ends the run, or ""."""
        return ""

    def forget(self) -> None:  # noqa: B027
        """Drop what it has counted, after a rollback."""


class EntropyTargetController(EntropyController):
    """Integral controller of entropy with target = share * mean ln(legal moves).

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

    def follow(self, observation: Observation) -> str:
        """Update with one rollout."""
        self.observe(entropy=observation.entropy, log_num_legal=observation.log_num_legal)
        return ""

    def observe(self, *, entropy: float, log_num_legal: float) -> None:
        """Update with the exact entropy at T = 1 and the mean ln(legal moves) of one rollout, in nats."""
        error = self._settings.fraction * log_num_legal - entropy
        if abs(error) <= self._settings.dead_band:
            return
        low, high = self._settings.min_coefficient, self._settings.max_coefficient
        log_coefficient = math.log(self.coefficient) + self._settings.rate * error
        # Compared as logarithms, so that no exponential overflows and a bound is hit exactly.
        if log_coefficient >= math.log(high):
            self.coefficient = high
        elif log_coefficient <= math.log(low):
            self.coefficient = low
        else:
            self.coefficient = math.exp(log_coefficient)

    @property
    def is_saturated(self) -> bool:
        """Whether the coefficient is at a bound."""
        return not self._settings.min_coefficient < self.coefficient < self._settings.max_coefficient

    def state(self) -> dict[str, Any]:
        """Return the coefficient."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the coefficient, clipped to the bounds of the settings."""
        self.coefficient = min(max(float(state["coefficient"]), self._settings.min_coefficient), self._settings.max_coefficient)


class FieldNotesController(EntropyController):
    """The recovery controller of the field notes: boosts entropy coefficient, KL coefficient and temperature together.

    After `steps_threshold` steps in a row below the floor, it changes each value once, within its bound, and restarts the count. A step at
    or above the floor also restarts the count, but boosted values stay. A value that the settings put beyond its bound is left unchanged.
    """

    def __init__(self, settings: FieldNotesRecovery, *, entropy_coefficient: float, kl_coefficient: float, temperature: float) -> None:
        self._settings = settings
        self.entropy_coefficient = entropy_coefficient
        self.kl_coefficient = kl_coefficient
        self.temperature = temperature
        self._steps_below = 0

    def knobs(self) -> dict[str, float]:
        """Return both coefficients and the temperature."""
        return {
            "entropy_coefficient": self.entropy_coefficient,
            "kl_coefficient": self.kl_coefficient,
            "temperature": self.temperature,
        }

    def follow(self, observation: Observation) -> str:
        """Update with one rollout; return the message of a boost, or ""."""
        if not self.observe(observation.entropy):
            return ""
        settings = self._settings
        stuck = "; 0 stays 0 when multiplied: set grpo.entropy_coefficient above 0" if self.entropy_coefficient == 0 else ""
        return (
            f"entropy was below grpo.field_notes.entropy_floor = {settings.entropy_floor:g} nats for {settings.steps_threshold} steps in "
            f"a row to {observation.step} (now {observation.entropy:.3g}): entropy coefficient is {self.entropy_coefficient:.4g} now, "
            f"KL coefficient {self.kl_coefficient:.4g}, temperature {self.temperature:.4g}{stuck}"
        )

    def reason_to_stop(self, observation: Observation) -> str:
        """Return why this rollout's entropy ends the run, or ""."""
        if not self.is_critical(observation.entropy):
            return ""
        return (
            f"entropy at step {observation.step} is {observation.entropy:.3g} nats at T = 1, below grpo.field_notes.entropy_critical "
            f"= {self._settings.entropy_critical:g}, for which one step is enough; action agreement: mean {observation.agreement:.2f}, at "
            f"most {observation.agreement_max:.2f}: go back to an earlier checkpoint, with a lower grpo.learning_rate"
        )

    def is_critical(self, entropy: float) -> bool:
        """Return whether a single entropy this low stops the run."""
        return entropy < self._settings.entropy_critical

    def observe(self, entropy: float) -> bool:
        """Update with the exact entropy of one rollout, in nats at T = 1; return whether it boosted. Critical entropy changes nothing."""
        if self.is_critical(entropy):
            return False
        self._steps_below = self._steps_below + 1 if entropy < self._settings.entropy_floor else 0
        if self._steps_below < self._settings.steps_threshold:
            return False
        self._steps_below = 0
        self.entropy_coefficient, self.kl_coefficient, self.temperature = self._boosted()
        return True

    def _boosted(self) -> tuple[float, float, float]:
        """Return entropy coefficient, KL coefficient and temperature after one more boost."""
        settings = self._settings
        return (
            max(self.entropy_coefficient, min(self.entropy_coefficient * settings.entropy_boost_factor, settings.max_entropy_coefficient)),
            min(self.kl_coefficient, max(self.kl_coefficient * settings.kl_reduction_factor, settings.min_kl_coefficient)),
            max(self.temperature, min(self.temperature + settings.temperature_boost, settings.max_temperature)),
        )

    @property
    def is_saturated(self) -> bool:
        """Whether one more boost would change nothing.

        A KL coefficient with bound 0 is ignored, because multiplication never reaches 0.
        """
        entropy_coefficient, kl_coefficient, temperature = self._boosted()
        is_kl_at_bound = kl_coefficient == self.kl_coefficient or self._settings.min_kl_coefficient == 0
        return entropy_coefficient == self.entropy_coefficient and temperature == self.temperature and is_kl_at_bound

    def forget(self) -> None:
        """Restart the count after a rollback; boosted values stay."""
        self._steps_below = 0

    def state(self) -> dict[str, Any]:
        """Return the three values and the count of steps below the floor."""
        return {
            "entropy_coefficient": self.entropy_coefficient,
            "kl_coefficient": self.kl_coefficient,
            "temperature": self.temperature,
            "steps_below": self._steps_below,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the three values and the count."""
        self.entropy_coefficient = float(state["entropy_coefficient"])
        self.kl_coefficient = float(state["kl_coefficient"])
        self.temperature = float(state["temperature"])
        self._steps_below = int(state["steps_below"])


def _field_notes(config: GrpoConfig) -> EntropyController:
    assert config.field_notes is not None
    return FieldNotesController(
        config.field_notes,
        entropy_coefficient=config.entropy_coefficient,
        kl_coefficient=config.kl_coefficient,
        temperature=config.temperature,
    )


ENTROPY_CONTROLLERS: Final[Mapping[str, Callable[[GrpoConfig], EntropyController]]] = {
    "target": lambda config: EntropyTargetController(config.entropy_target, coefficient=config.entropy_coefficient),
    "field_notes": _field_notes,
}
"""`grpo.entropy_schedule` -> its controller, for the schedules that depend on what is measured."""


class KlController:
    """Adaptive coefficient of the reference KL: coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) / horizon, within bounds."""

    def __init__(self, settings: KlTarget, *, coefficient: float) -> None:
        self._settings = settings
        self.coefficient = self._within_bounds(coefficient)

    def observe(self, kl: float) -> None:
        """Update with the exact reference KL of one rollout, in nats; NaN and infinity are ignored."""
        if not math.isfinite(kl):
            return
        error = min(max(kl / self._settings.nats - 1, -_MAX_KL_ERROR), _MAX_KL_ERROR)
        self.coefficient = self._within_bounds(self.coefficient * (1 + error / self._settings.horizon))

    def _within_bounds(self, coefficient: float) -> float:
        return min(max(coefficient, self._settings.min_coefficient), self._settings.max_coefficient)

    @property
    def is_saturated(self) -> bool:
        """Whether the coefficient is at a bound."""
        return not self._settings.min_coefficient < self.coefficient < self._settings.max_coefficient

    def state(self) -> dict[str, Any]:
        """Return the coefficient."""
        return {"coefficient": self.coefficient}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the coefficient, clipped to the bounds of the settings."""
        self.coefficient = self._within_bounds(float(state["coefficient"]))


class Usefulness:
    """Counts the steps after which a controller was at a bound, and those in which it changed nothing although not at a bound."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_saturated = 0
        self._num_idle = 0

    def observe(self, *, is_saturated: bool, has_changed: bool) -> None:
        """Count one step of the controller."""
        self._num_steps += 1
        self._num_saturated += is_saturated
        self._num_idle += not is_saturated and not has_changed

    @property
    def saturated(self) -> float:
        """Fraction of the steps at a bound; 0 without steps or controller."""
        return self._num_saturated / max(self._num_steps, 1)

    @property
    def idle(self) -> float:
        """Fraction of the steps that changed nothing although not at a bound; 0 without steps."""
        return self._num_idle / max(self._num_steps, 1)

    def state(self) -> dict[str, Any]:
        """Return the three counts."""
        return {"num_steps": self._num_steps, "num_saturated": self._num_saturated, "num_idle": self._num_idle}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the three counts."""
        self._num_steps = int(state["num_steps"])
        self._num_saturated = int(state["num_saturated"])
        self._num_idle = int(state["num_idle"])

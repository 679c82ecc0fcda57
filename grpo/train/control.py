"""Control of training: temperature, coefficients and learning rate of each rollout; recovery or stop if entropy is critical.

`Control` asks three controllers in this order: entropy, KL, critical entropy. Each keeps all its memory in `state`, plain JSON that a
checkpoint stores. The field notes are records of five earlier chess GRPO runs that failed (tests/field_notes); one entropy controller is
theirs.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.metrics.records import Event
from grpo.metrics.shared import ENTROPY_BOUNDS
from grpo.settings.grpo import FieldNotesRecovery, GrpoConfig

CRITICAL_WINDOW: Final = 10
"""Number of steps whose mean entropy is compared with `grpo.critical_entropy`."""
MAX_RECOVERIES: Final = 3
"""After this many recoveries, the next critical entropy stops the run: recovering does not remove the cause."""
_MAX_RECOVERY_STEPS: Final = 20 * CRITICAL_WINDOW  # A recovery that takes longer has failed, and the run stops.
MAX_SKIPPED: Final = 3
"""After this many non-finite optimizer steps in a row, training ends with an error."""
SKIPPED_CUT: Final = 0.5
"""Factor of the learning rate at each non-finite optimizer step; it holds for the rest of the run."""
_FINAL_FRACTION: Final = 0.05  # The cosine decay ends at this fraction of the learning rate.
_ENTROPY_RATE: Final = 0.1  # Change of ln(entropy coefficient) per step and nat of error.
_DEAD_BAND: Final = 0.1  # Nats. A smaller error does not change the entropy coefficient.
_MAX_KL_ERROR: Final = 0.2  # Bound of the relative KL error, both ways (Ziegler et al., arXiv 1909.08593, section 2.2).
_KL_HORIZON: Final = 20.0  # Steps; the KL coefficient changes by at most 0.2 / 20 = 1 % per step.
_NOTES_ENTROPY_FACTOR, _NOTES_KL_FACTOR = 1.5, 0.5  # Factors of the two coefficients at a boost of the field notes.
_NOTES_TEMPERATURE_BOOST, _NOTES_MAX_TEMPERATURE = 0.2, 2.5  # Increase of the temperature at a boost, and its bound.
RECOVERY_COEFFICIENT: Final = 0.3
"""Coefficient of KL(reference || policy) during a recovery. 0.1 is too weak: the policy ends nearly uniform (docs/objective.md)."""
HEALTHY_ENTROPY: Final = 1.0
"""Mean entropy in nats at T = 1 at which a recovery ends."""
_MIN_KL_COEFFICIENT, _MAX_KL_COEFFICIENT = 1e-4, 0.1  # The lower bound is above 0, so the coefficient can rise again.


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Control values of one rollout and its optimizer steps."""

    temperature: float
    """Temperature of sampling and of the loss."""
    entropy_coefficient: float
    """Coefficient of the entropy bonus, in win probability per nat."""
    kl_coefficient: float
    """Coefficient of the reference KL, in win probability per nat."""
    recovery_coefficient: float
    """Coefficient of KL(reference || policy), in win probability per nat; 0 outside recoveries."""
    learning_rate: float


Decision = tuple[str, tuple[Event, ...]]
"""Reason to stop, with numbers (empty: go on), and the step's events."""
_GO_ON: Final[Decision] = ("", ())


class Controller:
    """Sets some knobs by the observed entropy and KL. This base class sets none and never stops."""

    def __init__(self, **state: Any) -> None:
        self.state = state
        """All memory of the controller, as plain JSON."""

    @property
    def is_saturated(self) -> bool:
        """Whether a knob is at its bound."""
        return False

    def knobs(self) -> dict[str, float]:
        """Return name in `Knobs` -> value, for the knobs of this controller."""
        return {}

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        """Update `state` with one finished rollout; `Control.observe` describes the arguments."""
        return _GO_ON


class EntropyTargetController(Controller):
    """Moves the entropy coefficient so that entropy approaches fraction * mean ln(legal moves).

    An integral controller: outside the dead band, ln(coefficient) changes by rate * (target - entropy). It has no wind-up, because the
    clamped coefficient is the integral: the first error of the other sign leaves the bound. The lower bound is above 0, so the coefficient
    can always rise again.
    """

    def __init__(self, fraction: float, coefficient: float) -> None:
        super().__init__(entropy_coefficient=coefficient)
        self._fraction = fraction

    def knobs(self) -> dict[str, float]:
        return dict(self.state)

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        error = self._fraction * log_num_legal - entropy
        if abs(error) > _DEAD_BAND:
            low, high = ENTROPY_BOUNDS
            log_coefficient = math.log(self.state["entropy_coefficient"]) + _ENTROPY_RATE * error
            # Logarithms are compared, so exp cannot overflow and a bound is hit exactly.
            if log_coefficient >= math.log(high):
                coefficient = high
            elif log_coefficient <= math.log(low):
                coefficient = low
            else:
                coefficient = math.exp(log_coefficient)
            self.state["entropy_coefficient"] = coefficient
        return _GO_ON

    @property
    def is_saturated(self) -> bool:
        low, high = ENTROPY_BOUNDS
        return not low < self.state["entropy_coefficient"] < high


class FieldNotesController(Controller):
    """Controller of the field notes: raises entropy coefficient and temperature, and halves the KL coefficient.

    After `steps_threshold` steps in a row below the entropy floor, each value changes once and the count restarts. A step at or above the
    floor also restarts the count; values are not changed back. A value that the settings put above its bound is not lowered to the bound.
    One step of critical entropy stops training.
    """

    def __init__(self, settings: FieldNotesRecovery, **knobs: float) -> None:
        super().__init__(knobs=knobs, steps_below=0)
        self._settings = settings

    def knobs(self) -> dict[str, float]:
        return dict(self.state["knobs"])

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        settings = self._settings
        if entropy < settings.entropy_critical:
            return _critical(
                f"entropy at step {step} is {entropy:.3g} nats at T = 1, below grpo.field_notes.entropy_critical ="
                f" {settings.entropy_critical:g}, for which one step is enough"
            )
        num_below = self.state["steps_below"] + 1 if entropy < settings.entropy_floor else 0
        self.state["steps_below"] = num_below
        if num_below < settings.steps_threshold:
            return _GO_ON
        self.state = {"knobs": self._boosted(), "steps_below": 0}
        values = ", ".join(f"{name.replace('_', ' ')} is {value:.4g}" for name, value in self.knobs().items())
        floor = f"entropy was below {settings.entropy_floor:g} nats for {settings.steps_threshold} steps in a row"
        return "", (Event("entropy_boost", f"step {step:,}: {floor}: {values} now"),)

    def _boosted(self) -> dict[str, float]:
        entropy, kl, temperature = (self.state["knobs"][name] for name in ("entropy_coefficient", "kl_coefficient", "temperature"))
        return {
            "entropy_coefficient": max(entropy, min(entropy * _NOTES_ENTROPY_FACTOR, self._settings.max_entropy_coefficient)),
            "kl_coefficient": kl * _NOTES_KL_FACTOR,
            "temperature": max(temperature, min(temperature + _NOTES_TEMPERATURE_BOOST, _NOTES_MAX_TEMPERATURE)),
        }

    @property
    def is_saturated(self) -> bool:
        """Whether another boost would change neither entropy coefficient nor temperature; the KL coefficient has no lower bound."""
        boosted = self._boosted()
        return all(boosted[name] == self.state["knobs"][name] for name in ("entropy_coefficient", "temperature"))


class AdaptiveKlController(Controller):
    """Moves the KL coefficient toward a target KL: coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) / 20, within 1e-4 to 0.1."""

    def __init__(self, target: float, coefficient: float) -> None:
        super().__init__(kl_coefficient=_within_bounds(coefficient))
        self._target = target

    def knobs(self) -> dict[str, float]:
        return dict(self.state)

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        # A NaN or infinite KL changes nothing.
        if math.isfinite(kl):
            error = min(max(kl / self._target - 1, -_MAX_KL_ERROR), _MAX_KL_ERROR)
            self.state["kl_coefficient"] = _within_bounds(self.state["kl_coefficient"] * (1 + error / _KL_HORIZON))
        return _GO_ON

    @property
    def is_saturated(self) -> bool:
        return not _MIN_KL_COEFFICIENT < self.state["kl_coefficient"] < _MAX_KL_COEFFICIENT


class CriticalEntropyController(Controller):
    """Stops the run if the window's mean entropy is critical, or adds KL(reference || policy) to the loss until entropy is healthy."""

    def __init__(self, config: GrpoConfig) -> None:
        super().__init__(entropies=[], num_recoveries=0, steps_recovering=None)
        self._critical, self._recovery = config.critical_entropy, config.recovery

    @property
    def is_recovering(self) -> bool:
        """Whether KL(reference || policy) is in the loss."""
        return self.state["steps_recovering"] is not None

    @property
    def mean_entropy(self) -> float:
        """Mean entropy of the last `CRITICAL_WINDOW` steps, or of all so far if fewer, in nats; NaN before the first rollout."""
        entropies = self.state["entropies"]
        return sum(entropies) / len(entropies) if entropies else math.nan

    def knobs(self) -> dict[str, float]:
        return {"recovery_coefficient": RECOVERY_COEFFICIENT if self.is_recovering else 0.0}

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        state = self.state
        state["entropies"] = [*state["entropies"], entropy][-CRITICAL_WINDOW:]
        mean = self.mean_entropy
        is_critical = len(state["entropies"]) == CRITICAL_WINDOW and mean < self._critical
        if self.is_recovering:
            state["steps_recovering"] += 1
            taken = f"at step {step}, {state['steps_recovering']} steps of KL(reference || policy)"
            if mean >= HEALTHY_ENTROPY and not is_critical:
                state["steps_recovering"] = None
                return "", (Event("recovery_ended", f"{taken} have brought mean entropy to {mean:.3g} nats"),)
            if state["steps_recovering"] < _MAX_RECOVERY_STEPS:
                return _GO_ON
            return _critical(
                f"{taken} have not brought mean entropy, {mean:.3g} nats, to {HEALTHY_ENTROPY:g}: raise the learning rate, or go back to an"
                " earlier checkpoint"
            )
        if not is_critical:
            return _GO_ON
        message = (
            f"at step {step}, mean entropy over the last {CRITICAL_WINDOW} steps is {mean:.3g} nats at T = 1, critical below"
            f" grpo.critical_entropy = {self._critical:g}"
        )
        if self._recovery == "stop" or state["num_recoveries"] >= MAX_RECOVERIES:
            recovered = "" if self._recovery == "stop" else f", after {state['num_recoveries']} recoveries"
            return _critical(
                f"{message}{recovered}: lower grpo.learning_rate or raise grpo.entropy_coefficient, and go back to an earlier checkpoint"
            )
        state["num_recoveries"] += 1
        state["steps_recovering"] = 0
        started = (
            f"recovery {state['num_recoveries']} of at most {MAX_RECOVERIES} begins after step {step}: KL(reference || policy) joins"
            f" the loss with coefficient {RECOVERY_COEFFICIENT:g}, until mean entropy is {HEALTHY_ENTROPY:g} nats"
        )
        return "", (Event("entropy_critical", message), Event("recovery_started", started))


def entropy_controller(config: GrpoConfig) -> Controller:
    match config.entropy_schedule:
        case "constant":
            return Controller()
        case "target":
            return EntropyTargetController(config.target_entropy, config.entropy_coefficient)
        case "field_notes":
            assert config.field_notes is not None
            return FieldNotesController(
                config.field_notes,
                entropy_coefficient=config.entropy_coefficient,
                kl_coefficient=config.kl_coefficient,
                temperature=config.temperature,
            )


def scheduled_learning_rate(config: GrpoConfig, *, steps_done: int) -> float:
    """Return the learning rate after `steps_done` rollouts of the run.

    The cosine reaches its final fraction, 0.05, at `steps_done = num_steps`, one rollout after the last.
    """
    if config.learning_rate_decay == "constant":
        return config.learning_rate
    progress = min(steps_done / config.num_steps, 1.0)
    left = (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * (_FINAL_FRACTION + (1 - _FINAL_FRACTION) * left)


class Control:
    """Computes the knobs of the next rollout from all observations so far, and decides about recoveries and stops."""

    def __init__(self, config: GrpoConfig, *, first_step: int, kl_warmup_steps: int = 0) -> None:
        """Begin.

        Args:
            config: settings `[grpo]`.
            first_step: number of rollouts before this run; its schedules begin there.
            kl_warmup_steps: number of steps over which the KL coefficient rises linearly; the first step gets 1/kl_warmup_steps of it.
        """
        self._config, self._first_step, self._kl_warmup_steps = config, first_step, kl_warmup_steps
        self._critical = CriticalEntropyController(config)
        self._controllers: dict[str, Controller] = {
            "entropy": entropy_controller(config),
            "kl": Controller() if config.kl_target is None else AdaptiveKlController(config.kl_target, config.kl_coefficient),
            "critical": self._critical,
        }
        # Number of observed steps, and of steps after which the entropy and the KL controller were at a bound.
        self._counts = {"steps": 0, "entropy": 0, "kl": 0}
        self._skipping = {"learning_rate_cut": 1.0, "in_a_row": 0}

    def knobs(self, step: int) -> Knobs:
        """Return the knobs after `step` rollouts; changes no state. A later controller's knob replaces an earlier one's."""
        config, steps_done = self._config, step - self._first_step
        values = {
            "temperature": config.temperature,
            "entropy_coefficient": config.entropy_coefficient,
            "kl_coefficient": config.kl_coefficient,
        }
        for controller in self._controllers.values():
            values |= controller.knobs()
        values["kl_coefficient"] *= min(1.0, (steps_done + 1) / max(1, self._kl_warmup_steps))
        rate = scheduled_learning_rate(config, steps_done=steps_done) * self._skipping["learning_rate_cut"]
        return Knobs(**values, learning_rate=rate)

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:
        """Update the state with one finished rollout. An observation with a non-finite entropy or `log_num_legal` is ignored.

        Args:
            step: number of rollouts, including this one.
            entropy: mean exact entropy at T = 1, in nats.
            log_num_legal: mean ln(legal moves), the upper bound of entropy, in nats.
            kl: mean exact KL(policy || reference) in nats; NaN if the rollout has none.
        """
        if not math.isfinite(entropy + log_num_legal):
            return _GO_ON
        stop, events = "", tuple[Event, ...]()
        for controller in self._controllers.values():
            stop, more = controller.observe(step=step, entropy=entropy, log_num_legal=log_num_legal, kl=kl)
            events += more
            if stop:
                break
        self._counts = {name: count + (name == "steps" or self._controllers[name].is_saturated) for name, count in self._counts.items()}
        return stop, events

    def skipped(self) -> bool:
        """Count a non-finite optimizer step, halve the learning rate, and return whether `MAX_SKIPPED` occurred in a row."""
        self._skipping["learning_rate_cut"] *= SKIPPED_CUT
        self._skipping["in_a_row"] += 1
        return self._skipping["in_a_row"] >= MAX_SKIPPED

    def finite(self) -> None:
        """Note a finite optimizer step: the count of non-finite steps in a row restarts, and the learning rate stays cut."""
        self._skipping["in_a_row"] = 0

    def mean_entropy(self) -> float:
        return self._critical.mean_entropy

    def metrics(self) -> dict[str, float]:
        """Return the fractions of steps after which a controller was at a bound (0 if inactive), and the number of recoveries."""
        steps = max(self._counts["steps"], 1)
        fractions = {f"control/{name}_saturated": self._counts[name] / steps for name in ("entropy", "kl")}
        return {**fractions, "control/recoveries": float(self._critical.state["num_recoveries"])}

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON."""
        states = {name: controller.state for name, controller in self._controllers.items()}
        return copy.deepcopy({"controllers": states, "counts": self._counts, "skipping": self._skipping})

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, controller in self._controllers.items():
            controller.state = dict(state["controllers"][name])
        self._counts, self._skipping = dict(state["counts"]), dict(state["skipping"])


def _critical(message: str) -> Decision:
    return message, (Event("entropy_critical", message),)


def _within_bounds(coefficient: float) -> float:
    return min(max(coefficient, _MIN_KL_COEFFICIENT), _MAX_KL_COEFFICIENT)

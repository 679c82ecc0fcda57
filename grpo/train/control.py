"""Control of training: temperature, loss coefficients and learning rate of each rollout; recovery or stop if entropy is critical (too low).

- Entropy: of the policy's moves at temperature T = 1, in nats.
- Reference: the frozen policy that the KL compares with.
- Recovery: steps whose loss also has KL(reference || policy).
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.metrics.records import Event
from grpo.metrics.shared import ENTROPY_BOUNDS, KL_BOUNDS
from grpo.settings.grpo import FieldNotesRecovery, GrpoConfig

CRITICAL_WINDOW: Final = 10
"""Window in steps: entropy is critical if its mean over the window is below `grpo.critical_entropy`."""
MAX_RECOVERIES: Final = 3
"""After this many recoveries, critical entropy stops the run."""
_MAX_RECOVERY_STEPS: Final = 20 * CRITICAL_WINDOW  # A recovery that lasts so many steps stops the run.
MAX_SKIPPED: Final = 3
"""Training fails after so many non-finite rollouts or optimizer steps in a row."""
SKIPPED_CUT: Final = 0.5
"""Each non-finite rollout or optimizer step multiplies later learning rates by this."""
_FINAL_FRACTION: Final = 0.05  # Fraction of the learning rate at which cosine decay ends.
_ENTROPY_RATE: Final = 0.1  # Of `EntropyTargetController`, per step and nat.
_DEAD_BAND: Final = 0.1  # Nats.
_MAX_KL_ERROR: Final = 0.2  # Of `AdaptiveKlController` (Ziegler et al., arXiv 1909.08593, section 2.2).
_KL_HORIZON: Final = 20.0  # A step changes the coefficient by at most 0.2 / 20 = 1 %.
# One boost of `FieldNotesController`.
_NOTES_ENTROPY_FACTOR: Final = 1.5
_NOTES_KL_FACTOR: Final = 0.5
_NOTES_TEMPERATURE_BOOST: Final = 0.2
_NOTES_MAX_TEMPERATURE: Final = 2.5
RECOVERY_COEFFICIENT: Final = 0.3
"""Coefficient of KL(reference || policy) during a recovery (effect: docs/objective.md)."""
HEALTHY_ENTROPY: Final = 1.0
"""Least mean entropy (nats) at which a recovery ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Values of one rollout. Coefficients are in reward per nat."""

    temperature: float
    entropy_coefficient: float
    kl_coefficient: float
    """Coefficient of KL(policy || reference)."""
    recovery_coefficient: float
    """Coefficient of KL(reference || policy); 0 outside recoveries."""
    learning_rate: float


Decision = tuple[str, tuple[Event, ...]]
"""Reason to stop, or "" to go on; and the events to log."""
_GO_ON: Final[Decision] = ("", ())


class Controller:
    """The base class sets no knob and never stops the run."""

    def __init__(self, **state: Any) -> None:
        self.state = state
        """All that `observe` changes, as JSON values for checkpoints."""

    @property
    def is_saturated(self) -> bool:  # Whether all bounded knobs are at a bound.
        return False

    def knobs(self) -> dict[str, float]:
        """Return field of `Knobs` -> value."""
        return {}

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        """Arguments as in `Control.observe`."""
        return _GO_ON


class EntropyTargetController(Controller):
    """Steers entropy to a target: `fraction` * mean ln(legal moves).

    Each step adds 0.1 * (target - entropy) to ln(entropy coefficient), unless the difference is at most 0.1 nats. The coefficient stays
    within `ENTROPY_BOUNDS`.
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
            # The cap prevents overflow and changes no result, because exp(0) is above `high`.
            self.state["entropy_coefficient"] = min(max(math.exp(min(log_coefficient, 0.0)), low), high)
        return _GO_ON

    @property
    def is_saturated(self) -> bool:
        low, high = ENTROPY_BOUNDS
        return not low < self.state["entropy_coefficient"] < high


class FieldNotesController(Controller):
    """A boost, as in the failed runs of tests/field_notes, raises entropy coefficient and temperature and halves the KL coefficient.

    - A boost follows `steps_threshold` steps in a row with entropy below `entropy_floor`; then the count begins anew.
    - A value that the settings put above its bound is not lowered.
    - One step with entropy below `entropy_critical` stops training.
    """

    def __init__(self, settings: FieldNotesRecovery, **knobs: float) -> None:
        super().__init__(knobs=knobs, steps_below=0)
        self._settings = settings

    def knobs(self) -> dict[str, float]:
        return dict(self.state["knobs"])

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        settings = self._settings
        if entropy < settings.entropy_critical:
            return _stop_decision(
                f"entropy at step {step} is {entropy:.3g} nats at T = 1, below grpo.field_notes.entropy_critical ="
                f" {settings.entropy_critical:g}; one such step stops the run"
            )
        num_below = self.state["steps_below"] + 1 if entropy < settings.entropy_floor else 0
        self.state["steps_below"] = num_below
        if num_below < settings.steps_threshold:
            return _GO_ON
        self.state = {"knobs": self._boosted(), "steps_below": 0}
        values = ", ".join(f"{name.replace('_', ' ')} is {value:.4g}" for name, value in self.knobs().items())
        floor = f"entropy was below {settings.entropy_floor:g} nats for {settings.steps_threshold} steps in a row"
        return "", (Event("entropy_boost", f"step {step:,}: {floor}, so {values} now"),)

    def _boosted(self) -> dict[str, float]:
        knobs, max_coefficient = self.state["knobs"], self._settings.max_entropy_coefficient
        entropy_coefficient, temperature = knobs["entropy_coefficient"], knobs["temperature"]
        return {
            "entropy_coefficient": max(entropy_coefficient, min(entropy_coefficient * _NOTES_ENTROPY_FACTOR, max_coefficient)),
            "kl_coefficient": knobs["kl_coefficient"] * _NOTES_KL_FACTOR,
            "temperature": max(temperature, min(temperature + _NOTES_TEMPERATURE_BOOST, _NOTES_MAX_TEMPERATURE)),
        }

    @property
    def is_saturated(self) -> bool:
        # The KL coefficient has no bound.
        boosted = self._boosted()
        return all(boosted[name] == self.state["knobs"][name] for name in ("entropy_coefficient", "temperature"))


class AdaptiveKlController(Controller):
    """Steers KL(policy || reference) to `target` nats: coefficient *= 1 + clip(KL / target - 1, -0.2, 0.2) / 20, within `KL_BOUNDS`."""

    def __init__(self, target: float, coefficient: float) -> None:
        super().__init__(kl_coefficient=coefficient)
        self._target = target

    def knobs(self) -> dict[str, float]:
        return dict(self.state)

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        if math.isfinite(kl):
            error = min(max(kl / self._target - 1, -_MAX_KL_ERROR), _MAX_KL_ERROR)
            low, high = KL_BOUNDS
            self.state["kl_coefficient"] = min(max(self.state["kl_coefficient"] * (1 + error / _KL_HORIZON), low), high)
        return _GO_ON

    @property
    def is_saturated(self) -> bool:
        low, high = KL_BOUNDS
        return not low < self.state["kl_coefficient"] < high


class CriticalEntropyController(Controller):
    """Stops training or begins a recovery (`grpo.recovery`) when entropy is critical."""

    def __init__(self, config: GrpoConfig) -> None:
        super().__init__(entropies=[], num_recoveries=0, steps_recovering=None)  # None: not in a recovery.
        self._critical_entropy, self._recovery = config.critical_entropy, config.recovery
        self._healthy_entropy = max(HEALTHY_ENTROPY, config.critical_entropy)

    @property
    def mean_entropy(self) -> float:
        """Mean in nats over the last `CRITICAL_WINDOW` or fewer steps; NaN before the first."""
        entropies = self.state["entropies"]
        return sum(entropies) / len(entropies) if entropies else math.nan

    def knobs(self) -> dict[str, float]:
        return {"recovery_coefficient": 0.0 if self.state["steps_recovering"] is None else RECOVERY_COEFFICIENT}

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:  # noqa: ARG002
        state = self.state
        state["entropies"] = [*state["entropies"], entropy][-CRITICAL_WINDOW:]
        mean = self.mean_entropy
        is_critical = len(state["entropies"]) == CRITICAL_WINDOW and mean < self._critical_entropy
        if state["steps_recovering"] is not None:
            state["steps_recovering"] += 1
            steps = f"at step {step}, {state['steps_recovering']} steps of KL(reference || policy)"
            if mean >= self._healthy_entropy:
                state["steps_recovering"] = None
                return "", (Event("recovery_ended", f"{steps} have brought mean entropy to {mean:.3g} nats"),)
            if state["steps_recovering"] < _MAX_RECOVERY_STEPS:
                return _GO_ON
            return _stop_decision(
                f"{steps} have not brought mean entropy, {mean:.3g} nats, to {self._healthy_entropy:g}: raise grpo.learning_rate, or begin"
                " at an earlier checkpoint"
            )
        if not is_critical:
            return _GO_ON
        message = (
            f"at step {step}, mean entropy over the last {CRITICAL_WINDOW} steps is {mean:.3g} nats at T = 1, critical below"
            f" grpo.critical_entropy = {self._critical_entropy:g}"
        )
        if self._recovery == "stop" or state["num_recoveries"] >= MAX_RECOVERIES:
            recovered = "" if self._recovery == "stop" else f", after {state['num_recoveries']} recoveries"
            return _stop_decision(
                f"{message}{recovered}: lower grpo.learning_rate or raise grpo.entropy_coefficient, and begin at an earlier checkpoint"
            )
        state["num_recoveries"] += 1
        state["steps_recovering"] = 0
        started = (
            f"recovery {state['num_recoveries']} of at most {MAX_RECOVERIES} begins after step {step}: KL(reference || policy) joins"
            f" the loss with coefficient {RECOVERY_COEFFICIENT:g}, until mean entropy is {self._healthy_entropy:g} nats"
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
    """Return the learning rate after `steps_done` rollouts. Cosine decay ends at `num_steps`, one rollout after the last."""
    if config.learning_rate_decay == "constant":
        return config.learning_rate
    progress = min(steps_done / config.num_steps, 1.0)
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return config.learning_rate * (_FINAL_FRACTION + (1 - _FINAL_FRACTION) * cosine)


class Control:
    def __init__(self, config: GrpoConfig, *, first_step: int, kl_warmup_steps: int = 0) -> None:
        """Schedules begin after `first_step` rollouts of an earlier run. The KL coefficient rises linearly over `kl_warmup_steps`."""
        self._config, self._first_step, self._kl_warmup_steps = config, first_step, kl_warmup_steps
        self._critical_controller = CriticalEntropyController(config)
        # No two controllers set the same knob; the first stop ends `observe`.
        self._controllers: dict[str, Controller] = {
            "entropy": entropy_controller(config),
            "kl": Controller() if config.kl_target is None else AdaptiveKlController(config.kl_target, config.kl_coefficient),
            "critical": self._critical_controller,
        }
        # Number of steps, and of steps that left each controller at a bound.
        self._counts = {"steps": 0, "entropy": 0, "kl": 0}
        self._skipping = {"learning_rate_cut": 1.0, "in_a_row": 0}

    def knobs(self, step: int) -> Knobs:
        """`step`: number of rollouts before this one."""
        config, steps_done = self._config, step - self._first_step
        values = {name: getattr(config, name) for name in ("temperature", "entropy_coefficient", "kl_coefficient")}
        for controller in self._controllers.values():
            values |= controller.knobs()
        values["kl_coefficient"] *= min(1.0, (steps_done + 1) / max(1, self._kl_warmup_steps))
        rate = scheduled_learning_rate(config, steps_done=steps_done) * self._skipping["learning_rate_cut"]
        return Knobs(**values, learning_rate=rate)

    def observe(self, *, step: int, entropy: float, log_num_legal: float, kl: float) -> Decision:
        """Update the state by rollout `step`, counted from 1. A rollout with a non-finite `entropy` or `log_num_legal` is ignored.

        The other arguments are means over states or answers, in nats:
        - `entropy`: entropy at T = 1.
        - `log_num_legal`: ln(legal moves) or ln(vocabulary).
        - `kl`: KL(policy || reference); NaN if not measured.
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

    def count_skipped(self) -> bool:
        """Count a skipped rollout or optimizer step, and halve later learning rates. Return whether `MAX_SKIPPED` in a row were skipped."""
        self._skipping["learning_rate_cut"] *= SKIPPED_CUT
        self._skipping["in_a_row"] += 1
        return self._skipping["in_a_row"] >= MAX_SKIPPED

    def reset_skipped(self) -> None:
        """Restart the count; learning rates stay halved."""
        self._skipping["in_a_row"] = 0

    def mean_entropy(self) -> float:
        return self._critical_controller.mean_entropy

    def metrics(self) -> dict[str, float]:
        steps = max(self._counts["steps"], 1)
        fractions = {f"control/{name}_saturated": self._counts[name] / steps for name in ("entropy", "kl")}
        return {**fractions, "control/recoveries": float(self._critical_controller.state["num_recoveries"])}

    def state(self) -> dict[str, Any]:
        states = {name: controller.state for name, controller in self._controllers.items()}
        return copy.deepcopy({"controllers": states, "counts": self._counts, "skipping": self._skipping})

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, controller in self._controllers.items():
            controller.state = dict(state["controllers"][name])
        self._counts, self._skipping = dict(state["counts"]), dict(state["skipping"])


def _stop_decision(message: str) -> Decision:
    return message, (Event("entropy_critical", message),)

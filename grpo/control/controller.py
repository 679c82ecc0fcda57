"""Training controller: sets learning rate, coefficients and temperature per rollout; stops, rolls back or recovers at critical entropy.

It is a pure state machine whose state is plain JSON in the checkpoint. Schedules and adaptive coefficients are in
`grpo/control/coefficients.py`, warnings in `grpo/control/alarms.py`; this module handles critical entropy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from grpo.control.alarms import Alarms, Observation, Window
from grpo.control.coefficients import (
    ENTROPY_CONTROLLERS,
    KlController,
    LearningRate,
    Usefulness,
    scheduled_entropy_coefficient,
)
from grpo.metrics.table import ENTROPY_CRITICAL, NOTHING_TO_LEARN, Event
from grpo.settings.grpo import GrpoConfig

__all__ = ["ENTROPY_CRITICAL", "NOTHING_TO_LEARN", "Action", "Control", "CriticalEntropy", "Knobs", "Observation", "Outcome"]


_MAX_RECOVERY_WINDOWS: Final = 20  # In critical windows: a recovery by KL(reference || policy) that takes longer has failed.


class Action(StrEnum):
    """What the trainer does after a rollout."""

    GO_ON = "go_on"
    STOP = "stop"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """Control values of one rollout and its optimiser steps."""

    temperature: float
    """Temperature of sampling and of the loss."""
    entropy_coefficient: float
    """Coefficient of the entropy bonus, in win probability per nat."""
    kl_coefficient: float
    """Coefficient of the reference KL, in win probability per nat."""
    recovery_coefficient: float
    """Coefficient of KL(reference || policy), in win probability per nat; 0 unless recovering."""
    learning_rate: float
    """Learning rate of the optimiser."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The controller's decision after one rollout."""

    action: Action
    reason: str = ""
    """For a stop, `ENTROPY_CRITICAL` or `NOTHING_TO_LEARN`; else empty."""
    message: str = ""
    """For a stop or a rollback, the reason with numbers; else empty."""
    events: tuple[Event, ...] = ()
    """Events to log, including `entropy_critical`; the trainer logs `rolled_back` itself."""


class CriticalEntropy:
    """Detects critical mean entropy over a window of steps; never before the window is full.

    Entropy is exact and at T = 1, so that a higher temperature does not count as recovery.
    """

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self._windows = {name: Window(config.critical_window) for name in ("entropy", "normalised_entropy", "agreement", "agreement_max")}

    def observe(self, observation: Observation) -> None:
        """Add the entropies of one rollout, and the agreement of its groups for the message."""
        for name, window in self._windows.items():
            window.add(getattr(observation, name))

    def is_critical(self) -> bool:
        """Return whether the mean of `critical_measure` over a full window is below `critical_entropy`."""
        window = self._windows[self._config.critical_measure]
        return window.is_full and window.mean() < self._config.critical_entropy

    def mean_entropy(self) -> float:
        """Return the mean entropy over the (possibly partial) window in nats; NaN before the first rollout."""
        return self._windows["entropy"].mean()

    def message(self) -> str:
        """Return a text with measure, mean, threshold, window and the groups' agreement."""
        measure = self._config.critical_measure
        unit = " nats" if measure == "entropy" else " of ln(legal moves)"
        agreement_max = max(self._windows["agreement_max"].values, default=math.nan)
        return (
            f"mean {measure} over the last {self._config.critical_window} steps is {self._windows[measure].mean():.3g}{unit} at T = 1, "
            f"critical below grpo.critical_entropy = {self._config.critical_entropy:g}; action agreement in these steps: mean "
            f"{self._windows['agreement'].mean():.2f}, at most {agreement_max:.2f}"
        )

    def clear(self) -> None:
        """Clear the windows after a rollback."""
        for window in self._windows.values():
            window.restore([])

    def state(self) -> dict[str, Any]:
        """Return the windows as plain data."""
        return {name: window.state() for name, window in self._windows.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the windows."""
        for name, window in self._windows.items():
            window.restore(state[name])


class Control:
    """Computes the knobs of the next rollout from the observations so far, and decides on warnings, recoveries and stops.

    Args:
        config: The run's settings.
        first_step: Number of rollouts before this run; its schedules count from there.
    """

    def __init__(self, config: GrpoConfig, *, first_step: int) -> None:
        self._config = config
        self._first_step = first_step
        self._learning_rate = LearningRate(config, first_step=first_step)
        controller = ENTROPY_CONTROLLERS.get(config.entropy_schedule)
        self._entropy = None if controller is None else controller(config)
        self._kl = KlController(config.kl_target, coefficient=config.kl_coefficient) if config.kl_schedule == "target" else None
        self._usefulness = {"entropy": Usefulness(), "kl": Usefulness()}
        self._critical = CriticalEntropy(config)
        self._alarms = Alarms(config)
        self._num_skipped_in_a_row = 0
        self._num_recoveries = 0
        self._steps_recovering: int | None = None

    def knobs(self, step: int) -> Knobs:
        """Return the knobs of the rollout after `step` rollouts, without changing the state."""
        config = self._config
        knobs = {
            "temperature": config.temperature,
            "entropy_coefficient": config.entropy_coefficient,
            "kl_coefficient": config.kl_coefficient if self._kl is None else self._kl.coefficient,
        }
        if self._entropy is None:
            knobs["entropy_coefficient"] = scheduled_entropy_coefficient(config, steps_done=step - self._first_step)
        else:
            knobs |= self._entropy.knobs()
        return Knobs(
            **knobs,
            recovery_coefficient=0.0 if self._steps_recovering is None else config.recovery.coefficient,
            learning_rate=self._learning_rate.at(step),
        )

    def observe(self, observation: Observation) -> Outcome:
        """Update the state with one finished rollout and return the decision; non-finite entropies are ignored."""
        if not math.isfinite(observation.entropy + observation.normalised_entropy + observation.log_num_legal):
            return Outcome(Action.GO_ON)
        is_recovering = self._steps_recovering is not None
        events = self._move_coefficients(observation)
        events += self._alarms.observe(observation, saturated=self._saturated(), is_recovering=is_recovering)
        self._critical.observe(observation)
        outcome = self._decide(observation)
        return Outcome(outcome.action, outcome.reason, outcome.message, (*events, *outcome.events))

    def _move_coefficients(self, observation: Observation) -> tuple[Event, ...]:
        before = self._positions()
        events: tuple[Event, ...] = ()
        if self._entropy is not None and (message := self._entropy.follow(observation)):
            events = (Event("entropy_boost", message),)
        if self._kl is not None:
            self._kl.observe(observation.kl)
        after = self._positions()
        for name, is_saturated in self._saturated().items():
            self._usefulness[name].observe(is_saturated=is_saturated, has_changed=after[name] != before[name])
        return events

    def _positions(self) -> dict[str, tuple[float, ...]]:
        """Return the current values of each active controller."""
        positions: dict[str, tuple[float, ...]] = {}
        if self._entropy is not None:
            positions["entropy"] = tuple(self._entropy.knobs().values())
        if self._kl is not None:
            positions["kl"] = (self._kl.coefficient,)
        return positions

    def _saturated(self) -> dict[str, bool]:
        """Return for each active controller whether it is at a bound."""
        controllers = {"entropy": self._entropy, "kl": self._kl}
        return {name: controller.is_saturated for name, controller in controllers.items() if controller is not None}

    def _decide(self, observation: Observation) -> Outcome:
        """Return the decision that follows from entropy and zero-variance groups."""
        if self._entropy is not None and (reason := self._entropy.reason_to_stop(observation)):
            return _stop(reason)
        if self._steps_recovering is not None:
            return self._go_on_recovering(observation, self._steps_recovering + 1)
        if self._critical.is_critical():
            return self._on_critical(observation)
        if self._alarms.has_nothing_to_learn:
            return Outcome(Action.STOP, NOTHING_TO_LEARN, self._alarms.silence_message(observation))
        return Outcome(Action.GO_ON)

    def _on_critical(self, observation: Observation) -> Outcome:
        recovery = self._config.recovery
        message = f"at step {observation.step}, {self._critical.message()}"
        if recovery.kind == "stop":
            return _stop(f"{message}: lower grpo.learning_rate or raise grpo.entropy_coefficient, and go back to an earlier checkpoint")
        if self._num_recoveries >= recovery.max_times:
            return _stop(
                f"{message}, after {self._num_recoveries} recoveries (grpo.recovery.max_times): what makes it collapse is still there; "
                "lower grpo.learning_rate or raise grpo.entropy_coefficient"
            )
        critical = Event("entropy_critical", message)
        if recovery.kind == "rollback":
            return Outcome(Action.ROLL_BACK, "", message, (critical,))
        self._num_recoveries += 1
        self._steps_recovering = 0
        started = (
            f"recovery {self._num_recoveries} of at most {recovery.max_times} begins after step {observation.step}: KL(reference || "
            f"policy) joins the loss with grpo.recovery.coefficient = {recovery.coefficient:g}, until mean entropy is "
            f"{recovery.healthy_entropy:g} nats (grpo.recovery.healthy_entropy)"
        )
        return Outcome(Action.GO_ON, events=(critical, Event("recovery_started", started)))

    def _go_on_recovering(self, observation: Observation, num_steps: int) -> Outcome:
        recovery, mean = self._config.recovery, self._critical.mean_entropy()
        if mean >= recovery.healthy_entropy and not self._critical.is_critical():
            self._steps_recovering = None
            ended = f"at step {observation.step} mean entropy is {mean:.3g} nats again, after {num_steps} steps of KL(reference || policy)"
            return Outcome(Action.GO_ON, events=(Event("recovery_ended", ended),))
        self._steps_recovering = num_steps
        if num_steps < _MAX_RECOVERY_WINDOWS * self._config.critical_window:
            return Outcome(Action.GO_ON)
        return _stop(
            f"at step {observation.step}, {num_steps} steps of KL(reference || policy) have not brought mean entropy to "
            f"{recovery.healthy_entropy:g} nats (grpo.recovery.healthy_entropy): {self._critical.message()}; raise "
            "grpo.recovery.coefficient or the learning rate, or go back to an earlier checkpoint"
        )

    def rolled_back(self) -> None:
        """Update the state after a rollback to a healthy checkpoint: clear the windows and cut the learning rate."""
        self._critical.clear()
        self._alarms.clear()
        if self._entropy is not None:
            self._entropy.forget()
        self._learning_rate.cut(self._config.recovery.learning_rate_factor)
        self._num_recoveries += 1

    def no_checkpoint(self) -> Outcome:
        """Return the stop for a rollback without a healthy checkpoint; `entropy_critical` was logged already."""
        message = (
            f"{self._critical.message()}; there is no healthy checkpoint to roll back to (mean entropy of at least "
            f"{self._config.recovery.healthy_entropy:g} nats, grpo.recovery.healthy_entropy): lower it or grpo.steps_per_checkpoint, or "
            "set grpo.recovery.kind to forward_kl"
        )
        return Outcome(Action.STOP, ENTROPY_CRITICAL, message)

    def skipped(self) -> bool:
        """Count a skipped optimiser step (NaN or infinite), cut the learning rate, and return whether too many were skipped in a row."""
        self._learning_rate.cut(self._config.skipped_learning_rate_factor)
        self._num_skipped_in_a_row += 1
        return self._num_skipped_in_a_row >= self._config.max_skipped_steps

    def finite(self) -> None:
        """Reset the count of skipped optimiser steps after a finite one; cuts of the learning rate stay."""
        self._num_skipped_in_a_row = 0

    @property
    def is_healthy(self) -> bool:
        """Whether a checkpoint made now counts as healthy: mean entropy is high enough, and no recovery is in progress."""
        return self._steps_recovering is None and self.mean_entropy() >= self._config.recovery.healthy_entropy

    def mean_entropy(self) -> float:
        """Return the mean entropy over the (possibly partial) critical window in nats; NaN before the first rollout."""
        return self._critical.mean_entropy()

    def metrics(self) -> dict[str, float]:
        """Return saturation and idleness of the controllers (0 for inactive ones) and the recoveries; the trainer logs the knobs."""
        return {
            "control/entropy_saturated": self._usefulness["entropy"].saturated,
            "control/entropy_idle": self._usefulness["entropy"].idle,
            "control/kl_saturated": self._usefulness["kl"].saturated,
            "control/kl_idle": self._usefulness["kl"].idle,
            "control/recoveries": float(self._num_recoveries),
        }

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""
        return {
            "learning_rate": self._learning_rate.state(),
            "entropy": {self._config.entropy_schedule: self._entropy.state()} if self._entropy is not None else {},
            "kl": {self._config.kl_schedule: self._kl.state()} if self._kl is not None else {},
            "usefulness": {name: usefulness.state() for name, usefulness in self._usefulness.items()},
            "critical": self._critical.state(),
            "alarms": self._alarms.state(),
            "num_skipped_in_a_row": self._num_skipped_in_a_row,
            "num_recoveries": self._num_recoveries,
            "steps_recovering": self._steps_recovering,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state`; a controller that is not in it starts from the settings."""
        self._learning_rate.restore(state["learning_rate"])
        if self._entropy is not None and self._config.entropy_schedule in state["entropy"]:
            self._entropy.restore(state["entropy"][self._config.entropy_schedule])
        if self._kl is not None and self._config.kl_schedule in state["kl"]:
            self._kl.restore(state["kl"][self._config.kl_schedule])
        for name, usefulness in self._usefulness.items():
            usefulness.restore(state["usefulness"][name])
        self._critical.restore(state["critical"])
        self._alarms.restore(state["alarms"])
        self._num_skipped_in_a_row = int(state["num_skipped_in_a_row"])
        self._num_recoveries = int(state["num_recoveries"])
        steps = state["steps_recovering"] if self._config.recovery.kind == "forward_kl" else None
        self._steps_recovering = None if steps is None else int(steps)


def _stop(message: str) -> Outcome:
    return Outcome(Action.STOP, ENTROPY_CRITICAL, message, (Event("entropy_critical", message),))

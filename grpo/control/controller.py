"""What steers a run from rollout to rollout, as one pure state machine, whose state is plain JSON in the checkpoint.

Learning rate and coefficients are in `grpo/control/coefficients.py`, warnings in `grpo/control/alarms.py`; here is what happens at critical
entropy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from grpo.control.alarms import Alarms, Observation, Window
from grpo.control.coefficients import (
    EntropyTargetController,
    FieldNotesController,
    KlController,
    LearningRate,
    Usefulness,
    scheduled_entropy_coefficient,
)
from grpo.metrics.table import Event
from grpo.settings.grpo import GrpoConfig

__all__ = ["ENTROPY_CRITICAL", "NOTHING_TO_LEARN", "Action", "Control", "CriticalEntropy", "Knobs", "Observation", "Outcome"]

ENTROPY_CRITICAL: Final = "entropy_critical"
"""Reason of a stop: entropy is critical, and nothing is left to be done about it."""
NOTHING_TO_LEARN: Final = "nothing_to_learn"
"""Reason of a stop: nearly all groups have been silent for too long."""

_MAX_RECOVERY_WINDOWS: Final = 20  # A recovery by KL(reference || policy) that takes more critical windows than this has failed.


class Action(StrEnum):
    """What the trainer is to do after a rollout."""

    GO_ON = "go_on"
    STOP = "stop"
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, kw_only=True, slots=True)
class Knobs:
    """What one rollout and its optimiser steps run with."""

    temperature: float
    """Of the policy that is sampled and trained."""
    entropy_coefficient: float
    """Win probability that one nat of entropy is worth."""
    kl_coefficient: float
    """Win probability that one nat of divergence from the reference costs."""
    recovery_coefficient: float
    """Win probability that one nat of KL(reference || policy) costs; 0 unless recovering."""
    learning_rate: float
    """The optimiser's."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from one rollout."""

    action: Action
    reason: str = ""
    """Of a stop: `ENTROPY_CRITICAL` or `NOTHING_TO_LEARN`; else empty."""
    message: str = ""
    """Of a stop or a rollback: why, in numbers; else empty."""
    events: tuple[Event, ...] = ()
    """What people should be told, `entropy_critical` included; `rolled_back` is the trainer's to tell."""


class CriticalEntropy:
    """Says when the mean entropy over the last few steps is critical; never before the window is full.

    Entropy is exact and at T = 1, so that a raised temperature never counts as recovery.
    """

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self._windows = {name: Window(config.critical_window) for name in ("entropy", "normalised_entropy", "agreement", "agreement_max")}

    def observe(self, observation: Observation) -> None:
        """Take the entropies of one rollout, and the agreement of its groups as evidence."""
        for name, window in self._windows.items():
            window.add(getattr(observation, name))

    def is_critical(self) -> bool:
        """Return whether the mean of `critical_measure` over a full window is below `critical_entropy`."""
        window = self._windows[self._config.critical_measure]
        return window.is_full and window.mean() < self._config.critical_entropy

    def mean_entropy(self) -> float:
        """Return the mean entropy over the window, or what there is of it, in nats; NaN before the first rollout."""
        return self._windows["entropy"].mean()

    def message(self) -> str:
        """Return measure, mean, threshold and window in words, with the agreement of the groups as evidence."""
        measure = self._config.critical_measure
        unit = " nats" if measure == "entropy" else " of ln(legal moves)"
        agreement_max = max(self._windows["agreement_max"].values, default=math.nan)
        return (
            f"mean {measure} over the last {self._config.critical_window} steps is {self._windows[measure].mean():.3g}{unit} at T = 1, "
            f"critical below grpo.critical_entropy = {self._config.critical_entropy:g}; action agreement in these steps: mean "
            f"{self._windows['agreement'].mean():.2f}, at most {agreement_max:.2f}"
        )

    def clear(self) -> None:
        """Forget the windows, as after a rollback."""
        for window in self._windows.values():
            window.restore([])

    def state(self) -> dict[str, Any]:
        """Return the windows."""
        return {name: window.state() for name, window in self._windows.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the windows."""
        for name, window in self._windows.items():
            window.restore(state[name])


class Control:
    """Turns what was seen of each rollout into the knobs of the next one, warnings, recoveries and stops.

    Args:
        config: The run's settings.
        first_step: Rollouts done when this run began; its schedules count from there.
    """

    def __init__(self, config: GrpoConfig, *, first_step: int) -> None:
        self._config = config
        self._first_step = first_step
        self._learning_rate = LearningRate(config, first_step=first_step)
        self._entropy = _entropy_controller(config)
        self._kl = KlController(config.kl_target, coefficient=config.kl_coefficient) if config.kl_schedule == "target" else None
        self._usefulness = {"entropy": Usefulness(), "kl": Usefulness()}
        self._critical = CriticalEntropy(config)
        self._alarms = Alarms(config)
        self._num_skipped_in_a_row = 0
        self._num_recoveries = 0
        self._steps_recovering: int | None = None

    def knobs(self, step: int) -> Knobs:
        """Return what the rollout after `step` rollouts runs with; changes nothing."""
        entropy, config = self._entropy, self._config
        temperature, kl_coefficient = config.temperature, config.kl_coefficient if self._kl is None else self._kl.coefficient
        match entropy:
            case FieldNotesController():
                entropy_coefficient, kl_coefficient = entropy.entropy_coefficient, entropy.kl_coefficient
                temperature = entropy.temperature
            case EntropyTargetController():
                entropy_coefficient = entropy.coefficient
            case None:
                entropy_coefficient = scheduled_entropy_coefficient(config, steps_done=step - self._first_step)
        return Knobs(
            temperature=temperature,
            entropy_coefficient=entropy_coefficient,
            kl_coefficient=kl_coefficient,
            recovery_coefficient=0.0 if self._steps_recovering is None else config.recovery.coefficient,
            learning_rate=self._learning_rate.at(step),
        )

    def observe(self, observation: Observation) -> Outcome:
        """Take one finished rollout and return what follows; entropies that are not finite are no observation, and nothing moves."""
        if not math.isfinite(observation.entropy + observation.normalised_entropy + observation.log_num_legal):
            return Outcome(Action.GO_ON)
        is_recovering = self._steps_recovering is not None
        events = self._move_coefficients(observation)
        events += self._alarms.observe(observation, saturated=self._saturated(), is_recovering=is_recovering)
        self._critical.observe(observation)
        outcome = self._judge(observation)
        return Outcome(outcome.action, outcome.reason, outcome.message, (*events, *outcome.events))

    def _move_coefficients(self, observation: Observation) -> tuple[Event, ...]:
        before = self._positions()
        events: tuple[Event, ...] = ()
        match self._entropy:
            case FieldNotesController() as notes:
                if notes.observe(observation.entropy):
                    events = (Event("entropy_boost", self._boost_message(notes, observation)),)
            case EntropyTargetController() as target:
                target.observe(entropy=observation.entropy, log_num_legal=observation.log_num_legal)
            case None:
                pass
        if self._kl is not None:
            self._kl.observe(observation.kl)
        after = self._positions()
        for name, is_saturated in self._saturated().items():
            self._usefulness[name].observe(is_saturated=is_saturated, has_changed=after[name] != before[name])
        return events

    def _positions(self) -> dict[str, tuple[float, ...]]:
        """Return where each controller that there is stands."""
        positions: dict[str, tuple[float, ...]] = {}
        match self._entropy:
            case FieldNotesController() as notes:
                positions["entropy"] = (notes.entropy_coefficient, notes.kl_coefficient, notes.temperature)
            case EntropyTargetController() as target:
                positions["entropy"] = (target.coefficient,)
            case None:
                pass
        if self._kl is not None:
            positions["kl"] = (self._kl.coefficient,)
        return positions

    def _saturated(self) -> dict[str, bool]:
        """Return of each controller that there is whether it stands at a bound."""
        controllers = {"entropy": self._entropy, "kl": self._kl}
        return {name: controller.is_saturated for name, controller in controllers.items() if controller is not None}

    def _boost_message(self, notes: FieldNotesController, observation: Observation) -> str:
        assert self._config.field_notes is not None
        settings = self._config.field_notes
        stuck = "; 0 stays 0 when multiplied: set grpo.entropy_coefficient above 0" if notes.entropy_coefficient == 0 else ""
        return (
            f"entropy was below grpo.field_notes.entropy_floor = {settings.entropy_floor:g} nats for {settings.steps_threshold} steps in "
            f"a row to {observation.step} (now {observation.entropy:.3g}): entropy coefficient is {notes.entropy_coefficient:.4g} now, "
            f"KL coefficient {notes.kl_coefficient:.4g}, temperature {notes.temperature:.4g}{stuck}"
        )

    def _judge(self, observation: Observation) -> Outcome:
        """Return what entropy and silence ask for."""
        notes = self._config.field_notes
        if isinstance(self._entropy, FieldNotesController) and notes is not None and self._entropy.is_critical(observation.entropy):
            return _stop(
                f"entropy at step {observation.step} is {observation.entropy:.3g} nats at T = 1, below grpo.field_notes.entropy_critical "
                f"= {notes.entropy_critical:g}, for which one step is enough; action agreement: mean {observation.agreement:.2f}, at "
                f"most {observation.agreement_max:.2f}: go back to an earlier checkpoint, with a lower grpo.learning_rate"
            )
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
        """Take note that the trainer went back to a healthy checkpoint: windows begin anew, and the learning rate is cut."""
        self._critical.clear()
        self._alarms.clear()
        if isinstance(self._entropy, FieldNotesController):
            self._entropy.forget()
        self._learning_rate.cut(self._config.recovery.learning_rate_factor)
        self._num_recoveries += 1

    def no_checkpoint(self) -> Outcome:
        """Return what follows when there is no healthy checkpoint to roll back to; `entropy_critical` was told already."""
        message = (
            f"{self._critical.message()}; there is no healthy checkpoint to roll back to (mean entropy of at least "
            f"{self._config.recovery.healthy_entropy:g} nats, grpo.recovery.healthy_entropy): lower it or grpo.steps_per_checkpoint, or "
            "set grpo.recovery.kind to forward_kl"
        )
        return Outcome(Action.STOP, ENTROPY_CRITICAL, message)

    def skipped(self) -> bool:
        """Take note of a non-finite optimiser step: cut the learning rate, and return whether there were too many in a row."""
        self._learning_rate.cut(self._config.skipped_learning_rate_factor)
        self._num_skipped_in_a_row += 1
        return self._num_skipped_in_a_row >= self._config.max_skipped_steps

    def finite(self) -> None:
        """Take note of an optimiser step that went well; cuts of the learning rate stay."""
        self._num_skipped_in_a_row = 0

    @property
    def is_healthy(self) -> bool:
        """Whether a checkpoint made now counts as healthy: mean entropy over the window is, and no recovery is under way."""
        return self._steps_recovering is None and self.mean_entropy() >= self._config.recovery.healthy_entropy

    def mean_entropy(self) -> float:
        """Return the mean entropy over the critical window, or what there is of it, in nats; NaN before the first rollout."""
        return self._critical.mean_entropy()

    def metrics(self) -> dict[str, float]:
        """Return how useful the controllers are (0 for one that there is not) and the recoveries; knobs are the trainer's to log."""
        return {
            "control/entropy_saturated": self._usefulness["entropy"].saturated,
            "control/entropy_idle": self._usefulness["entropy"].idle,
            "control/kl_saturated": self._usefulness["kl"].saturated,
            "control/kl_idle": self._usefulness["kl"].idle,
            "control/recoveries": float(self._num_recoveries),
        }

    def state(self) -> dict[str, Any]:
        """Return the state, JSON-able."""
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
        """Take up a state that `state` returned; a controller that it does not have begins as the settings say."""
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


def _entropy_controller(config: GrpoConfig) -> EntropyTargetController | FieldNotesController | None:
    if config.entropy_schedule == "target":
        return EntropyTargetController(config.entropy_target, coefficient=config.entropy_coefficient)
    if config.entropy_schedule != "field_notes":
        return None
    assert config.field_notes is not None
    return FieldNotesController(
        config.field_notes,
        entropy_coefficient=config.entropy_coefficient,
        kl_coefficient=config.kl_coefficient,
        temperature=config.temperature,
    )


def _stop(message: str) -> Outcome:
    return Outcome(Action.STOP, ENTROPY_CRITICAL, message, (Event("entropy_critical", message),))

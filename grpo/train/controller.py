"""Training controller: sets learning rate, coefficients and temperature per rollout; stops or recovers at critical entropy.

It is a pure state machine whose state is plain JSON in the checkpoint. Schedules and adaptive coefficients are in
`grpo/train/coefficients.py`; this module handles critical entropy, and groups that teach nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpo.settings.grpo import GrpoConfig
from grpo.settings.metrics import ENTROPY_CRITICAL, NOTHING_TO_LEARN, Event
from grpo.train.coefficients import KlController, entropy_controller, scheduled_learning_rate

CRITICAL_WINDOW: Final = 10
"""Steps whose mean entropy is compared with `grpo.critical_entropy`."""
MAX_RECOVERIES: Final = 3
"""The next critical entropy stops the run: what makes it collapse is still there."""
_MAX_RECOVERY_STEPS: Final = 20 * CRITICAL_WINDOW  # A recovery by KL(reference || policy) that takes longer has failed.
_SILENT_WINDOW: Final = 20  # Steps whose mean fraction of zero-variance groups is looked at.
_SILENT: Final = 0.95  # A larger mean is nothing to learn, if it lasts.
_MAX_SILENT_STEPS: Final = 2 * _SILENT_WINDOW
"""Training stops when that mean has been too large for more steps than these."""
MAX_SKIPPED: Final = 3
"""Optimiser steps with NaN or infinity in a row after which training ends with an error."""
SKIPPED_CUT: Final = 0.5
"""Factor of the learning rate after each of them, for the rest of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Measurements of one finished rollout, the input of the controllers."""

    step: int
    """Number of rollouts so far, including this one."""
    entropy: float
    """Mean exact entropy at T = 1, in nats."""
    log_num_legal: float
    """Mean ln(legal moves)."""
    kl: float
    """Mean exact KL(policy || reference) in nats."""
    silent_groups: float
    """Fraction of zero-variance groups (all rewards equal)."""
    agreement: float
    """Mean fraction of a group that its most frequent move makes up."""


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

    stop: str = ""
    """`ENTROPY_CRITICAL` or `NOTHING_TO_LEARN` where training stops; else empty."""
    message: str = ""
    """For a stop, the reason with numbers; else empty."""
    events: tuple[Event, ...] = ()
    """Events to log."""


class Control:
    """Computes the knobs of the next rollout from the observations so far, and decides on recoveries and stops.

    Args:
        config: The run's settings.
        first_step: Number of rollouts before this run; its schedules count from there.
    """

    def __init__(self, config: GrpoConfig, *, first_step: int) -> None:
        self._config = config
        self._first_step = first_step
        self._entropy = entropy_controller(config)
        self._kl = None if config.kl_target is None else KlController(config.kl_target, coefficient=config.kl_coefficient)
        self._num_steps = 0
        self._num_saturated = {"entropy": 0, "kl": 0}
        self._entropies: list[float] = []
        self._silent: list[float] = []
        self._num_silent_steps = 0
        self._learning_rate_cut = 1.0
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
            **self._entropy.knobs(),
        }
        return Knobs(
            **knobs,
            recovery_coefficient=0.0 if self._steps_recovering is None else config.recovery.coefficient,
            learning_rate=scheduled_learning_rate(config, steps_done=step - self._first_step) * self._learning_rate_cut,
        )

    def observe(self, observation: Observation) -> Outcome:
        """Update the state with one finished rollout and return the decision; a non-finite entropy is ignored."""
        if not math.isfinite(observation.entropy + observation.log_num_legal):
            return Outcome()
        boost = self._entropy.observe(entropy=observation.entropy, log_num_legal=observation.log_num_legal)
        if self._kl is not None:
            self._kl.observe(observation.kl)
        self._num_steps += 1
        self._num_saturated["entropy"] += self._entropy.is_saturated
        self._num_saturated["kl"] += self._kl is not None and self._kl.is_saturated
        self._entropies = [*self._entropies, observation.entropy][-CRITICAL_WINDOW:]
        self._silent = [*self._silent, observation.silent_groups][-_SILENT_WINDOW:]
        is_silent = len(self._silent) == _SILENT_WINDOW and sum(self._silent) / _SILENT_WINDOW > _SILENT
        self._num_silent_steps = self._num_silent_steps + 1 if is_silent and self._steps_recovering is None else 0
        outcome = self._decide(observation)
        boosts = (Event("entropy_boost", f"step {observation.step:,}: {boost}"),) if boost else ()
        return Outcome(outcome.stop, outcome.message, (*boosts, *outcome.events))

    def _decide(self, observation: Observation) -> Outcome:
        """Return the decision that follows from entropy and zero-variance groups."""
        if reason := self._entropy.reason_to_stop(observation.entropy):
            return _stop(f"entropy at step {observation.step} is {observation.entropy:.3g} nats at T = 1, {reason}")
        if self._steps_recovering is not None:
            return self._go_on_recovering(observation, self._steps_recovering + 1)
        if self._is_critical():
            return self._on_critical(observation)
        if self._num_silent_steps > _MAX_SILENT_STEPS:
            message = (
                f"nothing to learn at step {observation.step}: nearly all groups have had equal rewards for {self._num_silent_steps} steps,"
                f" now {observation.silent_groups:.1%}; entropy {observation.entropy:.3g} nats, action agreement"
                f" {observation.agreement:.2f}: if moves agree, the policy has collapsed: go back to an earlier checkpoint; if not, rewards"
                " do not tell moves apart: use other boards, a larger grpo.group_size, or a finer search for rewards"
            )
            return Outcome(NOTHING_TO_LEARN, message)
        return Outcome()

    def _is_critical(self) -> bool:
        return len(self._entropies) == CRITICAL_WINDOW and self.mean_entropy() < self._config.critical_entropy

    def _on_critical(self, observation: Observation) -> Outcome:
        recovery = self._config.recovery
        message = (
            f"at step {observation.step}, mean entropy over the last {CRITICAL_WINDOW} steps is {self.mean_entropy():.3g} nats at T = 1, "
            f"critical below grpo.critical_entropy = {self._config.critical_entropy:g}; action agreement {observation.agreement:.2f}"
        )
        if recovery.kind == "stop" or self._num_recoveries >= MAX_RECOVERIES:
            return _stop(
                f"{message}, after {self._num_recoveries} recoveries: lower grpo.learning_rate or raise grpo.entropy_coefficient, and go "
                "back to an earlier checkpoint"
            )
        self._num_recoveries += 1
        self._steps_recovering = 0
        started = (
            f"recovery {self._num_recoveries} of at most {MAX_RECOVERIES} begins after step {observation.step}: KL(reference || policy) "
            f"joins the loss with grpo.recovery.coefficient = {recovery.coefficient:g}, until mean entropy is "
            f"{recovery.healthy_entropy:g} nats (grpo.recovery.healthy_entropy)"
        )
        return Outcome(events=(Event("entropy_critical", message), Event("recovery_started", started)))

    def _go_on_recovering(self, observation: Observation, num_steps: int) -> Outcome:
        recovery, mean = self._config.recovery, self.mean_entropy()
        if mean >= recovery.healthy_entropy and not self._is_critical():
            self._steps_recovering = None
            ended = f"at step {observation.step} mean entropy is {mean:.3g} nats again, after {num_steps} steps of KL(reference || policy)"
            return Outcome(events=(Event("recovery_ended", ended),))
        self._steps_recovering = num_steps
        if num_steps < _MAX_RECOVERY_STEPS:
            return Outcome()
        return _stop(
            f"at step {observation.step}, {num_steps} steps of KL(reference || policy) have not brought mean entropy, {mean:.3g} nats, to "
            f"{recovery.healthy_entropy:g} nats (grpo.recovery.healthy_entropy): raise grpo.recovery.coefficient or the learning rate, or "
            "go back to an earlier checkpoint"
        )

    def skipped(self) -> bool:
        """Count a skipped optimiser step (NaN or infinite), cut the learning rate, and return whether too many were skipped in a row."""
        self._learning_rate_cut *= SKIPPED_CUT
        self._num_skipped_in_a_row += 1
        return self._num_skipped_in_a_row >= MAX_SKIPPED

    def finite(self) -> None:
        """Reset the count of skipped optimiser steps after a finite one; cuts of the learning rate stay."""
        self._num_skipped_in_a_row = 0

    def mean_entropy(self) -> float:
        """Return the mean entropy over the (possibly partial) critical window in nats; NaN before the first rollout."""
        return sum(self._entropies) / len(self._entropies) if self._entropies else math.nan

    def metrics(self) -> dict[str, float]:
        """Return how often controllers were at a bound (0 for inactive ones), and the recoveries; the trainer logs the knobs."""
        fractions = {f"control/{name}_saturated": count / max(self._num_steps, 1) for name, count in self._num_saturated.items()}
        return {**fractions, "control/recoveries": float(self._num_recoveries)}

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""
        return {
            "entropy": self._entropy.state(),
            "kl_coefficient": None if self._kl is None else self._kl.coefficient,
            "num_steps": self._num_steps,
            "num_saturated": dict(self._num_saturated),
            "entropies": list(self._entropies),
            "silent": list(self._silent),
            "num_silent_steps": self._num_silent_steps,
            "learning_rate_cut": self._learning_rate_cut,
            "num_skipped_in_a_row": self._num_skipped_in_a_row,
            "num_recoveries": self._num_recoveries,
            "steps_recovering": self._steps_recovering,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state`."""
        self._entropy.restore(state["entropy"])
        if self._kl is not None:
            self._kl.coefficient = float(state["kl_coefficient"])
        self._num_steps = state["num_steps"]
        self._num_saturated = dict(state["num_saturated"])
        self._entropies, self._silent = list(state["entropies"]), list(state["silent"])
        self._num_silent_steps = state["num_silent_steps"]
        self._learning_rate_cut = state["learning_rate_cut"]
        self._num_skipped_in_a_row = state["num_skipped_in_a_row"]
        self._num_recoveries = state["num_recoveries"]
        self._steps_recovering = state["steps_recovering"]


def _stop(message: str) -> Outcome:
    return Outcome(ENTROPY_CRITICAL, message, (Event("entropy_critical", message),))

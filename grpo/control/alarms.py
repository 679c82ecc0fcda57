"""Alarms of a training run, each logged once when it begins, with numbers, a likely cause and the setting that fixes it.

An alarm ends when its condition has been false for as many steps in a row as its window has; only then can it begin again.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from grpo.diagnosis.conditions import cancels, dominates, have_zero_advantage, is_certain, is_constant
from grpo.metrics.table import TERM_PAIRS, TERMS, Event
from grpo.settings.grpo import AlarmConfig, GrpoConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """Measurements of one finished rollout, the input of controllers and alarms."""

    step: int
    """Number of rollouts so far, including this one."""
    entropy: float
    """Mean exact entropy at T = 1, in nats."""
    normalised_entropy: float
    """Mean of entropy / ln(legal moves) at T = 1."""
    log_num_legal: float
    """Mean ln(legal moves)."""
    kl: float
    """Mean exact reference KL in nats, in the direction of `kl_direction`."""
    silent_groups: float
    """Fraction of zero-variance groups (all rewards equal)."""
    agreement: float
    """Mean fraction of a group that its most frequent move makes up."""
    agreement_max: float
    """Largest fraction of a group that its most frequent move makes up."""
    norms: Mapping[str, float]
    """By `TERMS`: norm of the weighted term's gradient in logits; 0 if the coefficient is 0."""
    cosines: Mapping[tuple[str, str], float]
    """By `TERM_PAIRS`: cosine of the two gradients; 0 if either norm is 0."""


class Window:
    """The last few values of a series, oldest first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.values: list[float] = []

    def add(self, value: float) -> None:
        """Add one value; NaN and infinity mean that nothing was measured and are skipped."""
        if math.isfinite(value):
            self.values = [*self.values, float(value)][-self._size :]

    @property
    def is_full(self) -> bool:
        """Whether the window is full."""
        return len(self.values) == self._size

    def mean(self) -> float:
        """Return the mean of its values; NaN if there are none."""
        return sum(self.values) / len(self.values) if self.values else math.nan

    def trend(self) -> tuple[float, float]:
        """Return the last value and the slope per step of the least-squares line."""
        middle = (len(self.values) - 1) / 2
        spread = sum((index - middle) ** 2 for index in range(len(self.values)))
        slope = sum((index - middle) * value for index, value in enumerate(self.values)) / spread if spread else 0.0
        return self.mean() + slope * middle, slope

    def state(self) -> list[float]:
        """Return the values."""
        return list(self.values)

    def restore(self, state: Iterable[float]) -> None:
        """Restore the values, at most the newest `size`."""
        self.values = [float(value) for value in state][-self._size :]


class Alarm(Protocol):
    """Returns at each step the conditions that hold, as `event name/detail` -> message."""

    def observe(self, observation: Observation) -> dict[str, str]:
        """Update with one rollout and return the conditions that hold."""

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `state`."""


class LowEntropy:
    """Level alarm: mean normalised entropy is below the alarm's threshold."""

    def __init__(self, settings: AlarmConfig) -> None:
        self._settings = settings
        self._window = Window(settings.window)

    def observe(self, observation: Observation) -> dict[str, str]:
        """Update with the normalised entropy of one rollout."""
        self._window.add(observation.normalised_entropy)
        if not (self._window.is_full and is_certain(self._window.mean(), self._settings)):
            return {}
        return {
            "entropy_low": (
                f"mean normalised entropy over the {self._settings.window} steps to {observation.step} is {self._window.mean():.3g}, "
                f"below grpo.alarms.entropy_share = {self._settings.entropy_share:g} (entropy now {observation.entropy:.3g} nats): the "
                "policy grows certain faster than it learns; lower grpo.learning_rate, or raise grpo.entropy_coefficient (its bound and "
                "grpo.entropy_target.fraction, where that controller moves it), while entropy still has a gradient"
            )
        }

    def state(self) -> dict[str, Any]:
        """Return the window as plain data."""
        return {"window": self._window.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the window."""
        self._window.restore(state["window"])


class FallingEntropy:
    """Slope alarm: the least-squares line through the window reaches critical entropy soon."""

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self._window = Window(config.alarms.window)

    def observe(self, observation: Observation) -> dict[str, str]:
        """Update with the entropy of one rollout, in the measure of `critical_measure`."""
        config = self._config
        self._window.add(observation.entropy if config.critical_measure == "entropy" else observation.normalised_entropy)
        if config.critical_entropy == 0 or not self._window.is_full:
            return {}
        last, slope = self._window.trend()
        above = max(last - config.critical_entropy, 0.0)
        if not (slope < 0 and above <= -slope * config.alarms.steps_to_critical):
            return {}
        return {
            "entropy_falling": (
                f"{config.critical_measure} falls by {-slope:.3g} a step (line through the {config.alarms.window} steps to "
                f"{observation.step}, now at {last:.3g}) and is critical, grpo.critical_entropy = {config.critical_entropy:g}, in "
                f"{above / -slope:.0f} steps: the policy term outweighs what keeps entropy; "
                "lower grpo.learning_rate or raise grpo.entropy_coefficient"
            )
        }

    def state(self) -> dict[str, Any]:
        """Return the window as plain data."""
        return {"window": self._window.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the window."""
        self._window.restore(state["window"])


class CancellingTerms:
    """Two terms' gradients are opposite, and within a factor of two in size, at every step of a window."""

    def __init__(self, settings: AlarmConfig) -> None:
        self._settings = settings
        self._num_steps = dict.fromkeys(TERM_PAIRS, 0)

    def observe(self, observation: Observation) -> dict[str, str]:
        """Update with the gradient norms and cosines of one rollout."""
        for one, other in TERM_PAIRS:
            norm, other_norm = observation.norms[one], observation.norms[other]
            cancel = cancels(observation.cosines[one, other], norm, other_norm, self._settings)
            self._num_steps[one, other] = self._num_steps[one, other] + 1 if cancel else 0
        return {
            f"cancelling_terms/{one}_{other}": (
                f"the gradients of {one} and {other} have had a cosine below {self._settings.cancelling_cosine:g} and norms within a "
                f"factor of two for {num_steps} steps to {observation.step} (now {observation.cosines[one, other]:.3f}; norms "
                f"{observation.norms[one]:.3g} and {observation.norms[other]:.3g}): together they do nothing; "
                f"{_AGAINST_POLICY if 'policy' in (one, other) else _AGAINST_EACH_OTHER}"
            )
            for (one, other), num_steps in self._num_steps.items()
            if num_steps >= self._settings.window
        }

    def state(self) -> dict[str, Any]:
        """Return the number of steps in a row for each pair."""
        return {f"{one}/{other}": num_steps for (one, other), num_steps in self._num_steps.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the number of steps in a row for each pair."""
        self._num_steps = {(one, other): int(state[f"{one}/{other}"]) for one, other in TERM_PAIRS}


_AGAINST_POLICY = "the regulariser undoes what rewards teach: lower its coefficient"
_AGAINST_EACH_OTHER = "one regulariser undoes the other: set grpo.entropy_coefficient or grpo.kl_coefficient to 0, or make one far smaller"


class DominatingTerm:
    """A term other than the policy term has nearly all of the gradient norm, in the mean over a window."""

    def __init__(self, settings: AlarmConfig) -> None:
        self._settings = settings
        self._windows = {term: Window(settings.window) for term in TERMS if term != "policy"}

    def observe(self, observation: Observation) -> dict[str, str]:
        """Update with the gradient norms of one rollout; if all are 0, no term has a fraction."""
        total = sum(observation.norms[term] for term in TERMS)
        for term, window in self._windows.items():
            window.add(observation.norms[term] / total if total != 0 else 0.0)
        return {
            f"dominating_term/{term}": (
                f"{term} has {window.mean():.1%} of the sum of the terms' gradient norms over the {self._settings.window} steps to "
                f"{observation.step}, more than grpo.alarms.dominating_share = {self._settings.dominating_share:g}: "
                f"{_DOMINATING_REMEDIES[term]}"
            )
            for term, window in self._windows.items()
            if window.is_full and dominates(window.mean(), self._settings)
        }

    def state(self) -> dict[str, Any]:
        """Return the windows, by term."""
        return {term: window.state() for term, window in self._windows.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the windows."""
        for term, window in self._windows.items():
            window.restore(state[term])


_DOMINATING_REMEDIES = {
    "entropy": "the policy is trained to be uniform, not to win; lower grpo.entropy_coefficient (or grpo.entropy_target.max_coefficient)",
    "anchor_kl": "the policy is trained to stay where it was; lower grpo.kl_coefficient (or grpo.kl_target.max_coefficient), or refresh "
    "the reference by grpo.steps_per_reference_refresh",
    "recovery_kl": "natural while recovering from critical entropy, when no other gradient is left; if entropy does not rise, the "
    "learning rate is too low or the reference itself is certain of its moves",
}


class SilentGroups:
    """Nearly all groups have zero variance (equal rewards), in the mean over a window."""

    def __init__(self, settings: AlarmConfig) -> None:
        self._settings = settings
        self._window = Window(settings.window)
        self._num_steps = 0

    def observe(self, observation: Observation) -> dict[str, str]:
        """Update with the fraction of zero-variance groups of one rollout."""
        self._window.add(observation.silent_groups)
        is_silent = self._window.is_full and have_zero_advantage(self._window.mean(), self._settings)
        self._num_steps = self._num_steps + 1 if is_silent else 0
        if not is_silent:
            return {}
        return {
            "silent_groups": (
                f"{self._window.mean():.1%} of the groups over the {self._settings.window} steps to {observation.step} have equal "
                f"rewards, more than grpo.alarms.silent_share = {self._settings.silent_share:g}: they teach nothing (entropy "
                f"{observation.entropy:.3g} nats, action agreement {observation.agreement:.2f}); {_ZERO_VARIANCE_REMEDY}"
            )
        }

    @property
    def is_over(self) -> bool:
        """Whether groups have had zero variance for `max_silent_windows` full windows in a row."""
        return self._num_steps > (self._settings.max_silent_windows - 1) * self._settings.window

    def reset_count(self) -> None:
        """Restart the count of windows: during a recovery, zero-variance groups do not stop the run."""
        self._num_steps = 0

    def state(self) -> dict[str, Any]:
        """Return the window and the number of steps for which the condition has held."""
        return {"window": self._window.state(), "num_steps": self._num_steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the window and the count."""
        self._window.restore(state["window"])
        self._num_steps = int(state["num_steps"])


_ZERO_VARIANCE_REMEDY = (
    "if moves agree, the policy has collapsed: go back to an earlier checkpoint; if not, rewards do not tell moves apart: use other "
    "boards, a larger grpo.group_size, or a finer search for rewards"
)


class SaturatedController:
    """A controller is at a bound for nearly all of a window."""

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self._windows = {name: Window(config.alarms.window) for name in ("entropy", "kl")}

    def observe(self, observation: Observation, *, saturated: Mapping[str, bool]) -> dict[str, str]:
        """Update with the controllers that are at a bound after one rollout."""
        for name, is_saturated in saturated.items():
            self._windows[name].add(float(is_saturated))
        return {
            f"saturated_controller/{name}": (
                f"the {name} controller stood at a bound in {window.mean():.0%} of the {self._config.alarms.window} steps to "
                f"{observation.step}, more than grpo.alarms.saturated_share = {self._config.alarms.saturated_share:g}: it is a constant "
                f"now; {self._remedy(name, observation)}"
            )
            for name, window in self._windows.items()
            if window.is_full and is_constant(window.mean(), self._config.alarms)
        }

    def _remedy(self, name: str, observation: Observation) -> str:
        config = self._config
        if name == "kl":
            target = config.kl_target
            return (
                f"KL is {observation.kl:.3g} nats and its target {target.nats:g} (grpo.kl_target.nats), out of reach between "
                f"min_coefficient = {target.min_coefficient:g} and max_coefficient = {target.max_coefficient:g}: "
                "change the target, or the bound it stands at"
            )
        if config.entropy_schedule == "field_notes":
            return (
                f"entropy is {observation.entropy:.3g} nats and all that [grpo.field_notes] can raise is at its bound: lower "
                "grpo.learning_rate, or go back to an earlier checkpoint"
            )
        goal = config.entropy_target
        return (
            f"entropy is {observation.entropy:.3g} nats and its target {goal.fraction * observation.log_num_legal:.3g} "
            f"(grpo.entropy_target.fraction = {goal.fraction:g}), out of reach between min_coefficient = {goal.min_coefficient:g} and "
            f"max_coefficient = {goal.max_coefficient:g}: change the share, or the bound it stands at"
        )

    def state(self) -> dict[str, Any]:
        """Return the windows, by controller."""
        return {name: window.state() for name, window in self._windows.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the windows."""
        for name, window in self._windows.items():
            window.restore(state[name])


class Alarms:
    """All alarms of a run; returns each when it begins, and not again before it has ended."""

    def __init__(self, config: GrpoConfig) -> None:
        self._config = config
        self.clear()

    def clear(self) -> None:
        """Clear all state after a rollback."""
        config = self._config
        self._silence = SilentGroups(config.alarms)
        self._alarms: dict[str, Alarm] = {
            "low_entropy": LowEntropy(config.alarms),
            "falling_entropy": FallingEntropy(config),
            "cancelling_terms": CancellingTerms(config.alarms),
            "dominating_term": DominatingTerm(config.alarms),
            "silent_groups": self._silence,
        }
        self._saturation = SaturatedController(config)
        self._steps_away: dict[str, int] = {}

    def observe(self, observation: Observation, *, saturated: Mapping[str, bool], is_recovering: bool) -> tuple[Event, ...]:
        """Update with one rollout and return the alarms that begin with it.

        Args:
            observation: The rollout's measurements.
            saturated: Active controller (`entropy` or `kl`) -> whether it is at a bound after this rollout.
            is_recovering: Whether a recovery by KL(reference || policy) is in progress, so that zero-variance groups do not stop the run.
        """
        holding = self._saturation.observe(observation, saturated=saturated)
        for alarm in self._alarms.values():
            holding |= alarm.observe(observation)
        if is_recovering:
            self._silence.reset_count()
        begun = [Event(key.partition("/")[0], message) for key, message in holding.items() if key not in self._steps_away]
        away = {key: steps + 1 for key, steps in self._steps_away.items() if steps + 1 < self._config.alarms.window}
        self._steps_away = away | dict.fromkeys(holding, 0)
        return tuple(begun)

    @property
    def has_nothing_to_learn(self) -> bool:
        """Whether groups have had zero variance for so long that training must stop."""
        return self._silence.is_over

    def silence_message(self, observation: Observation) -> str:
        """Return the message of the stop for `has_nothing_to_learn`."""
        settings = self._config.alarms
        return (
            f"nothing to learn at step {observation.step}: for {settings.max_silent_windows} windows of {settings.window} steps "
            f"(grpo.alarms.max_silent_windows) more than {settings.silent_share:g} of the groups had equal rewards, now "
            f"{observation.silent_groups:.1%}; entropy {observation.entropy:.3g} nats, action agreement {observation.agreement:.2f}; "
            f"{_ZERO_VARIANCE_REMEDY}"
        )

    def state(self) -> dict[str, Any]:
        """Return the state of every alarm, and for each active one the steps since its condition last held."""
        alarms = {name: alarm.state() for name, alarm in self._alarms.items()}
        return {"steps_away": dict(self._steps_away), "saturated_controller": self._saturation.state(), **alarms}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of every alarm."""
        self._steps_away = {str(key): int(steps) for key, steps in state["steps_away"].items()}
        self._saturation.restore(state["saturated_controller"])
        for name, alarm in self._alarms.items():
            alarm.restore(state[name])

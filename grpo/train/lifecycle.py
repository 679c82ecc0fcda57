"""The life cycle of a trainer of any kind of policy: its state and skipped steps."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import torch
from torch import Tensor, nn

from grpo.base.errors import NonFiniteError
from grpo.policy.files import IncompatibleError
from grpo.policy.trainable import TrainablePolicy
from grpo.settings.grpo import GrpoConfig
from grpo.settings.metrics import Event, Record
from grpo.train.checkpoints import TrainingState, hash_of_weights
from grpo.train.controller import MAX_SKIPPED, Control, Knobs, Observation, Outcome
from grpo.train.step_clock import StepClock

PRECISIONS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_BEYOND: Final = 1.5
"""Times `grpo.max_kl_old`: a divergence above ends a rollout's optimiser steps."""
MAX_GRADIENT_NORM: Final = 1.0
"""Gradient clipping: maximum Euclidean norm of the gradient."""

_Policy = TypeVar("_Policy", bound=TrainablePolicy)


class TrainerLifecycle(ABC, Generic[_Policy]):
    """Trains a policy, one rollout a step; all randomness follows from the number of the step.

    Call `step` as often as wanted, and look at `outcome` after each.
    """

    def __init__(self, policy: _Policy, reference: nn.Module, config: GrpoConfig, *, first_step: int) -> None:
        """Prepare.

        Args:
            policy: what is trained.
            reference: the network of the frozen policy of the KL terms.
            config: GRPO's settings.
            first_step: rollouts done when this run began; schedules count from there.
        """
        self.policy = policy
        """What is trained."""
        self.num_steps_done = first_step
        self.outcome = Outcome()
        self.control = Control(config, first_step=first_step)
        self._config = config
        self._first_step = first_step
        self._precision = PRECISIONS[config.precision]
        self._reference_hash = hash_of_weights(reference.state_dict())
        self._parameters = [parameter for parameter in policy.network.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.Adam(self._parameters, lr=config.learning_rate)
        self._clock = StepClock()

    @abstractmethod
    def preflight(self) -> Mapping[str, float]:
        """Return the metrics of the rollout that the next step will make; changes nothing."""

    @abstractmethod
    def step(self) -> Record:
        """Make one rollout and learn from it."""

    @property
    def num_trained_parameters(self) -> int:
        """Weights that training changes."""
        return sum(parameter.numel() for parameter in self._parameters)

    @property
    def evaluation_policy(self) -> _Policy:
        """The policy that is measured, saved and played."""
        return self.policy

    def timings(self) -> Record:
        """Return where the last step's time went: it differs between equal runs."""
        return Record(self.num_steps_done, self._clock.metrics())

    # State.

    def state(self, facts: Mapping[str, Any]) -> TrainingState:
        """Return what a checkpoint needs besides the weights of the evaluation policy."""
        controllers, tensors = self._own_state()
        return TrainingState(
            step=self.num_steps_done,
            optimiser=self._optimiser.state_dict(),
            controllers={"control": self.control.state(), **controllers, "reference": {"hash": self._reference_hash}},
            tensors=tensors,
            facts=facts,
        )

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of a checkpoint's policy, before its state."""
        self.policy.network.load_state_dict(dict(weights))

    def restore(self, state: TrainingState) -> None:
        """Resume from a checkpoint's state; the policy has its weights already.

        Raises IncompatibleError when the checkpoint was trained against another reference.
        """
        self._refuse_other_reference(state)
        self._load_training_weights(state, begins_run=False)
        self._load_optimiser(state)
        self.num_steps_done = state.step
        self.control.restore(state.controllers["control"])
        self._restore_own(state)

    def begin_from(self, state: TrainingState, *, takes_optimiser: bool = True) -> None:
        """Begin a new run at a checkpoint of another, whose weights the policy has already; schedules and controllers begin anew.

        Args:
            state: the checkpoint's.
            takes_optimiser: whether its optimiser goes on, whose moments fit no other objective.

        Raises IncompatibleError when the reference is another.
        """
        self._refuse_other_reference(state)
        self._load_training_weights(state, begins_run=True)
        if takes_optimiser:
            self._load_optimiser(state)

    # What one kind of trainer may add.

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the controllers and tensors that only this kind of trainer has in its state."""
        return {}, {}

    def _restore_own(self, state: TrainingState) -> None:
        """Restore what `_own_state` returned."""

    def _load_training_weights(self, state: TrainingState, *, begins_run: bool) -> None:
        """Load the weights that training resumes from, or begins a new run at, where they are not the evaluation policy's."""

    def _knob_metrics(self, knobs: Knobs) -> dict[str, float]:
        return {
            "control/temperature": knobs.temperature,
            "control/entropy_coefficient": knobs.entropy_coefficient,
            "control/kl_coefficient": knobs.kl_coefficient,
            "control/learning_rate": knobs.learning_rate,
        }

    # Parts of a step.

    def _begin_step(self) -> Knobs:
        """Start the clock, set the learning rate, and return the step's knobs."""
        self._clock.begin()
        knobs = self.control.knobs(self.num_steps_done)
        for group in self._optimiser.param_groups:
            group["lr"] = knobs.learning_rate
        return knobs

    def _end_step(self, metrics: Mapping[str, float], observation: Observation, events: list[Event]) -> Record:
        """Return the record of a step, after the controllers saw it."""
        self.outcome = self.control.observe(observation)
        events = [*events, *self.outcome.events]
        self._clock.end()
        return Record(self.num_steps_done, {**metrics, **self.control.metrics()}, tuple(events))

    def _end_skipped_step(self, problem: str, metrics: Mapping[str, float]) -> Record:
        """Return the record of a step without a rollout; raises NonFiniteError after too many."""
        events: list[Event] = []
        self._skip(problem, events)
        self.num_steps_done += 1
        self.outcome = Outcome()
        self._clock.end()
        return Record(self.num_steps_done, metrics, tuple(events))

    def _skip(self, problem: str, events: list[Event]) -> None:
        """Count a skipped update, and raise NonFiniteError after too many."""
        is_enough = self.control.skipped()
        after = f"step {self.num_steps_done + 1:,}: {problem}"
        events.append(Event("step_skipped", f"{after}; nothing was changed, and the learning rate is cut from the next rollout on"))
        if is_enough:
            raise NonFiniteError(
                f"{after}, {MAX_SKIPPED} times in a row; the weights are those before it. Lower grpo.learning_rate, or"
                " look for rewards that are NaN or infinite"
            )

    def _leaves_trust_region(self, kl_old: float, num_taken: int, events: list[Event]) -> bool:
        """Return whether the rest of a rollout's optimiser steps is left out, and note that.

        Args:
            kl_old: nats, KL(old || policy) after the steps so far.
            num_taken: these steps; never at none, where the divergence is rounding.
            events: gets a `trust_region`.
        """
        limit = self._config.max_kl_old
        if not (num_taken and limit and kl_old > _BEYOND * limit):
            return False
        events.append(
            Event(
                "trust_region",
                f"step {self.num_steps_done + 1:,}: KL(old || policy) is {kl_old:.3g} after {num_taken} optimiser steps, above {_BEYOND:g}"
                f" times grpo.max_kl_old = {limit:g}: the rest of this rollout's were left out",
            )
        )
        return True

    def _optimise(self, *, is_finite: bool) -> tuple[float, str]:
        """Take one optimiser step; or leave everything as it was. Return the gradient's norm and why no step was taken, or "".

        Args:
            is_finite: whether the loss is, whose gradient is in the parameters.
        """
        if not is_finite:
            return math.nan, "the loss is not finite"
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM).item()
        if not math.isfinite(norm):
            return norm, "the gradient is not finite"
        self._optimiser.step()
        return norm, ""

    def _refuse_other_reference(self, state: TrainingState) -> None:
        then = state.controllers["reference"]["hash"]
        if self._reference_hash != then:
            raise IncompatibleError(
                f"the checkpoint of step {state.step:,} was trained against reference {then[:12]}, here it is {self._reference_hash[:12]}:"
                " a KL to another reference is another objective; take up the pretrained policy of that run"
            )

    def _load_optimiser(self, state: TrainingState) -> None:
        # A copy: the optimiser keeps the tensors it is given, and changes them in place.
        self._optimiser.load_state_dict(copied(dict(state.optimiser)))


def prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with a prefix before each name."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def unprefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have the prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def copied(value: Any) -> Any:
    """Return a deep copy of plain data and tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value

"""The GRPO loop of any kind of policy, one record a step; no logger inside.

A step samples groups from states, takes a few optimiser steps on them, and lets the controllers see what came of it. What a state is, and
how it is sampled and measured, the task knows: `grpo.train.network_task`, `grpo.language.learn.task`. Of published GRPO it leaves out the
division of advantages by the group's spread and by lengths (Dr. GRPO), and has entropy and KL exact, not estimated.
"""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.diagnosis.records import Event, Record
from grpo.policy.checkpoints import TrainingState
from grpo.policy.distribution import PRECISIONS, MoveDistribution
from grpo.policy.files import IncompatibleError
from grpo.policy.policy import Policy, weights_hash
from grpo.settings.grpo import GrpoConfig
from grpo.train.batch import Batch
from grpo.train.control import MAX_SKIPPED, Control, Knobs
from grpo.train.invariants import assert_on_policy
from grpo.train.objective import grpo_objective
from grpo.train.probes import Measured, inner_metrics

MAX_GRADIENT_NORM: Final = 1.0
"""Gradient clipping: maximum Euclidean norm of the gradient."""
MAX_KL_OLD: Final = 0.15
"""Trust region, in nats: a larger KL(old || policy) of a minibatch ends a rollout's optimiser steps."""

_Policy = TypeVar("_Policy", bound=Policy)


class Rollout(Protocol):
    """Rows that were sampled and rewarded: the states of a network's `Batch`, or the answers of a language model."""

    @property
    def rows(self) -> Tensor:
        """Rows that may be trained on."""

    @property
    def row_weights(self) -> Tensor:
        """Weight of each row in the mean that a minibatch's loss is."""


class Task(Protocol[_Policy]):
    """What differs between the kinds of policies; states and rollouts are of types of its own."""

    name: str
    """Group of its metrics."""
    reference: _Policy
    """The frozen policy of the KL terms."""
    kl_warmup_steps: int
    """Steps over which the KL coefficient rises."""
    is_sequential: bool
    """Whether a row is a sequence of states, whose divergences add up to that of the row (chain rule)."""
    max_log_ratio: float
    """Largest |ln(probability now / as sampled)| that is rounding."""

    def states(self, policy: _Policy, step: int) -> Any:
        """Return the states of a step."""

    def rollout(self, policy: _Policy, states: Any, knobs: Knobs, step: int) -> Rollout:
        """Sample from the states.

        Raises NonFiniteError where a probability or a reward is NaN or infinite, InvariantError where groups are mixed up, or sampled
        otherwise than they are scored.
        """

    def rollout_metrics(self, rollout: Any) -> dict[str, float]:
        """Return what is measured of a rollout."""

    def parts(self, rollout: Any, rows: Tensor) -> Iterator[Batch[Any]]:
        """Yield a minibatch in pieces that one forward pass takes."""

    def distribution(self, policy: _Policy, part: Batch[Any]) -> MoveDistribution:
        """Return the policy on the part's states, at the part's temperature."""

    def log_num_legal(self, metrics: Mapping[str, float]) -> float:
        """Return the mean ln(legal moves) of a rollout."""

    def state(self) -> dict[str, Tensor]:
        """Return what cannot be made again on resuming."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""


class Trainer(Generic[_Policy]):
    """Trains a policy, one rollout a step; all randomness follows from the number of the step.

    Call `step` until the number of steps is reached, or a record says why training stops.
    """

    def __init__(self, task: Task[_Policy], policy: _Policy, config: GrpoConfig, *, seed: int, first_step: int = 0) -> None:
        """Prepare training.

        Args:
            task: where states come from, and how they are sampled.
            policy: what is trained, changed in place; a copy of the task's reference, or a resumed policy.
            config: GRPO's settings.
            seed: root of all random streams.
            first_step: rollouts that were done when this run began; schedules count from there.
        """
        self.task = task
        self._average = policy.copied() if config.weight_averaging else None
        self.policy: _Policy = policy.at_precision(PRECISIONS[config.precision])
        """What is trained."""
        self.num_steps_done = first_step
        self.control = Control(config, first_step=first_step, kl_warmup_steps=task.kl_warmup_steps)
        self._config, self._seed, self._first_step = config, seed, first_step
        self._reference_hash = weights_hash(task.reference)
        self._parameters = list(policy.network.parameters())
        self._optimiser = torch.optim.Adam(self._parameters, lr=config.learning_rate)
        self._seconds: dict[str, float] = {}

    @property
    def evaluation_policy(self) -> _Policy:
        """The policy that is measured, saved and played: the EMA policy, or the trained one where weights are not averaged."""
        return self.policy if self._average is None else self._average

    def step(self) -> Record:
        """Sample groups, take the optimiser steps of one rollout, and return what was measured, what happened, and why training stops.

        Raises InvariantError when the first optimiser step does not score as the sampler did, NonFiniteError after too many non-finite
        steps in a row.
        """
        started, self._seconds = time.perf_counter(), {}
        name, events = self.task.name, list[Event]()
        knobs = self.control.knobs(self.num_steps_done)
        metrics: dict[str, float] = {f"control/{knob}": value for knob, value in asdict(knobs).items()}
        stop, decided = "", tuple[Event, ...]()
        try:
            rollout = self._rollout(knobs)
        except NonFiniteError as error:
            self._skip(str(error), events)
            metrics[f"{name}/skipped"] = 1.0
            self.num_steps_done += 1
        else:
            metrics |= self.task.rollout_metrics(rollout)
            metrics |= self._learn(rollout, knobs, events)
            self.num_steps_done += 1
            self._update_average(has_learnt=metrics[f"{name}/optimiser_steps"] > 0)
            stop, decided = self.control.observe(
                step=self.num_steps_done,
                entropy=metrics[f"{name}/entropy"],
                log_num_legal=self.task.log_num_legal(metrics),
                kl=metrics.get(f"{name}/kl_reference", math.nan),
            )
            metrics |= self.control.metrics()
        self._seconds["total"] = time.perf_counter() - started
        return Record(self.num_steps_done, metrics, (*events, *decided), stop)

    def preflight(self) -> dict[str, float]:
        """Return what is measured of the rollout that the next step will make, before any update; changes nothing.

        Raises InvariantError when it does not score as the sampler did, NonFiniteError when the policy's probabilities are NaN or infinite.
        """
        knobs = self.control.knobs(self.num_steps_done)
        rollout = self._rollout(knobs)
        metrics = self.task.rollout_metrics(rollout)
        if len(rollout.rows):
            measured = self._backward(rollout, rollout.rows, knobs, is_first=True)
            assert_on_policy(measured, max_log_ratio=self.task.max_log_ratio)
            self._optimiser.zero_grad(set_to_none=True)
            metrics = {f"{self.task.name}/kl_reference": measured.mean("raw/reference_kl"), **metrics}
        return metrics

    def timings(self) -> Record:
        """Return where the last step's time went: it differs between equal runs."""
        parts = {part: self._seconds.get(part, 0.0) for part in ("states", "rollout", "update")}
        total = self._seconds.get("total", 0.0)
        times = {f"time/{part}": seconds for part, seconds in {**parts, "other": max(0.0, total - sum(parts.values()))}.items()}
        return Record(self.num_steps_done, times)

    # Parts of a step.

    def _rollout(self, knobs: Knobs) -> Rollout:
        with self._timed("states"):
            states = self.task.states(self.policy, self.num_steps_done)
        with self._timed("rollout"):
            return self.task.rollout(self.policy, states, knobs, self.num_steps_done)

    def _learn(self, rollout: Rollout, knobs: Knobs, events: list[Event]) -> dict[str, float]:
        """Take the optimiser steps of a rollout, and return what was measured of them."""
        taken: list[Measured] = []
        num_skipped, refused = 0, None
        for group in self._optimiser.param_groups:
            group["lr"] = knobs.learning_rate
        for rows in self._minibatches(rollout.rows):
            with self._timed("update"):
                measured = self._backward(rollout, rows, knobs, is_first=not taken)
            if not taken:
                assert_on_policy(measured, max_log_ratio=self.task.max_log_ratio)
            elif measured.kl_old > MAX_KL_OLD:
                refused = measured
                message = (
                    f"step {self.num_steps_done + 1:,}: KL(old || policy) is {measured.kl_old:.3g} after {len(taken)} optimiser steps,"
                    f" above {MAX_KL_OLD:g}: the rest of this rollout's were left out"
                )
                events.append(Event("trust_region", message))
                break
            with self._timed("update"):
                problem = self._update(measured)
            if problem:
                num_skipped += 1
                self._skip(problem, events)
            else:
                taken.append(measured)
                self.control.finite()
        name = self.task.name
        counts = {f"{name}/skipped": float(num_skipped), f"{name}/optimiser_steps": float(len(taken))}
        return {**(inner_metrics(name, taken, refused) if taken else {}), **counts}

    def _minibatches(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield the rows of each optimiser step."""
        order = rows[torch.randperm(len(rows), generator=torch_stream(self._seed, "minibatches", self.num_steps_done, 0))]
        # A minibatch is empty where the engine failed on too many states.
        yield from (chosen for chosen in order.tensor_split(self._config.num_minibatches) if len(chosen))

    def _backward(self, rollout: Rollout, rows: Tensor, knobs: Knobs, *, is_first: bool) -> Measured:
        """Leave the minibatch's gradient in the parameters, whole over all pieces, and return what was measured."""
        self._optimiser.zero_grad(set_to_none=True)
        # The denominator is that of the whole minibatch, known before the first piece.
        total = float(rollout.row_weights[rows].sum())
        measured = Measured(total=total, num_rows=len(rows) if self.task.is_sequential else total)
        for part in self.task.parts(rollout, rows):
            reference: MoveDistribution | None = None
            # Where no divergence is in the loss, the first minibatch is enough to watch it, and a forward pass is saved on the others.
            if is_first or knobs.kl_coefficient or knobs.recovery_coefficient:
                with torch.no_grad():
                    reference = self.task.distribution(self.task.reference, part)
            new = self.task.distribution(self.policy, part)
            terms = grpo_objective(new, reference, part, self._config, knobs)
            if torch.isfinite(terms.loss).all():
                fractions = (part.state_weights.double() / total).to(terms.loss.dtype)
                (terms.loss * fractions).sum().backward()  # type: ignore[no-untyped-call]
            else:
                measured.is_finite = False
            measured.add(part, terms, new, reference, knobs)
        return measured

    def _update(self, measured: Measured) -> str:
        """Take one optimiser step; or leave everything as it was and return why."""
        if not measured.is_finite:
            return "the loss is not finite"
        measured.gradient_norm = torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM).item()
        if not math.isfinite(measured.gradient_norm):
            return "the gradient is not finite"
        self._optimiser.step()
        return ""

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

    @torch.no_grad()
    def _update_average(self, *, has_learnt: bool) -> None:
        """Mix the trained weights into their average (Polyak and Juditsky, SIAM J. Control Optim. 30, 1992).

        After n steps the old average's weight is at most n / (n + 9), so that the initial weights are forgotten soon.
        """
        if self._average is not None and has_learnt:
            num_steps = self.num_steps_done - self._first_step
            decay = min(self._config.weight_averaging, num_steps / (num_steps + 9))
            for mean, weights in zip(self._average.network.parameters(), self.policy.network.parameters(), strict=True):
                mean.lerp_(weights, 1 - decay)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Add the block's time to a part of the step."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - started

    # State.

    def state(self, facts: Mapping[str, Any]) -> TrainingState:
        """Return what a checkpoint needs besides the weights of the evaluation policy; `facts` say where they come from."""
        tensors = {f"task.{name}": tensor for name, tensor in self.task.state().items()}
        if self._average is not None:
            tensors |= {f"training.{name}": tensor for name, tensor in self.policy.network.state_dict().items()}
        for index, values in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in values.items()}
        control = {"control": self.control.state(), "reference": self._reference_hash}
        return TrainingState(step=self.num_steps_done, control=control, facts=facts, tensors=tensors)

    def restore(self, policy: _Policy, state: TrainingState) -> None:
        """Resume from a checkpoint.

        Raises IncompatibleError when the checkpoint was trained against another reference.
        """
        self.begin_from(policy, state)
        if self._average is not None:
            self.policy.network.load_state_dict(state.tensors_of("training."))
        self.num_steps_done = state.step
        self.control.restore(state.control["control"])
        self.task.restore(state.tensors_of("task."))

    def begin_from(self, policy: _Policy, state: TrainingState, *, takes_optimiser: bool = True) -> None:
        """Begin a new run at a checkpoint of another, with its optimiser unless told otherwise; schedules and controllers begin anew.

        Raises IncompatibleError when the reference is another.
        """
        then = state.control["reference"]
        if self._reference_hash != then:
            raise IncompatibleError(
                f"the checkpoint of step {state.step:,} was trained against reference {then[:12]}, here it is {self._reference_hash[:12]}:"
                " a KL to another reference is another objective; take up the pretrained policy of that run"
            )
        for ours in (self.policy, self.evaluation_policy):
            ours.network.load_state_dict(policy.network.state_dict())
        moments: dict[int, dict[str, Tensor]] = {}
        for key, tensor in (state.tensors_of("optimiser.") if takes_optimiser else {}).items():
            index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = tensor
        self._optimiser.load_state_dict({"state": moments, "param_groups": self._optimiser.state_dict()["param_groups"]})

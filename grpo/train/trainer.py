"""The GRPO loop for every kind of policy.

- Step: `Trainer.step` samples one rollout (moves or answers with rewards) and takes at most one optimizer step per minibatch.
- Knobs: a step's temperature, loss coefficients and learning rate, set by `grpo.train.control`.
- Reference: the frozen policy that the KL compares with.
- `Problem`: all that depends on the kind of policy.

Differences from published GRPO:
- Nothing is divided by a group's standard deviation or an answer's length (Dr. GRPO, arXiv 2503.20783).
- A network's entropy and KL are sums over all legal moves, not estimates from samples.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.metrics.records import Event, Record
from grpo.policy.checkpoints import TrainingState
from grpo.policy.distribution import PRECISIONS, MoveDistribution
from grpo.policy.files import IncompatibleError
from grpo.policy.policy import Policy, weights_hash
from grpo.settings.grpo import GrpoConfig
from grpo.train.control import MAX_SKIPPED, Control, Knobs
from grpo.train.objective import Batch, Measured, Terms, assert_on_policy, grpo_objective

MAX_GRADIENT_NORM: Final = 1.0
MAX_KL_OLD: Final = 0.15
"""Trust region in nats: a minibatch with a larger KL(old || policy) ends the rollout's optimizer steps. Old: the policy that sampled."""
_OF_PROBLEM: Final = "task."  # Prefix of the problem's tensors in a checkpoint.

_Policy = TypeVar("_Policy", bound=Policy)
_Start = TypeVar("_Start")
_Rollout = TypeVar("_Rollout", bound="Rollout")
_States = TypeVar("_States")


class Rollout(Protocol):
    """A row is a state of a network's `Batch`, or an answer of a language model."""

    @property
    def rows(self) -> Tensor:
        """Indices of the rows to train on."""

    @property
    def row_weights(self) -> Tensor:
        """Weight of each row in a minibatch's mean loss, also of rows outside `rows`."""


class Problem(Protocol[_Policy, _Start, _Rollout, _States]):
    """Implemented in `grpo.train.network_problem` and `grpo.language.learn.problem`."""

    name: str
    """First part of the metrics' names."""
    reference: _Policy
    kl_warmup_steps: int
    """Steps over which the KL coefficient rises linearly; 0 for none."""
    is_sequential: bool
    """True if a row is a sequence of states (an answer's tokens); a row's KL is then the sum over its states."""
    max_log_ratio: float
    """Largest |ln(new / sampled probability)| that rounding causes."""

    def states(self, policy: _Policy, step: int) -> _Start:
        """Return a step's boards or prompts; steps count from 0."""

    def rollout(self, policy: _Policy, states: _Start, knobs: Knobs, step: int) -> _Rollout:
        """Sample and reward. Raises NonFiniteError for NaN or inf, InvariantError if samples disagree with probabilities or rewards."""

    def parts(self, rollout: _Rollout, rows: Tensor) -> Iterator[Batch[_States]]:
        """Yield these rows in pieces for one forward pass each."""

    def distribution(self, policy: _Policy, part: Batch[_States]) -> MoveDistribution: ...

    def entropies(self, rollout: _Rollout) -> tuple[float, float]:
        """Return means in nats: entropy at temperature 1, and ln(legal moves) or ln(vocabulary)."""

    def kl_reference(self, rollout: _Rollout, first: Measured | None) -> float:
        """Return mean KL(policy || reference), in nats; NaN if not measured. `first`: the first optimizer step, if any."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run cannot compute again."""

    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...

    # The methods below are only for the log.

    def rollout_metrics(self, rollout: _Rollout) -> dict[str, float]: ...

    def probe(
        self, part: Batch[_States], terms: Terms, new: MoveDistribution, reference: MoveDistribution | None, knobs: Knobs, /
    ) -> Mapping[str, Tensor]:
        """Return values per state, [B] each, for `step_metrics`."""

    def step_metrics(self, taken: Sequence[Measured], refused: Measured | None) -> dict[str, float]:
        """`taken`: minibatches with an optimizer step, at least one. `refused`: the minibatch above `MAX_KL_OLD`, if any."""


class Trainer(Generic[_Policy, _Start, _Rollout, _States]):
    """Seed and step number determine a step's random streams."""

    def __init__(
        self, problem: Problem[_Policy, _Start, _Rollout, _States], policy: _Policy, config: GrpoConfig, *, seed: int, first_step: int = 0
    ) -> None:
        """Train `policy` in place. Step numbers and schedules begin after `first_step` rollouts of an earlier run."""
        self.problem = problem
        self._average = policy.copied() if config.weight_averaging else None
        self.policy: _Policy = policy.at_precision(PRECISIONS[config.precision])
        self.num_steps_done = first_step
        self.control = Control(config, first_step=first_step, kl_warmup_steps=problem.kl_warmup_steps)
        self._config, self._seed, self._first_step = config, seed, first_step
        self._reference_hash = weights_hash(problem.reference)
        self._parameters = list(policy.network.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=config.learning_rate)
        self._seconds: dict[str, float] = {}

    @property
    def evaluation_policy(self) -> _Policy:
        """The policy to measure, save and play: the moving average, if any, else `policy`."""
        return self.policy if self._average is None else self._average

    def step(self) -> Record:
        """Sample one rollout and take its optimizer steps.

        Raises InvariantError as `Problem.rollout`, and if sampled and computed probabilities differ before the first optimizer step.
        Raises NonFiniteError after `MAX_SKIPPED` non-finite rollouts or minibatches in a row.
        """
        started, self._seconds = time.perf_counter(), {}
        name, events = self.problem.name, list[Event]()
        knobs = self.control.knobs(self.num_steps_done)
        metrics: dict[str, float] = {f"control/{knob}": value for knob, value in asdict(knobs).items()}
        stop = ""
        try:
            rollout = self._rollout(knobs)
        except NonFiniteError as error:
            self._skip(str(error), events)
            metrics[f"{name}/skipped"] = 1.0
            self.num_steps_done += 1
        else:
            metrics |= self.problem.rollout_metrics(rollout)
            taken, learned = self._learn(rollout, knobs, events)
            metrics |= learned
            self.num_steps_done += 1
            self._update_average(has_learned=bool(taken))
            entropy, log_num_legal = self.problem.entropies(rollout)
            kl = self.problem.kl_reference(rollout, taken[0] if taken else None)
            stop, decided = self.control.observe(step=self.num_steps_done, entropy=entropy, log_num_legal=log_num_legal, kl=kl)
            events += decided
            metrics |= self.control.metrics()
        self._seconds["total"] = time.perf_counter() - started
        return Record(self.num_steps_done, metrics, tuple(events), stop)

    def _rollout(self, knobs: Knobs) -> _Rollout:
        with self._timed("states"):
            states = self.problem.states(self.policy, self.num_steps_done)
        with self._timed("rollout"):
            return self.problem.rollout(self.policy, states, knobs, self.num_steps_done)

    def _learn(self, rollout: _Rollout, knobs: Knobs, events: list[Event]) -> tuple[list[Measured], dict[str, float]]:
        taken: list[Measured] = []
        num_skipped, refused = 0, None
        for group in self._optimizer.param_groups:
            group["lr"] = knobs.learning_rate
        for rows in self._minibatches(rollout.rows):
            with self._timed("update"):
                measured = self._backward(rollout, rows, knobs, is_first=not taken)
            if not taken:  # Also after skipped minibatches, which change no weight.
                assert_on_policy(measured, max_log_ratio=self.problem.max_log_ratio)
            elif measured.kl_old > MAX_KL_OLD:
                refused = measured
                message = (
                    f"step {self.num_steps_done + 1:,}: KL(old || policy) is {measured.kl_old:.3g} after {len(taken)} optimizer steps,"
                    f" above {MAX_KL_OLD:g}: the rollout's remaining optimizer steps are left out"
                )
                events.append(Event("trust_region", message))
                break
            with self._timed("update"):
                reason = self._update(measured)
            if reason:
                num_skipped += 1
                self._skip(reason, events)
            else:
                taken.append(measured)
                self.control.reset_skipped()
        name = self.problem.name
        counts = {f"{name}/skipped": float(num_skipped), f"{name}/optimizer_steps": float(len(taken))}
        return taken, {**(self.problem.step_metrics(taken, refused) if taken else {}), **counts}

    def _minibatches(self, rows: Tensor) -> Iterator[Tensor]:
        # 0 is the rollout's only epoch. Parts can be empty.
        order = rows[torch.randperm(len(rows), generator=torch_stream(self._seed, "minibatches", self.num_steps_done, 0))]
        yield from (part for part in order.tensor_split(self._config.num_minibatches) if len(part))

    def _backward(self, rollout: _Rollout, rows: Tensor, knobs: Knobs, *, is_first: bool) -> Measured:
        self._optimizer.zero_grad(set_to_none=True)
        # Each piece's loss is divided by the whole minibatch's weight, so the gradients add up.
        total = float(rollout.row_weights[rows].sum())
        measured = Measured(total=total, num_rows=len(rows) if self.problem.is_sequential else total)
        for part in self.problem.parts(rollout, rows):
            reference: MoveDistribution | None = None
            # Without a KL term in the loss, only the first minibatch measures the KL, because the reference needs a forward pass.
            if is_first or knobs.kl_coefficient or knobs.recovery_coefficient:
                with torch.no_grad():
                    reference = self.problem.distribution(self.problem.reference, part)
            new = self.problem.distribution(self.policy, part)
            terms = grpo_objective(new, reference, part, knobs, clip_low=self._config.clip_low, clip_high=self._config.clip_high)
            if torch.isfinite(terms.loss).all():
                fractions = (part.state_weights.double() / total).to(terms.loss.dtype)
                (terms.loss * fractions).sum().backward()  # type: ignore[no-untyped-call]
            else:
                measured.is_finite = False
            with torch.no_grad():
                informing = self.problem.probe(part, terms, new, reference, knobs)
            measured.add(part, terms, informing)
        return measured

    def _update(self, measured: Measured) -> str:
        if not measured.is_finite:
            return "the loss is not finite"
        measured.gradient_norm = torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM).item()
        if not math.isfinite(measured.gradient_norm):
            return "the gradient is not finite"
        self._optimizer.step()
        return ""

    def _skip(self, reason: str, events: list[Event]) -> None:
        are_too_many = self.control.count_skipped()
        message = f"step {self.num_steps_done + 1:,}: {reason}"
        events.append(Event("step_skipped", f"{message}; no weight was changed, and the learning rate is halved from the next rollout on"))
        if are_too_many:
            raise NonFiniteError(
                f"{message}, {MAX_SKIPPED} times in a row; the weights are those after the last finite optimizer step. Lower"
                " grpo.learning_rate, or look for rewards that are NaN or infinite"
            )

    @torch.no_grad()
    def _update_average(self, *, has_learned: bool) -> None:
        """Update the moving average of the weights (Polyak and Juditsky, SIAM J. Control Optim. 30, 1992).

        In step n, the old average keeps a fraction of at most n / (n + 9), so the initial weights are soon forgotten.
        """
        if self._average is not None and has_learned:
            num_steps = self.num_steps_done - self._first_step
            decay = min(self._config.weight_averaging, num_steps / (num_steps + 9))
            for mean, weights in zip(self._average.network.parameters(), self.policy.network.parameters(), strict=True):
                mean.lerp_(weights, 1 - decay)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - started

    def preflight(self) -> dict[str, float]:
        """Return the next rollout's metrics; change neither weights nor step number.

        Raises InvariantError as `step`, and NonFiniteError at the first non-finite rollout. A non-finite loss raises nothing.
        """
        knobs = self.control.knobs(self.num_steps_done)
        rollout = self._rollout(knobs)
        metrics = self.problem.rollout_metrics(rollout)
        if len(rollout.rows):
            measured = self._backward(rollout, rollout.rows, knobs, is_first=True)
            assert_on_policy(measured, max_log_ratio=self.problem.max_log_ratio)
            self._optimizer.zero_grad(set_to_none=True)
            metrics = {f"{self.problem.name}/kl_reference": measured.kl_reference, **metrics}
        return metrics

    def timings(self) -> Record:
        """Return the last step's seconds. `step`'s record has no times, because equal runs have equal records."""
        parts = {part: self._seconds.get(part, 0.0) for part in ("states", "rollout", "update")}
        total = self._seconds.get("total", 0.0)
        times = {f"time/{part}": seconds for part, seconds in {**parts, "other": max(0.0, total - sum(parts.values()))}.items()}
        return Record(self.num_steps_done, times)

    def state(self, facts: Mapping[str, Any]) -> TrainingState:
        """Return all of a checkpoint except the evaluation policy. `facts`: JSON values to store, such as the settings."""
        tensors = {f"{_OF_PROBLEM}{name}": tensor for name, tensor in self.problem.state().items()}
        if self._average is not None:
            tensors |= {f"training.{name}": tensor for name, tensor in self.policy.network.state_dict().items()}
        for index, values in self._optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": tensor for name, tensor in values.items()}
        control = {"control": self.control.state(), "reference": self._reference_hash}
        return TrainingState(step=self.num_steps_done, control=control, facts=facts, tensors=tensors)

    def resume(self, policy: _Policy, state: TrainingState) -> None:
        """Continue a run from its checkpoint; `policy` is the evaluation policy. Raises IncompatibleError as `begin_from`."""
        self.begin_from(policy, state)
        if self._average is not None:
            self.policy.network.load_state_dict(state.tensors_of("training."))
        self.num_steps_done = state.step
        self.control.restore(state.control["control"])
        self.problem.restore(state.tensors_of(_OF_PROBLEM))

    def begin_from(self, policy: _Policy, state: TrainingState, *, takes_optimizer: bool = True) -> None:
        """Load a checkpoint's weights and, if `takes_optimizer`, Adam's moments. Step number, schedules and controllers stay.

        Raises IncompatibleError if the checkpoint was trained against another reference.
        """
        reference_hash = state.control["reference"]
        if self._reference_hash != reference_hash:
            raise IncompatibleError(
                f"the checkpoint of step {state.step:,} was trained against reference {reference_hash[:12]}, this run's is"
                f" {self._reference_hash[:12]}: KL to another reference is another objective; use that run's pretrained policy"
            )
        for target in (self.policy, self.evaluation_policy):
            target.network.load_state_dict(policy.network.state_dict())
        moments: dict[int, dict[str, Tensor]] = {}
        for key, tensor in (state.tensors_of("optimizer.") if takes_optimizer else {}).items():
            index, name = key.split(".")
            moments.setdefault(int(index), {})[name] = tensor
        self._optimizer.load_state_dict({"state": moments, "param_groups": self._optimizer.state_dict()["param_groups"]})


AnyTrainer = Trainer[Any, Any, Any, Any]

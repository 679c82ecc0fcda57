"""The GRPO loop, one record a step; no logger inside.

Legend: B states, A legal moves (padded), M moves of a state that are in the surrogate.
"""

import copy
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.control.controller import Action, Control, Knobs, Observation, Outcome
from grpo.learning.checkpoints import TrainingState, weights_hash
from grpo.learning.distributed import ALONE, Processes
from grpo.learning.invariants import InvariantError, assert_on_policy, assert_rollout
from grpo.learning.learnability import Learnability, assess_learnability
from grpo.learning.measurements import InnerStep, RolloutFacts, inner_metrics, rollout_facts
from grpo.learning.objective import Objective, budget, gradient_products, grpo_objective, logit_descents
from grpo.learning.rollouts import Replies, Roller, Rollout
from grpo.learning.states import States, StateSource, ValueSource
from grpo.metrics.table import TERM_PAIRS, TERM_PRODUCTS, TERMS, Event, Record
from grpo.policy.averaging import WeightAverage
from grpo.policy.distribution import MoveDistribution, NetworkPolicy
from grpo.policy.files import IncompatibleError
from grpo.settings.grpo import GrpoConfig

_TRAINING: Final = "training."
"""Prefix of the weights that are trained, among a checkpoint's tensors, where the weights that it is judged by are their average."""
PRECISIONS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """All that a step changes, as it was after one: kept in memory, so that an interrupted step can be taken back."""

    weights: Mapping[str, Tensor]
    """Of the policy that a checkpoint would hold."""
    optimiser: Mapping[str, Any]
    controllers: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    reference: Mapping[str, Tensor]
    """Its weights; none where it is never refreshed."""
    step: int


class GrpoTrainer:
    """Group relative policy optimisation of one policy; call `step` as often as wanted, and look at `outcome` after each."""

    def __init__(
        self,
        policy: NetworkPolicy,
        reference: NetworkPolicy,
        states: StateSource,
        config: GrpoConfig,
        *,
        seed: int,
        first_step: int = 0,
        values: ValueSource | None = None,
        rival: Replies | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """Prepare training.

        Args:
            policy: what is trained; a copy of the reference, or a resumed policy.
            reference: the frozen healthy policy of the KL terms.
            states: where first states come from.
            config: GRPO's settings.
            seed: root of all random streams.
            first_step: rollouts that were done when this run began; schedules count from there.
            values: values moves in states beyond the first ones; needed with depth.
            rival: Stockfish as rival or teacher; needed where the settings say so.
            processes: who trains with us, each on its own rows.

        Raises ValueError for a network with dropout, which would be trained as another policy than the one that plays, and for more
        processes than states.
        """
        refuse_dropout(policy.network)
        if processes.size > config.states_per_step:
            raise ValueError(f"{processes.size} processes cannot share {config.states_per_step} states a step: start fewer")
        self._precision = PRECISIONS[config.precision]
        self._average = WeightAverage(policy, decay=config.weight_averaging) if config.weight_averaging else None
        self.policy: NetworkPolicy = policy.at_precision(self._precision, is_compiled=config.is_compiled)
        self.num_steps_done = first_step
        self.healthy_step: int | None = None
        """The last checkpoint whose policy was healthy; the loop that writes checkpoints calls `checkpointed`."""
        self.outcome = Outcome(Action.GO_ON, "", "", ())
        self.control = Control(config, first_step=first_step)
        # A copy: a refreshed reference changes, and the caller's must not.
        self._reference = copy.deepcopy(reference).at_precision(self._precision, is_compiled=False)
        self._reference_hash = weights_hash(self._reference)
        self._is_reference_refreshed = False
        self._states = states
        self._config = config
        self._seed = seed
        self._first_step = first_step
        self._processes = processes
        self._roller = Roller(config, seed=seed, values=values, rival=rival)
        self._parameters = [parameter for parameter in policy.network.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.Adam(self._parameters, lr=config.learning_rate)
        self._clock = _Clock()

    @property
    def judged(self) -> NetworkPolicy:
        """The policy that is measured, saved and played: the average of the weights, or the weights themselves where there is none."""
        return self.policy if self._average is None else self._average.policy

    def state(self, facts: Mapping[str, Any]) -> TrainingState:
        """Return what a checkpoint needs besides the weights of the policy that is judged."""
        source, tensors = self._states.state()
        reference = self._reference.network.state_dict() if self._is_reference_refreshed else {}
        training = {} if self._average is None else self.policy.network.state_dict()
        return TrainingState(
            step=self.num_steps_done,
            optimiser=self._optimiser.state_dict(),
            controllers={
                "control": self.control.state(),
                "states": source,
                "trainer": {
                    "healthy_step": self.healthy_step,
                    "reference": self._reference_hash,
                    "is_reference_refreshed": self._is_reference_refreshed,
                },
            },
            tensors={
                **{f"states.{name}": tensor for name, tensor in tensors.items()},
                **{f"reference.{name}": tensor for name, tensor in reference.items()},
                **{f"{_TRAINING}{name}": tensor for name, tensor in training.items()},
            },
            facts=facts,
        )

    def restore(self, state: TrainingState) -> None:
        """Take up a checkpoint's state, its weights being the policy's already.

        Raises IncompatibleError when the reference is not the one that the checkpoint was trained against.
        """
        self._take_up_reference(state)
        self._take_up_weights(state)
        self._load_optimiser(state)
        self.num_steps_done = state.step
        self.healthy_step = state.controllers["trainer"]["healthy_step"]
        self.control.restore(state.controllers["control"])
        self._states.restore(state.controllers["states"], _named("states.", state.tensors))

    def begin_from(self, state: TrainingState) -> None:
        """Begin a new run at a checkpoint of another: weights are the policy's already; schedules and controllers begin anew.

        Its optimiser is taken up, and its reference if that had been refreshed. Raises IncompatibleError when the reference is another.
        """
        self._take_up_reference(state)
        if self._average is not None:
            self._average.begin_at(self.policy)
        self._load_optimiser(state)

    def _take_up_weights(self, state: TrainingState) -> None:
        """Sort out the policy's weights, which are those that a checkpoint was judged by: training goes on from those beside them."""
        if self._average is not None:
            self._average.begin_at(self.policy)
        if training := _named(_TRAINING, state.tensors):
            self.policy.network.load_state_dict(training)

    def _take_up_reference(self, state: TrainingState) -> None:
        then = state.controllers["trainer"]
        if then["is_reference_refreshed"] or self._is_reference_refreshed:
            if then["is_reference_refreshed"]:
                self._reference.network.load_state_dict(_named("reference.", state.tensors))
            self._reference_hash = weights_hash(self._reference)
        self._is_reference_refreshed = then["is_reference_refreshed"]
        if self._reference_hash != then["reference"]:
            raise IncompatibleError(
                f"the checkpoint of step {state.step:,} was trained against reference {then['reference'][:12]}, here it is"
                f" {self._reference_hash[:12]}: a KL to another reference is another objective; take up the pretrained policy of that run"
            )

    def _load_optimiser(self, state: TrainingState) -> None:
        # A copy: the optimiser keeps the tensors it is given, and changes them in place.
        self._optimiser.load_state_dict(_copied(dict(state.optimiser)))

    def snapshot(self) -> Snapshot:
        """Return a copy of all that a step changes."""
        state = self.state({})
        return Snapshot(
            weights=_copied(self.judged.network.state_dict()),
            optimiser=_copied(state.optimiser),
            controllers=dict(state.controllers),
            # Those of the states are never changed in place; the reference is copied below.
            tensors={name: _copied(tensor) if name.startswith(_TRAINING) else tensor for name, tensor in state.tensors.items()},
            reference=_copied(self._reference.network.state_dict()) if self._config.steps_per_reference_refresh else {},
            step=state.step,
        )

    def reset(self, snapshot: Snapshot) -> None:
        """Take back whatever was done since the snapshot."""
        self.policy.network.load_state_dict(dict(snapshot.weights))
        if snapshot.reference:
            self._reference.network.load_state_dict(dict(snapshot.reference))
        self.restore(
            TrainingState(
                step=snapshot.step,
                optimiser=snapshot.optimiser,
                controllers=snapshot.controllers,
                tensors=snapshot.tensors,
                facts={},
            )
        )

    def checkpointed(self) -> None:
        """Take note, before its state is asked for, that a checkpoint is made now; it is the one to roll back to if it is healthy."""
        if self.control.is_healthy:
            self.healthy_step = self.num_steps_done

    def roll_back(self, state: TrainingState, weights: Mapping[str, Tensor]) -> Event:
        """Take back weights and optimiser to a healthy checkpoint's; steps go on being counted, and the learning rate is cut."""
        self.policy.network.load_state_dict(dict(weights))
        self._take_up_weights(state)
        self._load_optimiser(state)
        self.control.rolled_back()
        self.outcome = Outcome(Action.GO_ON, "", "", ())
        return Event("rolled_back", f"weights and optimiser are those of step {state.step:,} again")

    def cannot_roll_back(self) -> None:
        """Take note that there is no healthy checkpoint: training stops."""
        self.outcome = self.control.no_checkpoint()

    def timings(self) -> Record:
        """Return where the last step's time went: it differs between equal runs."""
        return Record(self.num_steps_done, self._clock.metrics())

    def preflight(self) -> Learnability:
        """Return whether there is anything to learn, from the rollout that the next step will make; changes nothing.

        Raises NonFiniteError when the policy's probabilities are no numbers.
        """
        knobs = self.control.knobs(self.num_steps_done)
        rollout = self._rollout(knobs)
        facts = rollout_facts(rollout, self._processes)
        measured = self._backward(rollout, knobs, is_first=True, wants_budget=True)
        self._optimiser.zero_grad(set_to_none=True)
        # A run that begins at no other's checkpoint begins at its reference.
        return assess_learnability(facts, measured, self._config, is_at_reference=self._first_step == 0)

    def step(self) -> Record:
        """Sample groups, take the optimiser steps of one rollout, and return what was measured and what happened.

        Raises InvariantError when the first inner step does not score as the sampler did, NonFiniteError after too many non-finite
        steps in a row.
        """
        self._clock.begin()
        knobs = self.control.knobs(self.num_steps_done)
        for group in self._optimiser.param_groups:
            group["lr"] = knobs.learning_rate
        events: list[Event] = []
        rollout, problem = self._finite_rollout(knobs)
        if rollout is None:
            self._skip(problem, events)
            self.num_steps_done += 1
            self.outcome = Outcome(Action.GO_ON, "", "", ())
            self._clock.end(0)
            return Record(self.num_steps_done, {**_knob_metrics(knobs), "grpo/skipped": 1.0}, tuple(events))
        facts = rollout_facts(rollout, self._processes)
        assert_rollout(rollout, self._config)
        inner, num_skipped, refused = self._learn(rollout, facts, knobs, events)
        self.num_steps_done += 1
        if self._average is not None and inner:
            self._average.update(self.policy, self.num_steps_done - self._first_step)
        metrics = {
            **facts.metrics,
            **self._states.round_metrics(),
            "grpo/states_own": self._states.own_share,
            "grpo/source_forced": float(self._states.num_forced),
            **(inner_metrics(inner, refused) if inner else {}),
            **_knob_metrics(knobs),
            "grpo/skipped": float(num_skipped),
            "grpo/optimiser_steps": float(len(inner)),
        }
        self.outcome = self.control.observe(_observation(self.num_steps_done, facts, inner[0] if inner else None, self._config))
        events += self.outcome.events
        events += self._refreshed_reference()
        self._clock.end(facts.num_transitions)
        return Record(self.num_steps_done, metrics | self.control.metrics(), tuple(events))

    def _finite_rollout(self, knobs: Knobs) -> tuple[Rollout | None, str]:
        """Return the rollout; none, and why, where the policy's probabilities are not finite in any process."""
        rollout, problem = None, "the policy's probabilities are not finite in another process"
        try:
            rollout = self._rollout(knobs)
        except NonFiniteError as error:
            problem = str(error)
        # All processes go the same way, or some would wait for the others for ever.
        return (None, problem) if self._processes.any(rollout is None, self.policy.device) else (rollout, "")

    def _rollout(self, knobs: Knobs) -> Rollout:
        """Return this process's part of the step's rollout."""
        with self._clock.part("states"):
            everything = self._states.states(self.num_steps_done, self.policy)
            self._refuse_unlike(everything)
            indices = self._processes.own_rows(len(everything))
            states = everything.select_rows(indices) if self._processes.size > 1 else everything
        with self._clock.part("rollout"):
            rollout = self._roller.rollout(
                self.policy, states, indices, num_states=len(everything), step=self.num_steps_done, temperature=knobs.temperature
            )
        return rollout.to(self.policy.device)

    def _refuse_unlike(self, states: States) -> None:
        """Raise InvariantError when processes have different states: each takes rows of its own of what must be one batch."""
        if self._processes.size == 1:
            return
        sums = [len(states), int(states.positions.encodings.long().sum()), float(states.values.double().nan_to_num(-1).sum())]
        found = self._processes.gathered(torch.tensor([sums], dtype=torch.float64, device=self.policy.device))
        if not torch.equal(found, found[:1].expand_as(found)):
            raise InvariantError(
                f"step {self.num_steps_done + 1:,}: processes have different states (an engine failed in one of them, or they are unlike"
                " machines); end all and run the same again"
            )

    def _learn(
        self, rollout: Rollout, facts: RolloutFacts, knobs: Knobs, events: list[Event]
    ) -> tuple[list[InnerStep], int, InnerStep | None]:
        """Take the optimiser steps of a rollout.

        Returns what each measured, how many were left out, and what was measured where the trust region ended them.
        """
        config = self._config
        inner: list[InnerStep] = []
        num_skipped = 0
        for epoch in range(config.num_inner_epochs):
            rng = torch_stream(self._seed, "minibatches", self.num_steps_done, epoch)
            for chosen in facts.indices[torch.randperm(len(facts.indices), generator=rng)].tensor_split(config.num_minibatches):
                if not len(chosen):
                    continue  # Fewer states than minibatches: the engine failed on the others.
                rows = torch.isin(rollout.indices.cpu(), chosen).nonzero()[:, 0].to(rollout.indices.device)
                wants_budget = not inner and (self.num_steps_done - self._first_step) % config.steps_per_gradient_budget == 0
                with self._clock.part("update"):
                    measured = self._backward(rollout.select_rows(rows), knobs, is_first=not inner, wants_budget=wants_budget)
                if not inner:
                    assert_on_policy(measured, self._precision)
                # Never before the first step: what is measured there is rounding.
                if inner and config.max_kl_old and measured.kl_old > 1.5 * config.max_kl_old:
                    events.append(_trust_region(self.num_steps_done + 1, measured.kl_old, len(inner), config.max_kl_old))
                    return inner, num_skipped, measured
                with self._clock.part("update"):
                    problem = self._update(measured)
                if problem:
                    num_skipped += 1
                    self._skip(problem, events)
                else:
                    self.control.finite()
                    inner.append(measured)
        return inner, num_skipped, None

    def _backward(self, minibatch: Rollout, knobs: Knobs, *, is_first: bool, wants_budget: bool) -> InnerStep:
        """Leave the minibatch's gradient in the parameters, whole over all pieces and processes, and return what was measured."""
        self._optimiser.zero_grad(set_to_none=True)
        total = minibatch.state_weights.sum().double()
        self._processes.sum_([total])
        step = InnerStep(total=float(total.item()), device=self.policy.device)
        by_term: dict[str, list[Tensor]] = {}
        for rows in torch.split(torch.arange(len(minibatch), device=self.policy.device), self._config.max_states_per_forward):
            if not len(rows):
                continue
            piece = minibatch.select_rows(rows)
            objective, products = self._objective(piece, knobs, is_first=is_first)
            # The denominator is that of the whole minibatch, known before the first piece.
            shares = (piece.state_weights.double() / step.total).to(objective.loss.dtype)
            if wants_budget:
                self._add_term_gradients(objective, shares, by_term)
            if torch.isfinite(objective.loss).all():
                (objective.loss * shares).sum().backward()  # type: ignore[no-untyped-call]
            else:
                step.is_finite = False
            step.add(piece, objective, products)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        # Every process has the same list, or none: a process without rows sends zeros.
        if self._processes.size > 1:
            gradients = [self._zero_if_none(parameter) for parameter in self._parameters]
        self._processes.sum_(gradients)
        step.gather(self._processes)
        if wants_budget:
            step.parameter_budget = self._parameter_budget(by_term)
        return step

    def _objective(self, piece: Rollout, knobs: Knobs, *, is_first: bool) -> tuple[Objective, dict[tuple[str, str], Tensor]]:
        positions, temperature = piece.states.positions, piece.temperature
        reference: MoveDistribution | None = None
        # Where no divergence is in the loss, the first minibatch is enough to watch it, and a forward pass is saved on the others.
        if is_first or knobs.kl_coefficient or knobs.recovery_coefficient:
            with torch.no_grad():
                reference = self._reference.distribution(positions, temperature=temperature)
        new = self.policy.distribution(positions, temperature=temperature)
        shared = {"new": new, "reference": reference, "moves": piece.moves, "config": self._config, "knobs": knobs}
        objective = grpo_objective(old=piece.old, **shared)  # type: ignore[arg-type]
        descents = logit_descents(objective=objective, temperature=temperature, **shared)  # type: ignore[arg-type]
        return objective, gradient_products(descents)

    def _zero_if_none(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad

    def _add_term_gradients(self, objective: Objective, shares: Tensor, by_term: dict[str, list[Tensor]]) -> None:
        for term in TERMS:
            term_loss = (objective.weighted[term] * shares).sum()
            if not term_loss.requires_grad:
                continue
            found = torch.autograd.grad(term_loss, self._parameters, retain_graph=True, materialize_grads=True)
            before = by_term.get(term)
            by_term[term] = list(found) if before is None else [one + other for one, other in zip(before, found, strict=True)]

    def _parameter_budget(self, by_term: dict[str, list[Tensor]]) -> dict[tuple[str, str], float]:
        """Return the inner products of the terms' gradients in the parameters, over all processes."""
        zero = [torch.zeros_like(parameter) for parameter in self._parameters]
        whole = {term: by_term.get(term, zero) for term in TERMS}
        for term in TERMS:
            whole[term] = [gradient.clone() for gradient in whole[term]]
            self._processes.sum_(whole[term])
        flat = {term: torch.cat([gradient.flatten().double() for gradient in gradients]) for term, gradients in whole.items()}
        return {(one, other): float((flat[one] @ flat[other]).item()) for one, other in TERM_PRODUCTS}

    def _update(self, step: InnerStep) -> str:
        """Take one optimiser step; or leave everything as it was and return why."""
        if not step.is_finite:
            return "the loss is not finite"
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_gradient_norm).item()
        if not math.isfinite(norm):
            return "the gradient is not finite"
        step.gradient_norm = norm
        self._optimiser.step()
        return ""

    def _skip(self, problem: str, events: list[Event]) -> None:
        """Count a step that was left out, and raise NonFiniteError after too many."""
        is_enough = self.control.skipped()
        after = f"step {self.num_steps_done + 1:,}: {problem}"
        events.append(Event("step_skipped", f"{after}; nothing was changed, and the learning rate is cut from the next rollout on"))
        if is_enough:
            raise NonFiniteError(
                f"{after}, {self._config.max_skipped_steps} times in a row; the weights are those before it. Lower grpo.learning_rate, or"
                " look for values that are not finite"
            )

    def _refreshed_reference(self) -> list[Event]:
        every = self._config.steps_per_reference_refresh
        if not every or (self.num_steps_done - self._first_step) % every or not self.control.is_healthy:
            return []
        self._reference.network.load_state_dict(_copied(self.policy.network.state_dict()))
        self._reference_hash = weights_hash(self._reference)
        self._is_reference_refreshed = True
        return [Event("reference_refreshed", f"step {self.num_steps_done:,}: the reference is the policy as it is now")]


def refuse_dropout(network: nn.Module) -> None:
    """Raise ValueError when a layer of the network drops something in training mode."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ValueError(
                f"layer {name} has dropout {module.p}: log-probabilities of sampling and of the loss would differ; set it to 0"
            )


def _trust_region(step: int, kl_old: float, num_taken: int, max_kl_old: float) -> Event:
    return Event(
        "trust_region",
        f"step {step:,}: KL(old || policy) is {kl_old:.3g} after {num_taken} optimiser steps, above 1.5 times grpo.max_kl_old ="
        f" {max_kl_old:g}: the rest of this rollout's were left out",
    )


def _observation(step: int, facts: RolloutFacts, first: InnerStep | None, config: GrpoConfig) -> Observation:
    norms, _, cosines = budget(first.products) if first is not None else (dict.fromkeys(TERMS, 0.0), {}, dict.fromkeys(TERM_PAIRS, 0.0))
    metrics = facts.metrics
    to_reference = config.kl_direction == "policy_to_reference"
    return Observation(
        step=step,
        entropy=metrics["grpo/entropy"],
        normalised_entropy=metrics["grpo/normalised_entropy"],
        log_num_legal=metrics["grpo/log_num_legal"],
        kl=math.nan if first is None else first.mean("kl_reference" if to_reference else "kl_from_reference"),
        silent_groups=metrics["grpo/silent_groups"],
        agreement=metrics["grpo/agreement"],
        agreement_max=metrics["grpo/agreement_max"],
        norms=norms,
        cosines=cosines,
    )


def _knob_metrics(knobs: Knobs) -> dict[str, float]:
    return {
        "control/temperature": knobs.temperature,
        "control/entropy_coefficient": knobs.entropy_coefficient,
        "control/kl_coefficient": knobs.kl_coefficient,
        "control/recovery_coefficient": knobs.recovery_coefficient,
        "control/learning_rate": knobs.learning_rate,
    }


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _copied(value: Any) -> Any:
    """Return a deep copy in which every tensor is one of its own."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


class _Clock:
    """Where a step's wall time goes."""

    def __init__(self) -> None:
        self._total, self._num_transitions = 0.0, 0
        self.begin()

    def begin(self) -> None:
        self._parts, self._started = dict.fromkeys(("states", "rollout", "update"), 0.0), time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self._parts[name] += time.perf_counter() - started

    def end(self, num_transitions: int) -> None:
        self._total, self._num_transitions = time.perf_counter() - self._started, num_transitions

    def metrics(self) -> dict[str, float]:
        return {
            **{f"time/{name}": seconds for name, seconds in self._parts.items()},
            "time/other": max(0.0, self._total - sum(self._parts.values())),
            "time/transitions_per_second": self._num_transitions / self._total if self._total else 0.0,
        }

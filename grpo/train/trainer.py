"""The GRPO loop, one record a step; no logger inside.

Legend: B states, A legal moves (padded), M moves of a state that are in the surrogate.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import torch_stream
from grpo.policy.averaging import WeightAverage
from grpo.policy.distribution import MoveDistribution, NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.settings.metrics import Event, Record
from grpo.train.checkpoints import TrainingState
from grpo.train.controller import Knobs, Observation
from grpo.train.invariants import assert_on_policy, assert_rollout
from grpo.train.lifecycle import PRECISIONS, TrainerLifecycle, copied, prefixed, unprefixed
from grpo.train.measurements import InnerStep, inner_metrics, rollout_metrics
from grpo.train.objective import Objective, gradient_products, grpo_objective, logit_descents
from grpo.train.rollouts import Roller, Rollout
from grpo.train.states import StateSource, ValueSource

_TRAINING: Final = "training."
"""Prefix of the trained weights among a checkpoint's tensors, where the evaluation policy has their moving average (EMA)."""


class GrpoTrainer(TrainerLifecycle[NetworkPolicy]):
    """Group relative policy optimisation of a chess network."""

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
    ) -> None:
        """Prepare training.

        Args:
            policy: what is trained; a copy of the reference, or a resumed policy.
            reference: the frozen healthy policy of the KL terms.
            states: where initial states come from.
            config: GRPO's settings.
            seed: root of all random streams.
            first_step: rollouts that were done when this run began; schedules count from there.
            values: values moves in states beyond the initial ones; needed for trajectories of several own moves.

        Raises ValueError for a network with dropout, which would be trained as another policy than the one that plays.
        """
        refuse_dropout(policy.network)
        precision = PRECISIONS[config.precision]
        self._reference = reference.at_precision(precision)
        self._average = WeightAverage(policy, decay=config.weight_averaging) if config.weight_averaging else None
        policy = policy.at_precision(precision)
        super().__init__(policy, self._reference.network, config, first_step=first_step)
        self._states = states
        self._seed = seed
        self._roller = Roller(config, seed=seed, values=values)
        self._num_transitions = 0

    @property
    def evaluation_policy(self) -> NetworkPolicy:
        """The policy that is measured, saved and played: the EMA policy, or the trained one where weights are not averaged."""
        return self.policy if self._average is None else self._average.policy

    def timings(self) -> Record:
        """Return where the last step's time went: it differs between equal runs."""
        rate = self._num_transitions / self._clock.total if self._clock.total else 0.0
        return Record(self.num_steps_done, {**self._clock.metrics(), "time/transitions_per_second": rate})

    def _own_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        source, tensors = self._states.state()
        training = {} if self._average is None else self.policy.network.state_dict()
        return {"states": source}, {**prefixed("states.", tensors), **prefixed(_TRAINING, copied(training))}

    def _restore_own(self, state: TrainingState) -> None:
        self._states.restore(state.controllers["states"], unprefixed("states.", state.tensors))

    def _load_training_weights(self, state: TrainingState, *, begins_run: bool) -> None:
        if self._average is not None:
            self._average.begin_at(self.policy)
        if not begins_run and (training := unprefixed(_TRAINING, state.tensors)):
            self.policy.network.load_state_dict(training)

    def _knob_metrics(self, knobs: Knobs) -> dict[str, float]:
        return {**super()._knob_metrics(knobs), "control/recovery_coefficient": knobs.recovery_coefficient}

    def preflight(self) -> Mapping[str, float]:
        """Return the metrics of the rollout that the next step will make; changes nothing.

        Raises InvariantError when it does not score as the sampler did, NonFiniteError when the policy's probabilities are NaN or infinite.
        """
        knobs = self.control.knobs(self.num_steps_done)
        rollout = self._rollout(knobs)
        metrics = rollout_metrics(rollout)
        measured = self._backward(rollout, knobs, is_first=True)
        assert_on_policy(measured, self._precision)
        self._optimiser.zero_grad(set_to_none=True)
        return metrics | {"grpo/kl_reference": measured.mean("kl_reference")}

    def step(self) -> Record:
        """Sample groups, take the optimiser steps of one rollout, and return what was measured and what happened.

        Raises InvariantError when the first inner step does not score as the sampler did, NonFiniteError after too many non-finite
        steps in a row.
        """
        knobs = self._begin_step()
        self._num_transitions = 0
        rollout, problem = self._finite_rollout(knobs)
        if rollout is None:
            return self._end_skipped_step(problem, {**self._knob_metrics(knobs), "grpo/skipped": 1.0})
        events: list[Event] = []
        found = rollout_metrics(rollout)
        assert_rollout(rollout, self._config)
        inner, num_skipped, refused = self._learn(rollout, knobs, events)
        self.num_steps_done += 1
        if self._average is not None and inner:
            self._average.update(self.policy, self.num_steps_done - self._first_step)
        metrics = {
            **found,
            **self._states.round_metrics(),
            **(inner_metrics(inner, refused) if inner else {}),
            **self._knob_metrics(knobs),
            "grpo/skipped": float(num_skipped),
            "grpo/optimiser_steps": float(len(inner)),
        }
        self._num_transitions = int((rollout.moves.weights > 0).sum())
        observation = Observation(
            step=self.num_steps_done,
            entropy=found["grpo/entropy"],
            log_num_legal=found["grpo/log_num_legal"],
            kl=inner[0].mean("kl_reference") if inner else math.nan,
            silent_groups=found["grpo/zero_variance_groups"],
            agreement=found["grpo/agreement"],
        )
        return self._end_step(metrics, observation, events)

    def _finite_rollout(self, knobs: Knobs) -> tuple[Rollout | None, str]:
        """Return the rollout; none, and why, where the policy's probabilities are not finite."""
        try:
            return self._rollout(knobs), ""
        except NonFiniteError as error:
            return None, str(error)

    def _rollout(self, knobs: Knobs) -> Rollout:
        with self._clock.part("states"):
            states = self._states.states(self.num_steps_done, self.policy)
        with self._clock.part("rollout"):
            rollout = self._roller.rollout(self.policy, states, step=self.num_steps_done, temperature=knobs.temperature)
        return rollout.to(self.policy.device)

    def _learn(self, rollout: Rollout, knobs: Knobs, events: list[Event]) -> tuple[list[InnerStep], int, InnerStep | None]:
        """Take the optimiser steps of a rollout.

        Returns what each measured, how many were left out, and what was measured where the trust region ended them.
        """
        config = self._config
        inner: list[InnerStep] = []
        num_skipped = 0
        for epoch in range(config.num_inner_epochs):
            rng = torch_stream(self._seed, "minibatches", self.num_steps_done, epoch)
            for chosen in torch.randperm(len(rollout), generator=rng).tensor_split(config.num_minibatches):
                if not len(chosen):
                    continue  # Fewer states than minibatches: the engine failed on the others.
                rows = chosen.sort().values.to(self.policy.device)
                with self._clock.part("update"):
                    measured = self._backward(rollout.select_rows(rows), knobs, is_first=not inner)
                if not inner:
                    assert_on_policy(measured, self._precision)
                if self._leaves_trust_region(measured.kl_old, len(inner), events):
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

    def _backward(self, minibatch: Rollout, knobs: Knobs, *, is_first: bool) -> InnerStep:
        """Leave the minibatch's gradient in the parameters, whole over all pieces, and return what was measured."""
        self._optimiser.zero_grad(set_to_none=True)
        step = InnerStep(total=float(minibatch.state_weights.sum().double().item()), device=self.policy.device)
        for rows in torch.split(torch.arange(len(minibatch), device=self.policy.device), self._config.max_states_per_forward):
            piece = minibatch.select_rows(rows)
            objective, products = self._objective(piece, knobs, is_first=is_first)
            # The denominator is that of the whole minibatch, known before the first piece.
            fractions = (piece.state_weights.double() / step.total).to(objective.loss.dtype)
            if torch.isfinite(objective.loss).all():
                (objective.loss * fractions).sum().backward()  # type: ignore[no-untyped-call]
            else:
                step.is_finite = False
            step.add(piece, objective, products)
        step.finish()
        return step

    def _objective(self, piece: Rollout, knobs: Knobs, *, is_first: bool) -> tuple[Objective, dict[tuple[str, str], Tensor]]:
        positions, temperature = piece.states.positions, piece.temperature
        reference: MoveDistribution | None = None
        # Where no divergence is in the loss, the first minibatch is enough to watch it, and a forward pass is saved on the others.
        if is_first or knobs.kl_coefficient or knobs.recovery_coefficient:
            with torch.no_grad():
                reference = self._reference.distribution(positions, temperature=temperature)
        new = self.policy.distribution(positions, temperature=temperature)
        objective = grpo_objective(new=new, old=piece.old, reference=reference, moves=piece.moves, config=self._config, knobs=knobs)
        descents = logit_descents(
            new=new, reference=reference, moves=piece.moves, objective=objective, temperature=temperature, knobs=knobs
        )
        return objective, gradient_products(descents)

    def _update(self, step: InnerStep) -> str:
        """Take one optimiser step; or leave everything as it was and return why."""
        norm, problem = self._optimise(is_finite=step.is_finite)
        if not problem:
            step.gradient_norm = norm
        return problem


def refuse_dropout(network: nn.Module) -> None:
    """Raise ValueError when a layer of the network drops something in training mode."""
    for name, module in network.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise ValueError(
                f"layer {name} has dropout {module.p}: log-probabilities of sampling and of the loss would differ; set it to 0"
            )

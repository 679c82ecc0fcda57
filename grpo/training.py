"""The GRPO loop, one record a step; no logger inside.

Legend: B boards, A legal moves (padded), G moves of a group.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from grpo.advantages import ESTIMATORS
from grpo.checkpoints import TrainingState
from grpo.config import GrpoConfig
from grpo.control import Controller, EntropyStop, SkipStop
from grpo.errors import NonFiniteError
from grpo.metrics import Record
from grpo.objective import Objective, grpo_objective
from grpo.phases import PHASES
from grpo.policy import NetworkPolicy, Policy
from grpo.rollouts import Rollout, StateSource, sample_groups
from grpo.seeding import torch_stream

_MAX_LOG_RATIO: Final = 1e-3  # Float32 noise between two batch shapes is 1e-6; temperature 1.3 against 1 gives 0.1 and more.
_MAX_KL: Final = 1e-5


class InvariantError(AssertionError):
    """Sampler and trainer do not score alike: the run would train a policy that it does not sample."""


class GrpoTrainer:
    """Group relative policy optimisation of one policy; call `step` as often as wanted."""

    def __init__(self, policy: NetworkPolicy, reference: Policy, states: StateSource, config: GrpoConfig, *, seed: int) -> None:
        """Prepare training; `reference` is the frozen pretrained policy, and `policy` may be a copy of it or a resumed one."""
        self.policy = policy
        self.num_steps_done = 0
        self.entropy_stop = EntropyStop(critical_nats=config.critical_entropy, window=config.critical_window)
        self._skip_stop = SkipStop(max_in_a_row=config.max_skipped_steps)
        self._controllers: dict[str, Controller] = {"entropy_stop": self.entropy_stop, "skip_stop": self._skip_stop}
        self._reference = reference
        self._states = states
        self._config = config
        self._seed = seed
        self._advantages = ESTIMATORS[config.estimator]
        self._parameters = [parameter for parameter in policy.network.parameters() if parameter.requires_grad]
        self._optimiser = torch.optim.Adam(self._parameters, lr=config.learning_rate)

    def state(self, facts: Mapping[str, Any]) -> TrainingState:
        """Return what a checkpoint needs besides the weights."""
        return TrainingState(
            step=self.num_steps_done,
            optimiser=self._optimiser.state_dict(),
            controllers={name: controller.state() for name, controller in self._controllers.items()},
            facts=facts,
        )

    def restore(self, state: TrainingState) -> None:
        """Take up a checkpoint's state; the learning rate stays the one of this run's settings."""
        self._optimiser.load_state_dict(dict(state.optimiser))
        for group in self._optimiser.param_groups:
            group["lr"] = self._config.learning_rate
        self.num_steps_done = state.step
        for name, controller in self._controllers.items():
            controller.restore(state.controllers[name])

    def step(self) -> Record:
        """Sample groups, take the optimiser steps of one rollout, and return what was measured.

        Raises InvariantError when the first inner step does not score as the sampler did, NonFiniteError after too many non-finite
        steps in a row.
        """
        config = self._config
        rollout = sample_groups(
            self.policy,
            self._states.states(self.num_steps_done),
            group_size=config.group_size,
            temperature=config.temperature,
            rng=torch_stream(self._seed, "moves", self.num_steps_done),
        ).to(self.policy.device)
        advantages = self._advantages(rollout.rewards)
        metrics = rollout_metrics(rollout, advantages)
        inner: list[dict[str, float]] = []
        num_skipped = 0
        for epoch in range(config.num_inner_epochs):
            order = torch.randperm(len(rollout), generator=torch_stream(self._seed, "minibatches", self.num_steps_done, epoch)).to(
                self.policy.device
            )
            for rows in order.chunk(config.num_minibatches):
                objective = self._objective(rollout.take(rows), advantages[rows])
                if not inner and not num_skipped:
                    assert_on_policy(objective)
                gradient_norm = self._update(objective)
                if gradient_norm is None:
                    num_skipped += 1
                else:
                    inner.append(_inner_metrics(objective, gradient_norm, config))
        self.num_steps_done += 1
        return Record(self.num_steps_done, {**metrics, **_summary(inner), "grpo/skipped": float(num_skipped)})

    def _objective(self, rollout: Rollout, advantages_BG: torch.Tensor) -> Objective:
        positions = rollout.states.positions
        with torch.no_grad():
            reference = self._reference.distribution(positions, temperature=rollout.temperature)
        return grpo_objective(
            new=self.policy.distribution(positions, temperature=rollout.temperature),
            old=rollout.old,
            reference=reference,
            columns_BG=rollout.columns,
            old_log_probs_BG=rollout.old_log_probs,
            advantages_BG=advantages_BG,
            config=self._config,
        )

    def _update(self, objective: Objective) -> float | None:
        """Take one optimiser step and return the gradient's norm, or leave everything as it was and return None."""
        self._optimiser.zero_grad(set_to_none=True)
        if torch.isfinite(objective.loss):
            objective.loss.backward()  # type: ignore[no-untyped-call]
            norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_gradient_norm).item()
            if math.isfinite(norm):
                self._optimiser.step()
                self._skip_stop.observe(True)
                return norm
        if self._skip_stop.observe(False):
            raise NonFiniteError(
                f"step {self.num_steps_done}: loss or gradient not finite {self._skip_stop.in_a_row} times in a row; the weights are those"
                " before it. Lower grpo.learning_rate, or look for values that are not finite"
            )
        return None


def assert_on_policy(objective: Objective) -> None:
    """Raise InvariantError unless every ratio is 1, nothing is clipped and KL(old || policy) is 0.

    Holds before the first optimiser step on a rollout. It fails when sampling and scoring differ in temperature, dropout, precision,
    weights, or in which move belongs to which state.
    """
    worst = objective.ratios.detach().log().abs().max().item()
    kl_old, clipped = objective.kl_old.item(), objective.clip_fraction.item()
    # Written so that NaN fails too.
    if not (worst <= _MAX_LOG_RATIO and abs(kl_old) <= _MAX_KL and clipped == 0):
        raise InvariantError(
            f"before the first update the policy does not score as it sampled: largest |log ratio| {worst:.3g}, KL(old) {kl_old:.3g},"
            f" clip fraction {clipped:.3g}, where all must be 0. Sampling and loss use different temperatures, weights, masks or"
            " modes; training would be of another policy than the one that plays"
        )


def rollout_metrics(rollout: Rollout, advantages_BG: torch.Tensor) -> dict[str, float]:
    """Return what can be said about a rollout before learning from it.

    Entropies are those at T = 1: the distribution that was sampled, brought back to T = 1 by raising it to the power T.
    """
    at_one = type(rollout.old).from_logits(rollout.old.log_probs * rollout.temperature, rollout.old.is_legal, temperature=1.0)
    entropies = at_one.entropy()
    # A single legal move has no entropy to share out: 0 of 0 nats, taken as 0.
    normalised = entropies / at_one.num_legal().clamp(min=2).float().log()
    values = rollout.states.values.masked_fill(~rollout.old.is_legal, 0)
    counts = torch.zeros_like(rollout.old.log_probs).scatter_add_(1, rollout.columns, torch.ones_like(rollout.rewards))
    phases = rollout.states.phases
    return {
        "grpo/entropy": entropies.mean().item(),
        **{
            f"grpo/entropy/{phase}": entropies[phases == index].mean().item()
            for index, phase in enumerate(PHASES)
            if (phases == index).any()
        },
        "grpo/normalised_entropy": normalised.mean().item(),
        "grpo/effective_moves": entropies.mean().exp().item(),
        "grpo/reward_mean": rollout.rewards.mean().item(),
        "grpo/reward_std": rollout.rewards.std().item(),
        "grpo/regret": (values.max(1).values - at_one.expectation(values)).mean().item(),
        "grpo/advantage_std": advantages_BG.std().item(),
        "grpo/silent_groups": (rollout.rewards.amax(1) == rollout.rewards.amin(1)).float().mean().item(),
        "grpo/agreement": (counts.amax(1) / rollout.columns.shape[1]).mean().item(),
    }


def _inner_metrics(objective: Objective, gradient_norm: float, config: GrpoConfig) -> dict[str, float]:
    return {
        "grpo/loss": objective.loss.item(),
        "grpo/surrogate": objective.surrogate.item(),
        "grpo/entropy_term": config.entropy_coefficient * objective.entropy.item(),
        "grpo/kl_term": config.kl_coefficient * objective.kl_reference.item(),
        "grpo/kl_reference": objective.kl_reference.item(),
        "grpo/kl_old": objective.kl_old.item(),
        "grpo/ratio_min": objective.ratios.min().item(),
        "grpo/ratio_max": objective.ratios.max().item(),
        "grpo/clip_fraction": objective.clip_fraction.item(),
        "grpo/gradient_norm": gradient_norm,
    }


def _summary(inner: list[dict[str, float]]) -> dict[str, float]:
    """Return one number a metric for the optimiser steps of a rollout: the mean, or the extreme, or the last."""
    if not inner:
        return {}
    columns = {name: [step[name] for step in inner] for name in inner[0]}
    summary = {name: sum(values) / len(values) for name, values in columns.items()}
    return summary | {
        "grpo/ratio_min": min(columns["grpo/ratio_min"]),
        "grpo/ratio_max": max(columns["grpo/ratio_max"]),
        "grpo/kl_old": columns["grpo/kl_old"][-1],
    }

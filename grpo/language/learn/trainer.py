"""The GRPO loop of a language model, one record a step; the same promises as `grpo.train.trainer`, to which the loop around it holds.

Whether sampling and scoring are one distribution is asserted in each rollout.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import numpy_stream, torch_stream
from grpo.language.learn.logprobs import MAX_GAP
from grpo.language.learn.loss import Minibatch, backward
from grpo.language.learn.parse_rate_gate import gate_metrics, parse_rates
from grpo.language.learn.rollouts import Grader, LanguageRollout, rollout_metrics, write_rollout
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import LanguageBoards
from grpo.settings.metrics import Event, Record
from grpo.settings.tree import Settings
from grpo.train.controller import Knobs, Observation
from grpo.train.invariants import InvariantError
from grpo.train.lifecycle import PRECISIONS, TrainerLifecycle
from grpo.train.trainer import refuse_dropout


class LanguageTrainer(TrainerLifecycle[LanguagePolicy]):
    """Group relative policy optimisation of a language model."""

    def __init__(
        self,
        policy: LanguagePolicy,
        reference: LanguagePolicy,
        boards: LanguageBoards,
        settings: Settings,
        *,
        grader: Grader,
        first_step: int = 0,
    ) -> None:
        """Prepare training.

        Args:
            policy: what is trained: a copy of the reference, or a resumed policy. Changed in place.
            reference: the frozen policy of the KL term, which nobody else may use.
            boards: where prompts come from, and what answers are graded by.
            settings: the run's.
            grader: grades an answer.
            first_step: rollouts that were done when this run began; schedules count from there.

        Raises NonFiniteError when a weight is NaN or infinite, ValueError when a layer of the network has dropout.
        """
        policy.refuse_nonfinite()
        refuse_dropout(policy.network)
        precision = PRECISIONS[settings.grpo.precision]
        self._reference = reference.at_precision(precision)
        self._reference.config = settings.language
        self._reference.network.requires_grad_(requires_grad=False)
        policy = policy.at_precision(precision)
        super().__init__(policy, self._reference.network, settings.grpo, first_step=first_step)
        self.policy.config = settings.language
        self._settings = settings
        self._boards = boards
        self._grader = grader

    def preflight(self) -> Mapping[str, float]:
        """Return the metrics of the rollout that the next step will make, and how many answers can be read; changes nothing.

        Raises InvariantError when sampling and scoring differ, NonFiniteError when a weight, or what the policy makes of a prompt, is NaN
        or infinite.
        """
        rollout = self._rollout()
        self._refuse_gap(rollout)
        language = self._settings.language
        rates = parse_rates(self.policy, self._boards, num_prompts=language.num_gate_prompts, seed=self._settings.seed)
        return rollout_metrics(rollout) | gate_metrics(rates)

    def step(self) -> Record:
        """Write groups of answers, take the optimiser steps of one rollout, and return what was measured and what happened.

        Raises InvariantError when sampling and scoring differ, NonFiniteError after too many non-finite steps in a row.
        """
        self.policy.refuse_nonfinite()  # No later step could mend them.
        knobs = self._begin_step()
        rollout, problem = self._finite_rollout()
        if rollout is None:
            return self._end_skipped_step(problem, {**self._knob_metrics(knobs), "language/skipped": 1.0})
        self._refuse_gap(rollout)
        events: list[Event] = []
        metrics = rollout_metrics(rollout) | self._knob_metrics(knobs) | self._learn(rollout, knobs, events)
        metrics["language/normalised_entropy"] = metrics["language/token_entropy"] / self._log_vocabulary()
        self.num_steps_done += 1
        return self._end_step(metrics, self._observation(metrics), events)

    def _refuse_gap(self, rollout: LanguageRollout) -> None:
        """Raise InvariantError unless tokens were sampled from the distribution that scores them."""
        if not rollout.largest_gap <= MAX_GAP[self._precision]:
            raise InvariantError(
                f"step {self.num_steps_done + 1:,}: sampled and scored log-probabilities of a token differ by up to"
                f" {rollout.largest_gap:.2e} nats: the policy that is trained is not the one that wrote the answers"
            )

    def _finite_rollout(self) -> tuple[LanguageRollout | None, str]:
        """Return the rollout; none, and why, where a probability or a reward is NaN or infinite."""
        try:
            rollout = self._rollout()
        except NonFiniteError as error:
            return None, str(error)
        if not rollout.rewards.isfinite().all():
            return None, f"{int((~rollout.rewards.isfinite()).sum())} of {len(rollout.answers)} rewards are not finite"
        return rollout, ""

    def _rollout(self) -> LanguageRollout:
        config, step = self._config, self.num_steps_done
        with self._clock.part("states"):
            examples = self._boards.draw(numpy_stream(self._settings.seed, "prompts", step), config.states_per_step)
        with self._clock.part("rollout"):
            return write_rollout(
                self.policy,
                self._reference,
                examples,
                self._settings,
                grader=self._grader,
                content_fraction=self._warmed_up(self._settings.language.reward_warmup_steps),
                step=step,
            )

    def _learn(self, rollout: LanguageRollout, knobs: Knobs, events: list[Event]) -> dict[str, float]:
        """Take the optimiser steps of a rollout, and return what was measured of them."""
        config, trained = self._config, rollout.is_trained.nonzero()[:, 0]
        taken: list[Mapping[str, float]] = []
        num_skipped = 0
        knobs = replace(knobs, kl_coefficient=self._kl_coefficient(knobs))
        for rows in self._minibatches(trained):
            with self._clock.part("update"):
                self._optimiser.zero_grad(set_to_none=True)
                measured = backward(self.policy, self._reference, rollout, rows, config=config, knobs=knobs)
                if not taken:
                    self._refuse_off_policy(measured)
                elif self._leaves_trust_region(measured.kl_old, len(taken), events):
                    break
                metrics, problem = self._update(measured)
            if problem:
                num_skipped += 1
                self._skip(problem, events)
            else:
                taken.append(metrics)
                self.control.finite()
        names = taken[0] if taken else ()
        return {
            **{name: _EXTREMES.get(name, _mean)([metrics[name] for metrics in taken]) for name in names},
            "language/skipped": float(num_skipped),
            "language/optimiser_steps": float(len(taken)),
        }

    def _minibatches(self, trained: Tensor) -> Iterator[Tensor]:
        """Yield the rows of each optimiser step, of those answers that are trained on."""
        for epoch in range(self._config.num_inner_epochs):
            rng = torch_stream(self._settings.seed, "minibatches", self.num_steps_done, epoch)
            order = trained[torch.randperm(len(trained), generator=rng)]
            yield from (rows for rows in order.tensor_split(self._config.num_minibatches) if len(rows))

    def _update(self, measured: Minibatch) -> tuple[dict[str, float], str]:
        """Take one optimiser step and return its metrics; or leave everything as it was and return why."""
        norm, problem = self._optimise(is_finite=math.isfinite(measured.loss))
        if problem:
            return {}, problem
        self.policy.refuse_nonfinite()
        return {**measured.measures, "language/loss": measured.loss, "language/gradient_norm": norm}, ""

    def _refuse_off_policy(self, measured: Minibatch) -> None:
        """Raise InvariantError unless every ratio is 1 before the first update: of what is scored to what the sampler recorded."""
        if not math.isfinite(measured.loss):
            return
        low, high = measured.measures["language/ratio_min"], measured.measures["language/ratio_max"]
        if not max(abs(math.log(low)), abs(math.log(high))) <= 10 * MAX_GAP[self._precision]:
            raise InvariantError(
                f"step {self.num_steps_done + 1:,}: before its first update a rollout's ratios are {low:.6f} to {high:.6f} and must be 1:"
                " the weights, or how they are scored, changed after the answers were written"
            )

    def _kl_coefficient(self, knobs: Knobs) -> float:
        return knobs.kl_coefficient * self._warmed_up(self._settings.language.kl_warmup_steps)

    def _warmed_up(self, num_steps: int) -> float:
        """Return the fraction of its value that something has which warms up over so many steps: a line from above 0 to 1."""
        return min(1.0, (self.num_steps_done - self._first_step + 1) / max(1, num_steps))

    def _knob_metrics(self, knobs: Knobs) -> dict[str, float]:
        own = {"control/kl_coefficient": self._kl_coefficient(knobs), "control/recovery_coefficient": knobs.recovery_coefficient}
        return {**super()._knob_metrics(knobs), **own}

    def _log_vocabulary(self) -> float:
        return math.log(self.policy.network.config.get_text_config().vocab_size)

    def _observation(self, metrics: Mapping[str, float]) -> Observation:
        """Return what controllers see."""
        return Observation(
            step=self.num_steps_done,
            entropy=metrics["language/entropy"],
            log_num_legal=self._log_vocabulary(),
            kl=metrics["language/kl_reference"],
            silent_groups=metrics["language/zero_variance_groups"],
            agreement=metrics["language/agreement"],
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_EXTREMES: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"language/ratio_min": min, "language/ratio_max": max}

"""The GRPO loop of a language model, one record a step; the same promises as `grpo.learning.trainer`, to which the loop around it holds.

TRL writes, compares and scores (`grpo.language.learn.trl_adapter`); what may be trusted of it is looked at before the first update and
every few steps after it; knobs, recoveries, stops and checkpoints are the project's own.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import named_seed, numpy_stream, torch_stream
from grpo.control.controller import Knobs, Observation
from grpo.language.generate.answers import refuse_too_long
from grpo.language.learn.learnability import assess_language_learnability
from grpo.language.learn.logprobs import ADVICE, MAX_GAP, Gap, sampled_scored_gap
from grpo.language.learn.rollouts import GradedAnswer, Grader, LanguageRollout, RewardError, agreement, rollout_metrics, write_rollout
from grpo.language.learn.schedules import content_fraction, kl_fraction
from grpo.language.learn.trl_adapter import Engine
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.learning.invariants import InvariantError
from grpo.learning.learnability import Learnability
from grpo.learning.lifecycle import TrainerLifecycle
from grpo.metrics.table import TERM_PAIRS, TERMS, Event, Record
from grpo.settings.tree import Settings

_NUM_GAP_PROMPTS: Final = 8
_NUM_GAP_DRAWS: Final = 64


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
            policy: what is trained: the reference, or a resumed policy. Its network is changed in place.
            reference: the frozen policy of the KL term; copied.
            boards: where prompts come from, and what answers are graded by.
            settings: the run's.
            grader: grades an answer.
            first_step: rollouts that were done when this run began; schedules count from there.

        Raises NonFiniteError when a weight is NaN or infinite.
        """
        policy.refuse_nonfinite()
        reference_network: PreTrainedModel = copy.deepcopy(reference.network)
        self._engine = Engine(policy, reference_network, settings, self._reward)
        super().__init__(policy, reference_network, settings.grpo, first_step=first_step)
        self._settings = settings
        self._language = settings.language
        self._boards = boards
        self._grader = grader
        self._graded: list[GradedAnswer] = []
        self._has_looked = False

    def preflight(self) -> Learnability:
        """Return whether there is anything to learn, from the rollout that the next step will make; changes nothing.

        Raises NonFiniteError when a weight, or what the policy makes of a prompt, is NaN or infinite.
        """
        knobs = self.control.knobs(self.num_steps_done)
        gap = self._look()
        rollout = self._rollout(knobs)
        return assess_language_learnability(
            rollout_metrics(rollout),
            gap,
            self.policy,
            self._boards,
            self._settings,
            # A run that begins at no other's checkpoint begins at its reference.
            is_at_reference=self._first_step == 0,
        )

    def step(self) -> Record:
        """Write groups of answers, take the optimiser steps of one rollout, and return what was measured and what happened.

        Raises InvariantError when sampling and scoring differ, RewardError when an answer gets no grade, NonFiniteError after too many
        non-finite steps in a row.
        """
        self.policy.refuse_nonfinite()  # No later step could mend them.
        knobs = self._begin_step()
        self._engine.set_entropy_coefficient(knobs.entropy_coefficient)
        metrics: dict[str, float] = {}
        if not self._has_looked or self._is_look_due():
            gap = self._look()
            metrics |= {"language/sampled_scored_gap": gap.largest} if self._is_look_due() else {}
            if not gap.is_within:
                raise InvariantError(
                    f"step {self.num_steps_done + 1:,}: sampled and scored log-probabilities differ: {gap}: {ADVICE[gap.cause]}"
                )
        rollout, problem = self._finite_rollout(knobs)
        if rollout is None:
            return self._end_skipped_step(problem, {**metrics, **self._knob_metrics(knobs), "language/skipped": 1.0})
        events: list[Event] = []
        metrics |= rollout_metrics(rollout) | self._knob_metrics(knobs) | self._learn(rollout, events)
        metrics["language/normalised_entropy"] = metrics["language/token_entropy"] / self._log_vocabulary()
        self.num_steps_done += 1
        return self._end_step(metrics, self._observation(metrics, rollout), events)

    def _is_look_due(self) -> bool:
        return (self.num_steps_done - self._first_step) % self._config.steps_per_gradient_budget == 0

    def _look(self) -> Gap:
        """Compare how answers to prompts of mixed length are sampled with how they are scored."""
        rng = numpy_stream(self._settings.seed, "gap", self.num_steps_done)
        drawn = [example.prompt for example in self._boards.draw(rng, _NUM_GAP_DRAWS)]
        # The first half of one too: prompts may be of one length, and then show nothing of padding.
        drawn.append(drawn[0][: len(drawn[0]) // 2])
        by_length = sorted(set(drawn), key=lambda prompt: (len(self.policy.tokens([prompt])[0]), prompt))
        indices = torch.linspace(0, len(by_length) - 1, min(_NUM_GAP_PROMPTS, len(by_length))).round().long().tolist()
        gap = sampled_scored_gap(
            self._engine,
            [by_length[index] for index in indices],
            seed=named_seed(self._settings.seed, "gap", self.num_steps_done, "answers"),
        )
        self._has_looked = True
        return gap

    def _finite_rollout(self, knobs: Knobs) -> tuple[LanguageRollout | None, str]:
        """Return the rollout; none, and why, where a probability or a reward is NaN or infinite."""
        try:
            rollout = self._rollout(knobs)
        except NonFiniteError as error:
            return None, str(error)
        if not rollout.rewards.isfinite().all():
            return None, f"{int((~rollout.rewards.isfinite()).sum())} of {len(rollout.answers)} rewards are not finite"
        return rollout, ""

    def _rollout(self, knobs: Knobs) -> LanguageRollout:
        config, step = self._config, self.num_steps_done
        with self._clock.part("states"):
            rng = numpy_stream(self._settings.seed, "prompts", step)
            examples: Sequence[Example] = self._boards.draw(rng, config.states_per_step)
        with self._clock.part("rollout"):
            refuse_too_long(self.policy, self.policy.tokens([example.prompt for example in examples]))
            self.policy.refuse_nonfinite_logits(examples[0].prompt)
            return write_rollout(
                self._engine,
                examples,
                group_size=config.group_size,
                seed=named_seed(self._settings.seed, "answers", step),
                kl_coefficient=self._kl_coefficient(knobs),
                temperature=config.temperature,
                max_collection_kl=self._language.max_collection_kl,
                graded=self._graded,
            )

    def _reward(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> list[float]:
        """Grade the answers of a rollout while TRL writes it, and keep what was seen."""
        fraction = content_fraction(self._language, self.num_steps_done - self._first_step)
        for row, text in zip(rows, texts, strict=True):
            grades = self._grader(row["example"], text)
            if grades is None:
                raise RewardError(
                    f"step {self.num_steps_done + 1:,}: the grader gave nothing for the answer {text!r} to {row['example'].prompt!r}; a"
                    " reward of None would count as nothing at all. Mend the grader, or grade such answers as malformed"
                )
            self._graded.append(
                GradedAnswer(
                    example=row["example"],
                    text=text,
                    token_ids=tuple(row["completion_ids"]),
                    grades=grades,
                    reward=grades.total(fraction),
                )
            )
        return [answer.reward for answer in self._graded]

    def _learn(self, rollout: LanguageRollout, events: list[Event]) -> dict[str, float]:
        """Take the optimiser steps of a rollout, and return what was measured of them."""
        size, num_answers = self._engine.size, len(rollout.answers)
        seen: dict[str, list[float]] = {}
        num_skipped = num_taken = 0
        for epoch in range(self._config.num_inner_epochs if rollout.num_trained else 0):
            order = torch.randperm(num_answers, generator=torch_stream(self._settings.seed, "minibatches", self.num_steps_done, epoch))
            for chosen in torch.split(order, size.per_update):
                with self._clock.part("update"):
                    problem = self._update(rollout, chosen, seen, is_first=not num_taken)
                if problem:
                    num_skipped += 1
                    self._skip(problem, events)
                else:
                    num_taken += 1
                    self.control.finite()
        return {
            **{name: sum(values) / len(values) for name, values in seen.items() if name not in _EXTREMES},
            **{name: take(seen[name]) for name, take in _EXTREMES.items() if name in seen},
            "language/skipped": float(num_skipped),
            "language/optimiser_steps": float(num_taken),
        }

    def _update(self, rollout: LanguageRollout, chosen: Tensor, seen: dict[str, list[float]], *, is_first: bool) -> str:
        """Take one optimiser step; or leave everything as it was and return why."""
        self._optimiser.zero_grad(set_to_none=True)
        whole = 0.0
        for rows in torch.split(chosen, self._engine.size.per_forward):
            loss, measured = self._engine.loss(rollout.inputs, rows.to(self.policy.device))
            if not torch.isfinite(loss):
                return "the loss is not finite"
            loss.backward()  # type: ignore[no-untyped-call]
            whole += loss.item()
            if is_first:
                self._refuse_off_policy(measured)
            for name, value in measured.items():
                seen.setdefault(name, []).append(value)
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_gradient_norm).item()
        if not math.isfinite(norm):
            return "the gradient is not finite"
        seen.setdefault("language/loss", []).append(whole)
        seen.setdefault("language/gradient_norm", []).append(norm)
        self._optimiser.step()
        self.policy.refuse_nonfinite()
        return ""

    def _refuse_off_policy(self, measured: Mapping[str, float]) -> None:
        """Raise InvariantError unless every ratio is 1 before the first update of a rollout, where the rollout has its own scores."""
        low, high = measured.get("language/ratio_min", 1.0), measured.get("language/ratio_max", 1.0)
        limit = MAX_GAP[self._precision]
        if max(abs(math.log(low)), abs(math.log(high))) > 10 * limit:
            raise InvariantError(
                f"step {self.num_steps_done + 1:,}: before its first update a rollout's ratios are {low:.6f} to {high:.6f} and must be 1:"
                " the weights, or how they are scored, changed after the answers were written"
            )

    def _kl_coefficient(self, knobs: Knobs) -> float:
        return knobs.kl_coefficient * kl_fraction(self._language, self.num_steps_done - self._first_step)

    def _knob_metrics(self, knobs: Knobs) -> dict[str, float]:
        return {**super()._knob_metrics(knobs), "control/kl_coefficient": self._kl_coefficient(knobs)}

    def _log_vocabulary(self) -> float:
        return math.log(self.policy.network.config.get_text_config().vocab_size)

    def _observation(self, metrics: Mapping[str, float], rollout: LanguageRollout) -> Observation:
        """Return what controllers see. Terms have no gradients of their own here, so that alarms on these never fire."""
        return Observation(
            step=self.num_steps_done,
            entropy=metrics["language/entropy"],
            normalised_entropy=metrics["language/normalised_entropy"],
            log_num_legal=self._log_vocabulary(),
            kl=metrics["language/kl_reference"],
            silent_groups=metrics["language/silent_groups"],
            agreement=metrics["language/agreement"],
            agreement_max=max(map(agreement, rollout.groups())),
            norms=dict.fromkeys(TERMS, 0.0),
            cosines=dict.fromkeys(TERM_PAIRS, 0.0),
        )


_EXTREMES: Final = {"language/ratio_min": min, "language/ratio_max": max}

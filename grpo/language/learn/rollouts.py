"""One rollout of a language model: groups of graded answers, their exact measures, and metrics.

Legend: N prompts, G answers of a group (all to one prompt), B = N G answers, T tokens of the longest answer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import GeneratedAnswer, sampled_answers
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import ExactMeasures, exact_measures
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example
from grpo.language.text.rewards import Grades
from grpo.language.text.tasks import MoveAnswer, Reading, TextTask
from grpo.settings.tree import Settings
from grpo.train.objective import group_advantages

Grader = Callable[[Example, str], Grades]


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """An answer with its grades and its reward."""

    example: Example
    answer: GeneratedAnswer
    grades: Grades
    reward: float
    """The reward that GRPO trains on, in points: the sum of the graded parts, weighted by the warm-up. `LanguageProblem` refuses NaN."""

    @property
    def text(self) -> str:
        return self.answer.text

    @property
    def reading(self) -> Reading:
        return self.grades.reading

    @property
    def decision(self) -> str | None:
        """The named best move of the move task, or the text of an answer of the environment task."""
        return self.reading.best if isinstance(self.reading, MoveAnswer) else self.text.strip()


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LanguageRollout:
    """Answers to N prompts; answers to one prompt are neighbors."""

    answers: tuple[GradedAnswer, ...]
    group_size: int
    batch: AnswerBatch
    """The answers as tokens, one answer per row."""
    sampled: Tensor
    """[B, T] nats: log-probability of each token when it was sampled; 0 on padding."""
    measures: ExactMeasures
    is_truncated: Tensor
    """[B] bool."""
    temperature: float
    """Sampling temperature."""
    advantages: Tensor
    """[B] points: reward minus the group's mean reward. Truncated answers have 0 and do not count in the mean."""

    @property
    def rows(self) -> Tensor:
        """Indices of the answers in the loss: all that are not truncated."""
        return (~self.is_truncated).nonzero()[:, 0]

    @property
    def row_weights(self) -> Tensor:
        """[B], number of tokens of each answer."""
        return self.batch.is_token.sum(1).cpu()

    @property
    def largest_gap(self) -> float:
        """Largest difference, in nats, between a token's sampled and its scored log-probability."""
        return (self.sampled - self.measures.log_probs).abs().max().item()

    @property
    def entropy(self) -> float:
        """Mean exact entropy of an answer at T = 1, in nats."""
        return self.measures.of_answers()[0].cpu().mean().item()

    @property
    def kl_reference(self) -> float:
        """Mean exact KL(policy || reference) of an answer, in nats."""
        return self.measures.of_answers()[1].cpu().mean().item()

    @property
    def rewards(self) -> Tensor:
        """[B] points: rewards that GRPO trains on."""
        return torch.tensor([answer.reward for answer in self.answers], dtype=torch.float64)

    @property
    def totals(self) -> Tensor:
        """[B] points: rewards with all parts at full weight."""
        return torch.tensor([answer.grades.total() for answer in self.answers], dtype=torch.float64)

    def of_task(self, task: TextTask) -> Tensor:
        """Return which answers belong to a text task, [B] bool."""
        return torch.tensor([answer.example.task == task for answer in self.answers])

    def groups(self) -> Iterator[tuple[GradedAnswer, ...]]:
        for start in range(0, len(self.answers), self.group_size):
            yield self.answers[start : start + self.group_size]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AnswerSampler:
    """Samples and grades a group of answers to each prompt."""

    policy: LanguagePolicy
    reference: LanguagePolicy
    """The frozen policy of the KL terms."""
    grader: Grader
    settings: Settings

    def rollout(self, examples: Sequence[Example], *, temperature: float, content_fraction: float, step: int) -> LanguageRollout:
        """Return a group of answers to each example's prompt.

        Args:
            examples: One for each group.
            temperature: Sampling temperature.
            content_fraction: Factor in [0, 1] of the reward's chess parts (warm-up).
            step: Part of the names of the random streams; each answer has its own.

        Raises NonFiniteError if a logit is NaN or infinite, TooLongError if an answer might exceed the model's context.
        """
        policy, size = self.policy, self.settings.grpo.group_size
        repeated = [example for example in examples for _ in range(size)]
        streams = [numpy_stream(self.settings.seed, "answers", step, row) for row in range(len(repeated))]
        written = sampled_answers(policy, [example.prompt for example in repeated], temperature=temperature, streams=streams)
        grades = [self.grader(example, answer.text) for example, answer in zip(repeated, written, strict=True)]
        answers = tuple(
            GradedAnswer(example=example, answer=answer, grades=grade, reward=grade.total(content_fraction))
            for example, answer, grade in zip(repeated, written, grades, strict=True)
        )
        batch = AnswerBatch.of(policy, [answer.prompt_ids for answer in written], [answer.token_ids for answer in written])
        sampled = torch.tensor([log_prob for answer in written for log_prob in answer.log_probs], device=policy.device)
        is_truncated = torch.tensor([answer.is_truncated for answer in written])
        # Float32 sums of a few float32 rewards are exact in float64 (`group_advantages`), so equal rewards give advantages of exactly 0.
        rewards = torch.tensor([answer.reward for answer in answers]).view(-1, size)
        return LanguageRollout(
            answers=answers,
            group_size=size,
            batch=batch,
            sampled=torch.zeros(batch.targets.shape, device=policy.device).masked_scatter(batch.is_token, sampled),
            measures=exact_measures(policy, self.reference, batch, temperature=temperature),
            is_truncated=is_truncated,
            temperature=temperature,
            advantages=group_advantages(rewards, is_member_BG=~is_truncated.view(-1, size)).flatten(),
        )


def answer_metrics(rollout: LanguageRollout) -> dict[str, float]:
    """Return the metrics of a rollout, over all answers and by text task."""
    every_answer = torch.ones(len(rollout.answers), dtype=torch.bool)
    by_task = {"": every_answer} | {f"/{task.value}": rollout.of_task(task) for task in TextTask}
    metrics: dict[str, float] = {}
    for suffix, rows in by_task.items():
        if rows.any():
            metrics |= {f"language/{name}{suffix}": value for name, value in _of(rollout, rows).items()}
    totals, rewards = rollout.totals, rollout.rewards
    entropies, divergences = rollout.measures.of_answers()
    num_tokens = rollout.measures.mask.sum()
    token_entropy = (entropies.sum() / num_tokens).item()
    moves = rollout.of_task(TextTask.MOVE)
    legal = [answer.grades.is_legal_best for answer in rollout.answers if answer.example.task == TextTask.MOVE]
    return {
        **metrics,
        **({"language/legal_rate": sum(legal) / len(legal)} if moves.any() else {}),
        **_reward_parts(rollout),
        "language/reward_std": totals.std().item(),
        "language/reward_trained": rewards.mean().item(),
        "language/token_entropy": token_entropy,
        "language/kl_max": divergences.max().item(),
        "language/sampled_scored_gap": rollout.largest_gap,
    }


def _of(rollout: LanguageRollout, rows: Tensor) -> dict[str, float]:
    """Return the metrics over the answers in `rows`, [B] bool, which must select complete groups."""
    entropies, divergences = (values.cpu()[rows] for values in rollout.measures.of_answers())
    answers = [answer for answer, holds in zip(rollout.answers, rows.tolist(), strict=True) if holds]
    read = [answer.reading for answer in answers]
    advantages = rollout.advantages[rows].view(-1, rollout.group_size)
    groups = [group for group, holds in zip(rollout.groups(), rows.tolist()[:: rollout.group_size], strict=True) if holds]
    return {
        "reward_mean": rollout.totals[rows].mean().item(),
        "parse_rate": _fraction(answer.is_readable for answer in read),
        "truncated": rollout.is_truncated[rows].double().mean().item(),
        "answer_tokens": sum(len(answer.answer.token_ids) for answer in answers) / len(answers),
        "entropy": entropies.mean().item(),
        "kl_reference": divergences.mean().item(),
        "zero_variance_groups": _fraction((advantages == 0).all(1).tolist()),
        "agreement": sum(map(agreement, groups)) / len(groups),
    }


def agreement(group: Sequence[GradedAnswer]) -> float:
    """Return the fraction of a group's answers that make its most frequent decision."""
    return max(Counter(answer.decision for answer in group).values()) / len(group)


def _reward_parts(rollout: LanguageRollout) -> dict[str, float]:
    """Return the mean of each part of the reward over the answers whose text task has this part."""
    values_by_part: dict[str, list[float]] = {}
    for answer in rollout.answers:
        for part, value in answer.grades.parts.items():
            values_by_part.setdefault(part, []).append(value)
    return {f"language/reward/{part}": sum(values) / len(values) for part, values in values_by_part.items()}


def _fraction(flags: Any) -> float:
    listed = list(flags)
    return sum(map(bool, listed)) / len(listed)

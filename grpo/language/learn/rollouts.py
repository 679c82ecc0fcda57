"""One rollout of a language model: groups of graded answers, each token's entropy and KL, metrics.

Legend: N prompts, G answers to each prompt (a group), B = N G answers, T tokens of the longest answer.

Rewards are in points (`grpo.language.text.rewards`). `content_fraction`, in [0, 1], multiplies the reward's chess parts (all
except the format). The fraction rises to 1 in the warm-up, so the policy learns the format first.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import GeneratedAnswer, sampled_answers
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import ExactMeasures, exact_measures
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example
from grpo.language.text.rewards import Grades
from grpo.language.text.tasks import MoveAnswer, TextTask
from grpo.settings.tree import Settings
from grpo.train.objective import group_advantages

Grader = Callable[[Example, str], Grades]


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    example: Example
    answer: GeneratedAnswer
    grades: Grades
    reward: float  # Points that GRPO trains on: `grades.total(content_fraction)`.

    @property
    def decision(self) -> str | None:
        """Best move (None if missing), or the environment task's complete text."""
        reading = self.grades.reading
        return reading.best if isinstance(reading, MoveAnswer) else self.answer.text.strip()


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LanguageRollout:
    answers: tuple[GradedAnswer, ...]  # Group after group.
    group_size: int
    batch: AnswerBatch  # One answer per row.
    sampled: Tensor  # [B, T] nats, each token's log-probability during generation; 0 on padding.
    measures: ExactMeasures
    is_truncated: Tensor  # [B] bool.
    temperature: float
    advantages: Tensor  # [B] points: reward minus the mean of the group's untruncated answers; 0 if truncated.

    @property
    def rows(self) -> Tensor:
        """Indices of the untruncated answers, which alone train the policy."""
        return (~self.is_truncated).nonzero()[:, 0]

    @property
    def row_weights(self) -> Tensor:
        """[B], each answer's number of tokens, on the CPU."""
        return self.batch.is_token.sum(1).cpu()

    @property
    def largest_gap(self) -> float:
        """Largest difference, in nats, between a token's log-probabilities in generation and in scoring (`measures`)."""
        return (self.sampled - self.measures.log_probs).abs().max().item()

    @property
    def rewards(self) -> Tensor:
        """[B] points that GRPO trains on."""
        return torch.tensor([answer.reward for answer in self.answers], dtype=torch.float64)

    @property
    def totals(self) -> Tensor:
        """[B] points with `content_fraction` 1."""
        return torch.tensor([answer.grades.total() for answer in self.answers], dtype=torch.float64)

    def groups(self) -> Iterator[tuple[GradedAnswer, ...]]:
        for start in range(0, len(self.answers), self.group_size):
            yield self.answers[start : start + self.group_size]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AnswerSampler:
    policy: LanguagePolicy
    reference: LanguagePolicy  # Frozen policy of the KL terms.
    grader: Grader
    settings: Settings

    def rollout(self, examples: Sequence[Example], *, temperature: float, content_fraction: float, step: int) -> LanguageRollout:
        """Return a group of answers to each prompt. `step` and an answer's number select the answer's random stream.

        Raises the errors of `sampled_answers`.
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
        masks = [answer.mask for answer in written]
        batch = AnswerBatch.of(policy, [answer.prompt_ids for answer in written], [answer.token_ids for answer in written], masks)
        sampled = torch.tensor([log_prob for answer in written for log_prob in answer.log_probs], device=policy.device)
        is_truncated = torch.tensor([answer.is_truncated for answer in written])
        # `group_advantages` sums float32 rewards in float64, exactly. So a group's equal rewards get advantages of 0.
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
    """Names that end in `/TASK` are of one text task's answers."""
    metrics = {f"language/{name}": value for name, value in _means(rollout, torch.ones(len(rollout.answers), dtype=torch.bool)).items()}
    for task in TextTask:
        rows = torch.tensor([answer.example.task == task for answer in rollout.answers])
        if rows.any():
            metrics |= {f"language/{name}/{task}": value for name, value in _means(rollout, rows).items()}
    legal = [answer.grades.is_legal_best for answer in rollout.answers if answer.example.task == TextTask.MOVE]
    entropies, divergences = rollout.measures.of_answers()
    return {
        **metrics,
        **({"language/legal_rate": sum(legal) / len(legal)} if legal else {}),
        **_reward_parts(rollout),
        "language/reward_std": rollout.totals.std().item(),
        "language/reward_trained": rollout.rewards.mean().item(),
        "language/token_entropy": (entropies.sum() / rollout.batch.is_token.sum()).item(),
        "language/kl_max": divergences.max().item(),
        "language/sampled_scored_gap": rollout.largest_gap,
    }


def _means(rollout: LanguageRollout, rows: Tensor) -> dict[str, float]:
    """Return metrics of the answers that `rows` [B] selects, which must be whole groups."""
    entropies, divergences = (values.cpu()[rows] for values in rollout.measures.of_answers())
    answers = [answer for answer, holds in zip(rollout.answers, rows.tolist(), strict=True) if holds]
    advantages = rollout.advantages[rows].view(-1, rollout.group_size)
    groups = [group for group, holds in zip(rollout.groups(), rows.tolist()[:: rollout.group_size], strict=True) if holds]
    return {
        "reward_mean": rollout.totals[rows].mean().item(),
        "parse_rate": sum(answer.grades.reading.is_readable for answer in answers) / len(answers),
        "truncated": rollout.is_truncated[rows].double().mean().item(),
        "answer_tokens": sum(len(answer.answer.token_ids) for answer in answers) / len(answers),
        "entropy": entropies.mean().item(),
        "kl_reference": divergences.mean().item(),
        "zero_variance_groups": (advantages == 0).all(1).double().mean().item(),
        "agreement": sum(map(agreement, groups)) / len(groups),
    }


def agreement(group: Sequence[GradedAnswer]) -> float:
    """Return the most frequent decision's fraction; missing decisions are equal."""
    return max(Counter(answer.decision for answer in group).values()) / len(group)


def _reward_parts(rollout: LanguageRollout) -> dict[str, float]:
    values_by_part = defaultdict(list)
    for answer in rollout.answers:
        for part, value in answer.grades.parts.items():
            values_by_part[part].append(value)
    return {f"language/reward/{part}": sum(values) / len(values) for part, values in values_by_part.items()}

"""One rollout of a language model: groups of answers with their grades and exact measures, and what is reported of them.

Legend: N prompts, G answers of a group, B = N G answers, T tokens of the longest answer.
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
from grpo.language.text.tasks import LanguageTask, MoveAnswer, Reading
from grpo.settings.tree import Settings
from grpo.train.objective import group_advantages

Grader = Callable[[Example, str], Grades]


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """An answer, and what it is worth."""

    example: Example
    answer: GeneratedAnswer
    grades: Grades
    reward: float
    """What is trained on: the parts at the weights that the warm-up gives them; may be NaN, which nobody should train on."""

    @property
    def text(self) -> str:
        """What was written, without the end."""
        return self.answer.text

    @property
    def reading(self) -> Reading:
        """What could be read of it."""
        return self.grades.reading

    @property
    def decision(self) -> str | None:
        """What the answer comes to: the named best move, or the whole text of the environment."""
        return self.reading.best if isinstance(self.reading, MoveAnswer) else self.text.strip()


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class LanguageRollout:
    """Answers to N prompts, those to one prompt next to each other."""

    answers: tuple[GradedAnswer, ...]
    group_size: int
    batch: AnswerBatch
    """The same as tokens; rows are answers."""
    sampled: Tensor
    """[B, T] nats: the log-probability that the sampler gave each token; 0 where there is none."""
    measures: ExactMeasures
    is_truncated: Tensor
    """[B] bool."""
    temperature: float
    """Of the policy that was sampled."""
    advantages: Tensor
    """[B] points: the reward less the mean of its group; 0 for truncated answers, which no mean has a part of."""

    @property
    def rows(self) -> Tensor:
        """Answers that the loss and the means of their groups have: those that are whole."""
        return (~self.is_truncated).nonzero()[:, 0]

    @property
    def row_weights(self) -> Tensor:
        """Tokens of each answer, [B]."""
        return self.batch.is_token.sum(1).cpu()

    @property
    def largest_gap(self) -> float:
        """Nats, between a token's log-probability as it was sampled and as the loss scores it."""
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
        """What was trained on, [B]."""
        return torch.tensor([answer.reward for answer in self.answers], dtype=torch.float64)

    @property
    def totals(self) -> Tensor:
        """The grades with all parts at full weight, [B]."""
        return torch.tensor([answer.grades.total() for answer in self.answers], dtype=torch.float64)

    def of_task(self, task: LanguageTask) -> Tensor:
        """Return which answers are of a task, [B] bool."""
        return torch.tensor([answer.example.task == task for answer in self.answers])

    def groups(self) -> Iterator[tuple[GradedAnswer, ...]]:
        """Yield the answers to each prompt."""
        for start in range(0, len(self.answers), self.group_size):
            yield self.answers[start : start + self.group_size]


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class AnswerSampler:
    """Writes and grades a group of answers to each prompt."""

    policy: LanguagePolicy
    """The policy that answers."""
    reference: LanguagePolicy
    """Distribution that the policy's is compared with."""
    grader: Grader
    settings: Settings

    def rollout(self, examples: Sequence[Example], *, temperature: float, content_fraction: float, step: int) -> LanguageRollout:
        """Return the answers to the examples' prompts, a group to each.

        Args:
            examples: one for each group.
            temperature: of the policy.
            content_fraction: factor of the reward's chess parts (warm-up).
            step: names the random streams, one for each answer.

        Raises NonFiniteError when the policy's scores are NaN or infinite, TooLongError.
        """
        policy, size = self.policy, self.settings.grpo.group_size
        asked = [example for example in examples for _ in range(size)]
        streams = [numpy_stream(self.settings.seed, "answers", step, row) for row in range(len(asked))]
        written = sampled_answers(policy, [example.prompt for example in asked], temperature=temperature, streams=streams)
        grades = [self.grader(example, answer.text) for example, answer in zip(asked, written, strict=True)]
        answers = tuple(
            GradedAnswer(example=example, answer=answer, grades=found, reward=found.total(content_fraction))
            for example, answer, found in zip(asked, written, grades, strict=True)
        )
        batch = AnswerBatch.of(policy, [answer.prompt_ids for answer in written], [answer.token_ids for answer in written])
        sampled = torch.tensor([log_prob for answer in written for log_prob in answer.log_probs], device=policy.device)
        is_truncated = torch.tensor([answer.is_truncated for answer in written])
        # In float32, so that the mean of equal rewards is that reward.
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
    """Return the metrics of a rollout, over all answers and by task."""
    everything = torch.ones(len(rollout.answers), dtype=torch.bool)
    by_task = {"": everything} | {f"/{task.value}": rollout.of_task(task) for task in LanguageTask}
    metrics: dict[str, float] = {}
    for suffix, rows in by_task.items():
        if rows.any():
            metrics |= {f"language/{name}{suffix}": value for name, value in _of(rollout, rows).items()}
    totals, rewards = rollout.totals, rollout.rewards
    entropies, divergences = rollout.measures.of_answers()
    num_tokens = rollout.measures.mask.sum()
    token_entropy = (entropies.sum() / num_tokens).item()
    moves = rollout.of_task(LanguageTask.MOVE)
    legal = [answer.grades.is_legal_best for answer in rollout.answers if answer.example.task == LanguageTask.MOVE]
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
    """Return the means that are reported by task, of the answers in `rows`, [B] bool, whole groups."""
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
    """Return the fraction of a group that is its commonest answer: the same best move, or the same text of the environment."""
    return max(Counter(answer.decision for answer in group).values()) / len(group)


def _reward_parts(rollout: LanguageRollout) -> dict[str, float]:
    """Return the mean of each part over the answers whose task has it."""
    found: dict[str, list[float]] = {}
    for answer in rollout.answers:
        for part, value in answer.grades.parts.items():
            found.setdefault(part, []).append(value)
    return {f"language/reward/{part}": sum(values) / len(values) for part, values in found.items()}


def _fraction(flags: Any) -> float:
    listed = list(flags)
    return sum(map(bool, listed)) / len(listed)

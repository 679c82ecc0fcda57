"""One rollout of a language model: groups of answers with their grades and exact measures, and what is reported of them.

Legend: N prompts, G answers of a group, B = N G answers, T tokens of the longest answer.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo.base.errors import PlainError
from grpo.language.learn.logprobs import ExactMeasures, exact_measures
from grpo.language.learn.trl_adapter import Engine
from grpo.language.text.examples import Example
from grpo.language.text.rewards import Grades
from grpo.language.text.tasks import LanguageTask, MoveAnswer, Reading

Grader = Callable[[Example, str], Grades]


class RewardError(PlainError, RuntimeError):
    """A grader gave nothing for an answer: training on the others would train on another question."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GradedAnswer:
    """An answer, and what it is worth."""

    example: Example
    text: str
    token_ids: tuple[int, ...]
    grades: Grades
    reward: float
    """What is trained on: the parts at the weights that the warm-up gives them; may be NaN, which nobody should train on."""

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
    inputs: Mapping[str, Tensor]
    """What `Engine.loss` takes; masks are 0 for answers that are left out."""
    measures: ExactMeasures
    is_truncated: Tensor
    """[B] bool."""
    is_far: Tensor
    """[B] bool: left out because its divergence is above the bound at collection."""

    @property
    def rewards(self) -> Tensor:
        """What was trained on, [B]."""
        return torch.tensor([answer.reward for answer in self.answers], dtype=torch.float64)

    @property
    def totals(self) -> Tensor:
        """The grades with all parts at full weight, [B]."""
        return torch.tensor([answer.grades.total() for answer in self.answers], dtype=torch.float64)

    @property
    def num_trained(self) -> int:
        """Answers that the loss does not leave out."""
        return int((~self.is_truncated & ~self.is_far).sum())

    def of_task(self, task: LanguageTask) -> Tensor:
        """Return which answers are of a task, [B] bool."""
        return torch.tensor([answer.example.task == task for answer in self.answers])

    def groups(self) -> Iterator[tuple[GradedAnswer, ...]]:
        """Yield the answers to each prompt."""
        for start in range(0, len(self.answers), self.group_size):
            yield self.answers[start : start + self.group_size]


def write_rollout(
    engine: Engine,
    examples: Sequence[Example],
    *,
    group_size: int,
    seed: int,
    kl_coefficient: float,
    temperature: float,
    max_collection_kl: float,
    graded: list[GradedAnswer],
) -> LanguageRollout:
    """Write a group of answers to each example's prompt.

    Args:
        engine: whose reward, while it writes, fills `graded`.
        examples: one for each group.
        group_size: answers of a group.
        seed: of the answers.
        kl_coefficient: of the losses that follow.
        temperature: of the policy that is sampled and scored.
        max_collection_kl: nats; answers above are left out of the loss; 0 is no bound.
        graded: where the engine's reward puts what it saw; emptied first.
    """
    graded.clear()
    rows: list[dict[str, Any]] = [{"prompt": example.prompt, "example": example} for example in examples for _ in range(group_size)]
    inputs = engine.rollout(rows, seed=seed, kl_coefficient=kl_coefficient)
    answers = tuple(graded)
    lengths = torch.tensor([len(answer.token_ids) for answer in answers])
    ends = {*engine.eos_token_ids, engine.processing_class.pad_token_id}
    is_truncated = torch.tensor([answer.token_ids[-1] not in ends for answer in answers])
    # TRL's mask leaves truncated answers out; what is measured is measured of all.
    written = torch.arange(inputs["completion_ids"].shape[1])[None, :] < lengths[:, None]
    device = inputs["completion_ids"].device
    measures = exact_measures(
        engine.model,
        engine.ref_model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], written.to(device).long()], dim=1),
        written.to(device),
        temperature=temperature,
    )
    far = measures.of_answers()[1].cpu() > max_collection_kl if max_collection_kl else torch.zeros(len(answers), dtype=torch.bool)
    return LanguageRollout(
        answers=answers,
        group_size=group_size,
        inputs=_without(inputs, far.to(device)),
        measures=measures,
        is_truncated=is_truncated,
        is_far=far & ~is_truncated,
    )


def _without(inputs: Mapping[str, Tensor], left_out: Tensor) -> dict[str, Tensor]:
    """Return the rollout with the masks of some answers at 0, and the number of its tokens with it."""
    if not left_out.any():
        return dict(inputs)
    mask = inputs["completion_mask"] * ~left_out[:, None]
    return {**inputs, "completion_mask": mask, "num_items_in_batch": mask.sum()}


def rollout_metrics(rollout: LanguageRollout) -> dict[str, float]:
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
    of_prompts = totals.view(-1, rollout.group_size).mean(1)
    moves = rollout.of_task(LanguageTask.MOVE)
    legal = [answer.grades.is_legal_best for answer in rollout.answers if answer.example.task == LanguageTask.MOVE]
    return {
        **metrics,
        **({"language/legal_rate": sum(legal) / len(legal)} if moves.any() else {}),
        **({"language/reward_stderr": (of_prompts.std() / math.sqrt(len(of_prompts))).item()} if len(of_prompts) > 1 else {}),
        **_reward_parts(rollout),
        "language/reward_std": totals.std().item(),
        "language/reward_trained": rewards.mean().item(),
        "language/token_entropy": token_entropy,
        "language/kl_max": divergences.max().item(),
        "language/kl_masked": rollout.is_far.double().mean().item(),
        "language/advantage_max": rollout.inputs["advantages"].abs().max().item(),
        "language/prompts": float(len(rollout.answers) // rollout.group_size),
    }


def _of(rollout: LanguageRollout, rows: Tensor) -> dict[str, float]:
    """Return the means that are reported by task, of the answers in `rows`, [B] bool, whole groups."""
    entropies, divergences = (values.cpu()[rows] for values in rollout.measures.of_answers())
    answers = [answer for answer, holds in zip(rollout.answers, rows.tolist(), strict=True) if holds]
    read = [answer.reading for answer in answers]
    rewards = rollout.rewards[rows].view(-1, rollout.group_size)
    groups = [group for group, holds in zip(rollout.groups(), rows.tolist()[:: rollout.group_size], strict=True) if holds]
    return {
        "reward_mean": rollout.totals[rows].mean().item(),
        "parse_rate": _fraction(answer.is_readable for answer in read),
        "structure_rate": _fraction(answer.has_structure for answer in read),
        "malformed": _fraction(answer.is_malformed for answer in read),
        "truncated": rollout.is_truncated[rows].double().mean().item(),
        "answer_tokens": sum(len(answer.token_ids) for answer in answers) / len(answers),
        "entropy": entropies.mean().item(),
        "kl_reference": divergences.mean().item(),
        "silent_groups": _fraction((rewards == rewards[:, :1]).all(1).tolist()),
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

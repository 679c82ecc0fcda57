"""Example answers in the output of `pretrain` and `finetune`."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import RootModel

from grpo.base.documents import Document, write_document
from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import greedy_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.language.text.rewards import Grades
from steps.names import ANSWERS

_NUM_SHOWN: Final = 6  # Maximum examples of each text task.
_NUM_DRAWN: Final = 64  # Maximum random examples to choose from.


class ShownAnswer(Document):
    """A greedy answer."""

    whose: str  # Name of the policy.
    text: str
    num_tokens: int
    is_truncated: bool
    reward: float | None  # Points, all parts at full weight; None without a grader.
    parts: dict[str, float]  # Part of the reward -> points.


class AnsweredPrompt(Document):
    task: str
    prompt: str
    target: str
    answers: tuple[ShownAnswer, ...]  # One per policy, the latest last.


class Answers(RootModel[tuple[AnsweredPrompt, ...]]):
    """Content of `answers.json`."""


def shown_examples(boards: LanguageBoards, *, seed: int) -> list[Example]:
    num_drawn: Counter[str] = Counter()
    shown = []
    for example in boards.draw(numpy_stream(seed, "answers shown"), min(_NUM_DRAWN, len(boards))):
        num_drawn[example.task] += 1
        if num_drawn[example.task] <= _NUM_SHOWN:
            shown.append(example)
    return shown


def write_answers(
    folder: Path,
    policies: Mapping[str, LanguagePolicy],
    examples: Sequence[Example],
    grader: Callable[[Example, str], Grades] | None = None,
) -> None:
    """Write greedy answers. `policies` maps names to policies, the latest last."""
    answers: list[list[ShownAnswer]] = [[] for _ in examples]
    for name, policy in policies.items():
        for row, example, answer in zip(answers, examples, greedy_answers(policy, [example.prompt for example in examples]), strict=True):
            grades = None if grader is None else grader(example, answer.text)
            row.append(
                ShownAnswer(
                    whose=name,
                    text=answer.text,
                    num_tokens=len(answer.token_ids),
                    is_truncated=answer.is_truncated,
                    reward=None if grades is None else grades.total(),
                    parts={} if grades is None else dict(grades.parts),
                )
            )
    shown = (
        AnsweredPrompt(task=str(example.task), prompt=example.prompt, target=example.target, answers=tuple(row))
        for example, row in zip(examples, answers, strict=True)
    )
    write_document(folder / ANSWERS, Answers(tuple(shown)))

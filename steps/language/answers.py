"""Some of a language model's answers, saved in a step's output for people to read: numbers alone hide what a model really writes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from grpo.base.files import write_json
from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import greedy_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards
from grpo.language.text.rewards import Grades
from steps.names import ANSWERS

_NUM_SHOWN: Final = 6
"""Of each task."""
_NUM_DRAWN: Final = 64


def shown_examples(boards: LanguageBoards, *, seed: int) -> list[Example]:
    """Return a few examples of each task that is trained, the same for the same boards and seed."""
    num_saved: dict[str, int] = {}
    found = []
    for example in boards.draw(numpy_stream(seed, "answers shown"), min(_NUM_DRAWN, len(boards))):
        num_saved[example.task] = num_saved.get(example.task, 0) + 1
        if num_saved[example.task] <= _NUM_SHOWN:
            found.append(example)
    return found


def write_answers(
    folder: Path,
    policies: Mapping[str, LanguagePolicy],
    examples: Sequence[Example],
    grader: Callable[[Example, str], Grades] | None = None,
) -> None:
    """Write the greedy answers of each policy, by its name, to the same prompts, with their grades part by part.

    Args:
        folder: of the step's output.
        policies: who is asked, the latest last.
        examples: what is asked.
        grader: grades an answer, with the weights of the run; None for a step that reads no weights.
    """
    prompts = [example.prompt for example in examples]
    found: list[dict[str, Any]] = [
        {"task": str(example.task), "prompt": example.prompt, "target": example.target, "answers": []} for example in examples
    ]
    for name, policy in policies.items():
        for row, example, answer in zip(found, examples, greedy_answers(policy, prompts), strict=True):
            grades = None if grader is None else grader(example, answer.text)
            row["answers"].append(
                {
                    "whose": name,
                    "text": answer.text,
                    "num_tokens": len(answer.token_ids),
                    "is_truncated": answer.is_truncated,
                    "reward": None if grades is None else grades.total(),
                    "parts": {} if grades is None else dict(grades.parts),
                }
            )
    write_json(folder / ANSWERS, found)

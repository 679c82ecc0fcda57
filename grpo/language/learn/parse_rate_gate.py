"""The gate before GRPO: a model that does not write what can be read has nothing to learn from rewards, and is refused with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo.base.errors import PlainError
from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import sampled_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example, LanguageBoards, MoveExample
from grpo.language.text.tasks import LanguageTask, MoveAnswer
from grpo.settings.language import SMALL, LanguageConfig
from grpo.statistics.intervals import wilson_interval

_NUM_PROMPTS: Final = 64
"""Of each task."""
_SHOWN: Final = 60


class UnreadableError(PlainError, RuntimeError):
    """A language model answers what nobody can read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParseRate:
    """How many answers to one task's prompts could be read, drawn at T = 1."""

    rate: float
    low: float
    """Lower end of the 95 % interval (Wilson)."""
    high: float
    num: int
    """Answers."""
    legal_rate: float | None
    """Policy task: fraction of the answers that name a legal best move."""
    truncated: float
    """Fraction of the answers that were cut; they count as unreadable."""
    example: str
    """The beginning of one answer, one that could not be read if there is any."""

    def __str__(self) -> str:
        return f"{self.rate:.2f} [{self.low:.2f}, {self.high:.2f}] of {self.num} answers, such as {self.example!r}"


def parse_rates(policy: LanguagePolicy, boards: LanguageBoards, *, seed: int) -> dict[LanguageTask, ParseRate]:
    """Return how many answers of each task that is trained can be read; the prompts are boards drawn without repetition.

    Raises NonFiniteError when weights are NaN or infinite.
    """
    policy.refuse_nonfinite()
    share = policy.config.environment_share
    tasks = [task for task in LanguageTask if (share if task == LanguageTask.ENVIRONMENT else 1 - share) > 0]
    return {task: _rate(policy, _prompts(boards, task, seed), seed=seed) for task in tasks}


def gate_metrics(rates: Mapping[LanguageTask, ParseRate]) -> dict[str, float]:
    """Return the rates under their names in `grpo.metrics.table`."""
    total = sum(rate.num for rate in rates.values())
    found = {
        "language/parse_rate": sum(rate.rate * rate.num for rate in rates.values()) / total,
        "language/truncated": sum(rate.truncated * rate.num for rate in rates.values()) / total,
    }
    for task, rate in rates.items():
        found |= {f"language/parse_rate/{task}": rate.rate, f"language/truncated/{task}": rate.truncated}
        if rate.legal_rate is not None:
            found["language/legal_rate"] = rate.legal_rate
    return found


def refuse_unreadable(rates: Mapping[LanguageTask, ParseRate], config: LanguageConfig, *, num_steps: int) -> None:
    """Raise UnreadableError, with the rates and the reason, when a task's parse rate is below `min_parse_rate` after so many steps."""
    low = {task: rate for task, rate in rates.items() if rate.rate < config.min_parse_rate}
    if not low:
        return
    is_random = config.model == SMALL and num_steps == 0
    said = "; ".join(f"{task} task: parse rate {rate}" for task, rate in low.items())
    raise UnreadableError(
        f"{'random weights' if is_random else 'the language model cannot be read'}: {said}; language.min_parse_rate ="
        f" {config.min_parse_rate:g} is asked for, because groups of unreadable answers teach nothing: clone"
        f" {'longer' if num_steps else 'first'}: pretrain.num_steps (now {num_steps})"
    )


def _prompts(boards: LanguageBoards, task: LanguageTask, seed: int) -> list[Example]:
    rng = numpy_stream(seed, "gate", task)
    indices = rng.choice(len(boards), size=min(_NUM_PROMPTS, len(boards)), replace=False)
    return [boards.example(int(index), task, rng=rng) for index in indices]


def _rate(policy: LanguagePolicy, examples: list[Example], *, seed: int) -> ParseRate:
    task = examples[0].task
    streams = [numpy_stream(seed, "gate", task, number) for number in range(len(examples))]
    answers = sampled_answers(policy, [example.prompt for example in examples], temperature=1.0, streams=streams)
    readings = [example.read(answer.text) for example, answer in zip(examples, answers, strict=True)]
    is_read = [reading.is_readable and not answer.is_truncated for reading, answer in zip(readings, answers, strict=True)]
    num_legal = sum(
        isinstance(example, MoveExample) and isinstance(reading, MoveAnswer) and reading.best in example.moves
        for example, reading in zip(examples, readings, strict=True)
    )
    low, high = wilson_interval(sum(is_read), len(answers))
    return ParseRate(
        rate=sum(is_read) / len(answers),
        low=low,
        high=high,
        num=len(answers),
        legal_rate=num_legal / len(answers) if task == LanguageTask.MOVE else None,
        truncated=sum(answer.is_truncated for answer in answers) / len(answers),
        example=answers[is_read.index(False) if False in is_read else 0].text[:_SHOWN],
    )

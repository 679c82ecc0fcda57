"""Check before GRPO: the pipeline step `pretrain` fails if too few answers can be parsed.

The parse rate is the fraction of readable answers: in the right format, and complete within `language.max_answer_tokens`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo.base.errors import PlainError
from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import GeneratedAnswer, sampled_answers
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import LanguageBoards, MoveExample
from grpo.language.text.tasks import MoveAnswer, Reading, TextTask
from grpo.settings.language import SMALL, LanguageConfig
from grpo.statistics.intervals import wilson_interval

_NUM_PROMPTS: Final = 64  # Prompts of each text task.
_SHOWN: Final = 60  # Characters of an example.


class UnreadableError(PlainError, RuntimeError):
    """Too few answers can be parsed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParseRate:
    """Parse rate of one text task at temperature 1."""

    rate: float
    low: float  # Wilson's 95 % interval: `low` to `high`.
    high: float
    num: int  # Answers.
    legal_rate: float | None  # Fraction of answers with a legal best move, sampled without a mask; None for the environment task.
    truncated: float  # Fraction of answers.
    example: str  # Beginning of the first unreadable answer, or of the first answer if all are readable.

    def __str__(self) -> str:
        return f"{self.rate:.2f} [{self.low:.2f}, {self.high:.2f}] of {self.num} answers (the first unreadable one: {self.example!r})"


def parse_rates(policy: LanguagePolicy, boards: LanguageBoards, *, seed: int) -> dict[TextTask, ParseRate]:
    """Measure each text task that training uses (`language.environment_share`) on random boards.

    Raises NonFiniteError if a weight is NaN or infinite, and the errors of `sampled_answers`.
    """
    policy.refuse_nonfinite()
    share = policy.config.environment_share
    tasks = [task for task in TextTask if (share if task == TextTask.ENVIRONMENT else 1 - share) > 0]
    return {task: _rate(policy, boards, task, seed=seed) for task in tasks}


def gate_metrics(rates: Mapping[TextTask, ParseRate]) -> dict[str, float]:
    total = sum(rate.num for rate in rates.values())
    metrics = {
        "language/parse_rate": sum(rate.rate * rate.num for rate in rates.values()) / total,
        "language/truncated": sum(rate.truncated * rate.num for rate in rates.values()) / total,
    }
    for task, rate in rates.items():
        metrics |= {f"language/parse_rate/{task}": rate.rate, f"language/truncated/{task}": rate.truncated}
        if rate.legal_rate is not None:
            metrics["language/legal_rate"] = rate.legal_rate
    return metrics


def refuse_unreadable(rates: Mapping[TextTask, ParseRate], config: LanguageConfig, *, num_steps: int) -> None:
    """Raise UnreadableError if a rate is below `language.min_parse_rate`. `num_steps`: imitation's steps."""
    too_low = {task: rate for task, rate in rates.items() if rate.rate < config.min_parse_rate}
    if not too_low:
        return
    is_random = config.model == SMALL and num_steps == 0
    cut = max(rate.truncated for rate in too_low.values())
    limit = f", or raise language.max_answer_tokens = {config.max_answer_tokens}, which cut {100 * cut:.0f} % of the answers"
    is_cut = cut > 0.5 and not is_random
    listed = "; ".join(f"{task} task: parse rate {rate}" for task, rate in too_low.items())
    raise UnreadableError(
        f"{'a model with random weights writes unreadable answers' if is_random else 'too few answers can be parsed'}: {listed}."
        f" language.min_parse_rate = {config.min_parse_rate:g}, because groups of unreadable answers teach nothing: train"
        f" {'longer' if num_steps else 'first'} by imitation, with pretrain.num_steps (now {num_steps}){limit * is_cut}"
    )


def _rate(policy: LanguagePolicy, boards: LanguageBoards, task: TextTask, *, seed: int) -> ParseRate:
    rng = numpy_stream(seed, "gate", task)
    indices = rng.choice(len(boards), size=min(_NUM_PROMPTS, len(boards)), replace=False)
    examples = [boards.example(int(index), task, rng=rng) for index in indices]

    def answered(asked: LanguagePolicy) -> tuple[list[GeneratedAnswer], list[Reading]]:
        streams = [numpy_stream(seed, "gate", task, number) for number in range(len(examples))]
        answers = sampled_answers(asked, [example.prompt for example in examples], temperature=1.0, streams=streams)
        return answers, [example.read(answer.text) for example, answer in zip(examples, answers, strict=True)]

    answers, readings = answered(policy)
    is_masked = policy.config.legal_moves and task == TextTask.MOVE
    unmasked = answered(policy.with_legal_moves(False))[1] if is_masked else readings
    is_read = [reading.is_readable and not answer.is_truncated for reading, answer in zip(readings, answers, strict=True)]
    num_legal = sum(
        isinstance(example, MoveExample) and isinstance(reading, MoveAnswer) and reading.best in example.moves
        for example, reading in zip(examples, unmasked, strict=True)
    )
    low, high = wilson_interval(sum(is_read), len(answers))
    return ParseRate(
        rate=sum(is_read) / len(answers),
        low=low,
        high=high,
        num=len(answers),
        legal_rate=num_legal / len(answers) if task == TextTask.MOVE else None,
        truncated=sum(answer.is_truncated for answer in answers) / len(answers),
        example=answers[is_read.index(False) if False in is_read else 0].text[:_SHOWN],
    )

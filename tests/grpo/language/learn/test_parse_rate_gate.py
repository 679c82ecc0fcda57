"""The gate: a model that learned the format passes, random and broken weights are refused by name and with the reason."""

import pytest
from small_language import CONFIG, cloned_policy, language_boards

from grpo.dataset.table import Split
from grpo.language.learn.parse_rate_gate import ParseRate, UnreadableError, gate_metrics, parse_rates, refuse_unreadable
from grpo.language.text.tasks import LanguageTask
from grpo.match.intervals import wilson_interval
from grpo.settings.language import LanguageConfig
from grpo.settings.metrics import METRICS


def rate_of(rate: float, *, num: int = 50) -> ParseRate:
    low, high = wilson_interval(round(rate * num), num)
    return ParseRate(rate=rate, low=low, high=high, num=num, legal_rate=None, truncated=0.0, example="e2e4 is good")


def rates_of(*, move: float, environment: float) -> dict[LanguageTask, ParseRate]:
    return {LanguageTask.MOVE: rate_of(move), LanguageTask.ENVIRONMENT: rate_of(environment, num=150)}


def test_a_cloned_model_passes_and_the_rates_are_repeatable() -> None:
    boards = language_boards(Split.VALIDATION)
    rates = parse_rates(cloned_policy(), boards, num_prompts=20, seed=1)
    refuse_unreadable(rates, CONFIG, num_steps=300)
    assert rates == parse_rates(cloned_policy(), boards, num_prompts=20, seed=1)
    assert rates[LanguageTask.MOVE].legal_rate is not None
    assert gate_metrics(rates).keys() <= METRICS.keys()
    for rate in rates.values():
        assert rate.low < rate.rate <= rate.high <= 1
        assert rate.num == 20


def test_each_task_must_pass_and_only_those_that_do_not_are_named() -> None:
    config = LanguageConfig(min_parse_rate=0.8)
    refuse_unreadable(rates_of(move=0.8, environment=0.8), config, num_steps=300)
    with pytest.raises(UnreadableError, match=r"environment task: parse rate 0\.78") as refusal:
        refuse_unreadable(rates_of(move=0.82, environment=0.78), config, num_steps=300)
    assert "move task" not in str(refusal.value)


def test_an_answer_that_was_cut_is_not_readable_however_it_reads() -> None:
    """A move answer has at least 23 tokens here: cut at 16 none is whole."""
    cut = CONFIG.model_copy(update={"max_answer_tokens": 16, "environment_share": 0.0})
    rates = parse_rates(cloned_policy(cut), language_boards(Split.VALIDATION), num_prompts=4, seed=1)
    assert rates[LanguageTask.MOVE].rate == 0
    assert rates[LanguageTask.MOVE].truncated == 1

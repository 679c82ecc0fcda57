"""Whether GRPO can learn anything from a language model's answers, asked before the first update; beside `grpo.train.learnability`."""

from collections.abc import Mapping
from typing import Final

from grpo.language.learn.logprobs import MAX_GAP
from grpo.language.learn.parse_rate_gate import ParseRate, parse_rates
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import LanguageBoards
from grpo.language.text.tasks import LanguageTask
from grpo.settings.metrics import TASKS
from grpo.settings.tree import Settings
from grpo.train.learnability import FAR, Consequence, Learnability, LearnabilityFinding, finding, zero_variance

MAX_FIRST_KL: Final = 1e-6
"""Nats of an answer: where policy and reference have the same weights, all that is more is two ways of scoring."""
_MIN_SPREAD: Final = 0.01
_MAX_TRUNCATED: Final = 0.5


def assess_language_learnability(
    metrics: Mapping[str, float], policy: LanguagePolicy, boards: LanguageBoards, settings: Settings, *, is_at_reference: bool
) -> Learnability:
    """Return the findings on the first rollout, before any update.

    Args:
        metrics: of that rollout.
        policy: what is to be trained.
        boards: where the gate's prompts come from.
        settings: the run's.
        is_at_reference: whether the policy is the reference as yet, so that the divergence must be 0.
    """
    rates = parse_rates(policy, boards, num_prompts=settings.language.num_gate_prompts, seed=settings.seed)
    findings = (
        _gap(metrics, policy),
        _reference(metrics, is_at_reference=is_at_reference),
        *_parsing(rates, settings),
        _truncation(metrics),
        _spread(metrics),
        zero_variance(metrics["language/zero_variance_groups"]),
        _entropy(metrics, settings),
    )
    return Learnability(findings=findings, metrics=metrics)


def _gap(metrics: Mapping[str, float], policy: LanguagePolicy) -> LearnabilityFinding:
    gap = metrics["language/sampled_scored_gap"]
    return finding(
        "sampled = scored log-probability",
        f"{gap:.2e} nats a token at most",
        (
            not gap <= MAX_GAP[policy.precision],
            Consequence.REFUSAL,
            "Answers are not sampled from the distribution that scores them: padding, positions, dropout, temperature or sampling differ",
        ),
    )


def _reference(metrics: Mapping[str, float], *, is_at_reference: bool) -> LearnabilityFinding:
    mean, largest = metrics["language/kl_reference"], metrics["language/kl_max"]
    return finding(
        "distance to the reference",
        f"KL(policy || reference) {mean:.3g} nats an answer, {largest:.3g} at most",
        (
            not mean >= -MAX_FIRST_KL,
            Consequence.REFUSAL,
            "A divergence is never negative: the two are not distributions over the same tokens",
        ),
        (
            is_at_reference and not largest <= MAX_FIRST_KL,
            Consequence.REFUSAL,
            "The run begins at its reference, so that this must be 0: another reference was loaded, or the two score differently",
        ),
        (mean > FAR, Consequence.WARNING, "The policy is far from its anchor before training: the KL term will drag it back"),
    )


def _parsing(rates: Mapping[LanguageTask, ParseRate], settings: Settings) -> list[LearnabilityFinding]:
    least = settings.language.min_parse_rate
    return [
        finding(
            f"parse rate, {TASKS[task.value]} task",
            str(rate),
            (
                not rate.rate >= least,
                Consequence.REFUSAL,
                f"Fewer than language.min_parse_rate = {least:g} of the answers can be read, so that rewards would be about form alone, if"
                " anything. Random weights write nothing that can be read: clone first (language.cloning.num_steps), or load a model that"
                " knows this format",
            ),
        )
        for task, rate in rates.items()
    ]


def _truncation(metrics: Mapping[str, float]) -> LearnabilityFinding:
    fraction = metrics["language/truncated"]
    return finding(
        "truncated answers",
        f"{fraction:.1%} of the answers are cut at the greatest length; mean length {metrics['language/answer_tokens']:.0f} tokens",
        (
            fraction >= 1,
            Consequence.REFUSAL,
            "No answer ends, so that the loss would leave out all: raise language.max_answer_tokens, or clone first",
        ),
        (fraction > _MAX_TRUNCATED, Consequence.WARNING, "The loss leaves out most answers: raise language.max_answer_tokens"),
    )


def _spread(metrics: Mapping[str, float]) -> LearnabilityFinding:
    spread = metrics["language/reward_std"]
    return finding(
        "reward spread",
        f"mean {metrics['language/reward_mean']:.3f} points, standard deviation over all answers {spread:.3f}",
        (spread < _MIN_SPREAD, Consequence.WARNING, "Answers are worth the same: there is next to nothing to learn from"),
    )


def _entropy(metrics: Mapping[str, float], settings: Settings) -> LearnabilityFinding:
    entropy = metrics["language/entropy"]
    by_task = ", ".join(
        f"{words} task {metrics[f'language/entropy/{task}']:.2f}" for task, words in TASKS.items() if f"language/entropy/{task}" in metrics
    )
    return finding(
        "entropy at T = 1",
        f"{entropy:.2f} nats an answer ({by_task}), {metrics['language/token_entropy']:.3f} a token",
        (
            entropy < settings.grpo.critical_entropy,
            Consequence.REFUSAL,
            f"It is critical already (grpo.critical_entropy = {settings.grpo.critical_entropy:g}): start from a model with a choice left",
        ),
    )

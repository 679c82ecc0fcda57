"""What is exact of a written answer, from whole distributions: entropy and divergence; and whether sampling and scoring agree.

A thought is a part of the answer here; a forced token (`grpo.language.generate.thoughts`) is none of its tokens.

Legend: B answers, T tokens of the longest answer (padded on the right), K tokens of all answers, V tokens of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from grpo.language.generate.answers import GeneratedAnswer, sampled_answers
from grpo.language.learn import memory_estimate
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.model.policy import LanguagePolicy, token_distribution

MAX_GAP: Final = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Nats, by precision: between the log-probability that a token was sampled with and the one that it is scored with. A cache of keys and
values rounds differently from a pass over the whole text: by 1e-6 in float32, by 1e-2 in bfloat16."""


def pieces(rows: Tensor, batch: AnswerBatch, policy: LanguagePolicy) -> Iterator[Tensor]:
    """Yield rows of a batch in pieces that one forward pass may take: by `language.answers_per_forward`, and by the size of logits."""
    vocabulary: int = policy.network.config.get_text_config().vocab_size
    most = max(1, memory_estimate.MAX_LOGITS // (batch.targets.shape[1] * vocabulary))
    yield from torch.split(rows, min(most, policy.config.answers_per_forward))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ExactMeasures:
    """Of each token of B answers; 0 where `mask` is."""

    entropy: Tensor
    """[B, T] nats, at T = 1: -sum p ln p over the whole vocabulary."""
    kl: Tensor
    """[B, T] nats, at the temperature of the loss: sum p (ln p - ln q), q being the reference's."""
    log_probs: Tensor
    """[B, T] nats, at the temperature of the loss, of the answer's token, as the loss scores it."""
    mask: Tensor
    """[B, T] bool: tokens of the answer, its end included, without forced ones."""

    def of_answers(self) -> tuple[Tensor, Tensor]:
        """Return entropy and divergence of each answer, [B]: sums along its tokens.

        By the chain rule the expectation of either, over sampled answers, is the entropy of (divergence between) the distributions over
        whole answers; each conditional being exact, the divergence is never negative.
        """
        return self.entropy.sum(1), self.kl.sum(1)


@torch.no_grad()
def exact_measures(policy: LanguagePolicy, reference: LanguagePolicy, batch: AnswerBatch, *, temperature: float) -> ExactMeasures:
    """Return the exact entropy, and divergence from the reference, at each token of answers, and its log-probability.

    Args:
        policy: whose distribution it is.
        reference: what it is compared with.
        batch: the answers.
        temperature: of divergence and log-probabilities.
    """
    found = torch.zeros(3, *batch.targets.shape, device=policy.device)
    for rows in pieces(torch.arange(len(batch), device=policy.device), batch, policy):
        part = batch.select_rows(rows)
        logits = part.logits(policy)
        ours = token_distribution(logits, temperature=temperature)
        theirs = token_distribution(part.logits(reference), temperature=temperature)
        at_one = ours if temperature == 1 else token_distribution(logits, temperature=1.0)
        measured = torch.stack([at_one.entropy(), ours.kl_to(theirs), ours.log_prob(part.tokens[:, None])[:, 0]])
        found[:, rows] = found[:, rows].masked_scatter(part.is_token.expand(3, -1, -1), measured)
    entropy, kl, log_probs = found
    return ExactMeasures(entropy=entropy, kl=kl, log_probs=log_probs, mask=batch.is_token)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """How far sampling, scoring, and the model read by itself without any padding are apart."""

    largest: float
    """Nats, over all tokens and all pairs of the three; infinite where a token could not have been sampled."""
    by_row: tuple[tuple[int, float], ...]
    """For each answer: tokens that its prompt was padded with, and its largest difference."""
    cause: str
    """Name of the fault: a key of `ADVICE`; empty when there is none."""
    limit: float
    """Nats that rounding may make."""

    @property
    def is_within(self) -> bool:
        """Whether it is no more than rounding; NaN is not."""
        return self.largest <= self.limit

    def __str__(self) -> str:
        padding, worst = max(self.by_row, key=lambda row: row[1])
        return f"{self.largest:.2e} nats at most over {len(self.by_row)} prompts (worst: {worst:.2e}, behind {padding} tokens of padding)"


ADVICE: Final = {
    "left_padding": (
        "left_padding: rows behind padding are scored or sampled otherwise than without it. Position ids must count the tokens"
        " that are there, in sampling and in scoring (grpo/language/model/left_padding.py)"
    ),
    "positions": (
        "positions: tokens are given other positions than the model counts by itself, with and without padding. The first token's position"
        " is 0 (grpo/language/model/left_padding.py)"
    ),
    "dropout": "dropout: two scorings of the same text differ. A layer drops something out: set the model's dropout to 0",
    "temperature": "temperature: text is sampled at one temperature and scored at another. Both are grpo.temperature",
    "truncated_sampling": (
        "truncated_sampling: some tokens cannot be sampled (top_k, top_p, min_p, suppressed tokens), and scoring does not know it. Sample"
        " from the whole distribution"
    ),
    "unknown": (
        "the two are different functions, for a reason that is none of padding, positions, dropout, temperature and truncated sampling"
    ),
}
"""Cause -> what it means and how to mend it."""


@torch.no_grad()
def sampled_scored_gap(
    policy: LanguagePolicy, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]
) -> Gap:
    """Write answers to prompts of mixed length as a rollout does, and compare how their tokens were sampled with how a loss scores them.

    A third number decides what is right: the same text as the model reads it alone, without padding, mask or given positions.

    Args:
        policy: whose sampling and scoring it is.
        prompts: some shorter than others.
        temperature: of both.
        streams: one for each answer.
    """
    answers = sampled_answers(policy, prompts, temperature=temperature, streams=streams)
    batch = AnswerBatch.of_written(policy, answers)
    scored, again = (_scored(policy, batch, temperature=temperature) for _ in range(2))
    alone = [_logits_alone(policy, answer) for answer in answers]
    limit = MAX_GAP[policy.precision]
    found = _Compared(
        sampled=[torch.tensor(answer.log_probs) for answer in answers],
        scored=scored,
        own=[_log_probs(logits, _sampled_ids(answer), temperature) for logits, answer in zip(alone, answers, strict=True)],
        limit=limit,
    )
    lengths = [len(answer.prompt_ids) for answer in answers]
    padding = [max(lengths) - length for length in lengths]
    largest = found.largest()
    cause = ""
    if not max(largest) <= limit:
        if not _differ(scored, again) <= limit:
            cause = "dropout"
        elif found.scores_as_alone() and _is_of_one_temperature(found.sampled, alone, answers, limit):
            cause = "temperature"
        else:
            cause = found.cause([not pads for pads in padding])
    return Gap(largest=max(largest), by_row=tuple(zip(padding, largest, strict=True)), cause=cause, limit=limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """Log-probabilities of the same tokens, a tensor an answer: as sampled, as the loss scores them, as the model reads them alone."""

    sampled: Sequence[Tensor]
    scored: Sequence[Tensor]
    own: Sequence[Tensor]
    limit: float

    def largest(self) -> list[float]:
        """Return the largest difference of any two in each answer."""
        pairs = ((self.sampled, self.scored), (self.sampled, self.own), (self.scored, self.own))
        return [max(_differ([one[row]], [other[row]]) for one, other in pairs) for row in range(len(self.sampled))]

    def scores_as_alone(self) -> bool:
        """Whether the loss scores all texts as the model reads them alone."""
        return _differ(self.scored, self.own) <= self.limit

    def cause(self, is_unpadded: Sequence[bool]) -> str:
        """Return what makes the difference, where it is neither dropout nor a temperature."""
        rows = [row for row, holds in enumerate(is_unpadded) if holds]
        if max(self.largest()[row] for row in rows) <= self.limit:
            return "left_padding"
        if self.scores_as_alone():
            # Whatever is left out of the draw makes each token that is left more likely than it is scored.
            gains = torch.cat([one - other for one, other in zip(self.sampled, self.own, strict=True)])
            return "truncated_sampling" if bool((gains >= -self.limit).all()) else "unknown"
        return "positions" if _differ(self.sampled, self.scored) <= self.limit else "unknown"


def _differ(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest difference in nats; infinite where one is NaN."""
    return float((torch.cat(list(one)) - torch.cat(list(other))).abs().nan_to_num(nan=torch.inf).max())


def _scored(policy: LanguagePolicy, batch: AnswerBatch, *, temperature: float) -> list[Tensor]:
    """Return the log-probabilities that the loss gives each answer's tokens."""
    lengths = batch.is_token.sum(1).tolist()
    return list(torch.split(_log_probs(batch.logits(policy), batch.tokens.tolist(), temperature), lengths))


def _logits_alone(policy: LanguagePolicy, answer: GeneratedAnswer) -> Tensor:
    """Return the logits [T, V] of an answer's tokens as the model's own code reads prompt and answer, given nothing but them."""
    ids = torch.tensor([[*answer.prompt_ids, *answer.token_ids[:-1]]], device=policy.device)
    length = len(answer.token_ids)
    logits: Tensor = policy.forward(ids, None, num_last=length, use_cache=False).logits
    return logits[0, -length:][~torch.tensor(answer.is_forced, device=policy.device)].float()


def _sampled_ids(answer: GeneratedAnswer) -> list[int]:
    return [token for token, is_forced in zip(answer.token_ids, answer.is_forced, strict=True) if not is_forced]


def _log_probs(logits: Tensor, tokens: Sequence[int], temperature: float) -> Tensor:
    """Return the log-probability of each token, on the CPU."""
    return token_distribution(logits, temperature=temperature).log_prob(torch.tensor(tokens, device=logits.device)[:, None])[:, 0].cpu()


def _is_of_one_temperature(sampled: Sequence[Tensor], alone: Sequence[Tensor], answers: Sequence[GeneratedAnswer], limit: float) -> bool:
    """Return whether some one temperature makes of the model's logits what was sampled from."""
    low, high, smallest = 0.1, 10.0, np.inf
    tokens = [_sampled_ids(answer) for answer in answers]
    for _ in range(7):
        grid = np.geomspace(low, high, 21)
        off = [_differ(sampled, [_log_probs(logits, ids, float(each)) for logits, ids in zip(alone, tokens, strict=True)]) for each in grid]
        best = int(np.argmin(off))
        low, high, smallest = float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)]), off[best]
    return smallest <= 10 * limit

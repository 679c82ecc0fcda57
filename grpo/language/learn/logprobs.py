"""Exact entropy, KL divergence and log-probabilities of answers, computed from the distribution over the whole vocabulary.

Legend: B answers, T tokens of the longest answer (padded on the right), K tokens of all answers, V tokens of the vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.model.policy import LanguagePolicy, token_distribution

MAX_GAP: Final = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Precision -> largest allowed difference, in nats, between a token's sampled and its scored log-probability. A key-value cache rounds
differently from a forward pass over the whole text: by 1e-6 in float32, by 1e-2 in bfloat16."""
_MAX_LOGITS: Final = 1 << 25
"""Most logits in one forward pass: 128 MiB in float32. Limits memory; does not change the result."""


def pieces(rows: Tensor, batch: AnswerBatch, policy: LanguagePolicy) -> Iterator[Tensor]:
    """Yield the rows in pieces for one forward pass each: at most `language.answers_per_forward` rows and `_MAX_LOGITS` logits."""
    vocabulary: int = policy.network.config.get_text_config().vocab_size
    most = max(1, _MAX_LOGITS // (batch.targets.shape[1] * vocabulary))
    yield from torch.split(rows, min(most, policy.config.answers_per_forward))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ExactMeasures:
    """Measures of each token of B answers; 0 on padding."""

    entropy: Tensor
    """[B, T] nats, at temperature 1: -sum p ln p over the vocabulary."""
    kl: Tensor
    """[B, T] nats, at the loss's temperature: KL(policy || reference) = sum p (ln p - ln q)."""
    log_probs: Tensor
    """[B, T] nats, at the loss's temperature: log-probability of the answer's token."""
    mask: Tensor
    """[B, T] bool: True for tokens of the answer, including the end token."""

    def of_answers(self) -> tuple[Tensor, Tensor]:
        """Return entropy and KL of each answer, [B] each: sums over its tokens.

        By the chain rule, the mean over sampled answers estimates the entropy of (and the KL between) the distributions over whole answers.
        Each token's KL is exact, so the sum is never negative.
        """
        return self.entropy.sum(1), self.kl.sum(1)


@torch.no_grad()
def exact_measures(policy: LanguagePolicy, reference: LanguagePolicy, batch: AnswerBatch, *, temperature: float) -> ExactMeasures:
    """Return entropy, KL(policy || reference) and log-probability of each token of the answers in `batch`.

    `temperature` is the loss's, for KL and log-probabilities; entropy is at temperature 1.
    """
    measures = torch.zeros(3, *batch.targets.shape, device=policy.device)
    for rows in pieces(torch.arange(len(batch), device=policy.device), batch, policy):
        part = batch.select_rows(rows)
        logits = part.logits(policy)
        ours = token_distribution(logits, temperature=temperature)
        theirs = token_distribution(part.logits(reference), temperature=temperature)
        at_one = ours if temperature == 1 else token_distribution(logits, temperature=1.0)
        measured = torch.stack([at_one.entropy(), ours.kl_to(theirs), ours.log_prob(part.tokens[:, None])[:, 0]])
        measures[:, rows] = measures[:, rows].masked_scatter(part.is_token.expand(3, -1, -1), measured)
    entropy, kl, log_probs = measures
    return ExactMeasures(entropy=entropy, kl=kl, log_probs=log_probs, mask=batch.is_token)

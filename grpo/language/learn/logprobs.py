"""What is exact of a written answer, from whole distributions: entropy, divergence, and its tokens' log-probabilities as the loss has them.

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
"""Nats, by precision: between the log-probability that a token was sampled with and the one that it is scored with. A cache of keys and
values rounds differently from a pass over the whole text: by 1e-6 in float32, by 1e-2 in bfloat16."""
_MAX_LOGITS: Final = 1 << 25
"""Numbers of a forward pass's logits at most: 128 MiB in float32. Answers are cut into pieces so."""


def pieces(rows: Tensor, batch: AnswerBatch, policy: LanguagePolicy) -> Iterator[Tensor]:
    """Yield rows of a batch in pieces that one forward pass may take: by `language.answers_per_forward`, and by the size of logits."""
    vocabulary: int = policy.network.config.get_text_config().vocab_size
    most = max(1, _MAX_LOGITS // (batch.targets.shape[1] * vocabulary))
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
    """[B, T] bool: tokens of the answer, its end included."""

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

"""Entropy, KL divergence and log-probability of each token of an answer, exact: computed over all allowed tokens.

Legend: B answers, T tokens of the longest answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.model.policy import LanguagePolicy
from grpo.policy.distribution import MoveDistribution

# Precision -> largest allowed difference, in nats, between a token's log-probabilities in generation and in scoring. Rounding alone
# causes 1e-6 in float32 and 1e-2 in bfloat16.
MAX_GAP: Final = {torch.float32: 1e-4, torch.bfloat16: 0.1}
_MAX_LOGITS: Final = 1 << 25  # Per forward pass (128 MiB in float32); limits memory.


def pieces(rows: Tensor, batch: AnswerBatch, policy: LanguagePolicy) -> Iterator[Tensor]:
    """Yield `rows` (indices of answers) in pieces for a forward pass each, limited by `language.answers_per_forward` and `_MAX_LOGITS`."""
    max_rows = max(1, _MAX_LOGITS // (batch.targets.shape[1] * policy.vocabulary))
    yield from torch.split(rows, min(max_rows, policy.config.answers_per_forward))


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ExactMeasures:
    """Measures of each token, 0 on padding."""

    entropy: Tensor  # [B, T] nats, at temperature 1: -sum p ln p.
    kl: Tensor  # [B, T] nats, at the sampling temperature: KL(policy || reference) = sum p (ln p - ln q).
    log_probs: Tensor  # [B, T] nats, at the sampling temperature.

    def of_answers(self) -> tuple[Tensor, Tensor]:
        """Return entropy and KL, each summed over an answer's tokens, [B].

        By the chain rule, the mean KL of sampled answers estimates the KL of the distribution over complete answers. At sampling
        temperature 1, the same holds for the entropy.
        """
        return self.entropy.sum(1), self.kl.sum(1)


@torch.no_grad()
def exact_measures(policy: LanguagePolicy, reference: LanguagePolicy, batch: AnswerBatch, *, temperature: float) -> ExactMeasures:
    """Measure answers that were sampled from `policy` at `temperature`."""
    measures = torch.zeros(3, *batch.targets.shape, device=policy.device)
    for rows in pieces(torch.arange(len(batch), device=policy.device), batch, policy):
        part = batch.select_rows(rows)
        current, initial = (part.distribution(model, temperature=temperature) for model in (policy, reference))
        # softmax(logits / T) to the power T is proportional to softmax(logits).
        at_one = MoveDistribution.from_logits(current.log_probs * temperature, current.is_legal, temperature=1.0)
        measured = torch.stack([at_one.entropy(), current.kl_to(initial), current.log_prob(part.columns(policy))[:, 0]])
        measures[:, rows] = measures[:, rows].masked_scatter(part.is_token.expand(3, -1, -1), measured)
    entropy, kl, log_probs = measures
    return ExactMeasures(entropy=entropy, kl=kl, log_probs=log_probs)

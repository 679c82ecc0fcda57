"""What is exact of a written answer, from whole distributions: entropy and divergence; and whether sampling and scoring agree.

Legend: B answers, L tokens of prompt and answer together (prompts padded on the left), T tokens of the answers (padded on the right),
V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo.language.learn.trl_adapter import Engine

MAX_GAP: Final = {torch.float32: 1e-4, torch.bfloat16: 0.1}
"""Nats, by precision: between the log-probability that a token was sampled with and the one that it is scored with. A cache of keys and
values rounds differently from a pass over the whole text: by 1e-6 in float32, by 1e-2 in bfloat16."""
_MAX_LOGITS: Final = 1 << 25
"""Numbers of a forward pass's logits at most: 128 MiB in float32, of which some five copies are held at once."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class ExactMeasures:
    """Of each token of B answers; 0 where `mask` is."""

    entropy: Tensor
    """[B, T] nats, at T = 1: -sum p ln p over the whole vocabulary."""
    kl: Tensor
    """[B, T] nats, at the temperature of the loss: sum p (ln p - ln q), q being the reference's."""
    mask: Tensor
    """[B, T] bool: tokens of the answer, its end included."""

    def of_answers(self) -> tuple[Tensor, Tensor]:
        """Return entropy and divergence of each answer, [B]: sums along its tokens.

        By the chain rule the expectation of either, over sampled answers, is the entropy of (divergence between) the distributions over
        whole answers; each conditional being exact, the divergence is never negative.
        """
        return (self.entropy * self.mask).sum(1), (self.kl * self.mask).sum(1)


@torch.no_grad()
def exact_measures(
    model: PreTrainedModel, reference: PreTrainedModel, ids: Tensor, attention: Tensor, answer_mask: Tensor, *, temperature: float
) -> ExactMeasures:
    """Return the exact entropy and divergence at each token of answers.

    Args:
        model: whose distribution it is.
        reference: what it is compared with.
        ids: [B, L].
        attention: [B, L], 1 where there is a token.
        answer_mask: [B, T], 1 where the answer has a token.
        temperature: of the divergence.
    """
    num_tokens = answer_mask.shape[1]
    size = max(1, _MAX_LOGITS // (num_tokens * model.config.get_text_config().vocab_size))
    entropies, divergences = [], []
    for rows in torch.split(torch.arange(len(ids), device=ids.device), size):
        logits, others = (_logits(network, ids[rows], attention[rows], num_tokens) for network in (model, reference))
        at_one = logits.log_softmax(-1)
        entropies.append(-(at_one.exp() * at_one).sum(-1))
        ours, theirs = (scores if temperature == 1 else (scores / temperature) for scores in (logits, others))
        log_p, log_q = (at_one if temperature == 1 else ours.log_softmax(-1)), theirs.log_softmax(-1)
        divergences.append((log_p.exp() * (log_p - log_q)).sum(-1))
    mask = answer_mask.bool()
    return ExactMeasures(entropy=torch.cat(entropies).masked_fill(~mask, 0.0), kl=torch.cat(divergences).masked_fill(~mask, 0.0), mask=mask)


def _logits(network: PreTrainedModel, ids: Tensor, attention: Tensor, num_tokens: int) -> Tensor:
    """Return the logits [B, T, V] that the last T tokens were drawn by, in float32."""
    logits: Tensor = network(input_ids=ids, attention_mask=attention, logits_to_keep=num_tokens + 1, use_cache=False).logits
    return logits[:, -num_tokens - 1 : -1].float()


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """How far sampling and scoring are apart."""

    largest: float
    """Nats, over all tokens; infinite where a token could not have been sampled."""
    by_row: tuple[tuple[int, float], ...]
    """For each answer: tokens that its prompt was padded with, and its largest difference."""
    cause: str
    """Name of the fault: `left_padding`, `dropout`, `temperature`, `truncated_sampling` or `unknown`; empty when there is none."""
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
        "left_padding: rows behind padding are scored at other positions than they were sampled at. Position ids must count the tokens"
        " that are there, in sampling and in scoring (grpo/language/model/left_padding.py)"
    ),
    "dropout": "dropout: two scorings of the same text differ. A layer drops something out: set the model's dropout to 0",
    "temperature": "temperature: text is sampled at one temperature and scored at another. Both are grpo.temperature",
    "truncated_sampling": (
        "truncated_sampling: some tokens cannot be sampled (top_k, top_p, min_p, suppressed tokens), and scoring does not know it. Sample"
        " from the whole distribution"
    ),
    "unknown": "the two are different functions, for a reason that is none of padding, dropout, temperature and truncated sampling",
}
"""Cause -> what it means and how to mend it."""


@torch.no_grad()
def sampled_scored_gap(engine: Engine, prompts: Sequence[str], *, seed: int) -> Gap:
    """Write answers to prompts of mixed length as a rollout does, and compare how their tokens were sampled with how a loss scores them.

    The importance ratio of the first update cannot show this: it is 1 by construction, both sides being scored.

    Args:
        engine: whose sampling and scoring it is.
        prompts: some shorter than others.
        seed: of the answers.
    """
    rows = engine.policy.tokens(prompts)
    width, device = max(map(len, rows)), engine.accelerator.device
    attention = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    made = engine.drawn_with_scores(rows, seed=seed)
    answers = made.sequences[:, width:]
    assert made.scores is not None
    scores = torch.stack(made.scores, dim=1).float()  # After every processor: what was really drawn from.
    sampled = scores.log_softmax(-1).gather(2, answers[:, :, None])[:, :, 0]
    is_end = torch.isin(answers, torch.tensor(engine.eos_token_ids, device=device))
    mask = (is_end.cumsum(1) - is_end.long()) == 0
    whole = torch.cat([attention, mask.long()], dim=1)
    scored = engine.log_probs(engine.model, made.sequences, whole, answers.shape[1])
    differences = ((sampled - scored).abs() * mask).nan_to_num(nan=torch.inf)
    again = engine.log_probs(engine.model, made.sequences, whole, answers.shape[1])
    largest = differences.amax(1).tolist()
    padding = [width - len(row) for row in rows]
    limit = MAX_GAP[torch.bfloat16 if engine.args.bf16 else torch.float32]
    cause = ""
    if not max(largest) <= limit:
        cause = _cause(
            engine,
            is_repeatable=bool(((scored - again).abs() * mask <= limit).all()),
            can_be_any=bool(scores[mask].isfinite().all()),
            unpadded=max((gap for gap, pads in zip(largest, padding, strict=True) if not pads), default=0.0) <= limit,
        )
    return Gap(largest=max(largest), by_row=tuple(zip(padding, largest, strict=True)), cause=cause, limit=limit)


def _cause(engine: Engine, *, is_repeatable: bool, can_be_any: bool, unpadded: bool) -> str:
    if not is_repeatable:
        return "dropout"
    if not can_be_any:
        return "truncated_sampling"
    if engine.generation_config.temperature != engine.temperature:
        return "temperature"
    return "left_padding" if unpadded else "unknown"

"""Generation of a language model's answers: greedy, or sampled exactly from the full distribution.

Equal prompts, such as those of a group, are read once: their answers begin with copies of one cache of keys and values. A token is drawn
by inverse transform sampling, with one number of its prompt's own random stream, so that an answer does not depend on the other prompts of
its batch, up to the rounding of the scores. Its log-probability is taken from the very distribution that it was drawn from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError, PlainError
from grpo.language.model.policy import LanguagePolicy, token_distribution

_NOT_FINITE: Final = "the language model's scores are NaN or infinite: its weights are damaged, or overflow; use an intact model"


class TooLongError(PlainError, ValueError):
    """A prompt and its answer do not fit into the model's context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedAnswer:
    """The model's answer to one prompt."""

    text: str
    """Without the end token."""
    is_truncated: bool
    """Whether the answer was cut at `language.max_answer_tokens`."""
    prompt_ids: tuple[int, ...]
    """What the model read before it wrote."""
    token_ids: tuple[int, ...]
    """The answer, with the end token."""
    log_probs: tuple[float, ...] = field(compare=False)
    """In nats, of each token in the distribution that it was drawn from; of a greedy answer, at T = 1."""


def greedy_answers(policy: LanguagePolicy, prompts: Sequence[str]) -> list[GeneratedAnswer]:
    """Return the greedy answer to each prompt.

    Raises NonFiniteError if the model's scores are NaN or infinite, TooLongError if an answer might not fit.
    """
    return _answers(policy, prompts, temperature=1.0, streams=None)


def sampled_answers(
    policy: LanguagePolicy, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]
) -> list[GeneratedAnswer]:
    """Return an answer to each prompt, sampled from the full distribution at a temperature.

    Each stream advances only by what its own answer needs, so that a later answer from it does not depend on the other prompts.

    Args:
        policy: The language model.
        prompts: The prompts.
        temperature: Above 0.
        streams: One random stream per prompt, all different objects.

    Raises NonFiniteError if the model's scores are NaN or infinite, TooLongError if an answer might not fit.
    """
    return _answers(policy, prompts, temperature=temperature, streams=streams)


@torch.no_grad()
def _answers(
    policy: LanguagePolicy, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator] | None
) -> list[GeneratedAnswer]:
    ids = [tuple(tokens) for tokens in policy.tokens(prompts)]
    refuse_too_long(policy, ids)
    answers: dict[int, GeneratedAnswer] = {}
    # Rows of similar length are batched together, for less padding, and so are equal prompts.
    order = sorted(range(len(prompts)), key=lambda index: (len(ids[index]), ids[index]))
    size = policy.config.answers_per_forward
    for rows in (order[start : start + size] for start in range(0, len(order), size)):
        batch = _Batch(policy, [ids[row] for row in rows], None if streams is None else [streams[row] for row in rows], temperature)
        answers |= zip(rows, batch.answers(), strict=True)
    return [answers[index] for index in range(len(prompts))]


class _Batch:
    """Answers that are written side by side, a token at a time. Legend: R rows that have not ended, C columns so far, V the vocabulary."""

    def __init__(
        self,
        policy: LanguagePolicy,
        prompts: Sequence[tuple[int, ...]],
        streams: Sequence[np.random.Generator] | None,
        temperature: float,
    ) -> None:
        self._policy, self._prompts, self._streams, self._temperature = policy, prompts, streams, temperature
        self._written: list[list[int]] = [[] for _ in prompts]
        self._log_probs: list[list[float]] = [[] for _ in prompts]
        distinct = {ids: index for index, ids in enumerate(dict.fromkeys(prompts))}
        width = max(map(len, distinct))
        padded = torch.tensor([[*[policy.pad_id] * (width - len(prompt)), *prompt] for prompt in distinct])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in distinct])
        self._rows = list(range(len(prompts)))
        self._mask = mask.to(policy.device)
        output = policy.forward(padded.to(policy.device), self._mask, num_last=1, use_cache=True)
        self._cache = output.past_key_values
        copies = torch.tensor([distinct[prompt] for prompt in prompts], device=policy.device)
        self._keep(copies)
        self._logits = output.logits[copies]

    def answers(self) -> list[GeneratedAnswer]:
        """Write all answers to their ends, or to the greatest length."""
        policy = self._policy
        while True:
            chosen, is_open = self._write()
            self._rows = [row for row, is_on in zip(self._rows, is_open.tolist(), strict=True) if is_on]
            if not self._rows:
                break
            if not is_open.all():
                self._keep(is_open.nonzero()[:, 0].to(policy.device))
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
            written = chosen[is_open, None].to(policy.device)
            output = policy.forward(written, self._mask, num_last=1, use_cache=True, past_key_values=self._cache)
            self._logits = output.logits
        return [self._answer(row) for row in range(len(self._prompts))]

    def _write(self) -> tuple[Tensor, Tensor]:
        """Write the next token of each open row, and return it, [R], and whether another one follows, [R] bool; both on the CPU."""
        logits = self._logits[:, -1]
        if not bool((logits < torch.inf).all()):  # False for NaN too.
            raise NonFiniteError(_NOT_FINITE)
        distribution = token_distribution(logits, temperature=self._temperature)
        if self._streams is None:
            chosen = distribution.best().cpu()
        else:
            numbers = [[self._streams[row].random()] for row in self._rows]
            chosen = distribution.sample_at(torch.tensor(numbers, dtype=torch.float64))[:, 0]
        log_probs = distribution.log_prob(chosen[:, None].to(logits.device))[:, 0].tolist()
        for row, token, log_prob in zip(self._rows, chosen.tolist(), log_probs, strict=True):
            self._written[row].append(token)
            self._log_probs[row].append(log_prob)
        # All open answers have the same length.
        is_cut = len(self._written[self._rows[0]]) == self._policy.config.max_answer_tokens
        return chosen, (chosen != self._policy.end_id) & (not is_cut)

    def _keep(self, rows: Tensor) -> None:
        """Keep these rows of cache and mask, and no others; a row may be named more than once."""
        self._cache.batch_select_indices(rows)
        self._mask = self._mask[rows]

    def _answer(self, row: int) -> GeneratedAnswer:
        policy, ids = self._policy, self._written[row]
        is_truncated = ids[-1] != policy.end_id
        text = policy.tokenizer.decode(ids if is_truncated else ids[:-1], clean_up_tokenization_spaces=False)
        return GeneratedAnswer(
            text=str(text),
            is_truncated=is_truncated,
            prompt_ids=self._prompts[row],
            token_ids=tuple(ids),
            log_probs=tuple(self._log_probs[row]),
        )


def refuse_too_long(policy: LanguagePolicy, prompts: Sequence[Sequence[int]]) -> None:
    """Raise TooLongError if a prompt and the longest answer exceed the model's context."""
    most, room, longest = policy.config.max_answer_tokens, policy.max_positions, max(map(len, prompts), default=0)
    if room is not None and longest + most > room:
        raise TooLongError(
            f"a prompt of {longest} tokens and an answer of language.max_answer_tokens = {most} do not fit into the model's {room}: lower"
            " language.max_answer_tokens or language.num_history_moves, or raise language.small.max_tokens"
        )

"""Answers of a language model to prompts: the greedy ones, and exact draws from its full distribution.

Drawing is greedy choice after noise: the largest of score / T - ln(e), with independent standard exponentials e, is distributed as the
softmax of score / T (the Gumbel-max trick: -ln(e) has the Gumbel distribution). With one stream of noise for each prompt, an answer
does not depend on which prompts are asked with it, up to the rounding of the scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError, PlainError
from grpo.language.model.policy import LanguagePolicy

_NOT_FINITE: Final = "the language model's scores are not numbers: its weights are broken, or overflow; give a model that is whole"


class TooLongError(PlainError, ValueError):
    """A prompt and its answer do not fit into the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedAnswer:
    """What the model wrote to one prompt."""

    text: str
    """Without the token that ends it."""
    num_tokens: int
    """With the token that ends it."""
    is_truncated: bool
    """Whether it was cut at `language.max_answer_tokens`."""
    token_ids: tuple[int, ...]
    """With the token that ends it."""


def greedy_answers(policy: LanguagePolicy, prompts: Sequence[str]) -> list[GeneratedAnswer]:
    """Return the answer of likeliest tokens to each prompt.

    Raises NonFiniteError when the model's scores are no numbers, TooLongError when an answer might not fit.
    """
    return _answers(policy, prompts, temperature=1.0, streams=None)


def drawn_answers(
    policy: LanguagePolicy, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator]
) -> list[GeneratedAnswer]:
    """Return an answer to each prompt, drawn from the full distribution at a temperature.

    Each stream is read as far as its own answer needs, so that another question on it goes on from there, whatever else is asked.

    Args:
        policy: who answers.
        prompts: as they are given to the model.
        temperature: above 0.
        streams: one for each prompt, all different objects.

    Raises NonFiniteError when the model's scores are no numbers, TooLongError when an answer might not fit.
    """
    if len(streams) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many streams, not {len(streams)}")
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    return _answers(policy, prompts, temperature=temperature, streams=streams)


class _Noise:
    """A logits processor: scores at the temperature, with fresh noise from each row's own stream, as long as the row has not ended."""

    def __init__(self, streams: Sequence[np.random.Generator] | None, *, temperature: float, end_id: int) -> None:
        self._streams, self._temperature, self._end_id = streams, temperature, end_id
        self._has_ended: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._has_ended is None:
            self._has_ended = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        else:
            self._has_ended |= input_ids[:, -1] == self._end_id
        if not bool((scores[~self._has_ended] < torch.inf).all()):  # Not so for NaN either.
            raise NonFiniteError(_NOT_FINITE)
        if self._streams is None:
            return scores
        noisy = scores.double() / self._temperature
        for row in (~self._has_ended).nonzero()[:, 0].tolist():
            # In float64: a float32 exponential is 0 once in 2**23, and would make a token certain.
            noise = self._streams[row].standard_exponential(scores.shape[1])
            noisy[row] -= torch.from_numpy(noise).log().to(scores.device)
        return noisy


@torch.no_grad()
def _answers(
    policy: LanguagePolicy, prompts: Sequence[str], *, temperature: float, streams: Sequence[np.random.Generator] | None
) -> list[GeneratedAnswer]:
    tokens = policy.tokens(prompts)
    refuse_too_long(policy, tokens)
    answers: list[GeneratedAnswer | None] = [None] * len(prompts)
    # Rows of like length together: less padding.
    order = sorted(range(len(prompts)), key=lambda index: len(tokens[index]))
    size = policy.config.answers_per_forward
    for rows in (order[start : start + size] for start in range(0, len(order), size)):
        noise = _Noise(None if streams is None else [streams[row] for row in rows], temperature=temperature, end_id=policy.end_id)
        for row, ids in zip(rows, _generated(policy, [tokens[row] for row in rows], noise), strict=True):
            answers[row] = _answer(policy, ids)
    return [answer for answer in answers if answer is not None]


def _generated(policy: LanguagePolicy, tokens: Sequence[Sequence[int]], noise: _Noise) -> Iterator[list[int]]:
    from transformers import GenerationConfig, LogitsProcessorList

    width = max(map(len, tokens))
    input_ids = torch.tensor([[*[policy.pad_id] * (width - len(row)), *row] for row in tokens])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in tokens])
    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=policy.config.max_answer_tokens, do_sample=False, eos_token_id=policy.end_id, pad_token_id=policy.pad_id
    )
    network: Any = policy.network  # `generate` is a mixin's, whose types say that it is a tensor.
    processors = LogitsProcessorList([noise])
    written: Tensor = network.generate(
        input_ids.to(policy.device), attention_mask=mask.to(policy.device), generation_config=settings, logits_processor=processors
    )
    yield from written[:, width:].tolist()


def _answer(policy: LanguagePolicy, ids: list[int]) -> GeneratedAnswer:
    is_truncated = policy.end_id not in ids
    length = len(ids) if is_truncated else ids.index(policy.end_id) + 1
    own = ids[:length]
    text = policy.tokenizer.decode(own if is_truncated else own[:-1], clean_up_tokenization_spaces=False)
    return GeneratedAnswer(text=str(text), num_tokens=length, is_truncated=is_truncated, token_ids=tuple(own))


def refuse_too_long(policy: LanguagePolicy, tokens: Sequence[Sequence[int]]) -> None:
    """Raise TooLongError unless each prompt, given as its token ids, leaves the model room for the longest answer."""
    longest, room = max(map(len, tokens), default=0), policy.max_positions
    if room is not None and longest + policy.config.max_answer_tokens > room:
        raise TooLongError(
            f"a prompt of {longest} tokens and an answer of language.max_answer_tokens = {policy.config.max_answer_tokens} do not fit into"
            f" the model's {room}: lower language.max_answer_tokens or language.num_history_moves, or raise language.small.max_tokens"
        )

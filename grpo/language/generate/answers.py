"""Generation of a language model's answers: greedy, or sampled exactly from the full distribution.

Sampling uses the Gumbel-max trick: the largest of score / T - ln(e), with independent standard exponentials e, is distributed as the
softmax of score / T. Each prompt has its own noise stream, so that an answer does not depend on the other prompts of its batch, up to
the rounding of the scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError, PlainError
from grpo.language.model.policy import LanguagePolicy

_NOT_FINITE: Final = "the language model's scores are NaN or infinite: its weights are damaged, or overflow; use an intact model"


class TooLongError(PlainError, ValueError):
    """A prompt and its answer do not fit into the model's context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedAnswer:
    """The model's answer to one prompt."""

    text: str
    """Without the end token."""
    num_tokens: int
    """Including the end token."""
    is_truncated: bool
    """Whether it was cut at `language.max_answer_tokens`."""
    token_ids: tuple[int, ...]
    """Including the end token."""


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
    if len(streams) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many streams, not {len(streams)}")
    if temperature <= 0:
        raise ValueError(f"temperature is {temperature}; it must be above 0")
    return _answers(policy, prompts, temperature=temperature, streams=streams)


class _Noise:
    """Logits processor that adds Gumbel noise from each row's own stream to the scores, until the row has ended."""

    def __init__(self, streams: Sequence[np.random.Generator] | None, *, temperature: float, end_id: int) -> None:
        self._streams, self._temperature, self._end_id = streams, temperature, end_id
        self._has_ended: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._has_ended is None:
            self._has_ended = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
        else:
            self._has_ended |= input_ids[:, -1] == self._end_id
        if not bool((scores[~self._has_ended] < torch.inf).all()):  # False for NaN too.
            raise NonFiniteError(_NOT_FINITE)
        if self._streams is None:
            return scores
        noisy = scores.double() / self._temperature
        for row in (~self._has_ended).nonzero()[:, 0].tolist():
            # In float64, because a float32 exponential is 0 once in 2**23, which would make a token certain.
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
    # Rows of similar length are batched together, for less padding.
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
    network: Any = policy.network  # The types of `generate`, a mixin's method, are wrong.
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
    """Raise TooLongError if a prompt (token ids) and the longest answer exceed the model's context."""
    longest, room = max(map(len, tokens), default=0), policy.max_positions
    if room is not None and longest + policy.config.max_answer_tokens > room:
        raise TooLongError(
            f"a prompt of {longest} tokens and an answer of language.max_answer_tokens = {policy.config.max_answer_tokens} do not fit into"
            f" the model's {room}: lower language.max_answer_tokens or language.num_history_moves, or raise language.small.max_tokens"
        )

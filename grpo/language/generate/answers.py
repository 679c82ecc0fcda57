"""Generation of answers: greedy, or sampled. A mask (`legal_moves`) limits the choice of each token.

Each answer has its own random generator, so other prompts of a batch change the answer only by rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from grpo.base.errors import NonFiniteError, PlainError
from grpo.language.generate.legal_moves import MoveMask, State, move_masks, token_choices
from grpo.language.model.policy import LanguagePolicy, TokenChoices, token_distribution


class TooLongError(PlainError, ValueError):
    """A prompt and its answer do not fit into the model's context."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedAnswer:
    text: str  # Without the end token.
    is_truncated: bool  # Whether `language.max_answer_tokens` cut the answer before its end token.
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]  # With the end token, unless truncated.
    log_probs: tuple[float, ...] = field(compare=False)  # One per token, in nats, under the mask, at the sampling temperature (greedy: 1).
    mask: MoveMask | None = field(compare=False, repr=False)  # None allows every token.


def greedy_answers(
    policy: LanguagePolicy, prompts: Sequence[str], choices: Sequence[tuple[str, ...]] | None = None
) -> list[GeneratedAnswer]:
    """`choices` and errors: see `sampled_answers`."""
    return sampled_answers(policy, prompts, choices, temperature=1.0, streams=None)


def sampled_answers(
    policy: LanguagePolicy,
    prompts: Sequence[str],
    choices: Sequence[tuple[str, ...]] | None = None,
    *,
    temperature: float,
    streams: Sequence[np.random.Generator] | None,
) -> list[GeneratedAnswer]:
    """Return one answer per prompt: sampled at a temperature above 0, or greedy if `streams` (one per prompt) is None.

    `choices`: the moves (UCI) that each answer may name (`move_masks`).

    Raises NonFiniteError if a logit is NaN or +inf, TooLongError if a prompt and its answer may exceed the model's context.
    """
    ids, masks = policy.tokens(prompts), move_masks(policy, prompts, choices)
    refuse_too_long(policy, ids)
    answers: dict[int, GeneratedAnswer] = {}
    # Sorting saves padding, and a batch reads its equal prompts once.
    order = sorted(range(len(prompts)), key=lambda index: (len(ids[index]), ids[index]))
    size = policy.config.answers_per_forward
    for rows in (order[start : start + size] for start in range(0, len(order), size)):
        own_streams = None if streams is None else [streams[row] for row in rows]
        own_masks = [masks[row] for row in rows]
        answers |= zip(rows, _written(policy, [ids[row] for row in rows], own_masks, own_streams, temperature), strict=True)
    return [answers[index] for index in range(len(prompts))]


@torch.no_grad()
def _written(
    policy: LanguagePolicy,
    prompts: Sequence[tuple[int, ...]],
    masks: Sequence[MoveMask | None],
    streams: Sequence[np.random.Generator] | None,
    temperature: float,
) -> list[GeneratedAnswer]:
    padded, mask, prompt_rows = distinct_prompts(policy, prompts)
    output = policy.forward(padded, mask, num_last=1, use_cache=True)
    cache = output.past_key_values
    cache.batch_select_indices(prompt_rows)
    mask, logits = mask[prompt_rows], output.logits[prompt_rows]
    rows = list(range(len(prompts)))  # Unfinished answers.
    written: list[list[int]] = [[] for _ in prompts]
    log_probs: list[list[float]] = [[] for _ in prompts]
    states: list[State] = [None if mask is None else mask.start for mask in masks]
    for length in range(1, policy.config.max_answer_tokens + 1):
        drawn_from = [states[row] for row in rows]
        own_streams = None if streams is None else [streams[row] for row in rows]
        chosen, chosen_log_probs = _drawn(logits[:, -1], token_choices(drawn_from, policy), temperature, own_streams)
        for row, token, log_prob in zip(rows, chosen.tolist(), chosen_log_probs.tolist(), strict=True):
            written[row].append(token)
            log_probs[row].append(log_prob)
            if (own := masks[row]) is not None and token != policy.end_id:
                states[row] = own.after(states[row], written[row])
        if length == policy.config.max_answer_tokens:
            break
        for row in rows:
            # A certain end needs no forward pass.
            if (state := states[row]) is not None and state.keys() == {policy.end_id} and written[row][-1] != policy.end_id:
                written[row].append(policy.end_id)
                log_probs[row].append(0.0)
        is_open = torch.tensor([written[row][-1] != policy.end_id for row in rows], device=policy.device)
        if not is_open.any():
            break
        if not is_open.all():
            kept = is_open.nonzero()[:, 0]
            rows = [rows[index] for index in kept.tolist()]
            cache.batch_select_indices(kept)
            mask, chosen = mask[kept], chosen[kept]
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        logits = policy.forward(chosen[:, None], mask, num_last=1, use_cache=True, past_key_values=cache).logits
    return [_answer(policy, *answer) for answer in zip(prompts, masks, written, log_probs, strict=True)]


def distinct_prompts(policy: LanguagePolicy, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """Return the distinct prompts' token ids and mask, [distinct, tokens], padded on the left, and each prompt's row, [prompts]."""
    distinct = {ids: index for index, ids in enumerate(dict.fromkeys(map(tuple, prompts)))}
    width = max(map(len, distinct))
    padded = [[*[policy.pad_id] * (width - len(ids)), *ids] for ids in distinct]
    mask = [[0] * (width - len(ids)) + [1] * len(ids) for ids in distinct]
    index = [distinct[tuple(ids)] for ids in prompts]
    return tuple(torch.tensor(values, device=policy.device) for values in (padded, mask, index))


def _drawn(
    logits: Tensor, choices: TokenChoices | None, temperature: float, streams: Sequence[np.random.Generator] | None
) -> tuple[Tensor, Tensor]:
    """Return a token and its log-probability for each row of logits [rows, vocabulary]; the likeliest token if `streams` is None."""
    if not bool((logits < torch.inf).all()):  # NaN < inf is false.
        raise NonFiniteError("the language model's logits are NaN or infinite: its weights are damaged or overflow; use an intact model")
    distribution = token_distribution(logits, choices, temperature=temperature)
    if streams is None:
        chosen = distribution.best()
    else:
        numbers = torch.tensor([[stream.random()] for stream in streams], dtype=torch.float64)
        chosen = distribution.sample_at(numbers)[:, 0].to(logits.device)
    columns = chosen[:, None]
    return (columns if choices is None else choices.ids.gather(1, columns))[:, 0], distribution.log_prob(columns)[:, 0]


def _answer(
    policy: LanguagePolicy, prompt: tuple[int, ...], mask: MoveMask | None, ids: Sequence[int], log_probs: Sequence[float]
) -> GeneratedAnswer:
    is_truncated = ids[-1] != policy.end_id
    text = str(policy.tokenizer.decode(list(ids if is_truncated else ids[:-1]), clean_up_tokenization_spaces=False))
    return GeneratedAnswer(
        text=text, is_truncated=is_truncated, prompt_ids=prompt, token_ids=tuple(ids), log_probs=tuple(log_probs), mask=mask
    )


def refuse_truncated(policy: LanguagePolicy, answers: Sequence[Sequence[int]]) -> None:
    """Raise TooLongError if an answer (token ids) with its end token exceeds `language.max_answer_tokens`."""
    limit, longest = policy.config.max_answer_tokens, max(map(len, answers)) + 1
    if longest > limit:
        raise TooLongError(
            f"answers of {longest} tokens would be truncated: raise language.max_answer_tokens (now {limit}) to {longest} or more"
        )


def refuse_too_long(policy: LanguagePolicy, prompts: Sequence[Sequence[int]]) -> None:
    """Raise TooLongError if a prompt (token ids) plus `language.max_answer_tokens` exceeds the model's context."""
    num_answer, context, longest = policy.config.max_answer_tokens, policy.max_positions, max(map(len, prompts), default=0)
    if context is not None and longest + num_answer > context:
        raise TooLongError(
            f"a prompt of {longest} tokens and an answer of language.max_answer_tokens = {num_answer} do not fit into the model's context"
            f" of {context}: lower language.max_answer_tokens or language.num_history_moves"
        )

"""A rollout's two long parts, writing the answers and measuring them, shared by the processes that train together.

Each process does its own rows and gets those of all, so that all hold one rollout, and grade and report the same. Answers depend on their
own random streams alone; so the number of processes changes a run by rounding alone.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from grpo.base.errors import NonFiniteError
from grpo.language.generate.answers import GeneratedAnswer, sampled_answers
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import ExactMeasures, exact_measures
from grpo.language.model.policy import LanguagePolicy
from grpo.learning.distributed import Processes


def shared_answers(
    policy: LanguagePolicy,
    prompts: Sequence[str],
    *,
    temperature: float,
    streams: Sequence[np.random.Generator],
    group_size: int,
    processes: Processes,
) -> list[GeneratedAnswer]:
    """Return what `sampled_answers` does. The answers of a group, to one prompt, are written by one process, which reads it once.

    Raises NonFiniteError in all processes when the policy's scores are NaN or infinite in one.
    """
    if processes.size == 1:
        return sampled_answers(policy, prompts, temperature=temperature, streams=streams)
    groups = processes.own_rows(len(prompts) // group_size).tolist()
    rows = [group * group_size + place for group in groups for place in range(group_size)]
    written: dict[str, Any] = {"problem": "", "answers": []}
    try:
        own = sampled_answers(policy, [prompts[row] for row in rows], temperature=temperature, streams=[streams[row] for row in rows])
        written["answers"] = [(row, asdict(answer)) for row, answer in zip(rows, own, strict=True)]
    except NonFiniteError as error:
        written["problem"] = str(error)
    parts = processes.gathered_json(written, policy.device)
    for part in parts:
        if part["problem"]:
            raise NonFiniteError(part["problem"])
    found = {row: answer for part in parts for row, answer in part["answers"]}
    return [_answer(found[row]) for row in range(len(prompts))]


def _answer(found: dict[str, Any]) -> GeneratedAnswer:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
    return GeneratedAnswer(**fields)


def shared_measures(
    policy: LanguagePolicy, reference: LanguagePolicy, batch: AnswerBatch, *, temperature: float, processes: Processes
) -> ExactMeasures:
    """Return what `exact_measures` does."""
    if processes.size == 1:
        return exact_measures(policy, reference, batch, temperature=temperature)
    rows = processes.own_rows(len(batch)).to(policy.device)
    own = exact_measures(policy, reference, batch.select_rows(rows), temperature=temperature)
    gathered = processes.gathered(torch.stack([own.entropy, own.kl, own.log_probs], dim=1))
    entropy, kl, log_probs = gathered[processes.gathered(rows).argsort()].unbind(1)
    return ExactMeasures(entropy=entropy, kl=kl, log_probs=log_probs, mask=batch.is_token)

"""Answers are exact draws from the full distribution, and a prompt's own stream alone decides its answer."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from made_models import byte_pair_tokenizer, gpt2, llama
from scipy.stats import chisquare

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import numpy_stream
from grpo.language.generate.answers import TooLongError, greedy_answers, sampled_answers
from grpo.language.model.policy import LanguagePolicy, load_model
from grpo.settings.language import LanguageConfig

PROMPTS = ["P: 8/5k2", "A: 8/5k2/3p4/1PpP4/4r3/2N5+e2e4+", "P:", "E: 0.35 -1.20", "P: 8/5k2/3p4/1PpP4    M:", "M: e2e4 B:"]


def policy_of(folder: Path, **changes: int) -> LanguagePolicy:
    config = LanguageConfig.model_validate({"model": str(folder), "max_answer_tokens": 16, "legal_moves": False, **changes})
    return load_model(config, seed=0, device=torch.device("cpu"))


def streams(count: int, *, name: str = "answers") -> list[np.random.Generator]:
    return [numpy_stream(3, name, index) for index in range(count)]


def test_a_token_is_drawn_from_the_exact_distribution(tmp_path: Path) -> None:
    temperature = 1.7
    # Small scores, so that many tokens have a chance and none is hidden by another.
    policy = policy_of(gpt2(tmp_path, initializer_range=0.12), answers_per_forward=500)
    num = 4_000
    with torch.no_grad():
        ids = torch.tensor(policy.tokens([PROMPTS[0]]))
        probs = (policy.network(ids).logits[0, -1].double() / temperature).softmax(0).numpy()
    policy.config = policy.config.model_copy(update={"max_answer_tokens": 1})
    answers = sampled_answers(policy, [PROMPTS[0]] * num, temperature=temperature, streams=streams(num))
    counts = Counter(answer.token_ids[0] for answer in answers)
    # Tokens with few expected draws go together.
    common = np.flatnonzero(probs * num >= 8)
    seen = [*(counts[token] for token in common.tolist()), num - sum(counts[token] for token in common.tolist())]
    expected = [*(probs[common] * num), (1 - probs[common].sum()) * num]
    assert len(common) > 30
    assert chisquare(seen, expected).pvalue > 1e-3


@pytest.mark.parametrize(("make", "pad"), [(gpt2, None), (llama, "<|pad|>")], ids=["absolute, end is padding", "rotary, own padding"])
def test_an_answer_does_not_depend_on_what_is_asked_with_it(make, pad: str | None, tmp_path: Path) -> None:
    folder = make(tmp_path, byte_pair_tokenizer(pad=pad))
    together = sampled_answers(policy_of(folder), PROMPTS, temperature=1.0, streams=streams(len(PROMPTS)))
    by_two = sampled_answers(policy_of(folder, answers_per_forward=2), PROMPTS[::-1], temperature=1.0, streams=streams(len(PROMPTS))[::-1])
    assert by_two[::-1] == together
    alone = [
        sampled_answers(policy_of(folder), [prompt], temperature=1.0, streams=[stream])[0]
        for prompt, stream in zip(PROMPTS, streams(len(PROMPTS)), strict=True)
    ]
    assert alone == together
    assert len({answer.token_ids for answer in together}) == len(PROMPTS)


def test_scores_that_are_no_numbers_stop_it_by_name(tmp_path: Path) -> None:
    policy = policy_of(gpt2(tmp_path))
    policy.network.transformer.h[1].mlp.c_fc.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="logits are NaN or infinite"):
        greedy_answers(policy, PROMPTS)
    with pytest.raises(NonFiniteError, match="logits are NaN or infinite"):
        sampled_answers(policy, PROMPTS, temperature=1.0, streams=streams(6))


def test_what_might_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    policy = policy_of(gpt2(tmp_path), max_answer_tokens=250)
    with pytest.raises(
        TooLongError, match=r"of \d+ tokens and an answer of language\.max_answer_tokens = 250 do not fit into the model's context of 256"
    ):
        greedy_answers(policy, PROMPTS)

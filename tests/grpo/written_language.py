"""A language model that writes words of the format at random, and boards for it: made in a moment, and all that a trainer's tests need."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from made_language import language_table
from made_models import NO_DROPOUT, gpt2_network

from grpo.dataset.table import Split
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.problem import LanguageProblem
from grpo.language.learn.rollouts import Grader, LanguageRollout
from grpo.language.model.policy import LanguagePolicy, ModelOrigin
from grpo.language.text.examples import Example, LanguageBoards
from grpo.language.text.rewards import grade
from grpo.language.text.tokenizer import ChessTokenizer
from grpo.settings.tree import Settings, read_settings
from grpo.train.trainer import Trainer

LanguageTrainer = Trainer[LanguagePolicy, Sequence[Example], LanguageRollout, AnswerBatch]
CPU: Final = torch.device("cpu")
WORDS: Final = {" e2e4": 3, " d2d4": 3, " g1f3": 2, " a7a6": 1, "    E:": 2, " 0": 2, ".35": 2, " -1": 1, "    B:": 2, "+0": 1}
"""Word -> how often each of its tokens comes, beside 3 for the end."""


def settings(**changes: object) -> Settings:
    base: dict[str, object] = {
        "policy.kind": '"language"',
        "language.max_answer_tokens": 16,
        "grpo.states_per_step": 4,
        "grpo.group_size": 4,
        "grpo.learning_rate": 1e-3,
    }
    return read_settings("".join(f"{name} = {value}\n" for name, value in {**base, **changes}.items()))


def writer(config: Settings, *, seed: int = 0) -> LanguagePolicy:
    """Return a policy whose tokens are drawn much as `WORDS` says, whatever was written before."""
    tokenizer = ChessTokenizer()
    torch.manual_seed(seed)
    end = tokenizer.eos_token_id
    network = gpt2_network(
        len(tokenizer),
        n_embd=32,
        n_layer=1,
        initializer_range=0.02,
        tie_word_embeddings=False,
        bos_token_id=end,
        eos_token_id=end,
        **NO_DROPOUT,
    )
    wanted = torch.full((len(tokenizer),), -6.0)
    wanted[end] = float(np.log(3))
    for word, count in WORDS.items():
        for index in tokenizer(word, add_special_tokens=False)["input_ids"]:
            wanted[index] = float(np.log(count))
    with torch.no_grad():
        direction = torch.ones(32) / 32
        network.transformer.ln_f.bias.copy_(torch.ones(32))
        network.transformer.ln_f.weight.fill_(0.1)
        network.lm_head.weight.copy_(torch.randn_like(network.lm_head.weight) * 0.1 + wanted[:, None] * direction)
    return LanguagePolicy(network, tokenizer, CPU, config.language, origin=ModelOrigin(model="test", commit=""))


def language_trainer(
    policy: LanguagePolicy, reference: LanguagePolicy, boards: LanguageBoards, config: Settings, grader: Grader = grade
) -> LanguageTrainer:
    problem = LanguageProblem(reference, boards, config, grader=grader)
    return Trainer(problem, policy, config.grpo, seed=config.seed)


def written_boards(config: Settings, *, count: int = 24) -> LanguageBoards:
    return LanguageBoards(language_table(count, seed=5), Split.TRAIN, config.language)

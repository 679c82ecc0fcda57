"""Exports a language model as a folder that transformers loads, with the prompts in `policy.json`."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from grpo.base.files import read_json, sha256_file, write_json
from grpo.language.generate.generator import PolicyAnswerGenerator
from grpo.language.model.loading import load_language_policy
from grpo.language.text.tasks import ANSWER_LABEL, environment_prompt, move_prompt
from grpo.learning.checkpoints import weights_hash
from grpo.policy.files import CHESS_TOKENS, LANGUAGE_WEIGHTS, POLICY, policy_file_names
from steps.export.network import ParityError, random_play_positions

NUM_COMPARED: Final = 12
_SEED: Final = 0
_LOAD: Final = "transformers' AutoModelForCausalLM and AutoTokenizer load this folder."
_LOAD_OURS: Final = (
    "transformers' AutoModelForCausalLM loads the model; its tokenizer is grpo/language/text/tokenizer.py of this project's code."
)
_USE: Final = (
    " The prompt of a position is `prompt` with its FEN; the likeliest tokens up to the end token, which `generate` writes by the folder's"
    " generation_config.json, are the answer, and the move after its `B:`, if it is legal, is the move. Where prompts are padded on the"
    " left, position ids must count from the first real token."
)


_THOUGHT: Final = (
    " This prompt asks for the answer at once; the policy was trained to write up to {num} tokens of a thought first, behind the prompt"
    " without `{label}`, which ends the thought."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SameAnswers:
    """A comparison of the exported model's answers with those of the original."""

    num_positions: int
    num_equal: int
    """Positions on which both greedy answers are the same text."""

    def __str__(self) -> str:
        return f"{self.num_equal:,} of {self.num_positions:,} best answers equal"


def export_language_policy(source: Path, folder: Path, *, facts: Mapping[str, Any]) -> SameAnswers:
    """Write the language model in `source` to an existing, empty folder, load it from there, and compare both models' answers.

    All commands accept the folder as a model. There is no ONNX file: transformers generates an answer token by token.

    Args:
        source: a folder with a policy.
        folder: the folder to write.
        facts: facts about the policy (run, step) for the JSON.

    Raises ParityError when the written model differs; the caller removes the folder.
    """
    names = policy_file_names(source)
    for name in names:
        shutil.copyfile(source / name, folder / name)
    device = torch.device("cpu")
    before, after = (load_language_policy(path, device)[0] for path in (source, folder))
    expected, found = weights_hash(before), weights_hash(after)
    prompts = [move_prompt(board.fen()) for board in random_play_positions(NUM_COMPARED, seed=_SEED)]
    answers = (PolicyAnswerGenerator(policy, policy.config).greedy(prompts) for policy in (before, after))
    same = SameAnswers(num_positions=NUM_COMPARED, num_equal=sum(one == other for one, other in zip(*answers, strict=True)))
    if found != expected or same.num_equal != same.num_positions:
        raise ParityError(
            f"what was written is not the policy of {source}: weights {found[:12]} and {expected[:12]}, {same}. Nothing is written; the"
            f" files taken for the model are {', '.join(names)}: another one of {source} may belong to it"
        )
    generation = after.network.generation_config
    assert generation is not None
    generation.do_sample, generation.max_new_tokens = False, after.config.max_answer_tokens
    generation.save_pretrained(folder)
    num = after.config.think_tokens
    thought = _THOUGHT.format(num=num, label=ANSWER_LABEL) if num else ""
    write_json(
        folder / POLICY,
        {
            **read_json(folder / POLICY),
            **facts,
            "weights_hash": expected,
            "weights_file": {"name": LANGUAGE_WEIGHTS, "sha256": sha256_file(folder / LANGUAGE_WEIGHTS)},
            "use": (_LOAD_OURS if CHESS_TOKENS in names else _LOAD) + _USE + thought,
            "prompt": move_prompt("FEN"),
            "environment_prompt": environment_prompt("FEN", "MOVE", ["MOVES", "MOVE"]),
            "num_parameters": sum(tensor.numel() for tensor in before.network.parameters()),
            "same_answers": {"num_positions": same.num_positions, "num_equal": same.num_equal},
        },
    )
    return same

"""Measures memory and time of one GRPO step on a GPT-2 of 124 M random weights, and compares them with `memory_estimate`.

nice -n 19 python benchmarks/language_cost.py [--prompts 2] [--group 4] [--answer-tokens 48] [--num-layers 12] [--lora-rank 16]

No hub is asked: the shape is RookWorld-LM's, the weights are random and the tokenizer is the small model's, so that answers are nonsense
and as long as may be. Memory is the process's resident set: its peak less what it was before the model was there.
"""

import argparse
import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chess
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from grpo.base.seeding import numpy_stream
from grpo.control.controller import Control
from grpo.language.generate.answers import sampled_answers
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import exact_measures
from grpo.language.learn.loss import backward
from grpo.language.learn.memory_estimate import ROOKWORLD, StepSize, lasting_bytes, operations, passing_bytes, shape_of
from grpo.language.learn.rollouts import LanguageRollout
from grpo.language.model.policy import LanguagePolicy, ModelOrigin
from grpo.language.text.tasks import move_prompt
from grpo.language.text.tokenizer import chess_tokenizer
from grpo.settings.tree import read_settings

_MIB = 2**20


def resident() -> int:
    """Return the bytes of this process in memory, freed ones given back first."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return _resident()


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def watched(body: Callable[[], Any]) -> tuple[Any, float, int]:
    """Return what it returns, its seconds, and the most bytes above those before it."""
    before, most, is_over = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not is_over.wait(0.005):
            most = max(most, _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    try:
        found = body()
    finally:
        seconds = time.perf_counter() - began
        is_over.set()
        watcher.join()
    return found, seconds, max(0, most - before)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--answer-tokens", type=int, default=48)
    parser.add_argument("--lora-rank", type=int, default=0)
    parser.add_argument("--num-layers", type=int, default=ROOKWORLD.num_layers)
    given = parser.parse_args()
    settings = read_settings(
        f'policy.kind = "language"\ngrpo.states_per_step = {given.prompts}\ngrpo.group_size = {given.group}\n'
        f"language.max_answer_tokens = {given.answer_tokens}\nlanguage.lora.rank = {given.lora_rank}"
    )
    torch.manual_seed(0)
    tokenizer = chess_tokenizer()
    tokenizer.decode = lambda *_, **__: ""  # The model has more tokens than it knows.
    ids = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes = GPT2Config(n_layer=given.num_layers, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **ids)
    empty = resident()
    network = GPT2LMHeadModel(sizes)
    shape = shape_of(network, settings.language.lora)
    policy = LanguagePolicy(network, tokenizer, torch.device("cpu"), settings.language, origin=ModelOrigin(model="random", commit=""))
    policy, reference = policy.with_reference(settings.language.lora, seed=0)
    optimiser = torch.optim.Adam(policy.trained.parameters(), lr=1e-9)
    prompts = [prompt for prompt in [move_prompt(chess.STARTING_FEN)] * given.prompts for _ in range(given.group)]
    streams = [numpy_stream(0, row) for row in range(len(prompts))]
    answers, to_write, while_writing = watched(lambda: sampled_answers(policy, prompts, temperature=1.0, streams=streams))
    batch = AnswerBatch.of(policy, policy.tokens(prompts), [answer.token_ids for answer in answers])
    measures, to_measure, while_measuring = watched(lambda: exact_measures(policy, reference, batch, temperature=1.0))
    rollout = LanguageRollout(
        answers=(),
        group_size=given.group,
        batch=batch,
        sampled=measures.log_probs,
        measures=measures,
        is_truncated=torch.zeros(len(prompts), dtype=torch.bool),  # Random answers do not end, and would be left out.
        is_far=torch.zeros(len(prompts), dtype=torch.bool),
        advantages=torch.arange(len(prompts)).float() % given.group,
    )
    knobs = Control(settings.grpo, first_step=0).knobs(0)

    def update() -> None:
        backward(policy, reference, rollout, torch.arange(len(prompts)), config=settings.grpo, knobs=knobs)
        optimiser.step()

    _, _, _ = watched(update)  # The first makes gradients and Adam's moments, which stay.
    _, to_update, while_updating = watched(update)
    copies = [{name: value.clone() for name, value in policy.trained.state_dict().items()}]
    copies += [{key: value.clone() for key, value in state.items() if key != "step"} for state in optimiser.state.values()]
    work = StepSize.of(settings, prompt_tokens=batch.input_ids.shape[1] + 1 - batch.targets.shape[1], answer_tokens=batch.targets.shape[1])
    lasting, passing, counted = lasting_bytes(shape, work), passing_bytes(shape, work), operations(shape, work)
    print(f"{shape.num_parameters:,} parameters and {shape.num_in_adapter:,} of an adapter")
    print(f"{work.num_answers} answers of {work.answer_tokens} tokens to prompts of {work.prompt_tokens}")
    print(f"kept from step to step: measured {(resident() - empty) / _MIB:,.0f} MiB, computed {sum(lasting.values()) / _MIB:,.0f} MiB")
    names = ("generation", "exact measures", "update")
    for name, measured in zip(names, (while_writing, while_measuring, while_updating), strict=True):
        print(f"{name}: measured {measured / _MIB:,.0f} MiB above that, computed {passing[name] / _MIB:,.0f} MiB")
    seconds = to_write + to_measure + to_update
    print(f"seconds: writing {to_write:.1f}, exact measures {to_measure:.1f}, update {to_update:.1f}")
    print(f"{sum(counted.values()) / 1e12:.3f} TFLOP in {seconds:.1f} s: {sum(counted.values()) / seconds / 1e12:.3f} TFLOP/s")


if __name__ == "__main__":
    main()

"""What the 124 M model costs: its parameters to the last one, and memory and operations that follow from its shape as they must."""

import subprocess
import sys
from dataclasses import replace

import pytest

from grpo.language.learn.memory_estimate import ROOKWORLD, Shape, StepSize, operations
from grpo.settings.tree import read_settings

SETTINGS = read_settings('policy.kind = "language"')
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
WORK = StepSize.of(SETTINGS, prompt_tokens=60)


@pytest.mark.parametrize("shape", [ROOKWORLD, Shape(vocabulary=500, positions=256, width=96, num_layers=3)])
def test_the_parameters_are_those_that_transformers_makes(shape: Shape) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `language` is not installed: pip install '.[language]'")
    import torch

    sizes = transformers.GPT2Config(
        vocab_size=shape.vocabulary, n_positions=shape.positions, n_embd=shape.width, n_layer=shape.num_layers, **ENDS
    )
    with torch.device("meta"):
        network = transformers.GPT2LMHeadModel(sizes)
    assert sum(weights.numel() for weights in network.parameters()) == shape.num_parameters
    if shape == ROOKWORLD:
        assert shape.num_parameters == 124_439_808


def test_the_step_is_the_one_that_the_settings_ask_for() -> None:
    assert (WORK.num_answers, WORK.answer_tokens, WORK.per_forward) == (64, SETTINGS.language.max_answer_tokens, 64)
    smaller = read_settings('policy.kind = "language"\nlanguage.answers_per_forward = 8\ngrpo.num_minibatches = 2')
    assert StepSize.of(smaller, prompt_tokens=60).per_forward == 8
    assert StepSize.of(SETTINGS, prompt_tokens=60, answer_tokens=9).num_tokens == 69


def test_twice_the_answers_take_twice_the_operations_and_a_forward_pass_is_two_for_each_weight_and_token() -> None:
    counted, twice = operations(ROOKWORLD, WORK), operations(ROOKWORLD, replace(WORK, num_prompts=2 * WORK.num_prompts))
    assert all(twice[part] == 2 * number for part, number in counted.items())
    # One token, all of it answer: attention is next to nothing, and embeddings of positions are no product.
    one = StepSize(num_prompts=1, group_size=1, prompt_tokens=0, answer_tokens=1, per_forward=1)
    weights = ROOKWORLD.num_parameters - ROOKWORLD.positions * ROOKWORLD.width
    assert operations(ROOKWORLD, one)["generation"] == pytest.approx(2 * weights, rel=2e-3)


def test_the_command_prints_it_without_the_extras_packages() -> None:
    blocked = "import sys; [sys.modules.__setitem__(name, None) for name in ('transformers', 'trl', 'torch')]"
    program = f"{blocked}; from grpo.language.learn.memory_estimate import main; sys.argv = ['cost', '--teraflops', '20']; main()"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "GPT-2 of 124,439,808 parameters; 64 answers of 144 tokens" in ran.stdout
    total = sum(operations(ROOKWORLD, WORK).values())
    assert f"{total / 1e12:.2f} TFLOP: {total / 20e12:.1f} s at 20 TFLOP/s" in " ".join(ran.stdout.split())

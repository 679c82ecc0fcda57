"""What the 124 M model costs: its parameters to the last one, and memory and operations that follow from its shape as they must."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from grpo.language.learn.memory_estimate import ROOKWORLD, Shape, StepSize, lasting_bytes, operations, passing_bytes, peak_bytes, shape_of
from grpo.settings.language import LoraConfig
from grpo.settings.tree import read_settings

SETTINGS = read_settings('policy.kind = "language"')
ENDS = {"bos_token_id": 0, "eos_token_id": 0}
WORK = StepSize.of(SETTINGS, prompt_tokens=60)


GPT2_SIZES = [
    {"vocabulary": 50_257, "positions": 1_024, "width": 768, "num_layers": 12},
    {"vocabulary": 500, "positions": 256, "width": 96, "num_layers": 3},
]


@pytest.mark.parametrize("sizes", GPT2_SIZES)
def test_the_shape_is_that_of_what_transformers_makes(sizes: dict[str, int]) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra `language` is not installed: pip install '.[language]'")
    import torch

    described = transformers.GPT2Config(
        vocab_size=sizes["vocabulary"], n_positions=sizes["positions"], n_embd=sizes["width"], n_layer=sizes["num_layers"], **ENDS
    )
    with torch.device("meta"):
        network = transformers.GPT2LMHeadModel(described)
    assert shape_of(network, LoraConfig()) == Shape.of_gpt2(**sizes)
    if sizes["width"] == 768:
        assert shape_of(network, LoraConfig()) == ROOKWORLD
        # Of each block's four layers 4 w, 2 w, 5 w and 5 w.
        assert shape_of(network, LoraConfig(rank=8)).num_in_adapter == 8 * 12 * 16 * 768
        assert ROOKWORLD.num_parameters == 124_439_808


@pytest.mark.parametrize("changes", [{}, {"language.lora.rank": 4}], ids=["all weights", "LoRA"])
@pytest.mark.parametrize("refresh", [0, 5])
def test_what_is_kept_from_step_to_step_is_what_a_trainer_keeps(changes: dict[str, Any], refresh: int) -> None:
    pytest.importorskip("transformers", reason="the extra `language` is not installed: pip install '.[language]'")
    from written_language import settings, writer, written_boards

    from grpo.language.learn.trainer import LanguageTrainer
    from grpo.language.text.rewards import grade

    config = settings(**{**changes, "grpo.steps_per_reference_refresh": refresh})
    policy, reference = writer(config).adapted(config.language.lora, seed=0) if changes else (writer(config), writer(config))
    grader = partial(grade, weights=config.language.rewards, logistic_slope=0.003)
    trainer = LanguageTrainer(policy, reference, written_boards(config), config, grader=grader)
    trainer.step()
    snapshot = trainer.snapshot()
    everything = {id(each): each for module in (policy.network, policy.trained) for each in module.parameters()}
    adam = [value for state in trainer._optimiser.state.values() for name, value in state.items() if name != "step"]
    moments = [value for state in snapshot.state.optimiser["state"].values() for name, value in state.items() if name != "step"]
    kept = [*snapshot.weights.values(), *snapshot.state.tensors.values(), *snapshot.reference.values(), *moments]
    found = [everything.values(), [each.grad for each in everything.values() if each.grad is not None], adam]
    measured = [sum(tensor.nbytes for tensor in tensors) for tensors in (*found, reference.trained.state_dict().values(), kept)]
    shape = shape_of(policy.network, config.language.lora)
    assert measured == list(lasting_bytes(shape, StepSize.of(config, prompt_tokens=60)).values())


def test_lora_needs_less_memory_and_no_gradient_of_the_weights_it_freezes() -> None:
    lora = replace(ROOKWORLD, num_in_adapter=8 * 12 * 16 * 768)
    assert peak_bytes(lora, WORK) < peak_bytes(ROOKWORLD, WORK) - 3 * 4 * ROOKWORLD.num_parameters
    assert operations(lora, WORK)["update"] == pytest.approx(0.75 * operations(ROOKWORLD, WORK)["update"], rel=0.02)


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
    weights = ROOKWORLD.num_in_blocks + ROOKWORLD.num_in_head
    assert operations(ROOKWORLD, one)["generation"] == pytest.approx(2 * weights, rel=2e-3)


def test_bfloat16_checkpointing_and_fewer_answers_at_once_need_less_memory_and_no_other_step() -> None:
    half, recomputing, fewer = replace(WORK, is_half=True), replace(WORK, recomputes=True), replace(WORK, per_forward=1)
    for smaller in (recomputing, fewer):
        assert peak_bytes(ROOKWORLD, smaller) < peak_bytes(ROOKWORLD, WORK)
    # The copy of the weights in bfloat16 has half a GiB less than what it saves in a large batch.
    assert passing_bytes(ROOKWORLD, half)["generation"] < passing_bytes(ROOKWORLD, WORK)["generation"]
    assert operations(ROOKWORLD, fewer) == operations(ROOKWORLD, WORK) == operations(ROOKWORLD, half)
    assert operations(ROOKWORLD, recomputing)["update"] == 1.25 * operations(ROOKWORLD, WORK)["update"]

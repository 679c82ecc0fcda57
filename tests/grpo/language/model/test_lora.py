"""LoRA's adapters: which layers have them, that merging them changes no policy, and that without them the policy is the reference."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `language` is not installed: pip install '.[language]'")

from transformers import LlamaConfig, LlamaForCausalLM
from written_language import CPU, settings, writer

from grpo.language.model.loading import load_language_policy, save_language_policy
from grpo.language.model.lora import LoraError, target_layers
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.tokenizer import chess_tokenizer
from grpo.learning.checkpoints import weights_hash
from grpo.settings.language import LoraConfig
from grpo.settings.tree import ConfigError

torch.set_num_threads(1)

IDS = torch.arange(24).view(2, 12)
GPT2_LAYERS = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"}


def llama() -> Any:
    """Return a small network of `nn.Linear` layers; GPT-2's are transposed."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(chess_tokenizer()), **sizes))


def adapted(network: Any = None, **changes: Any) -> tuple[LanguagePolicy, LanguagePolicy]:
    config = settings(**{"language.lora.rank": 4, **changes})
    policy = writer(config)
    if network is not None:
        policy.network = network.eval()
    return policy.adapted(config.language.lora, seed=config.seed)


def shaken(policy: LanguagePolicy) -> LanguagePolicy:
    """Return the policy with an adapter that changes its logits by some units."""
    assert policy.adapter is not None
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in policy.adapter.b.values():
            weights.normal_()
    return policy


@torch.no_grad()
def logits(policy: LanguagePolicy) -> torch.Tensor:
    return policy.logits(IDS, torch.ones_like(IDS), num_last=12)


@pytest.mark.parametrize("make", [lambda: None, llama], ids=["gpt2", "llama"])
def test_an_adapter_changes_its_own_policy_and_the_written_model_has_it_merged(make: Any, tmp_path: Path) -> None:
    policy, reference = adapted(make())
    before, initial = logits(reference), weights_hash(reference)
    assert torch.equal(logits(policy), before), "a new adapter changes something"
    assert weights_hash(policy) == initial == weights_hash(policy)
    shaken(policy)
    after = logits(policy)
    assert (after - before).abs().max() > 0.1
    assert torch.equal(logits(reference), before)
    save_language_policy(tmp_path, policy, settings().policy)
    loaded, _ = load_language_policy(tmp_path, CPU)
    torch.testing.assert_close(logits(loaded), after, atol=1e-4, rtol=1e-4)
    assert weights_hash(loaded) == weights_hash(policy) != initial
    assert logits(policy).equal(after), "writing changed the policy"


def test_the_output_head_has_no_adapter_and_layers_can_be_named_by_the_end_of_their_names() -> None:
    network = writer(settings()).network
    layers = set(target_layers(network, LoraConfig(rank=4)))
    assert layers == {f"transformer.h.0.{name}" for name in GPT2_LAYERS}
    assert set(target_layers(network, LoraConfig(rank=4, target_modules=("c_proj",)))) == {name for name in layers if "c_proj" in name}
    assert set(target_layers(network, LoraConfig(rank=4, target_modules=("mlp.c_proj",)))) == {"transformer.h.0.mlp.c_proj"}
    assert not any("lm_head" in name for name in target_layers(llama(), LoraConfig(rank=4)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LoraConfig(rank=4, target_modules=("c_attn", "q_proj")), r"'q_proj' is not .* it has c_attn, c_fc, c_proj"),
        (LoraConfig(rank=4, target_modules=("lm_head",)), "'lm_head' is not .* The output head"),
        (LoraConfig(rank=4, target_modules=("attn",)), "'attn' is not"),
        (LoraConfig(rank=33), r"rank = 33 is above the smaller side of the weights of transformer.h.0.attn.c_attn, 32"),
    ],
)
def test_layers_that_are_not_there_and_ranks_that_save_nothing_are_refused(config: LoraConfig, message: str) -> None:
    with pytest.raises(LoraError, match=message):
        target_layers(writer(settings()).network, config)


def test_settings_of_an_adapter_without_a_rank_and_dropout_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"need language.lora.rank above 0"):
        settings(**{"language.lora.alpha": 8.0})
    with pytest.raises(ConfigError, match=r"unknown key language.lora.dropout"):
        settings(**{"language.lora.dropout": 0.0})

"""Models of folders and seeds become policies; what cannot be one is refused plainly; a policy comes back from disk as it was."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from made_models import byte_pair_tokenizer, gpt2, llama
from tokenizers import normalizers
from transformers import AutoConfig, AutoModelForCausalLM, MambaConfig, MambaForCausalLM

from grpo.language.generate.answers import sampled_answers
from grpo.language.model.loading import LanguageModelError, hub_commit
from grpo.language.model.policy import LanguagePolicy, load_model
from grpo.language.text.tokenizer import CHESS_TOKENS
from grpo.policy.files import IncompatibleError, copy_policy, is_policy
from grpo.policy.policy import weights_hash
from grpo.settings.language import LanguageConfig

CPU = torch.device("cpu")
SMALL = LanguageConfig(small_width=16, small_num_layers=1, max_answer_tokens=16)
PROMPT = "P: 8/5k2/8/8/8/8/5K2/8 w - - 0 1    M:"


def loaded(folder: Path) -> LanguagePolicy:
    return load_model(LanguageConfig(model=str(folder), max_answer_tokens=16), seed=0, device=CPU)


def gpt2_that_chats(folder: Path) -> Path:
    tokenizer = byte_pair_tokenizer()
    tokenizer.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}  # Two are saved in a folder of their own.
    return gpt2(folder, tokenizer)


@pytest.mark.parametrize("make", [gpt2, llama, gpt2_that_chats])
def test_a_model_of_a_folder_answers_and_comes_back_from_disk(make, tmp_path: Path) -> None:
    policy = loaded(make(tmp_path / "model"))
    (tmp_path / "saved").mkdir()
    policy.save(tmp_path / "saved")
    copy_policy(tmp_path / "saved", tmp_path / "copied")
    assert is_policy(tmp_path / "copied")
    back = LanguagePolicy.load(tmp_path / "copied", CPU)
    assert back.config == policy.config
    assert back.origin == policy.origin
    assert weights_hash(back) == weights_hash(policy)
    streams = [[np.random.default_rng(7)] for _ in range(2)]
    answers = [sampled_answers(one, [PROMPT], temperature=1.0, streams=own) for one, own in zip((policy, back), streams, strict=True)]
    assert answers[0] == answers[1]
    assert not list(tmp_path.rglob("*.bin"))
    assert not list(tmp_path.rglob("*.pt"))


def test_a_copy_has_weights_of_its_own_and_the_usual_precision() -> None:
    policy = load_model(SMALL, seed=1, device=CPU).at_precision(torch.bfloat16)
    copied = policy.copied()
    assert copied.precision == torch.float32
    with torch.no_grad():
        copied.network.transformer.wte.weight += 1
    assert weights_hash(copied) != weights_hash(policy)


def test_other_tokens_than_this_codes_are_refused(tmp_path: Path) -> None:
    load_model(SMALL, seed=1, device=CPU).save(tmp_path)
    (tmp_path / CHESS_TOKENS).write_text(json.dumps(json.loads((tmp_path / CHESS_TOKENS).read_text())[::-1]))
    with pytest.raises(IncompatibleError, match="the tokens differ"):
        LanguagePolicy.load(tmp_path, CPU)


def test_dropout_is_off_even_in_training_mode(tmp_path: Path) -> None:
    policy = loaded(gpt2(tmp_path))
    ids = torch.tensor(policy.tokens([PROMPT]))
    expected = policy.network(ids).logits
    policy.network.train()
    assert torch.equal(policy.network(ids).logits, expected)
    assert policy.network.config.attn_pdrop == policy.network.config.resid_pdrop == policy.network.config.embd_pdrop == 0


def without(*names: str):
    return lambda folder: [(made / name).unlink() for made in [gpt2(folder)] for name in names]


def endless(folder: Path) -> None:
    path = gpt2(folder) / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token": None}))


def prepending(folder: Path) -> None:
    tokenizer = byte_pair_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    gpt2(folder, tokenizer)


def mamba(folder: Path) -> None:
    size = {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "expand": 2, "conv_kernel": 2, "time_step_rank": 2}
    tokenizer = byte_pair_tokenizer()
    MambaForCausalLM(MambaConfig(vocab_size=len(tokenizer), **size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def model_of(model_type: str, **sizes: object):
    def make(folder: Path) -> None:
        tokenizer = byte_pair_tokenizer()
        config = AutoConfig.for_model(model_type, vocab_size=len(tokenizer), num_attention_heads=2, pad_token_id=0, **sizes)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return make


def described(**changes: object):
    def make(folder: Path) -> None:
        path = gpt2(folder) / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return make


LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32}
HYBRID = {**LAYERS, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"]}
BART = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "init_std": 0.3}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder.mkdir(), r"config\.json"),
        (lambda folder: gpt2(folder, vocab_size=258), "ids beyond the model's 258 tokens"),
        (lambda folder: (gpt2(folder) / "model.safetensors").write_bytes(b"torn"), "header too small"),
        (without("tokenizer.json", "tokenizer_config.json"), "the tokenizer is missing or loses text"),
        (endless, "no end-of-text token"),
        (described(n_embd=32), r"weights are missing in its files or have another shape \("),
        (described(n_head="two"), "Field 'n_head' expected int, got str"),
        (described(quantization_config={"quant_method": "gptq", "bits": 4}), "its weights are quantized"),
        (mamba, "mamba model has no key-value cache"),
        (model_of("lfm2", **HYBRID), "lfm2 model has no key-value cache"),
        (model_of("bert", **LAYERS), "bert model has no key-value cache"),
        (model_of("bart", **BART), "bart model counts padding as text"),
        (prepending, r"otherwise .* set language\.lists_moves = false or language\.legal_moves = false"),
    ],
    ids=[
        *("empty", "foreign tokenizer", "torn", "no tokenizer", "no end", "other shape", "other type", "quantized"),
        *("no cache", "a layer without cache", "reads both ways", "positions by place", "prepending"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_reason(make, reason: str, tmp_path: Path) -> None:
    make(tmp_path / "model")
    with pytest.raises(LanguageModelError, match=reason) as refusal:
        loaded(tmp_path / "model")
    assert "\n" not in str(refusal.value)


def test_the_commit_that_was_loaded_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The hub's cache names a snapshot's folder after its commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "models--somebody--model"
    gpt2(cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    policy = load_model(LanguageConfig(model="somebody/model", max_answer_tokens=16), seed=0, device=CPU)
    assert policy.origin.commit == commit == hub_commit(LanguageConfig(model="somebody/model"))
    (tmp_path / "saved").mkdir()
    policy.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "facts.json").read_text())["origin"] == {"model": "somebody/model", "commit": commit}


def test_a_hub_that_is_away_is_told_with_what_needs_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(LanguageModelError, match=r"'somebody/model' cannot be loaded: .*language\.model = 'small' needs no hub"):
        load_model(LanguageConfig(model="somebody/model"), seed=0, device=CPU)

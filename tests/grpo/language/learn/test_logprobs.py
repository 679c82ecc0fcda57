"""One distribution: what is sampled is what is scored, and entropies and divergences are what they are called."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from grpo.language.learn import logprobs
from grpo.language.learn.logprobs import exact_measures, sampled_scored_gap
from grpo.language.learn.trl_adapter import Engine, EngineSize
from grpo.language.model.policy import LanguagePolicy, ModelOrigin
from grpo.language.text.tokenizer import chess_tokenizer
from grpo.settings.tree import Settings, read_settings

CPU = torch.device("cpu")
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PROMPTS = [
    f"P: {START}    M:",
    "P: 8/8/8/8/8/8/k1K5/8 b - - 12 90    M:",
    f"A: {START}+e2e4+e2e4+",
    "A: 8/8/8/8/8/8/k1K5/8 b - - 12 90+a2a1+a2a1+",
]


def gpt2(**changes: Any) -> PreTrainedModel:
    tokenizer = chess_tokenizer()
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=256, n_embd=32, n_layer=2, n_head=2, **changes)
    config.eos_token_id = config.bos_token_id = tokenizer.eos_token_id
    return GPT2LMHeadModel(config)


def llama() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=len(chess_tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def engine_of(make: Callable[[], PreTrainedModel], **settings: object) -> Engine:
    """Return an engine with random weights, large enough that distributions are far from even."""

    def policy() -> LanguagePolicy:
        torch.manual_seed(0)
        network = make()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(4)
        return LanguagePolicy(network, chess_tokenizer(), CPU, read(**settings).language, origin=ModelOrigin(model="test", commit=""))

    return Engine(policy(), policy().network, read(**settings), lambda rows, texts: [float(len(text)) for text in texts])


def read(**settings: object) -> Settings:
    base = {"policy.kind": '"language"', "language.max_answer_tokens": 16, "grpo.states_per_step": 4, "grpo.group_size": 4}
    return read_settings("".join(f"{name} = {value}\n" for name, value in {**base, **settings}.items()))


@pytest.fixture(scope="module")
def engine() -> Engine:
    return engine_of(gpt2)


@pytest.mark.parametrize("make", [gpt2, llama])
def test_tokens_are_scored_as_they_were_sampled_whatever_the_padding(make: Callable[[], PreTrainedModel]) -> None:
    gap = sampled_scored_gap(engine_of(make), PROMPTS, seed=1)
    assert gap.largest < 1e-4
    assert gap.is_within
    assert gap.cause == ""
    assert len({padding for padding, _ in gap.by_row}) > 1, "prompts of one length show nothing"


def test_left_padding_without_position_ids_is_found_and_called_by_its_name() -> None:
    broken = engine_of(gpt2)
    broken.model._forward_pre_hooks.clear()
    broken.model._forward_pre_hooks_with_kwargs.clear()
    gap = sampled_scored_gap(broken, PROMPTS, seed=1)
    assert gap.cause == "left_padding"
    assert gap.largest > 0.5
    assert min(gap.by_row)[1] < 1e-4, "the row without padding agrees"
    assert not gap.is_within


def test_dropout_is_found_and_called_by_its_name() -> None:
    broken = engine_of(gpt2)
    for module in broken.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    assert sampled_scored_gap(broken, PROMPTS, seed=1).cause == "dropout"


@pytest.mark.parametrize(
    ("name", "value", "cause"),
    [("temperature", 1.3, "temperature"), ("top_k", 20, "truncated_sampling"), ("top_p", 0.9, "truncated_sampling")],
)
def test_sampling_from_another_distribution_is_found_and_called_by_its_name(name: str, value: float, cause: str) -> None:
    broken = engine_of(gpt2)
    setattr(broken.generation_config, name, value)
    broken.generation_kwargs[name] = value
    assert sampled_scored_gap(broken, PROMPTS, seed=1).cause == cause


def test_another_model_for_scoring_is_found_although_its_cause_is_unknown() -> None:
    broken = engine_of(gpt2)
    score = broken.log_probs
    broken.log_probs = lambda model, ids, mask, num_tokens: score(broken.ref_model, ids, mask, num_tokens)
    with torch.no_grad():
        broken.ref_model.lm_head.weight.mul_(1.1)
    assert sampled_scored_gap(broken, PROMPTS, seed=1).cause == "unknown"


def test_an_end_that_comes_at_once_is_compared_too(engine: Engine) -> None:
    gap = sampled_scored_gap(engine, PROMPTS[:1], seed=3)
    assert gap.is_within
    assert gap.largest > 0, "exact equality would mean that one was compared with itself"


def test_answers_of_a_rollout_follow_from_its_seed_alone(engine: Engine) -> None:
    rows = [{"prompt": prompt} for prompt in PROMPTS for _ in range(4)]
    one = engine.rollout(rows, seed=7, kl_coefficient=0.1)
    torch.manual_seed(123)
    two = engine.rollout(rows, seed=7, kl_coefficient=0.1)
    other = engine.rollout(rows, seed=8, kl_coefficient=0.1)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert one["completion_ids"].shape != other["completion_ids"].shape or not torch.equal(one["completion_ids"], other["completion_ids"])


def test_a_rollout_leaves_the_worlds_random_numbers_alone(engine: Engine) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    engine.rollout([{"prompt": prompt} for prompt in PROMPTS for _ in range(4)], seed=7, kl_coefficient=0.1)
    assert torch.equal(torch.rand(3), expected)


def distributions(network: PreTrainedModel, prompt: torch.Tensor, num_tokens: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every text of so many tokens, one forward pass each."""
    vocabulary = network.config.vocab_size
    found = {}
    for text in itertools.product(range(vocabulary), repeat=num_tokens):
        ids = torch.cat([prompt, torch.tensor(text)])[None]
        logs = network(input_ids=ids).logits[0].double().log_softmax(-1)
        found[text] = math.exp(sum(logs[len(prompt) - 1 + place, token].item() for place, token in enumerate(text)))
    return found


def test_entropy_and_divergence_of_answers_are_those_of_whole_answers() -> None:
    torch.manual_seed(0)
    one, other = (GPT2LMHeadModel(GPT2Config(vocab_size=5, n_positions=16, n_embd=16, n_layer=1, n_head=2)).eval() for _ in range(2))
    with torch.no_grad():
        for network in (one, other):
            for parameter in network.parameters():
                parameter.mul_(8)
    prompt, num_tokens = torch.tensor([1, 3, 2]), 2
    with torch.no_grad():
        ours, theirs = (distributions(network, prompt, num_tokens) for network in (one, other))
    texts = torch.tensor(list(ours))
    ids = torch.cat([prompt.expand(len(texts), -1), texts], dim=1)
    measures = exact_measures(one, other, ids, torch.ones_like(ids), torch.ones_like(texts), temperature=1.0)
    entropies, divergences = measures.of_answers()
    weights = torch.tensor(list(ours.values()))
    assert sum(ours.values()) == pytest.approx(1, abs=1e-6)
    assert (weights * entropies).sum().item() == pytest.approx(-sum(p * math.log(p) for p in ours.values()), abs=1e-4)
    exact = sum(p * math.log(p / theirs[text]) for text, p in ours.items())
    assert exact > 0.1, "equal models would show nothing"
    assert (weights * divergences).sum().item() == pytest.approx(exact, abs=1e-4)
    assert (measures.kl >= -1e-6).all()


def test_measures_do_not_depend_on_how_many_answers_are_scored_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine.rollout([{"prompt": prompt} for prompt in PROMPTS for _ in range(4)], seed=7, kl_coefficient=0.1)
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], dim=1)
    mask = torch.ones_like(made["completion_ids"])
    attention = torch.cat([made["prompt_mask"], mask], dim=1)
    whole = exact_measures(engine.model, engine.ref_model, ids, attention, mask, temperature=1.0)
    monkeypatch.setattr(logprobs, "_MAX_LOGITS", 1)
    pieces = exact_measures(engine.model, engine.ref_model, ids, attention, mask, temperature=1.0)
    torch.testing.assert_close(whole.entropy, pieces.entropy, atol=1e-5, rtol=0)
    assert whole.kl.abs().max() < 1e-6, "policy and reference have the same weights"


@pytest.mark.parametrize(
    ("num_answers", "num_minibatches", "most", "expected"),
    [(64, 1, 64, (64, 1, 1)), (64, 2, 64, (32, 1, 2)), (48, 1, 20, (16, 3, 3)), (14, 2, 4, (1, 7, 14))],
)
def test_a_rollout_is_cut_into_equal_parts(num_answers: int, num_minibatches: int, most: int, expected: tuple[int, int, int]) -> None:
    size = EngineSize(num_answers=num_answers, num_minibatches=num_minibatches, most=most)
    assert (size.per_forward, size.forwards_per_update, size.forwards_per_rollout) == expected


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_a_loss_in_pieces_has_the_gradient_of_the_whole(loss: str) -> None:
    gradients = []
    for most in (16, 8):
        engine = engine_of(gpt2, **{"language.loss": f'"{loss}"', "language.answers_per_forward": most, "language.max_answer_tokens": 16})
        made = engine.rollout([{"prompt": prompt} for prompt in PROMPTS for _ in range(4)], seed=7, kl_coefficient=0.1)
        # All of one length, for `bnpo` averages over the tokens of each piece by definition.
        made = {
            **made,
            "completion_mask": torch.ones_like(made["completion_mask"]),
            "num_items_in_batch": torch.tensor(made["completion_mask"].numel()),
        }
        for rows in torch.arange(16).split(engine.size.per_forward):
            engine.loss(made, rows)[0].backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in engine.model.parameters()]))
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5 * gradients[0].abs().max().item(), rtol=1e-3)

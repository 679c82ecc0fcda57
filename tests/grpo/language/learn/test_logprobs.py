"""One distribution: what is sampled is what is scored, and entropies and divergences are what they are called."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from grpo.base.seeding import numpy_stream
from grpo.control.controller import Control
from grpo.language.generate import answers as generation
from grpo.language.learn import loss, memory_estimate
from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import Gap, exact_measures, sampled_scored_gap
from grpo.language.learn.rollouts import LanguageRollout, write_rollout
from grpo.language.model import left_padding
from grpo.language.model.policy import LanguagePolicy, ModelOrigin
from grpo.language.text.examples import EnvironmentExample, Example, MoveExample
from grpo.language.text.rewards import Grades, grade
from grpo.language.text.tokenizer import chess_tokenizer
from grpo.policy.distribution import MoveDistribution
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


def policy_of(make: Callable[[], PreTrainedModel], **settings: object) -> LanguagePolicy:
    """Return a policy with random weights, large enough that distributions are far from even."""
    torch.manual_seed(0)
    network = make()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(4)
    return LanguagePolicy(network, chess_tokenizer(), CPU, read(**settings).language, origin=ModelOrigin(model="test", commit=""))


def read(**settings: object) -> Settings:
    base = {"policy.kind": '"language"', "language.max_answer_tokens": 16, "grpo.states_per_step": 4, "grpo.group_size": 4}
    return read_settings("".join(f"{name} = {value}\n" for name, value in {**base, **settings}.items()))


def gap_of(policy: LanguagePolicy, *, temperature: float = 1.0) -> Gap:
    return sampled_scored_gap(policy, PROMPTS, temperature=temperature, streams=[numpy_stream(1, row) for row in range(len(PROMPTS))])


def without_hook(policy: LanguagePolicy) -> LanguagePolicy:
    policy.network._forward_pre_hooks.clear()
    policy.network._forward_pre_hooks_with_kwargs.clear()
    return policy


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_scored_as_they_were_sampled_whatever_the_padding(make: Callable[[], PreTrainedModel], temperature: float) -> None:
    gap = gap_of(policy_of(make), temperature=temperature)
    assert 0 < gap.largest < 1e-4, "exact equality would mean that one was compared with itself"
    assert gap.is_within
    assert gap.cause == ""
    assert len({padding for padding, _ in gap.by_row}) > 1, "prompts of one length show nothing"


def test_left_padding_without_position_ids_is_found_and_called_by_its_name() -> None:
    gap = gap_of(without_hook(policy_of(gpt2)))
    assert gap.cause == "left_padding"
    assert gap.largest > 0.5
    assert min(gap.by_row)[1] < 1e-4, "the row without padding agrees"
    assert not gap.is_within


def test_wrong_positions_are_found_and_called_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = left_padding.positions_of
    monkeypatch.setattr(left_padding, "positions_of", lambda mask: honest(mask) + 1)
    gap = gap_of(policy_of(gpt2))
    assert gap.cause == "positions"
    assert min(gap.by_row)[1] > 1e-3, "the row without padding differs too"


def test_dropout_is_found_and_called_by_its_name() -> None:
    broken = policy_of(gpt2)
    for module in broken.network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    broken.network.train()
    assert gap_of(broken).cause == "dropout"


def top_k(logits: torch.Tensor, *, temperature: float) -> MoveDistribution:
    return MoveDistribution.from_logits(logits, logits >= logits.topk(20).values[:, -1:], temperature=temperature)


def hotter(logits: torch.Tensor, *, temperature: float) -> MoveDistribution:
    return MoveDistribution.from_logits(logits, torch.ones_like(logits, dtype=torch.bool), temperature=1.3 * temperature)


def another_model(logits: torch.Tensor, *, temperature: float) -> MoveDistribution:
    return MoveDistribution.from_logits(logits.roll(1, dims=1), torch.ones_like(logits, dtype=torch.bool), temperature=temperature)


@pytest.mark.parametrize(("fault", "cause"), [(hotter, "temperature"), (top_k, "truncated_sampling"), (another_model, "unknown")])
def test_sampling_from_another_distribution_is_found_and_called_by_its_name(
    fault: Callable[..., MoveDistribution], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "token_distribution", fault)
    assert gap_of(policy_of(gpt2)).cause == cause


def some_rollout(policy: LanguagePolicy, settings: Settings, *, step: int = 7) -> LanguageRollout:
    def by_length(example: Example, text: str) -> Grades:
        found = grade(example, text, settings.language.rewards, logistic_slope=0.003)
        return Grades(parts={"structure": float(len(text))}, malformed=0.0, reading=found.reading, is_legal_best=False)

    shared = {"target": "", "fen": START, "index": 0}
    move = {"move": "e2e4", "history": (), "new_fen": START, "reward": 0.0, "terminated": False, "truncated": False}
    examples = [
        MoveExample(prompt=prompt, moves=("e2e4",), values=(1.0,), evaluations=(0.0,), **shared)
        if prompt[0] == "P"
        else EnvironmentExample(prompt=prompt, **shared, **move)
        for prompt in PROMPTS
    ]
    return write_rollout(policy, policy, examples, settings, grader=by_length, content_fraction=1.0, max_collection_kl=0.0, step=step)


def test_answers_of_a_rollout_follow_from_their_streams_alone_and_leave_the_worlds_random_numbers_alone() -> None:
    policy = policy_of(gpt2)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = some_rollout(policy, read())
    assert torch.equal(torch.rand(3), expected)
    two, other = some_rollout(policy, read()), some_rollout(policy, read(), step=8)
    assert torch.equal(one.batch.targets, two.batch.targets)
    assert torch.equal(one.sampled, two.sampled)
    assert one.batch.targets.shape != other.batch.targets.shape or not torch.equal(one.batch.targets, other.batch.targets)


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
    origin, tokenizer = ModelOrigin(model="test", commit=""), chess_tokenizer()
    policy, reference = (LanguagePolicy(network, tokenizer, CPU, read().language, origin=origin) for network in (one, other))
    with torch.no_grad():
        for network in (one, other):
            for parameter in network.parameters():
                parameter.mul_(8)
    prompt, num_tokens = torch.tensor([1, 3, 2]), 2
    with torch.no_grad():
        ours, theirs = (distributions(network, prompt, num_tokens) for network in (one, other))
    texts = torch.tensor(list(ours))
    batch = AnswerBatch.of(policy, [prompt.tolist()] * len(texts), texts.tolist())
    measures = exact_measures(policy, reference, batch, temperature=1.0)
    entropies, divergences = measures.of_answers()
    weights = torch.tensor(list(ours.values()))
    assert sum(ours.values()) == pytest.approx(1, abs=1e-6)
    assert (weights * entropies).sum().item() == pytest.approx(-sum(p * math.log(p) for p in ours.values()), abs=1e-4)
    exact = sum(p * math.log(p / theirs[text]) for text, p in ours.items())
    assert exact > 0.1, "equal models would show nothing"
    assert (weights * divergences).sum().item() == pytest.approx(exact, abs=1e-4)
    assert (measures.kl >= -1e-6).all()


def test_measures_do_not_depend_on_how_many_answers_are_scored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(gpt2)
    batch = some_rollout(policy, read()).batch
    whole = exact_measures(policy, policy, batch, temperature=1.0)
    monkeypatch.setattr(memory_estimate, "MAX_LOGITS", 1)
    parts = exact_measures(policy, policy, batch, temperature=1.0)
    torch.testing.assert_close(whole.entropy, parts.entropy, atol=1e-5, rtol=0)
    assert whole.kl.abs().max() < 1e-6, "policy and reference have the same weights"


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "dapo"])
def test_a_loss_in_pieces_has_the_gradient_of_the_whole(kind: str) -> None:
    gradients = []
    for most in (16, 3):
        settings = read(**{"language.loss": f'"{kind}"', "language.answers_per_forward": most, "grpo.kl_coefficient": 0.1})
        policy, reference = policy_of(gpt2, **{"language.loss": f'"{kind}"', "language.answers_per_forward": most}), policy_of(gpt2)
        with torch.no_grad():
            reference.network.lm_head.weight[::3] *= 1.2
        rollout = some_rollout(policy, settings)
        knobs = Control(settings.grpo, first_step=0).knobs(0)
        # Also answers that were cut, for these weights seldom end one.
        loss.backward(policy, reference, rollout, torch.arange(16), config=settings.grpo, knobs=knobs)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.network.parameters()]))
    assert gradients[0].norm() > 0
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5 * gradients[0].abs().max().item(), rtol=1e-3)


@pytest.mark.parametrize("direction", ["policy_to_reference", "reference_to_policy"])
def test_the_kl_in_the_loss_is_exact_and_of_the_direction_that_the_settings_name(direction: str) -> None:
    settings = read(**{"grpo.kl_direction": f'"{direction}"', "grpo.kl_coefficient": 0.1})
    policy, reference = policy_of(gpt2), policy_of(gpt2)
    with torch.no_grad():
        reference.network.lm_head.weight[::3] *= 1.2
    rollout = some_rollout(policy, settings)
    knobs = Control(settings.grpo, first_step=0).knobs(0)
    found = loss.backward(policy, reference, rollout, torch.arange(16), config=settings.grpo, knobs=knobs).measures["language/kl_term"]
    with torch.no_grad():
        ours, theirs = (rollout.batch.logits(each).double().log_softmax(1) for each in (policy, reference))
    one, other = (ours, theirs) if direction == "policy_to_reference" else (theirs, ours)
    exact = (one.exp() * (one - other)).sum(1).mean().item()
    assert exact > 1e-3, "equal models would show nothing"
    assert found == pytest.approx(0.1 * exact, rel=1e-4)


def test_checkpointed_gradients_are_the_gradients_and_keep_less() -> None:
    gradients, kept = [], []
    for is_on in ("false", "true"):
        settings = read(**{"language.gradient_checkpointing": is_on})
        policy = policy_of(lambda: gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), **{"language.gradient_checkpointing": is_on})
        rollout, sizes = some_rollout(policy, settings), dict[int, int]()

        def noted(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
            knobs = Control(settings.grpo, first_step=0).knobs(0)
            loss.backward(policy, policy, rollout, torch.arange(16), config=settings.grpo, knobs=knobs)
        assert not policy.network.training
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.network.parameters()]))
        kept.append(sum(sizes.values()))
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-6, rtol=1e-4)
    assert kept[1] < kept[0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("dapo", [[0.25, 0.0], [0.25, 0.25], [0.25, 0.0]]),
        ("grpo", [[1 / 3, 0.0], [1 / 6, 1 / 6], [1 / 3, 0.0]]),
        ("dr_grpo", [[1 / 48, 0.0], [1 / 48, 1 / 48], [1 / 48, 0.0]]),
    ],
)
def test_tokens_weigh_what_the_settings_say(kind: str, expected: list[list[float]]) -> None:
    is_token = torch.tensor([[1, 0], [1, 1], [1, 0]], dtype=torch.bool)
    fractions = loss.token_fractions(is_token, read(**{"language.loss": f'"{kind}"'}).language)
    torch.testing.assert_close(fractions, torch.tensor(expected))

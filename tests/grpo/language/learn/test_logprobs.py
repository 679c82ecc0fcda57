"""One distribution: what is sampled is what is scored, and entropies and divergences are what they are called."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from made_models import NO_DROPOUT, gpt2_network, llama_network
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from written_language import language_trainer, written_boards
from written_language import settings as settings_of

from grpo.language.learn.answer_batch import AnswerBatch
from grpo.language.learn.logprobs import exact_measures
from grpo.language.learn.rollouts import AnswerSampler, LanguageRollout
from grpo.language.model.policy import LanguagePolicy, ModelOrigin
from grpo.language.text.examples import EnvironmentExample, Example, MoveExample
from grpo.language.text.rewards import Grades, grade
from grpo.language.text.tokenizer import ChessTokenizer
from grpo.settings.tree import Settings

CPU = torch.device("cpu")
START = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
PROMPTS = [
    f"P: {START}    M:",
    "P: 8/8/8/8/8/8/k1K5/8 b - - 12 90    M:",
    f"A: {START}+e2e4+e2e4+",
    "A: 8/8/8/8/8/8/k1K5/8 b - - 12 90+a2a1+a2a1+",
]


def policy_of(make: Callable[..., PreTrainedModel], **settings: object) -> LanguagePolicy:
    """Return a policy with random weights, large enough that distributions are far from even."""
    torch.manual_seed(0)
    network = make(len(tokenizer := ChessTokenizer()), **(NO_DROPOUT if make is gpt2_network else {}))
    return LanguagePolicy(network, tokenizer, CPU, settings_of(**settings).language, origin=ModelOrigin(model="test", commit=""))


def some_rollout(policy: LanguagePolicy, settings: Settings, *, step: int = 7) -> LanguageRollout:
    def by_length(example: Example, text: str) -> Grades:
        found = grade(example, text)
        return Grades(parts={"structure": float(len(text))}, malformed=0.0, reading=found.reading, is_legal_best=False)

    shared: dict[str, Any] = {"target": "", "fen": START}
    move: dict[str, Any] = {"move": "e2e4", "new_fen": START, "reward": 0.0, "terminated": False, "truncated": False}
    examples = [
        MoveExample(prompt=prompt, moves=("e2e4",), values=(1.0,), evaluations=(0.0,), **shared)
        if prompt[0] == "P"
        else EnvironmentExample(prompt=prompt, **shared, **move)
        for prompt in PROMPTS
    ]
    sampler = AnswerSampler(policy=policy, reference=policy, grader=by_length, settings=settings)
    return sampler.rollout(examples, temperature=settings.grpo.temperature, content_fraction=1.0, step=step)


@pytest.mark.parametrize("make", [gpt2_network, llama_network])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_scored_as_they_were_sampled_and_as_the_model_reads_them_alone_whatever_the_padding(
    make: Callable[..., PreTrainedModel], temperature: float
) -> None:
    policy = policy_of(make, **{"language.legal_moves": "false"})
    rollout = some_rollout(policy, settings_of(**{"grpo.temperature": temperature}))
    assert len({int(row.sum()) for row in rollout.batch.prompt_mask}) > 1, "prompts of one length show nothing"
    assert 0 < rollout.largest_gap < 1e-4, "exact equality would mean that one was compared with itself"
    for row, graded in enumerate(rollout.answers):
        answer = graded.answer
        with torch.no_grad():
            logits = policy.network(torch.tensor([[*answer.prompt_ids, *answer.token_ids]])).logits[0, len(answer.prompt_ids) - 1 : -1]
        alone = (logits / temperature).log_softmax(1)[range(len(answer.token_ids)), list(answer.token_ids)]
        torch.testing.assert_close(rollout.sampled[row][: len(alone)], alone, atol=1e-4, rtol=0)


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
    origin, tokenizer = ModelOrigin(model="test", commit=""), ChessTokenizer()
    policy, reference = (LanguagePolicy(network, tokenizer, CPU, settings_of().language, origin=origin) for network in (one, other))
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


def test_a_loss_in_pieces_has_the_gradient_of_the_whole_and_tokens_weigh_alike() -> None:
    gradients = []
    for most in (16, 3):
        settings = settings_of(**{"language.answers_per_forward": most, "grpo.kl_coefficient": 0.0})
        policy, reference = (policy_of(gpt2_network, **{"language.answers_per_forward": most}) for _ in range(2))
        # Also answers that were cut, for these weights seldom end one.
        rollout = replace(some_rollout(policy, settings), advantages=torch.linspace(-1, 2, 16))
        trainer = language_trainer(policy, reference, written_boards(settings), settings)
        trainer._backward(rollout, torch.arange(16), trainer.control.knobs(0), is_first=False)
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.network.parameters()]))
    largest = gradients[0].abs().max().item()
    assert largest > 0
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5 * largest, rtol=1e-3)
    policy.network.zero_grad()
    # The gradient of a ratio that is 1 is that of its logarithm.
    log_probs = rollout.batch.distribution(policy, temperature=1.0).log_prob(rollout.batch.columns(policy))[:, 0]
    advantages = rollout.advantages[:, None].expand_as(rollout.batch.is_token)[rollout.batch.is_token]
    (-(advantages * log_probs).mean()).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in policy.network.parameters()])
    torch.testing.assert_close(gradients[1], expected, atol=1e-4 * largest, rtol=1e-3)

"""Tokens of a thought are measured and trained as those of the answer are; a forced token is read, and nothing else."""

from dataclasses import replace

import pytest
import torch
from made_models import byte_pair_tokenizer, gpt2
from written_language import CPU, settings, writer, written_boards

from grpo.base.seeding import numpy_stream
from grpo.control.controller import Control
from grpo.language.learn import logprobs
from grpo.language.learn.cloning import validation_losses
from grpo.language.learn.logprobs import exact_measures, sampled_scored_gap
from grpo.language.learn.loss import backward
from grpo.language.learn.memory_estimate import StepSize
from grpo.language.learn.rollouts import LanguageRollout, rollout_metrics
from grpo.language.learn.trainer import LanguageTrainer
from grpo.language.model.loading import load_model
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.rewards import grade
from grpo.language.text.tasks import ANSWER_LABEL, LanguageTask, environment_prompt, move_prompt
from grpo.metrics.table import METRICS
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import Settings, read_settings

BUDGET = 4
FENS = ["rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", "8/8/8/8/8/8/k1K5/8 b - - 12 90"]
CONFIGURED = settings(
    **{"language.think_tokens": BUDGET, "language.environment_share": 0.3, "grpo.group_size": 8, "grpo.kl_coefficient": 0.0}
)


def thinker(config: Settings) -> LanguagePolicy:
    """Return a policy of random words that sometimes ends a thought by itself."""
    policy = writer(config)
    (label,) = policy.tokens([ANSWER_LABEL])[0]
    with torch.no_grad():
        policy.network.lm_head.weight[label] += 7.5 / 32
        policy.network.transformer.wpe.weight.mul_(20)  # Such that positions matter.
    return policy


def trainer_of(config: Settings = CONFIGURED) -> LanguageTrainer:
    return LanguageTrainer(
        thinker(config),
        thinker(config),
        written_boards(config),
        config,
        grader=lambda example, text: grade(example, text, config.language.rewards, logistic_slope=0.003),
    )


def alone(trainer: LanguageTrainer, rollout: LanguageRollout) -> list[torch.Tensor]:
    """Return the log-distributions [K, V] of each answer's sampled tokens, from the bare network: no padding, no mask, no cache."""
    found = []
    for graded in rollout.answers:
        answer = graded.answer
        ids = torch.tensor([[*answer.prompt_ids, *answer.token_ids]])
        logits = trainer.policy.network(ids).logits[0, len(answer.prompt_ids) - 1 : -1]
        found.append(logits[~torch.tensor(answer.is_forced)].log_softmax(1))
    return found


def sampled_tokens(rollout: LanguageRollout) -> list[torch.Tensor]:
    return [
        torch.tensor([token for token, is_forced in zip(one.answer.token_ids, one.answer.is_forced, strict=True) if not is_forced])
        for one in rollout.answers
    ]


def test_entropy_and_divergence_are_those_of_all_sampled_tokens_with_mixed_thoughts_behind_padding() -> None:
    trainer = trainer_of()
    rollout = trainer._rollout()
    written = [answer.answer for answer in rollout.answers]
    assert {answer.num_thought for answer in written} >= {None, 0, 1, BUDGET}
    assert len({len(answer.prompt_ids) for answer in written}) > 1, "no padding shows nothing"
    reference = writer(CONFIGURED, seed=1)
    measures = exact_measures(trainer.policy, reference, rollout.batch, temperature=1.0)
    entropies, divergences = measures.of_answers()
    with torch.no_grad():
        ours = alone(trainer, rollout)
        trainer.policy.network, own = reference.network, trainer.policy.network
        theirs = alone(trainer, rollout)
        trainer.policy.network = own
    for row, (one, other, tokens) in enumerate(zip(ours, theirs, sampled_tokens(rollout), strict=True)):
        assert measures.mask[row].sum() == len(tokens)
        assert entropies[row].item() == pytest.approx(-(one.exp() * one).sum().item(), abs=1e-3)
        assert divergences[row].item() == pytest.approx((one.exp() * (one - other)).sum().item(), abs=1e-3)
        torch.testing.assert_close(rollout.sampled[row][measures.mask[row]], one[range(len(tokens)), tokens], atol=1e-4, rtol=0)
    metrics = rollout_metrics(rollout)
    thoughts = [answer.num_thought for answer in written if answer.num_thought is not None]
    assert metrics["language/think_tokens"] == pytest.approx(sum(thoughts) / len(thoughts))
    assert metrics["language/answer_tokens"] == pytest.approx(sum(answer.num_tokens for answer in written) / len(written))
    assert metrics.keys() <= METRICS.keys()


def test_the_gradient_is_that_of_the_sampled_tokens_at_their_answers_advantage() -> None:
    trainer = trainer_of()
    rollout = trainer._rollout()
    rows = rollout.is_trained.nonzero()[:, 0]
    assert any(any(rollout.answers[row].answer.is_forced) for row in rows.tolist())
    network = trainer.policy.network
    knobs = Control(CONFIGURED.grpo, first_step=0).knobs(0)
    backward(trainer.policy, trainer.policy, rollout, rows, config=CONFIGURED.grpo, knobs=knobs)
    found = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    network.zero_grad()
    distributions, tokens = alone(trainer, rollout), sampled_tokens(rollout)
    # The gradient of a ratio that is 1 is that of its logarithm.
    terms = [rollout.advantages[row] * distributions[row][range(len(tokens[row])), tokens[row]].sum() for row in rows.tolist()]
    (-sum(terms) / sum(len(tokens[row]) for row in rows.tolist())).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected, atol=1e-4 * expected.abs().max().item(), rtol=1e-3)


def test_an_answer_cut_behind_a_full_thought_is_in_neither_loss_nor_group_mean() -> None:
    rollout = trainer_of()._rollout()
    is_full = torch.tensor([answer.answer.num_thought == BUDGET for answer in rollout.answers])
    assert (is_full & rollout.is_truncated).any()
    assert (is_full & ~rollout.is_truncated).any()
    for rewards, advantages, is_cut in zip(
        rollout.rewards.view(-1, 8), rollout.advantages.view(-1, 8), rollout.is_truncated.view(-1, 8), strict=True
    ):
        others = rewards[~is_cut]
        expected = torch.where(is_cut, 0.0, rewards - others.mean()) if len(others) else torch.zeros(8)
        torch.testing.assert_close(advantages.double(), expected, atol=1e-6, rtol=0)


def test_only_what_comes_after_the_thought_is_graded() -> None:
    rollout = trainer_of()._rollout()
    thinking = [graded for graded in rollout.answers if graded.example.task == LanguageTask.MOVE and graded.answer.num_thought]
    assert thinking
    for graded in thinking:
        assert graded.reading == graded.example.read(graded.answer.text)
        assert graded.text == graded.answer.text


@pytest.mark.parametrize("thinks_in_tokens", ["small", "byte pairs"])
def test_sampled_and_scored_log_probabilities_agree_over_the_thought_and_differ_if_a_forced_token_is_counted(
    thinks_in_tokens: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    if thinks_in_tokens == "small":
        policy = trainer_of().policy
    else:
        config = LanguageConfig(model=str(gpt2(tmp_path, byte_pair_tokenizer())), max_answer_tokens=16, think_tokens=BUDGET)
        policy = load_model(config, seed=0, device=CPU)
    prompts = [*map(move_prompt, FENS), environment_prompt(FENS[1], "a2a1", ["a2a1"])]
    counted = []
    honest = logprobs.sampled_answers

    def with_forced(*given, **named):
        answers = honest(*given, **named)
        counted.extend(answer for answer in answers if any(answer.is_forced))
        return [
            replace(
                answer,
                is_forced=(False,) * len(answer.token_ids),
                log_probs=tuple(0.0 if is_forced else next(numbers) for is_forced in answer.is_forced),
            )
            for answer in answers
            for numbers in [iter(answer.log_probs)]
        ]

    gaps = []
    for sampler in (honest, with_forced):
        monkeypatch.setattr(logprobs, "sampled_answers", sampler)
        gaps.append(sampled_scored_gap(policy, prompts, temperature=0.7, streams=[numpy_stream(1, row) for row in range(3)]))
    assert gaps[0].is_within
    assert gaps[0].largest > 0
    assert len({padding for padding, _ in gaps[0].by_row}) > 1
    assert counted
    assert gaps[1].largest > 0.5
    assert not gaps[1].is_within


def test_a_run_with_thoughts_learns_and_stays_one_distribution() -> None:
    trainer = trainer_of()
    for _ in range(2):
        metrics = trainer.step().metrics
        assert metrics["language/optimiser_steps"] == 1
        assert 0 < metrics["language/think_tokens"] < BUDGET


def test_cloning_teaches_to_close_an_empty_thought_and_then_to_answer() -> None:
    policy = trainer_of().policy
    (example,) = [one for one in written_boards(CONFIGURED).draw(numpy_stream(3), 8) if one.task == LanguageTask.MOVE][:1]
    head, label, answer = policy.tokens([example.prompt.removesuffix(ANSWER_LABEL), ANSWER_LABEL, example.target])
    targets = [*label, *answer, policy.end_id]
    with torch.no_grad():
        logs = policy.network(torch.tensor([[*head, *targets[:-1]]])).logits[0, -len(targets) :].log_softmax(1)
    expected = -logs[range(len(targets)), targets].mean().item()
    assert validation_losses(policy, [example])["language/clone_validation_loss/move"] == pytest.approx(expected, rel=1e-5)


def test_cost_counts_the_longest_thought() -> None:
    text = 'policy.kind = "language"\nlanguage.think_tokens = 16'
    assert StepSize.of(read_settings(text), prompt_tokens=60).answer_tokens == read_settings(text).language.max_answer_tokens + 16
    assert StepSize.of(read_settings(text), prompt_tokens=60, answer_tokens=9).num_tokens == 60 + 9 + 16

"""The GRPO loop of a language model: it learns, survives numbers that are none, and goes on bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from written_language import CPU, LanguageTrainer, language_trainer, settings, writer, written_boards

from grpo.language.generate import answers
from grpo.language.learn.rollouts import Grader
from grpo.language.model.policy import LanguagePolicy
from grpo.language.text.examples import Example
from grpo.language.text.rewards import Grades, grade
from grpo.policy.checkpoints import load_checkpoint, save_checkpoint
from grpo.policy.policy import weights_hash
from grpo.settings.tree import Settings
from grpo.train.objective import InvariantError


def counting(word: str) -> Grader:
    """Return a grader by which an answer is worth as many points as it has the word, at most 3."""

    def count(example: Example, text: str) -> Grades:
        return replace(grade(example, text), malformed=0.0, parts={"structure": float(min(3, text.count(word)))})

    return count


def trainer_of(config: Settings, grader: Grader = grade) -> LanguageTrainer:
    return language_trainer(writer(config), writer(config), written_boards(config), config, grader)


def test_what_is_rewarded_becomes_more_frequent() -> None:
    config = settings(**{"grpo.learning_rate": 5e-3, "grpo.states_per_step": 6, "grpo.group_size": 8})
    trainer = trainer_of(config, counting("e2"))
    rewards = [trainer.step().metrics["language/reward_mean"] for _ in range(8)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2, rewards


def test_a_run_that_goes_on_from_a_checkpoint_is_the_run_that_was_not_stopped(tmp_path: Path) -> None:
    config = settings(**{"grpo.num_minibatches": 2})
    whole = trainer_of(config)
    records = []
    for step in range(3):
        records.append(whole.step())
        if step == 1:
            folder = save_checkpoint(tmp_path, whole.evaluation_policy, whole.state({}))
    again = trainer_of(config)
    policy, state = load_checkpoint(folder, CPU, LanguagePolicy)
    again.resume(policy, state)
    torch.manual_seed(99)  # Nothing may depend on it.
    assert again.step() == records[2]
    assert weights_hash(again.policy) == weights_hash(whole.policy)
    assert weights_hash(again.policy) != weights_hash(policy), "nothing was learned"


def test_the_kl_coefficient_begins_above_zero_and_chess_is_asked_for_little_by_little() -> None:
    config = settings(**{"language.kl_warmup_steps": 4, "language.reward_warmup_steps": 4, "grpo.kl_coefficient": 0.2})

    def of_chess(example: Example, text: str) -> Grades:
        """Give every answer a point for its form and two for its chess."""
        return replace(grade(example, text), malformed=0.0, parts={"structure": 1.0, "best_move": 2.0})

    trainer = trainer_of(config, of_chess)
    records = [dict(trainer.step().metrics) for _ in range(5)]
    assert [record["control/kl_coefficient"] for record in records] == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.2])
    assert [record["language/reward_trained"] for record in records] == pytest.approx([1.5, 2, 2.5, 3, 3])
    assert [record["language/reward_mean"] for record in records] == pytest.approx([3] * 5)


def test_a_group_answers_one_prompt_and_is_compared_with_itself_alone_without_the_answers_that_are_cut() -> None:
    trainer = trainer_of(settings(**{"language.environment_share": 0.5, "grpo.states_per_step": 6}))
    rollout = trainer._rollout(trainer.control.knobs(0))
    assert {answer.example.task for answer in rollout.answers} == {"move", "environment"}
    left_out = rollout.is_truncated
    assert 0 < left_out.sum() < len(left_out)
    assert torch.isin(torch.cat(list(trainer._minibatches(rollout.rows))), left_out.nonzero()[:, 0]).sum() == 0
    for group, advantages in zip(rollout.groups(), rollout.advantages.view(-1, 4), strict=True):
        assert len({id(answer.example) for answer in group}) == 1
        rewards, is_out = (torch.tensor(column) for column in zip(*((one.reward, one.answer.is_truncated) for one in group), strict=True))
        others = rewards[~is_out]
        expected = torch.where(is_out, 0.0, rewards - others.mean()) if len(others) else torch.zeros(4)
        torch.testing.assert_close(advantages.double(), expected.double(), atol=1e-5, rtol=0)


def test_a_rollout_of_nothing_but_cut_answers_changes_nothing() -> None:
    trainer = trainer_of(settings(**{"language.max_answer_tokens": 16, "language.legal_moves": "false"}))
    with torch.no_grad():
        trainer.policy.network.lm_head.weight[trainer.policy.end_id] -= 10
    before = weights_hash(trainer.policy)
    metrics = trainer.step().metrics
    assert metrics["language/truncated"] == 1
    assert metrics["language/optimizer_steps"] == 0
    assert weights_hash(trainer.policy) == before


def test_a_policy_that_is_sampled_at_another_temperature_is_refused_at_the_start_and_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(settings())
    honest = answers.token_distribution
    monkeypatch.setattr(answers, "token_distribution", lambda *scores, temperature: honest(*scores, temperature=1.3 * temperature))
    for begin in (trainer.preflight, trainer.step):
        with pytest.raises(InvariantError, match="sampled and scored log-probabilities"):
            begin()

"""One rollout looked at and trained on alone: what it says is the rollout's own, and it moves where there is something to move to."""

from functools import partial

import pytest
import torch

pytest.importorskip("transformers", reason="the extra for language models is not installed: pip install '.[language]'")

from written_language import settings, writer, written_boards

from grpo.base.errors import NonFiniteError
from grpo.base.seeding import numpy_stream
from grpo.language.learn.rollouts import LanguageRollout
from grpo.language.learn.single_batch import SingleBatch
from grpo.language.learn.trainer import LanguageTrainer
from grpo.language.text.rewards import grade

torch.set_num_threads(1)

SETTINGS = settings()
GRADER = partial(grade, weights=SETTINGS.language.rewards, logistic_slope=SETTINGS.values.logistic_slope)


def first_batch(**changes: object) -> tuple[SingleBatch, LanguageRollout]:
    """Return what the writer of the tests answers to the prompts of a run's first rollout."""
    config = settings(**changes)
    examples = written_boards(config).draw(numpy_stream(config.seed, "prompts", 0), config.grpo.states_per_step)
    single = SingleBatch(writer(config), examples, config, grader=GRADER)
    return single, single.write()


def test_the_batch_is_the_first_rollout_of_a_run() -> None:
    _, batch = first_batch()
    trainer = LanguageTrainer(writer(SETTINGS), writer(SETTINGS), written_boards(SETTINGS), SETTINGS, grader=GRADER)
    metrics = trainer.step().metrics
    assert metrics["language/reward_mean"] == batch.totals.mean().item()
    assert metrics["language/answer_tokens"] == sum(answer.answer.num_tokens for answer in batch.answers) / 16


def test_answers_are_scored_as_they_were_sampled_and_compared_with_their_group() -> None:
    _, batch = first_batch(**{"language.environment_share": 0.5})
    assert batch.largest_gap < 1e-4
    assert torch.allclose(batch.sampled.sum(1), batch.measures.log_probs.sum(1), atol=1e-3)
    assert batch.sampled.sum(1).max() < -0.1
    rewards = batch.totals.view(4, 4)
    assert rewards.std() > 0.01
    assert torch.allclose(batch.advantages.view(4, 4).double(), rewards - rewards.mean(1, keepdim=True), atol=1e-5)


def test_training_on_it_alone_moves_towards_its_better_answers() -> None:
    single, batch = first_batch(**{"language.answers_per_forward": 8})
    updates = list(single.updates(batch, 4))
    assert [update.num_steps for update in updates] == [0, 1, 2, 3, 4]
    before, after = updates[0], updates[-1]
    assert (before.better, before.worse) == (0, 0)
    assert before.measures["language/ratio_min"] == pytest.approx(1, abs=1e-4)
    assert before.measures["language/ratio_max"] == pytest.approx(1, abs=1e-4)
    assert before.measures["language/clip_fraction"] == 0
    assert after.loss < before.loss
    assert after.better > 0 > after.worse
    assert after.measures["language/ratio_max"] > 1.001


def test_changes_are_those_of_the_answers_that_the_loss_has() -> None:
    single, batch = first_batch(**{"language.max_answer_tokens": 16})
    *_, last = single.updates(batch, 2)
    policy, changes = single.policy, []
    for answer, scored in zip(batch.answers, batch.measures.log_probs.sum(1).tolist(), strict=True):
        ids = torch.tensor([[*policy.tokens([answer.example.prompt])[0], *answer.answer.token_ids]])
        with torch.no_grad():
            log_probs = policy.logits(ids, torch.ones_like(ids), num_last=ids.shape[1]).log_softmax(-1)[0, :-1]
        changes.append(log_probs.gather(1, ids[0, 1:, None])[-answer.answer.num_tokens :].sum().item() - scored)
    change, is_whole = torch.tensor(changes), ~batch.is_truncated
    assert 0 < is_whole.sum() < len(changes)
    assert last.better == pytest.approx(change[is_whole & (batch.advantages > 0)].mean().item(), abs=1e-4)
    assert last.worse == pytest.approx(change[is_whole & (batch.advantages < 0)].mean().item(), abs=1e-4)


def test_weights_that_are_no_numbers_are_told_before_anything_is_written() -> None:
    policy = writer(SETTINGS)
    single = SingleBatch(policy, written_boards(SETTINGS).draw(numpy_stream(0, "x"), 2), SETTINGS, grader=GRADER)
    with torch.no_grad():
        policy.network.lm_head.weight[0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match="NaN or infinite weights"):
        single.write()


def test_a_step_that_breaks_the_weights_is_told() -> None:
    single, batch = first_batch(**{"grpo.learning_rate": 1e30})
    with pytest.raises(NonFiniteError, match=r"lower grpo\.learning_rate"):
        list(single.updates(batch, 3))

"""The GRPO loop of a language model: it learns, survives numbers that are none, and goes on bit for bit."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from written_language import CPU, settings, writer, written_boards

from grpo.base.errors import NonFiniteError
from grpo.control.controller import Action
from grpo.language.generate import answers
from grpo.language.learn import loss
from grpo.language.learn.rollouts import Grader, RewardError
from grpo.language.learn.schedules import content_fraction, kl_fraction
from grpo.language.learn.trainer import LanguageTrainer
from grpo.language.model.loading import LANGUAGE_FORMAT
from grpo.language.text.examples import Example, LanguageBoards
from grpo.language.text.rewards import Grades, grade
from grpo.learning.checkpoints import load_checkpoint, save_checkpoint, weights_hash
from grpo.learning.invariants import InvariantError
from grpo.learning.learnability import Consequence, NotLearnableError, refuse_unlearnable
from grpo.learning.lifecycle import copied
from grpo.policy.files import IncompatibleError
from grpo.settings.tree import Settings

LORA = {"language.lora.rank": 4, "language.lora.alpha": 8.0, "grpo.learning_rate": 1e-2}


def graded(config: Settings) -> Grader:
    return lambda example, text: grade(example, text, config.language.rewards, logistic_slope=0.003)


def counting(word: str) -> Callable[[Settings], Grader]:
    """Return a grader by which an answer is worth as many points as it has the word, at most 3."""

    def of(config: Settings) -> Grader:
        def count(example: Example, text: str) -> Grades:
            found = grade(example, text, config.language.rewards, logistic_slope=0.003)
            return replace(found, malformed=0.0, parts={"structure": float(min(3, text.count(word)))})

        return count

    return of


def of_chess(config: Settings) -> Grader:
    """Return a grader by which every answer has a point for its form and two for its chess."""

    def give(example: Example, text: str) -> Grades:
        found = grade(example, text, config.language.rewards, logistic_slope=0.003)
        return replace(found, malformed=0.0, parts={"structure": 1.0, "best_move": 2.0})

    return give


def trainer_of(config: Settings, grader: Callable[[Settings], Grader] = graded, **changes: Any) -> LanguageTrainer:
    lora = config.language.lora
    policy, reference = writer(config).adapted(lora, seed=config.seed) if lora.rank else (writer(config), writer(config))
    return LanguageTrainer(policy, reference, written_boards(config), config, grader=grader(config), **changes)


def findings(trainer: LanguageTrainer) -> dict[str, Consequence]:
    return {finding.name: finding.severity for finding in trainer.preflight().findings}


def test_what_is_rewarded_becomes_more_frequent() -> None:
    config = settings(**{"grpo.learning_rate": 5e-3, "grpo.states_per_step": 6, "grpo.group_size": 8})
    trainer = trainer_of(config, counting("e2"))
    rewards = [trainer.step().metrics["language/reward_mean"] for _ in range(8)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2, rewards


def test_before_the_first_update_policy_and_reference_are_one() -> None:
    metrics = trainer_of(settings()).step().metrics
    assert abs(metrics["language/kl_reference"]) < 1e-6
    assert metrics["language/kl_max"] < 1e-6
    assert metrics["language/sampled_scored_gap"] < 1e-4


def test_in_bfloat16_forward_passes_are_rounded_alike_for_sampling_scoring_and_the_reference_and_weights_stay_float32() -> None:
    trainer = trainer_of(settings(**{"grpo.precision": '"bfloat16"'}))
    before = weights_hash(trainer.policy)
    metrics = trainer.step().metrics
    assert metrics["language/sampled_scored_gap"] < 0.1
    assert metrics["language/kl_max"] < 1e-6
    assert metrics["language/optimiser_steps"] == 1
    assert weights_hash(trainer.policy) != before
    assert {weights.dtype for weights in trainer.policy.network.parameters()} == {torch.float32}
    exact = trainer_of(settings()).step().metrics
    assert metrics["language/token_entropy"] != exact["language/token_entropy"], "nothing was rounded"


def test_a_layer_that_drops_out_is_refused() -> None:
    config = settings()
    policy = writer(config)
    policy.network.transformer.drop.p = 0.1
    with pytest.raises(ValueError, match=r"layer transformer\.drop has dropout 0\.1"):
        LanguageTrainer(policy, writer(config), written_boards(config), config, grader=graded(config))


@pytest.mark.parametrize("floor", [1e-3, 100.0])
def test_the_floor_of_the_spread_is_the_settings(floor: float) -> None:
    config = settings(**{"grpo.divide_by_std": "true", "grpo.std_floor": floor, "language.max_answer_tokens": 64})
    rollout = trainer_of(config)._rollout()
    for rewards, advantages, is_in in zip(
        rollout.rewards.view(-1, 4), rollout.advantages.view(-1, 4), rollout.is_trained.view(-1, 4), strict=True
    ):
        centred = rewards[is_in] - rewards[is_in].mean()
        std = (centred**2).mean().sqrt().clamp(min=floor)
        torch.testing.assert_close(advantages[is_in].double(), centred / std, atol=1e-4, rtol=1e-4)


def test_a_group_answers_one_prompt_of_one_task_and_is_compared_with_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(**{"language.environment_share": 0.5, "grpo.states_per_step": 6})
    trainer = trainer_of(config)
    rollouts = []
    learn = LanguageTrainer._learn
    monkeypatch.setattr(LanguageTrainer, "_learn", lambda self, rollout, *rest: rollouts.append(rollout) or learn(self, rollout, *rest))
    metrics = trainer.step().metrics
    (rollout,) = rollouts
    assert {answer.example.task for answer in rollout.answers} == {"move", "environment"}
    for group, advantages in zip(rollout.groups(), rollout.advantages.view(-1, 4), strict=True):
        assert len({id(answer.example) for answer in group}) == 1
        rewards = torch.tensor([answer.reward for answer in group])
        is_whole = torch.tensor([not answer.answer.is_truncated for answer in group])
        torch.testing.assert_close(advantages[is_whole], (rewards - rewards[is_whole].mean())[is_whole], atol=1e-5, rtol=0)
    for name in ("reward_mean", "parse_rate", "truncated", "entropy", "kl_reference"):
        assert {f"language/{name}", f"language/{name}/move", f"language/{name}/environment"} <= metrics.keys()


@pytest.mark.parametrize(
    "changes",
    [
        {"grpo.num_minibatches": 2, "grpo.num_inner_epochs": 2},
        {"grpo.steps_per_reference_refresh": 1, "grpo.recovery.healthy_entropy": 0.1},
        {**LORA, "grpo.steps_per_reference_refresh": 1, "grpo.recovery.healthy_entropy": 0.1},
    ],
    ids=["several updates a rollout", "a refreshed reference", "LoRA, a refreshed reference"],
)
def test_a_run_that_goes_on_from_a_checkpoint_is_the_run_that_was_not_stopped(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = settings(**changes)
    whole = trainer_of(config)
    records = []
    for step in range(3):
        records.append(whole.step())
        if step == 1:
            folder = save_checkpoint(tmp_path, whole.evaluation_policy, config.policy, whole.state({}), LANGUAGE_FORMAT)
    again = trainer_of(config)
    policy, _, state = load_checkpoint(folder, CPU, LANGUAGE_FORMAT)
    again.load_weights(policy.weights())
    again.restore(state)
    torch.manual_seed(99)  # Nothing may depend on it.
    assert again.step() == records[2]
    assert weights_hash(again.policy) == weights_hash(whole.policy)
    assert weights_hash(again.policy) != weights_hash(policy), "nothing was learnt"


@pytest.mark.parametrize("changes", [{}, LORA], ids=["all weights", "LoRA"])
def test_a_snapshot_takes_back_a_step(changes: dict[str, Any]) -> None:
    trainer = trainer_of(settings(**changes))
    trainer.step()
    snapshot, before = trainer.snapshot(), weights_hash(trainer.policy)
    one = trainer.step()
    trainer.reset(snapshot)
    assert weights_hash(trainer.policy) == before
    assert trainer.step() == one


@pytest.mark.parametrize(
    "changes",
    [{}, {"language.gradient_checkpointing": "true", "grpo.precision": '"bfloat16"'}],
    ids=["float32", "bfloat16, gradients checkpointed"],
)
def test_lora_trains_its_adapter_and_moves_no_other_weight(changes: dict[str, Any]) -> None:
    trainer = trainer_of(settings(**{**LORA, **changes}))
    network, adapter = trainer.policy.network, trainer.policy.trained
    base, start = copied(network.state_dict()), copied(adapter.state_dict())
    metrics = trainer.step().metrics
    assert metrics["language/kl_max"] < 1e-6
    assert metrics["language/ratio_min"] == pytest.approx(1, abs=0.1 if changes else 1e-4)
    trainer.step()
    assert all(torch.equal(weights, base[name]) for name, weights in network.state_dict().items())
    assert all(not torch.equal(weights, start[name]) for name, weights in adapter.state_dict().items())
    assert {weights.grad is None for weights in network.parameters()} == {True}
    assert {id(weights) for weights in trainer._optimiser.state} == {id(weights) for weights in adapter.parameters()}
    assert trainer.num_trained_parameters == 16 * 4 * 32
    # Shared, not copied; and no longer the policy.
    assert trainer._reference.network is network
    assert trainer.step().metrics["language/kl_max"] > 1e-6


def test_checkpointed_gradients_of_an_adapter_are_its_gradients() -> None:
    trainers = [trainer_of(settings(**{**LORA, "language.gradient_checkpointing": flag})) for flag in ("false", "true")]
    for trainer in trainers:
        trainer.step()
    for one, other in zip(*(trainer.policy.trained.parameters() for trainer in trainers), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)
    assert max(weights.grad.abs().max() for weights in trainers[0].policy.trained.parameters()) > 1e-3


def test_a_run_with_lora_that_begins_at_a_checkpoint_has_its_policy_and_the_pretrained_reference(tmp_path: Path) -> None:
    config = settings(**LORA)
    trainer = trainer_of(config)
    pretrained = weights_hash(trainer._reference)
    trainer.step()
    folder = save_checkpoint(tmp_path, trainer.evaluation_policy, config.policy, trainer.state({}), LANGUAGE_FORMAT)
    policy, _, state = load_checkpoint(folder, CPU, LANGUAGE_FORMAT)
    new = trainer_of(config, first_step=1)
    new.load_weights(policy.weights())
    new.begin_from(state)
    assert weights_hash(new.evaluation_policy) == weights_hash(policy) != pretrained
    assert weights_hash(new._reference) == pretrained
    new.step()
    new.roll_back(state, policy.weights())
    assert weights_hash(new.evaluation_policy) == weights_hash(policy)


def test_a_checkpoint_of_another_reference_is_refused(tmp_path: Path) -> None:
    config = settings()
    trainer = trainer_of(config)
    trainer.step()
    state = trainer.state({})
    other = LanguageTrainer(writer(config), writer(config, seed=1), written_boards(config), config, grader=graded(config))
    with pytest.raises(IncompatibleError, match="another reference is another objective"):
        other.restore(state)


def broken_losses(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """Make the first losses NaN."""
    fractions, left = loss.token_fractions, [times]

    def broken(*arguments: Any) -> torch.Tensor:
        left[0] -= 1
        return fractions(*arguments) * (math.nan if left[0] >= 0 else 1)

    monkeypatch.setattr(loss, "token_fractions", broken)


def test_a_loss_that_is_no_number_changes_nothing_and_cuts_the_learning_rate_to_a_tenth_also_at_step_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = trainer_of(settings())
    broken_losses(monkeypatch, times=1)
    before = weights_hash(trainer.policy)
    first = trainer.step()
    assert weights_hash(trainer.policy) == before
    assert first.metrics["language/skipped"] == 1
    assert [event.name for event in first.events] == ["step_skipped"]
    second = trainer.step()
    assert second.metrics["control/learning_rate"] == pytest.approx(0.1 * first.metrics["control/learning_rate"])
    assert second.metrics["language/skipped"] == 0
    assert weights_hash(trainer.policy) != before


def test_five_such_losses_in_a_row_end_the_run_with_the_weights_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(settings())
    broken_losses(monkeypatch, times=99)
    before = weights_hash(trainer.policy)
    for _ in range(4):
        trainer.step()
    with pytest.raises(NonFiniteError, match="5 times in a row"):
        trainer.step()
    assert weights_hash(trainer.policy) == before


def test_a_gradient_that_is_no_number_changes_nothing() -> None:
    trainer = trainer_of(settings())
    before = weights_hash(trainer.policy)
    handle = next(trainer.policy.network.parameters()).register_hook(lambda gradient: gradient * math.inf)
    assert trainer.step().metrics["language/skipped"] == 1
    assert weights_hash(trainer.policy) == before
    handle.remove()
    assert trainer.step().metrics["language/skipped"] == 0


def test_a_reward_that_is_no_number_is_survived() -> None:
    broken = [True]

    def grader(config: Settings) -> Grader:
        def give(example: Example, text: str) -> Grades:
            found = grade(example, text, config.language.rewards, logistic_slope=0.003)
            return replace(found, parts={"structure": math.nan}) if broken[0] else found

        return give

    trainer = trainer_of(settings(), grader)
    before = weights_hash(trainer.policy)
    assert trainer.step().metrics["language/skipped"] == 1
    assert weights_hash(trainer.policy) == before
    broken[0] = False
    assert trainer.step().metrics["language/skipped"] == 0
    assert weights_hash(trainer.policy) != before


def test_a_reward_of_none_ends_the_run() -> None:
    trainer = trainer_of(settings(), lambda config: lambda example, text: None)
    with pytest.raises(RewardError, match="the grader gave nothing for the answer"):
        trainer.step()


def test_weights_that_are_no_numbers_are_refused_before_anything_else() -> None:
    config = settings()
    policy = writer(config)
    with torch.no_grad():
        policy.network.lm_head.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"NaN or infinite weights: lm_head.weight"):
        LanguageTrainer(policy, writer(config), written_boards(config), config, grader=graded(config))


def test_weights_that_become_so_in_a_run_end_it_at_once_and_the_last_good_ones_can_be_kept() -> None:
    trainer = trainer_of(settings())
    trainer.step()
    snapshot, before = trainer.snapshot(), weights_hash(trainer.policy)
    with torch.no_grad():
        trainer.policy.network.lm_head.weight[0, 0] = math.inf
    with pytest.raises(NonFiniteError, match="NaN or infinite weights"):
        trainer.step()
    trainer.reset(snapshot)
    assert weights_hash(trainer.policy) == before


def test_the_kl_coefficient_begins_above_zero_and_chess_is_asked_for_little_by_little() -> None:
    config = settings(**{"language.kl_warmup_steps": 4, "language.reward_warmup_steps": 4, "grpo.kl_coefficient": 0.2})
    trainer = trainer_of(config, of_chess)
    records = [dict(trainer.step().metrics) for _ in range(4)]
    assert [record["control/kl_coefficient"] for record in records] == pytest.approx([0.05, 0.1, 0.15, 0.2])
    shares = [content_fraction(config.language, step) for step in range(6)]
    assert shares == [0.25, 0.5, 0.75, 1, 1, 1]
    assert [kl_fraction(config.language, step) for step in (0, 5)] == [0.25, 1]
    assert [record["language/reward_trained"] for record in records] == pytest.approx([1.5, 2, 2.5, 3])
    assert [record["language/reward_mean"] for record in records] == pytest.approx([3] * 4)


def test_answers_that_are_cut_or_too_far_from_the_reference_are_left_out_of_the_loss_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(**{"language.max_collection_kl": 1e-3})
    trainer = trainer_of(config)
    with torch.no_grad():
        trainer.policy.network.lm_head.weight[::7] += 0.002
    rollouts = []
    learn = LanguageTrainer._learn
    monkeypatch.setattr(LanguageTrainer, "_learn", lambda self, rollout, *rest: rollouts.append(rollout) or learn(self, rollout, *rest))
    metrics = trainer.step().metrics
    (rollout,) = rollouts
    divergences = rollout.measures.of_answers()[1]
    assert 0 < metrics["language/kl_masked"] < 1, metrics["language/kl_masked"]
    assert 0 < metrics["language/truncated"] < 1
    left_out = rollout.is_truncated | (divergences > 1e-3)
    assert (rollout.is_trained == ~left_out).all()
    assert torch.isin(torch.cat(list(trainer._minibatches(rollout.is_trained.nonzero()[:, 0]))), left_out.nonzero()[:, 0]).sum() == 0
    for rewards, advantages, is_out in zip(rollout.rewards.view(-1, 4), rollout.advantages.view(-1, 4), left_out.view(-1, 4), strict=True):
        others = rewards[~is_out]
        expected = torch.where(is_out, 0.0, rewards - others.mean()) if len(others) else torch.zeros(4)
        torch.testing.assert_close(advantages.double(), expected.double(), atol=1e-6, rtol=0)


def test_a_rollout_of_nothing_but_cut_answers_changes_nothing() -> None:
    trainer = trainer_of(settings(**{"language.max_answer_tokens": 16}))
    with torch.no_grad():
        trainer.policy.network.lm_head.weight[trainer.policy.end_id] -= 10
    before = weights_hash(trainer.policy)
    metrics = trainer.step().metrics
    assert metrics["language/truncated"] == 1
    assert metrics["language/optimiser_steps"] == 0
    assert weights_hash(trainer.policy) == before


def test_ratios_leave_1_only_after_the_first_update_of_a_rollout() -> None:
    trainer = trainer_of(settings(**{"grpo.num_inner_epochs": 3, "grpo.learning_rate": 0.05, "grpo.max_kl_old": 0}))
    metrics = trainer.step().metrics
    assert metrics["language/ratio_min"] < 0.9 < 1.1 < metrics["language/ratio_max"]
    assert metrics["language/clip_fraction"] > 0
    assert metrics["language/optimiser_steps"] == 3


def test_weights_that_change_between_writing_and_scoring_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(settings(**{"grpo.num_inner_epochs": 2}))
    learn = LanguageTrainer._learn

    def meddle(self: LanguageTrainer, *given: Any) -> Any:
        with torch.no_grad():
            self.policy.network.lm_head.weight[::5] += 0.01
        return learn(self, *given)

    monkeypatch.setattr(LanguageTrainer, "_learn", meddle)
    with pytest.raises(InvariantError, match="must be 1"):
        trainer.step()


def test_a_policy_that_is_sampled_at_another_temperature_is_refused_at_the_start_and_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(settings())
    honest = answers.token_distribution
    monkeypatch.setattr(answers, "token_distribution", lambda logits, *, temperature: honest(logits, temperature=1.3 * temperature))
    assert findings(trainer)["sampled = scored log-probability"] == Consequence.REFUSAL
    with pytest.raises(NotLearnableError, match="temperature: text is sampled at one temperature and scored at another"):
        refuse_unlearnable(trainer.preflight())
    with pytest.raises(InvariantError, match="temperature"):
        trainer_of(settings()).step()


def test_sampling_that_goes_wrong_between_two_looks_is_noticed_in_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(settings())
    trainer.step()
    honest = answers.token_distribution
    monkeypatch.setattr(answers, "token_distribution", lambda logits, *, temperature: honest(logits, temperature=1.3 * temperature))
    with pytest.raises(InvariantError, match="must be 1"):
        trainer.step()


def test_prompts_of_one_length_do_not_hide_left_padding() -> None:
    config = settings()
    table = written_boards(config, count=1)
    trainer = LanguageTrainer(writer(config), writer(config), table, config, grader=graded(config))
    trainer.policy.network._forward_pre_hooks.clear()
    trainer.policy.network._forward_pre_hooks_with_kwargs.clear()
    with torch.no_grad():  # Such that positions matter.
        trainer.policy.network.transformer.wpe.weight.mul_(200)
    with pytest.raises(InvariantError, match="left_padding"):
        trainer.step()


def test_answers_that_nobody_can_read_are_refused_before_the_first_update() -> None:
    trainer = trainer_of(settings())
    found = findings(trainer)
    assert found["parse rate, policy task"] == Consequence.REFUSAL
    with pytest.raises(NotLearnableError, match=r"clone first \(language.cloning.num_steps\)"):
        refuse_unlearnable(trainer.preflight())


def test_entropy_that_becomes_critical_stops_the_run() -> None:
    config = settings(**{"grpo.critical_entropy": 1e6, "grpo.critical_window": 2, "grpo.recovery.healthy_entropy": 2e6})
    trainer = trainer_of(config)
    trainer.step()
    trainer.step()
    assert trainer.outcome.action == Action.STOP
    assert trainer.outcome.reason == "entropy_critical"


def test_an_entropy_bonus_slows_the_fall_of_entropy() -> None:
    ends = []
    for coefficient in (0.0, 1.0):
        config = settings(**{"grpo.entropy_coefficient": coefficient, "grpo.learning_rate": 5e-3})
        trainer = trainer_of(config, counting("e2"))
        for _ in range(4):
            record = trainer.step()
        ends.append(record.metrics["language/token_entropy"])
    assert ends[1] > ends[0] + 0.05


def test_boards_are_those_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    draw = LanguageBoards.draw

    def noted(self: LanguageBoards, rng: Any, count: int) -> list[Example]:
        found = draw(self, rng, count)
        if count == 4:
            asked.append([example.prompt for example in found])
        return found

    monkeypatch.setattr(LanguageBoards, "draw", noted)
    one, other = trainer_of(settings()), trainer_of(settings())
    for trainer in (one, other):
        trainer.step()
        trainer.step()
    assert asked[:2] == asked[2:]
    assert asked[0] != asked[1]

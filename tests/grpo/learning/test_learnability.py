"""The pre-flight before the first update: it lets a healthy set-up through, and names what is wrong with the others."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from doubles import CPU, TINY, fake_arrays, some_boards

from grpo.board.phases import PHASES
from grpo.dataset.table import BoardArrays
from grpo.learning import trainer as training
from grpo.learning.learnability import Consequence, Learnability, NotLearnableError, refuse_unlearnable
from grpo.learning.states import DatasetStates
from grpo.learning.trainer import GrpoTrainer
from grpo.policy.distribution import NetworkPolicy, new_policy
from grpo.settings.grpo import GrpoConfig

BOARDS = some_boards(48)
ARRAYS = fake_arrays(BOARDS)
CONFIG = GrpoConfig(states_per_step=32, num_minibatches=2, group_size=8, critical_entropy=0.2)


def scaled(factor: float) -> NetworkPolicy:
    """Return a policy whose logits are those of a lively one times a factor: 0 knows nothing, a large one has made up its mind."""
    policy = new_policy(TINY, seed=3, device=CPU)
    rng = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=rng))
        for head in (policy.network.score, policy.network.short_cut):
            for parameter in head.parameters():
                parameter.mul_(factor)
    return policy


def trainer_of(factor: float, arrays: BoardArrays = ARRAYS, **settings: Any) -> GrpoTrainer:
    """Return a trainer at its first step; policy and reference are equal."""
    config = GrpoConfig.model_validate({**CONFIG.model_dump(), **settings})
    states = DatasetStates(arrays, states_per_step=config.states_per_step, seed=0, mirrors_boards=False)
    return GrpoTrainer(scaled(factor), scaled(factor), states, config, seed=0)


def of(found: Learnability, name: str) -> Consequence:
    """Return how the finding of this name came out."""
    return {finding.name: finding.severity for finding in found.findings}[name]


def test_a_healthy_set_up_is_let_through_with_all_its_numbers() -> None:
    found = trainer_of(2).preflight()
    assert found.severity == Consequence.FINE, [finding for finding in found.findings if finding.advice]
    refuse_unlearnable(found)
    names = [finding.name for finding in found.findings]
    phases = [phase for index, phase in enumerate(PHASES) if (ARRAYS.phases == index).any()]
    assert names == [
        "ratio and KL(old) at step 0",
        "distance to the reference",
        *(f"reward spread, {phase}" for phase in phases),
        "silent groups",
        "entropy at T = 1",
        "gradient budget, logits",
        "gradient budget, parameters",
    ]
    assert found.facts()["metrics"]["grpo/states"] == CONFIG.states_per_step


def test_a_random_network_is_warned_about_and_told_to_pretrain() -> None:
    found = trainer_of(0).preflight()
    assert of(found, "entropy at T = 1") == Consequence.WARNING
    assert found.metrics["grpo/entropy"] == pytest.approx(found.metrics["grpo/log_num_legal"], abs=1e-5)
    assert found.severity == Consequence.WARNING, "dense values teach even that one: it is no refusal"
    assert "pretrain" in next(finding.advice for finding in found.findings if finding.name == "entropy at T = 1")
    refuse_unlearnable(found)


def test_a_policy_that_has_made_up_its_mind_is_refused_for_entropy_and_silence() -> None:
    found = trainer_of(300).preflight()
    assert found.metrics["grpo/entropy"] < 0.2
    assert of(found, "entropy at T = 1") == Consequence.REFUSAL
    with pytest.raises(NotLearnableError, match=r"entropy at T = 1: 0\.\d\d nats.*\n?.*grpo.critical_entropy = 0.2"):
        refuse_unlearnable(found)


def test_equal_values_are_refused_because_there_is_nothing_to_learn() -> None:
    flat = replace(ARRAYS, values=np.where(ARRAYS.is_legal, 0.5, 0).astype(np.float32))
    found = trainer_of(2, flat).preflight()
    assert of(found, "silent groups") == Consequence.REFUSAL
    assert of(found, "gradient budget, logits") == Consequence.WARNING, "the policy term has no gradient"
    with pytest.raises(NotLearnableError, match=r"refused before its first update:\n  silent groups: 100.0% of the groups"):
        refuse_unlearnable(found)


def test_nearly_equal_values_are_warned_about_by_phase() -> None:
    values = ARRAYS.values.copy()
    values[ARRAYS.phases == 0] = 0.5 + 0.001 * values[ARRAYS.phases == 0]
    found = trainer_of(2, replace(ARRAYS, values=np.where(ARRAYS.is_legal, values, 0).astype(np.float32)), states_per_step=48).preflight()
    spreads = {phase: of(found, f"reward spread, {phase}") for phase in PHASES if f"grpo/group_std/{phase}" in found.metrics}
    assert spreads.pop(PHASES[0]) == Consequence.WARNING
    assert set(spreads.values()) == {Consequence.FINE}


def test_sampling_at_another_temperature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(2)
    honest = trainer._rollout

    def dishonest(knobs: Any) -> Any:
        return replace(honest(replace(knobs, temperature=1.3)), temperature=1.0)

    monkeypatch.setattr(trainer, "_rollout", dishonest)
    found = trainer.preflight()
    assert of(found, "ratio and KL(old) at step 0") == Consequence.REFUSAL
    with pytest.raises(NotLearnableError, match="score differently with identical weights"):
        refuse_unlearnable(found)


def test_a_regulariser_that_has_nearly_all_of_the_gradient_is_named_whatever_its_value_in_the_loss() -> None:
    found = trainer_of(2, entropy_coefficient=50.0, entropy_schedule="constant").preflight()
    assert of(found, "gradient budget, logits") == Consequence.WARNING
    advice = next(finding.advice for finding in found.findings if finding.name == "gradient budget, parameters")
    assert "entropy has nearly all of the gradient" in advice


def test_probabilities_that_are_no_numbers_end_the_pre_flight() -> None:
    trainer = trainer_of(2)
    with torch.no_grad():
        trainer.policy.network.hidden.bias[0] = math.nan  # type: ignore[index, union-attr]
    with pytest.raises(training.NonFiniteError, match="not finite"):
        trainer.preflight()

"""The look before the first update: it lets a healthy set-up through, and refuses where nothing could be learnt."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from doubles import fake_arrays, lively_policy, sharpened, some_boards, trainer_of

from grpo.settings.grpo import GrpoConfig
from grpo.train.invariants import InvariantError
from grpo.train.learnability import Consequence, NotLearnableError, refuse_unlearnable

ARRAYS = fake_arrays(some_boards(48))
CONFIG = GrpoConfig(states_per_step=32, group_size=8)


def test_a_healthy_set_up_is_let_through_with_all_its_numbers() -> None:
    found = trainer_of(CONFIG, ARRAYS).preflight()
    assert found.severity == Consequence.FINE, [finding for finding in found.findings if finding.advice]
    refuse_unlearnable(found)
    assert found.facts()["metrics"]["grpo/states"] == 32


def test_a_policy_that_has_made_up_its_mind_is_refused_and_so_is_another_than_the_reference() -> None:
    found = trainer_of(CONFIG, ARRAYS, policy=sharpened(lively_policy(), 300)).preflight()
    with pytest.raises(NotLearnableError, match=r"(?s)distance to the reference: .*entropy at T = 1: 0\.\d\d nats"):
        refuse_unlearnable(found)


def test_equal_values_are_refused_and_a_policy_that_knows_nothing_is_warned_about() -> None:
    flat = replace(ARRAYS, values=np.where(ARRAYS.is_legal, 0.5, 0).astype(np.float32))
    with pytest.raises(NotLearnableError, match=r"refused before its first update:\n  silent groups: 100.0% of the groups"):
        refuse_unlearnable(trainer_of(CONFIG, flat).preflight())
    ignorant = {name: sharpened(lively_policy(), 0) for name in ("policy", "reference")}
    assert trainer_of(CONFIG, ARRAYS, **ignorant).preflight().severity == Consequence.WARNING


def test_sampling_at_another_temperature_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_of(CONFIG, ARRAYS)
    honest = trainer._rollout

    def dishonest(knobs: Any) -> Any:
        return replace(honest(replace(knobs, temperature=1.3)), temperature=1.0)

    monkeypatch.setattr(trainer, "_rollout", dishonest)
    with pytest.raises(InvariantError):
        trainer.preflight()

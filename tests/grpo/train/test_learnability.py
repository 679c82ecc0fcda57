"""The look before the first update: it refuses where nothing could be learnt."""

from dataclasses import replace

import numpy as np
import pytest
from doubles import fake_arrays, lively_policy, sharpened, some_boards, trainer_of

from grpo.diagnosis.diagnose import Diagnosis, NotLearnableError, look_before, refuse
from grpo.policy.policy import NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.train.trainer import Trainer

ARRAYS = fake_arrays(some_boards(48))
CONFIG = GrpoConfig(states_per_step=32, group_size=8)


def found_in(trainer: Trainer[NetworkPolicy]) -> Diagnosis:
    return look_before(trainer.preflight(), step=1, limits={"critical_entropy": CONFIG.critical_entropy})


def test_a_policy_that_has_made_up_its_mind_is_refused_and_so_is_another_than_the_reference() -> None:
    found = found_in(trainer_of(CONFIG, ARRAYS, policy=sharpened(lively_policy(), 300)))
    with pytest.raises(
        NotLearnableError, match=r"(?s)refused before its first update:\n  kl_at_step_zero: .*entropy_collapse: .* nats, critical"
    ):
        refuse(found)


def test_equal_values_are_refused() -> None:
    flat = replace(ARRAYS, values=np.where(ARRAYS.is_legal, 0.5, 0).astype(np.float32))
    with pytest.raises(NotLearnableError, match=r"silent_groups: grpo/zero_variance_groups is 1 "):
        refuse(found_in(trainer_of(CONFIG, flat)))

"""After a collapse the field notes' recovery does not come back, and KL(reference || policy) does."""

import copy
from typing import Any, Final

import pytest
from doubles import FIELD_NOTES, NetworkTrainer, fake_arrays, lively_policy, some_boards, trainer_of

from grpo.settings.grpo import GrpoConfig

ARRAYS: Final = fake_arrays(some_boards(48))
NUM_STEPS: Final = 200
AS_NOTED: Final = FIELD_NOTES.model_copy(update={"entropy_critical": 1e-9})
"""The critical stop is off."""


CONFIG: Final = GrpoConfig(
    states_per_step=16,
    num_minibatches=1,
    group_size=8,
    learning_rate=2e-3,
    entropy_coefficient=0.0,
    kl_coefficient=0.0,
    entropy_schedule="constant",
    critical_entropy=0.0,
)


def entropies(trainer: NetworkTrainer, count: int) -> list[float]:
    """Return the exact entropy at T = 1 of some steps, whatever temperature they are sampled at."""
    return [trainer.step().metrics["grpo/entropy"] for _ in range(count)]


@pytest.mark.prove  # Half a minute a seed; that recovery brings entropy back is in test_trainer.py too.
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_from_a_collapsed_policy_the_forward_divergence_comes_back_and_the_field_notes_recovery_does_not(seed: int) -> None:
    reference = lively_policy(seed)
    policy = reference.copied()
    collapsing = trainer_of(CONFIG, ARRAYS, policy=policy, reference=reference, seed=seed)
    history = entropies(collapsing, 10)
    while sum(history[-10:]) / 10 >= 0.2:
        assert len(history) < 2_000, "without a bonus it collapses"
        history += entropies(collapsing, 1)
    entropies(collapsing, 100)
    weights, state = copy.deepcopy(policy.network.state_dict()), copy.deepcopy(collapsing.state({}))

    def after(**changes: Any) -> list[float]:
        """Return how entropy goes on from the collapse, the optimizer being as the collapse left it."""
        policy.network.load_state_dict(weights)
        config = CONFIG.model_copy(update={"entropy_coefficient": 0.01})
        trainer = trainer_of(config, ARRAYS, policy=policy, reference=reference, seed=seed, first_step=state.step, **changes)
        trainer.begin_from(policy, copy.deepcopy(state))
        return entropies(trainer, NUM_STEPS)

    noted = after(entropy_schedule="field_notes", field_notes=AS_NOTED, kl_coefficient=0.001)
    assert max(noted) < 0.5
    ours = after(critical_entropy=0.2, recovery="forward_kl")
    assert ours[0] == pytest.approx(noted[0]), "both start from the same collapse"
    assert max(ours) > 1
    assert ours[-1] < 1, "and it does not last, for what made it collapse is still there: too small a bonus for this learning rate"

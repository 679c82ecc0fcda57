"""The average of weights over steps: by hand, and through a trainer's checkpoints."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import CPU, TINY, copied, fake_arrays, largest_difference, lively_policy, some_boards, trainer_of

from grpo.policy.averaging import WeightAverage
from grpo.policy.distribution import NetworkPolicy
from grpo.settings.grpo import GrpoConfig
from grpo.train.checkpoints import NETWORK_FORMAT, load_checkpoint, save_checkpoint, weights_hash
from grpo.train.trainer import GrpoTrainer

CONFIG = GrpoConfig(states_per_step=8, num_minibatches=2, group_size=4, learning_rate=1e-2)
ARRAYS = fake_arrays([board for board in some_boards(60) if board.legal_moves.count() > 1])


def made(**changes: Any) -> GrpoTrainer:
    """Return a trainer whose steps are large enough to be seen."""
    return trainer_of(CONFIG, ARRAYS, **changes)


def filled(value: float) -> NetworkPolicy:
    """Return a policy all of whose weights are one number."""
    policy = lively_policy()
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter.fill_(value)
    return policy


def number_in(policy: NetworkPolicy) -> float:
    """Return the number that all weights are."""
    found = {round(value, 5) for parameter in policy.network.parameters() for value in parameter.flatten().tolist()}
    assert len(found) == 1
    return found.pop()


def test_the_average_worked_by_hand() -> None:
    average = WeightAverage(filled(0.0), decay=0.25)

    average.update(filled(1.0), 1)  # 1 / 10 is kept.
    assert number_in(average.policy) == pytest.approx(0.9)
    average.update(filled(2.0), 2)  # 2 / 11.
    assert number_in(average.policy) == pytest.approx(0.9 * 2 / 11 + 2 * 9 / 11, abs=1e-5)
    before = number_in(average.policy)
    average.update(filled(3.0), 1_000)  # The decay, from now on.
    assert number_in(average.policy) == pytest.approx(0.25 * before + 0.75 * 3, abs=1e-5)


def test_it_begins_as_the_policy_and_is_nobody_elses_weights() -> None:
    policy = lively_policy()
    average = WeightAverage(policy, decay=0.9)
    before = weights_hash(policy)
    assert weights_hash(average.policy) == before

    average.update(filled(1.0), 1)

    assert weights_hash(policy) == before != weights_hash(average.policy)
    average.begin_at(policy)
    assert weights_hash(average.policy) == before


def test_training_goes_the_same_way_with_and_without_an_average() -> None:
    plain, averaged = made(weight_averaging=0.0), made(weight_averaging=0.9)
    assert plain.evaluation_policy is plain.policy

    for _ in range(4):
        one, other = plain.step(), averaged.step()
        assert one.metrics == other.metrics

    assert weights_hash(plain.policy) == weights_hash(averaged.policy)
    assert weights_hash(averaged.evaluation_policy) != weights_hash(averaged.policy)


def test_the_judged_policy_is_the_average_of_the_policies_after_each_step() -> None:
    trainer = made(weight_averaging=0.5)
    expected = WeightAverage(trainer.policy, decay=0.5)

    for number in range(1, 5):
        trainer.step()
        expected.update(trainer.policy, number)

    assert weights_hash(trainer.evaluation_policy) == weights_hash(expected.policy)


def test_a_checkpoint_holds_the_average_as_its_policy_and_goes_on_from_the_weights_beside_it(tmp_path: Path) -> None:
    trainer = made(weight_averaging=0.8)
    for _ in range(3):
        trainer.step()
    saved = save_checkpoint(tmp_path, trainer.evaluation_policy, TINY, trainer.state({}), NETWORK_FORMAT)
    policy, _, state = load_checkpoint(saved, CPU, NETWORK_FORMAT)
    assert weights_hash(policy) == weights_hash(trainer.evaluation_policy)

    resumed = made(policy=policy, weight_averaging=0.8)
    resumed.restore(state)
    assert weights_hash(resumed.policy) == weights_hash(trainer.policy)
    for _ in range(2):
        assert trainer.step().metrics == resumed.step().metrics

    assert weights_hash(resumed.policy) == weights_hash(trainer.policy)
    assert weights_hash(resumed.evaluation_policy) == weights_hash(trainer.evaluation_policy)


def test_a_new_run_begins_at_what_was_judged() -> None:
    trainer = made(weight_averaging=0.8)
    trainer.step()
    state, judged = copy.deepcopy(trainer.state({})), copied(trainer.evaluation_policy)

    new = made(policy=copied(judged), first_step=1, weight_averaging=0.8)
    new.begin_from(state)
    assert weights_hash(new.policy) == weights_hash(new.evaluation_policy) == weights_hash(judged)
    new.step()
    assert largest_difference(new.policy, judged) > 0

"""Group advantages by identities and by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.advantages import ESTIMATORS, group_advantages
from grpo.config import GrpoConfig

REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=16)


def of(rewards: list[float]) -> torch.Tensor:
    """Return the advantages of one group."""
    return group_advantages(torch.tensor([rewards], dtype=torch.float64))


def test_advantages_worked_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.5, 0.0, 0.5], [0.25, 0.75, 0.25, 0.75]])
    assert group_advantages(rewards).tolist() == [[0.5, 0.0, -0.5, 0.0], [-0.25, 0.25, -0.25, 0.25]]


@settings(derandomize=True)
@given(REWARDS)
def test_the_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    assert abs(of(rewards).sum().item()) < 1e-12


@settings(derandomize=True)
@given(REWARDS, st.floats(-100, 100))
def test_adding_a_constant_to_all_rewards_changes_nothing(rewards: list[float], shift: float) -> None:
    assert torch.allclose(of([reward + shift for reward in rewards]), of(rewards), atol=1e-12)


@settings(derandomize=True)
@given(REWARDS, st.floats(-10, 10))
def test_advantages_grow_with_the_rewards_because_no_spread_is_divided_out(rewards: list[float], factor: float) -> None:
    assert torch.allclose(of([reward * factor for reward in rewards]), of(rewards) * factor, atol=1e-12)


@settings(derandomize=True)
@given(st.floats(0, 1), st.integers(2, 64))
def test_equal_rewards_have_no_advantage(reward: float, size: int) -> None:
    assert of([reward] * size).abs().max().item() < 1e-15


@settings(derandomize=True)
@given(st.permutations(range(8)))
def test_the_order_within_a_group_goes_through_and_no_further(order: list[int]) -> None:
    rewards = torch.rand(1, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(group_advantages(rewards[:, order]), group_advantages(rewards)[:, order], atol=1e-15)


def test_a_group_knows_nothing_of_the_others() -> None:
    rewards = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    changed = rewards.clone()
    changed[1:] = 7.0
    assert torch.equal(group_advantages(changed)[0], group_advantages(rewards)[0])
    assert torch.equal(group_advantages(rewards.flip(0)), group_advantages(rewards).flip(0))


def test_an_advantage_is_the_leave_one_out_advantage_times_one_less_the_share_of_itself() -> None:
    rewards = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    others = (rewards.sum(1, keepdim=True) - rewards) / 3
    assert torch.allclose(group_advantages(rewards), (1 - 1 / 4) * (rewards - others), atol=1e-15)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_can_be_chosen_by_its_name(name: str) -> None:
    assert GrpoConfig.model_validate({"estimator": name}).estimator == name


def test_the_estimator_of_the_default_settings_is_the_groups_mean() -> None:
    rewards = torch.rand(2, 4)
    torch.testing.assert_close(ESTIMATORS[GrpoConfig().estimator](rewards), rewards - rewards.mean(1, keepdim=True))

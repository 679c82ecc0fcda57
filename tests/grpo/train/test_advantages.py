"""Advantages by identities and by hand.

Legend: B groups, G moves of a group.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo.train.batch import group_advantages

REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=16)


def of(rewards: list[float]) -> Tensor:
    """Return the advantages of one group, in float64."""
    return group_advantages(torch.tensor([rewards], dtype=torch.float64))


def test_advantages_worked_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.5, 0.0, 0.5], [0.25, 0.75, 0.25, 0.75]], dtype=torch.float64)
    assert group_advantages(rewards).tolist() == [[0.5, 0.0, -0.5, 0.0], [-0.25, 0.25, -0.25, 0.25]]


@given(rewards=REWARDS, shift=st.floats(-100, 100))
def test_they_sum_to_zero_and_adding_a_constant_to_all_rewards_changes_nothing(rewards: list[float], shift: float) -> None:
    assert abs(of(rewards).sum().item()) < 1e-12
    assert torch.allclose(of([reward + shift for reward in rewards]), of(rewards), atol=1e-11)


@given(dtype=st.sampled_from([torch.float32, torch.float64]), reward=st.floats(0, 1, width=32), size=st.integers(2, 64))
def test_equal_rewards_have_no_advantage_at_all(dtype: torch.dtype, reward: float, size: int) -> None:
    # Exactly 0, not 1e-9: Adam divides a gradient by its own size, and would make a full step of rounding.
    assert not group_advantages(torch.full((1, size), reward, dtype=dtype)).any()


@pytest.mark.parametrize("rubbish", [1e4, float("nan"), float("inf")])
def test_empty_places_get_nothing_and_the_others_are_a_smaller_group(rubbish: float) -> None:
    rewards = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    is_member = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    made = group_advantages(torch.where(is_member, rewards, rubbish), is_member_BG=is_member)
    assert not made[~is_member].any()
    assert not made[2:].any(), "a group of one teaches nothing"
    for row in range(2):
        alone = group_advantages(rewards[row][is_member[row]][None])[0]
        assert torch.allclose(made[row][is_member[row]], alone, atol=1e-14)
        assert alone.abs().max() > 0.01, "the test has teeth"

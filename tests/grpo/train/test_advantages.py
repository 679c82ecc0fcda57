"""Advantages by hand: each reward less its group's mean, and exactly nothing where there is nothing to learn."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.train.batch import group_advantages


def test_advantages_worked_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.5, 0.0, 0.5], [0.25, 0.75, 0.25, 0.75]], dtype=torch.float64)
    assert group_advantages(rewards).tolist() == [[0.5, 0.0, -0.5, 0.0], [-0.25, 0.25, -0.25, 0.25]]


@given(dtype=st.sampled_from([torch.float32, torch.float64]), reward=st.floats(0, 1, width=32), size=st.integers(2, 64))
def test_equal_rewards_have_no_advantage_at_all(dtype: torch.dtype, reward: float, size: int) -> None:
    # Exactly 0, not 1e-9: Adam divides a gradient by its own size, and would make a full step of rounding.
    assert not group_advantages(torch.full((1, size), reward, dtype=dtype)).any()


def test_empty_places_get_nothing_and_the_others_are_a_smaller_group() -> None:
    rewards = torch.tensor([[1.0, math.nan, 0.5, 0.0], [0.25, 0.75, math.nan, math.inf], [math.nan, math.nan, 0.5, math.nan]])
    made = group_advantages(rewards, is_member_BG=torch.isfinite(rewards))
    assert made.tolist() == [[0.5, 0.0, 0.0, -0.5], [-0.25, 0.25, 0.0, 0.0], [0.0] * 4]

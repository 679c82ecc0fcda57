"""Advantages by identities and by hand.

Legend: B groups, G moves of a group, A legal moves (padded).
"""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from grpo.learning.advantages import exact_advantages, group_advantages
from grpo.settings.grpo import GrpoConfig

REWARDS = st.lists(st.floats(0, 1), min_size=2, max_size=16)
MEAN = GrpoConfig(baseline="mean")
OTHERS = GrpoConfig(baseline="leave_one_out")
STD = GrpoConfig(divide_by_std=True, std_floor=0.02)
STD_OTHERS = GrpoConfig(baseline="leave_one_out", divide_by_std=True, std_floor=0.02)
ALL = [MEAN, OTHERS, STD, STD_OTHERS]
NAMES = ["mean", "leave one out", "mean by std", "leave one out by std"]


def of(rewards: list[float], config: GrpoConfig = MEAN) -> Tensor:
    """Return the advantages of one group, in float64."""
    return group_advantages(torch.tensor([rewards], dtype=torch.float64), config)


def random_rewards(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return numbers in [0, 1)."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


# Groups: numbers worked by hand.


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MEAN, [[0.5, 0.0, -0.5, 0.0], [-0.25, 0.25, -0.25, 0.25]]),
        (OTHERS, [[2 / 3, 0.0, -2 / 3, 0.0], [-1 / 3, 1 / 3, -1 / 3, 1 / 3]]),
        # The stds are sqrt((0.25 + 0.25) / 4) and 0.25.
        (STD, [[2**0.5, 0.0, -(2**0.5), 0.0], [-1.0, 1.0, -1.0, 1.0]]),
        (STD_OTHERS, [[2**0.5 * 4 / 3, 0.0, -(2**0.5) * 4 / 3, 0.0], [-4 / 3, 4 / 3, -4 / 3, 4 / 3]]),
    ],
    ids=NAMES,
)
def test_advantages_worked_by_hand(config: GrpoConfig, expected: list[list[float]]) -> None:
    rewards = torch.tensor([[1.0, 0.5, 0.0, 0.5], [0.25, 0.75, 0.25, 0.75]], dtype=torch.float64)
    made = group_advantages(rewards, config)
    assert made.dtype == torch.float64
    assert made.flatten().tolist() == pytest.approx([number for row in expected for number in row], abs=1e-15)


def test_a_nearly_constant_group_gets_no_huge_advantage() -> None:
    # NeMo-RL #4161 divided by the std of the others: where they differ by rounding alone, an advantage of 7,428 came out.
    others = torch.tensor([0.5 + 2e-9, 0.5 - 2e-9] * 8, dtype=torch.float64)
    rewards = [*others.tolist(), 0.5 + 1.6e-5]
    assert (rewards[-1] - others.mean()) / others.std(correction=0) > 7_000
    # The std of the whole group bounds every advantage by sqrt(G - 1), whatever the floor; the floor makes it worth what it is.
    mean = 0.5 + 1.6e-5 / 17
    for config, factor in ((STD, 1.0), (STD_OTHERS, 17 / 16)):
        assert of(rewards, config)[0, -1].item() == pytest.approx(factor * (rewards[-1] - mean) / 0.02, rel=1e-6)
        assert of(rewards, config).abs().max().item() < 1e-3
        bare = config.model_copy(update={"std_floor": 1e-12})
        assert of(rewards, bare)[0, -1].item() == pytest.approx(factor * 16**0.5, rel=1e-3)


# Groups: identities.


@pytest.mark.parametrize("config", ALL, ids=NAMES)
@given(rewards=REWARDS)
def test_the_advantages_of_a_group_sum_to_zero(config: GrpoConfig, rewards: list[float]) -> None:
    made = of(rewards, config)
    assert abs(made.sum().item()) < 1e-13 * max(1.0, made.abs().max().item()) * 50


@pytest.mark.parametrize("config", ALL, ids=NAMES)
@given(rewards=REWARDS, shift=st.floats(-100, 100))
def test_adding_a_constant_to_all_rewards_changes_nothing(config: GrpoConfig, rewards: list[float], shift: float) -> None:
    # The floor keeps what rounding leaves from being divided by next to nothing.
    assert torch.allclose(of([reward + shift for reward in rewards], config), of(rewards, config), atol=1e-11)


@given(st.floats(0.5, 100))
def test_divided_by_the_std_above_the_floor_they_do_not_grow_with_the_rewards_and_have_std_one(factor: float) -> None:
    rewards = random_rewards(1, 8)
    made = group_advantages(rewards * factor, STD)
    assert torch.allclose(made, group_advantages(rewards, STD), atol=1e-12)
    assert made.std(correction=0).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("config", ALL, ids=NAMES)
@given(dtype=st.sampled_from([torch.float32, torch.float64]), reward=st.floats(0, 1, width=32), size=st.integers(2, 64))
def test_equal_rewards_have_no_advantage_at_all(config: GrpoConfig, dtype: torch.dtype, reward: float, size: int) -> None:
    # Exactly 0, not 1e-9: Adam divides a gradient by its own size, and would make a full step of rounding.
    assert not group_advantages(torch.full((1, size), reward, dtype=dtype), config).any()


@pytest.mark.parametrize("config", ALL, ids=NAMES)
def test_a_group_knows_nothing_of_the_others(config: GrpoConfig) -> None:
    rewards = random_rewards(5, 8)
    changed = rewards.clone()
    changed[1:] = 7.0
    assert torch.equal(group_advantages(changed, config)[0], group_advantages(rewards, config)[0])
    assert torch.equal(group_advantages(rewards.flip(0), config), group_advantages(rewards, config).flip(0))


@pytest.mark.parametrize("size", [2, 3, 16])
def test_leave_one_out_is_each_reward_less_the_mean_of_the_others_and_the_mean_version_times_g_over_g_less_one(size: int) -> None:
    rewards = random_rewards(3, size)
    others = (rewards.sum(1, keepdim=True) - rewards) / (size - 1)
    assert torch.allclose(group_advantages(rewards, OTHERS), rewards - others, atol=1e-15)
    assert torch.allclose(group_advantages(rewards, OTHERS), size / (size - 1) * group_advantages(rewards, MEAN), atol=1e-15)


def test_the_default_settings_take_the_groups_mean_and_divide_nothing_out() -> None:
    rewards = random_rewards(2, 4)
    assert torch.allclose(group_advantages(rewards, GrpoConfig()), rewards - rewards.mean(1, keepdim=True), atol=1e-15)


# Groups with empty places.


@pytest.mark.parametrize("config", ALL, ids=NAMES)
@pytest.mark.parametrize("rubbish", [1e4, float("nan"), float("inf")])
def test_empty_places_get_nothing_and_the_others_are_a_smaller_group(config: GrpoConfig, rubbish: float) -> None:
    rewards = random_rewards(3, 6)
    is_member = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], dtype=torch.bool)
    made = group_advantages(torch.where(is_member, rewards, rubbish), config, is_member_BG=is_member)
    assert not made[~is_member].any()
    for row in range(3):
        alone = group_advantages(rewards[row][is_member[row]][None], config)[0]
        assert torch.allclose(made[row][is_member[row]], alone, atol=1e-14)
        assert alone.abs().max() > 0.01, "the test has teeth"


@pytest.mark.parametrize("config", ALL, ids=NAMES)
def test_a_group_of_one_and_an_empty_group_teach_nothing(config: GrpoConfig) -> None:
    is_member = torch.tensor([[False, True, False], [False, False, False]])
    made = group_advantages(torch.tensor([[0.1, 0.9, 0.3], [0.1, 0.9, 0.3]]), config, is_member_BG=is_member)
    assert made.tolist() == [[0.0] * 3] * 2


# All legal moves.


def softmax(*counts: int) -> Tensor:
    """Return float64 probabilities of boards with so many legal moves, 0 on the padding."""
    logits = torch.randn(len(counts), max(counts) + 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return logits.masked_fill(torch.arange(logits.shape[1]) >= torch.tensor(counts)[:, None], -torch.inf).softmax(1)


def test_exact_advantages_worked_by_hand() -> None:
    probs, values = torch.tensor([[0.75, 0.25, 0.0]]).double(), torch.tensor([[0.8, 0.4, 0.9]]).double()
    assert exact_advantages(probs, values, MEAN)[0].tolist() == pytest.approx([0.1, -0.3, 0.0])
    # sqrt(0.75 * 0.01 + 0.25 * 0.09) = sqrt(0.03)
    assert exact_advantages(probs, values, STD)[0].tolist() == pytest.approx([0.1 / 0.03**0.5, -0.3 / 0.03**0.5, 0.0])
    nearly = torch.tensor([[0.5, 0.504, 0.9]]).double()
    assert exact_advantages(probs, nearly, STD)[0].tolist() == pytest.approx([-0.001 / 0.02, 0.003 / 0.02, 0.0], rel=1e-5)


@pytest.mark.parametrize("config", [MEAN, STD], ids=["plain", "by std"])
def test_weighted_by_their_probabilities_exact_advantages_sum_to_zero(config: GrpoConfig) -> None:
    probs, values = softmax(6, 3, 1), random_rewards(3, 8)
    made = exact_advantages(probs, values, config)
    assert (probs * made).sum(1).abs().max() < 1e-15
    assert made[:2].abs().max() > 0.1
    assert not made[2].any(), "a single legal move teaches nothing"
    rounded = exact_advantages(probs.float(), values.float(), config)
    assert rounded.dtype == torch.float32
    assert (probs.float() * rounded).sum(1).abs().max() < 1e-7


@pytest.mark.parametrize("config", [MEAN, STD], ids=["plain", "by std"])
def test_exact_advantages_ignore_padding_a_constant_and_the_scale_of_the_probabilities(config: GrpoConfig) -> None:
    probs, values = softmax(6, 3), random_rewards(2, 8)
    made = exact_advantages(probs, values, config)
    assert not made[probs == 0].any()
    assert torch.equal(exact_advantages(probs, torch.where(probs > 0, values, 1e4), config), made)
    assert torch.allclose(exact_advantages(probs, values + 3.0, config), made, atol=1e-12)
    assert torch.allclose(exact_advantages(probs * 1.001, values, config), made, atol=1e-14), "as rounded probabilities sum to nearly one"


@pytest.mark.parametrize("config", [MEAN, OTHERS, STD], ids=NAMES[:3])
def test_exact_advantages_are_what_those_of_groups_come_to_as_groups_grow(config: GrpoConfig) -> None:
    # No sampling: a group of 1,000 in which each move stands as often as its probability says.
    counts = torch.tensor([500, 300, 150, 50])
    values = torch.tensor([0.2, 0.9, 0.4, 0.6]).double()
    exact = exact_advantages((counts / 1_000).double()[None], values[None], config)
    group = group_advantages(values.repeat_interleave(counts)[None], config)
    firsts = counts.cumsum(0) - counts
    factor: Any = 1_000 / 999 if config.baseline == "leave_one_out" else 1.0
    assert torch.allclose(group[:, firsts], exact * factor, atol=1e-7)

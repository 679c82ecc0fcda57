"""Named random streams: equal everywhere, independent of each other and of global state."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo.base.seeding import named_seed, numpy_stream, torch_stream

NAMES = st.lists(st.one_of(st.integers(0, 999), st.text("abcdefghij", min_size=1, max_size=5)), max_size=3)


def test_a_seed_is_the_same_on_every_machine() -> None:
    # printf '0/moves/3' | sha256sum: the first 8 bytes, halved.
    assert named_seed(0, "moves", 3) == 0x33A804B55EF3DFB7 >> 1
    assert named_seed(7) == 0x7902699BE42C8A8E >> 1


@given(st.integers(0, 2**31 - 1), NAMES, st.integers(0, 2**31 - 1), NAMES)
def test_two_streams_share_a_seed_only_when_all_their_names_are_equal(
    root: int, names: list[str | int], other: int, others: list[str | int]
) -> None:
    same = (root, [str(name) for name in names]) == (other, [str(name) for name in others])
    assert (named_seed(root, *names) == named_seed(other, *others)) is same


def test_a_stream_begins_anew_each_time_it_is_asked_for() -> None:
    assert numpy_stream(3, "games", 1).random(5).tolist() == numpy_stream(3, "games", 1).random(5).tolist()
    assert torch.equal(torch.rand(5, generator=torch_stream(3, "games", 1)), torch.rand(5, generator=torch_stream(3, "games", 1)))
    assert numpy_stream(3, "games", 1).random() != numpy_stream(3, "games", 2).random()
    assert not torch.equal(torch.rand(5, generator=torch_stream(3, "games", 1)), torch.rand(5, generator=torch_stream(3, "moves", 1)))

"""Named random streams: equal everywhere, independent of each other and of global state."""

import torch

from grpo.base.seeding import named_seed, numpy_stream, torch_stream


def test_a_seed_is_the_same_on_every_machine() -> None:
    # printf '0/moves/3' | sha256sum: the first 8 bytes, halved.
    assert named_seed(0, "moves", 3) == 0x33A804B55EF3DFB7 >> 1
    assert named_seed(7) == 0x7902699BE42C8A8E >> 1


def test_streams_of_different_names_have_different_seeds() -> None:
    names = [(), ("a",), ("ab",), ("a", "b"), ("b", "a"), ("a", "b", 1), ("a", 11), ("a", 1, 1)]
    assert len({named_seed(root, *each) for root in (0, 1, 2**31 - 1) for each in names}) == 3 * len(names)


def test_a_stream_begins_anew_each_time_it_is_asked_for() -> None:
    assert numpy_stream(3, "games", 1).random(5).tolist() == numpy_stream(3, "games", 1).random(5).tolist()
    assert torch.equal(torch.rand(5, generator=torch_stream(3, "games", 1)), torch.rand(5, generator=torch_stream(3, "games", 1)))
    assert numpy_stream(3, "games", 1).random() != numpy_stream(3, "games", 2).random()
    assert not torch.equal(torch.rand(5, generator=torch_stream(3, "games", 1)), torch.rand(5, generator=torch_stream(3, "moves", 1)))

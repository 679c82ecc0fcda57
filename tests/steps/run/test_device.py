"""The device: the same work gives the same bits, however many threads share it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_runs import machine_of

from steps.run.device import torch_device


@pytest.fixture(autouse=True)
def _nothing_set() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def test_on_the_cpu_gradients_of_an_index_are_the_same_bits_with_several_threads(tmp_path: Path) -> None:
    # By default torch lets threads add to one row in any order, from some 30,000 numbers on: two runs of one seed then learn other weights.
    torch_device(replace(machine_of(tmp_path), num_threads=4))
    assert torch.get_num_threads() == 4
    rows, weights = torch.randint(32, (5_000,)), torch.randn(5_000, 64)

    def gradient() -> torch.Tensor:
        table = torch.zeros(32, 64, requires_grad=True)
        (table[rows] * weights).sum().backward()  # type: ignore[no-untyped-call]
        assert table.grad is not None
        return table.grad

    first = gradient()
    assert all(torch.equal(gradient(), first) for _ in range(20))
    assert torch.are_deterministic_algorithms_enabled()

"""The device: the same work gives the same bits, however many threads share it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from made_runs import machine_of

from steps.run.device import DeviceError, torch_device


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


@pytest.mark.parametrize(("is_container", "remedy"), [(False, "set CHESS_GRPO_DEVICE=cpu"), (True, "resources.training.num_gpus = 0")])
def test_a_gpu_that_is_not_there_is_told_with_what_helps_there(
    is_container: bool, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=remedy):
        torch_device(replace(machine_of(tmp_path), device="cuda", is_container=is_container))

"""The processes that train one policy together: sums of gradients, and per-state numbers gathered from all; alone, nothing to do.

Started by torchrun, which sets RANK, WORLD_SIZE and the rest; every process holds the same policy and learns from its own rows.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class Processes:
    """Which process this is, and of how many."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports for all."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            distributed.barrier()

    def own_rows(self, num_rows: int) -> Tensor:
        """Return the rows of a batch that this process learns from."""
        return torch.arange(min(self.rank, num_rows), num_rows, self.size)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one message."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def gathered(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, of whom each may have another number, one process after the other."""
        if self.size == 1:
            return rows
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.zeros_like(count) for _ in range(self.size)]
        distributed.all_gather(counts, count)
        sizes = [int(one.item()) for one in counts]
        padded = torch.cat([rows, rows.new_zeros((max(sizes) - len(rows), *rows.shape[1:]))])
        parts = [torch.zeros_like(padded) for _ in range(self.size)]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def any(self, is_so: bool, device: torch.device) -> bool:
        """Return whether it is so in one process at least."""
        if self.size == 1:
            return is_so
        flag = torch.tensor([float(is_so)], device=device)
        distributed.all_reduce(flag)
        return bool(flag.item() > 0)


ALONE: Final = Processes()


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Give this process's place among those that torchrun started; alone, when nobody did."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield ALONE
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Processes(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()

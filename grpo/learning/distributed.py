"""The processes that train one policy together: sums of gradients, per-state numbers gathered from all, and what the first one broadcasts.

Torch's elastic agent (torchrun's, or that of `steps.nodes.launch`) starts them and sets RANK, WORLD_SIZE and the rest. Every process holds
the same policy and learns from its own rows. They share no disk: the first broadcasts what it has read. Alone, there is nothing to do.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn

from grpo.base.errors import PlainError

PATIENCE: Final = timedelta(minutes=30)
"""How long a process waits for the others: longer than the first ever measures, writes and copies while they wait.

One that ended is noticed at once, by its closed connections; this is for one that hangs, or whose machine vanished without a word.
"""


class LostProcessError(PlainError, RuntimeError):
    """Another process ended or does not answer, so that nothing can be summed any more; all can resume from a checkpoint."""

    may_pass = True


class UnlikeMachinesError(PlainError, RuntimeError):
    """Machines that should train one policy differ in what decides its last bits."""


@dataclass(frozen=True, slots=True)
class Processes:
    """Which process this is, and of how many. Every method but `own_rows` raises LostProcessError when another process is gone."""

    rank: int = 0
    size: int = 1
    num_here: int = 1
    """How many of them are on this machine and share its cores."""
    node: int = 0
    """Index of this machine."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes and reports for all."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            with _together():
                distributed.barrier()

    def own_rows(self, num_rows: int) -> Tensor:
        """Return the rows of a batch that this process learns from."""
        return torch.arange(min(self.rank, num_rows), num_rows, self.size)

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one message."""
        if self.size == 1 or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with _together():
            distributed.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each parameter's gradient by its sum over all processes; one that has none here, for want of rows, sends zeros."""
        if self.size == 1:
            return
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        self.sum_(gradients)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient

    def gathered(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, of whom each may have another number, one process after the other."""
        if self.size == 1:
            return rows
        count = torch.tensor([len(rows)], device=rows.device)
        counts = [torch.zeros_like(count) for _ in range(self.size)]
        with _together():
            distributed.all_gather(counts, count)
        sizes = [int(one.item()) for one in counts]
        padded = torch.cat([rows, rows.new_zeros((max(sizes) - len(rows), *rows.shape[1:]))])
        parts = [torch.zeros_like(padded) for _ in range(self.size)]
        with _together():
            distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def gathered_json(self, value: Any, device: torch.device) -> list[Any]:
        """Return what each process gives, as JSON has it: tuples become lists."""
        line = bytearray(f"{json.dumps(value)}\n".encode())
        lines = self.gathered(torch.frombuffer(line, dtype=torch.uint8).to(device)).cpu().numpy().tobytes().splitlines()
        return [json.loads(each) for each in lines]

    def refuse_unlike(self, facts: Mapping[str, str], device: torch.device) -> None:
        """Raise UnlikeMachinesError, in every process, when one has other values of these facts than the first."""
        (_, first), *others = self.gathered_json([self.node, facts], device)
        for node, there in others:
            if differences := [f"{name}: {first[name]} on node 0, {there[name]} there" for name in first if first[name] != there[name]]:
                raise UnlikeMachinesError(
                    f"node {node} differs from node 0 ({'; '.join(differences)}): give the queue machines of one kind"
                )

    def any(self, is_so: bool, device: torch.device) -> bool:
        """Return whether it is so in one process at least."""
        if self.size == 1:
            return is_so
        flag = torch.tensor([float(is_so)], device=device)
        with _together():
            distributed.all_reduce(flag)
        return bool(flag.item() > 0)

    def broadcast(self, content: bytes, device: torch.device) -> bytes:
        """Return the first process's bytes, in every process; what the others give is ignored."""
        if self.size == 1:
            return content
        length = torch.tensor([len(content)], device=device)
        with _together():
            distributed.broadcast(length, 0)
        if not int(length.item()):
            return b""
        # Written over in all processes but the first.
        data = torch.frombuffer(bytearray(content if self.is_first else int(length.item())), dtype=torch.uint8).to(device)
        with _together():
            distributed.broadcast(data, 0)
        return content if self.is_first else data.cpu().numpy().tobytes()


ALONE: Final = Processes()


@contextmanager
def joined_processes(device: torch.device) -> Iterator[Processes]:
    """Give this process's rank among those that the agent started with it; one that no agent started is alone.

    Args:
        device: of this process: a GPU is its alone.

    Raises LostProcessError when the others do not come.
    """
    named = os.environ
    if named.get("WORLD_SIZE", "1") == "1":
        yield ALONE
        return
    is_gpu = device.type == "cuda"
    with _together():
        distributed.init_process_group(
            "nccl" if is_gpu else "gloo",
            timeout=PATIENCE,
            device_id=device if is_gpu else None,  # Else NCCL guesses it from the rank, which counts over all machines.
        )
    try:
        yield Processes(
            distributed.get_rank(),
            distributed.get_world_size(),
            num_here=int(named.get("LOCAL_WORLD_SIZE", "1")),
            node=int(named.get("GROUP_RANK", "0")),
        )
    finally:
        distributed.destroy_process_group()


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # Gloo has no error of its own for a closed connection.
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise LostProcessError(f"lost another process, whose own messages say why ({first_line})") from error

"""The torch device of this machine, set up so that the same run gives the same numbers."""

import os
from typing import Final

import torch

from grpo.base.errors import PlainError
from steps.runtime.machine import Machine

_KINDS: Final = ("auto", "cpu", "cuda")


class DeviceError(PlainError, ValueError):
    """The device that was asked for is not there."""


def torch_device(machine: Machine) -> torch.device:
    """Return the device, after fixing threads and algorithms: both change the last bits of a sum.

    Raises DeviceError with the remedy.
    """
    if machine.device not in _KINDS:
        raise DeviceError(f"CHESS_GRPO_DEVICE = {machine.device!r}: set it to one of {', '.join(_KINDS)}")
    if machine.device == "cuda" and not torch.cuda.is_available():
        raise DeviceError("CHESS_GRPO_DEVICE = 'cuda', but torch finds no GPU: install a CUDA build of torch, or set it to cpu")
    torch.set_num_threads(machine.num_threads)
    if machine.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # Asked for before the first use of the GPU: cuBLAS sums in one order only with a workspace of its own.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def device_facts(machine: Machine) -> str:
    """Return what, besides the code, decides the last bits of trained weights: for a trained step's version."""
    device = torch_device(machine)
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)} torch {torch.__version__}"
    return f"cpu {torch.backends.cpu.get_cpu_capability()} {machine.num_threads} threads torch {torch.__version__}"

"""The torch device (CPU or CUDA), configured for deterministic results."""

import os

import torch

from grpo.base.errors import PlainError
from steps.run.machine import Machine


class DeviceError(PlainError, ValueError):
    """The requested device is not available."""


def torch_device(machine: Machine) -> torch.device:
    """Set thread count and deterministic algorithms, and return the device. Raises DeviceError."""
    if machine.device == "cuda" and not torch.cuda.is_available():
        remedy = (
            "give tasks with a GPU a queue and an image with one (docs/aws.md), or set resources.training.num_gpus = 0"
            if machine.is_container  # The launcher sets CHESS_GRPO_DEVICE there.
            else "install a CUDA build of torch, or set CHESS_GRPO_DEVICE=cpu"
        )
        raise DeviceError(f"CHESS_GRPO_DEVICE = 'cuda', but torch finds no GPU: {remedy}")
    torch.set_num_threads(machine.num_threads)
    # Without this mode, threads sum gradients of `tensor[index]` in any order, even on the CPU. `use_deterministic_algorithms` also sets
    # the mode, but imports torch's compiler, which takes 1.3 seconds.
    torch.set_deterministic_debug_mode("error")
    # The mode would fill new tensors, which takes 5 % of a training step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    if machine.device == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    # cuBLAS needs a fixed workspace, set before the first use of the GPU.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda", 0)


def device_facts(machine: Machine) -> str:
    """Return the facts that change the last bits of trained weights."""
    device = torch_device(machine)
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)} torch {torch.__version__}"
    return f"cpu {torch.backends.cpu.get_cpu_capability()} {machine.num_threads} threads torch {torch.__version__}"

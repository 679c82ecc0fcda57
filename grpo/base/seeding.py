"""Named random streams: one root seed, and an independent stream for each purpose."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def named_seed(root: int, *names: str | int) -> int:
    """Return the 63-bit seed of the stream with these names; equal on every machine and Python version."""
    text = "/".join(str(part) for part in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(root: int, *names: str | int) -> np.random.Generator:
    """Return a fresh numpy generator for the named stream."""
    return np.random.default_rng(named_seed(root, *names))


def torch_stream(root: int, *names: str | int) -> "torch.Generator":
    """Return a fresh torch generator (on the CPU) for the named stream."""
    import torch  # Here, for commands that need no torch also need streams, and torch takes a second to import.

    return torch.Generator().manual_seed(named_seed(root, *names))

"""Named random streams: one root seed, and an independent stream for each purpose."""

import hashlib

import numpy as np
import torch


def named_seed(root: int, *names: str | int) -> int:
    """Return the 63-bit seed of the stream with these names; equal on every machine and Python version."""
    text = "/".join(str(part) for part in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(root: int, *names: str | int) -> np.random.Generator:
    """Return a fresh numpy generator for the named stream."""
    return np.random.default_rng(named_seed(root, *names))


def torch_stream(root: int, *names: str | int) -> torch.Generator:
    """Return a fresh torch generator (on the CPU) for the named stream."""
    return torch.Generator().manual_seed(named_seed(root, *names))

"""Independent random streams: generators seeded by a root seed and names."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def named_seed(root: int, *names: str | int) -> int:
    """Return a stream's 63-bit seed, equal on every machine and Python version. No name may contain `/`."""
    text = "/".join(str(part) for part in (root, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def numpy_stream(root: int, *names: str | int) -> np.random.Generator:
    return np.random.default_rng(named_seed(root, *names))


def torch_stream(root: int, *names: str | int) -> "torch.Generator":
    import torch

    return torch.Generator().manual_seed(named_seed(root, *names))

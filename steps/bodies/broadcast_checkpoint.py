"""Broadcast a checkpoint from the first process to the others, which need not see its disk."""

import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from grpo.learning.checkpoints import TrainingState, load_checkpoint
from grpo.learning.distributed import Processes
from grpo.policy.trainable import PolicyFormat, TrainablePolicy


def broadcast_checkpoint(
    found: Path | None, processes: Processes, device: torch.device, policy_format: PolicyFormat[Any]
) -> tuple[TrainablePolicy, TrainingState] | None:
    """Return the policy and state of the first process's checkpoint, on the CPU of every process, after checking every file's hash.

    Args:
        found: its folder, in the first process; None when it has none. What the others give is ignored.
        processes: all that take part; each must call this.
        device: by which the files travel.
        policy_format: how the checkpoint holds its policy.
    """
    if processes.size == 1:
        return None if found is None else _loaded(found, policy_format)
    packed = processes.broadcast(_packed(found) if found is not None and processes.is_first else b"", device)
    if not packed:
        return None
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(io.BytesIO(packed)) as files:
            files.extractall(folder)
        return _loaded(Path(folder), policy_format)


def _loaded(folder: Path, policy_format: PolicyFormat[Any]) -> tuple[TrainablePolicy, TrainingState]:
    policy, _, state = load_checkpoint(folder, torch.device("cpu"), policy_format)
    return policy, state


def _packed(folder: Path) -> bytes:
    """Return all files of a folder as one archive, as they are: weights hardly shrink."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as files:
        for path in sorted(folder.rglob("*")):
            files.write(path, path.relative_to(folder))
    return buffer.getvalue()

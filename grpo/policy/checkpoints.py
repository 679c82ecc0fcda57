"""Checkpoints on disk: a policy and its training state, in safetensors and JSON."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors import safe_open
from torch import Tensor

from grpo.base.files import atomic_folder, verified_manifest, write_manifest
from grpo.policy.files import IncompatibleError, checkpoint_name, policy_kind
from grpo.policy.policy import Policy, write_tensors

_Policy = TypeVar("_Policy", bound=Policy)

STATE: Final = "state.safetensors"
"""Tensors, with everything else as JSON in the metadata."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """All that a resumed training needs besides the policy. Random generators are not saved: each step seeds its own."""

    step: int
    """Number of rollouts done."""
    control: Mapping[str, Any]
    """Plain JSON: state of the controllers (`grpo.train.control`), and hash of the reference (the frozen policy of the loss's KL)."""
    facts: Mapping[str, Any]
    """Origin of the weights: settings, dataset hash and so on."""
    tensors: Mapping[str, Tensor]
    """Name -> tensor, with one of three prefixes:
    - `optimizer.`: Adam's moments.
    - `task.`: positions from self-play.
    - `training.`: the trained weights, if the policy is their moving average."""

    def tensors_of(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors with this prefix, named without the prefix."""
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def save_checkpoint(root: Path, policy: Policy, state: TrainingState) -> Path:
    """Write a checkpoint below `root` atomically, and return its folder. Raises StorageError if the disk is full."""
    target = root / checkpoint_name(state.step)
    with atomic_folder(target) as folder:
        policy.save(folder)
        facts = {"step": state.step, "control": state.control, "facts": state.facts}
        write_tensors(folder / STATE, state.tensors, {"state": json.dumps(facts, sort_keys=True)})
        write_manifest(folder, {"kind": "checkpoint", "step": state.step})
    return target


def load_checkpoint(folder: Path, device: torch.device, kind: type[_Policy]) -> tuple[_Policy, TrainingState]:
    """Return the policy on `device` and the training state on the CPU.

    Raises CorruptError for a missing or changed file, IncompatibleError for a policy of another kind, and the errors of `Policy.load`.
    """
    verified_manifest(folder)
    if (stored := policy_kind(folder)) != kind.kind:
        raise IncompatibleError(
            f"{folder} holds a policy of kind {stored!r}, this run trains a policy of kind {kind.kind!r}: resume from another run"
        )
    with safe_open(folder / STATE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # A safetensors file is no mapping.
        state = TrainingState(**json.loads(file.metadata()["state"]), tensors=tensors)
    return kind.load(folder, device), state


def checkpoint_folders(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if re.fullmatch(r"step-\d{8}", path.name))


def checkpoint_step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def checkpoints_to_delete(regrets: Mapping[int, float], *, keep: int) -> list[int]:
    """Return the steps to delete, oldest first. `regrets`: step -> held-out regret; NaN is the worst.

    The newest and the best checkpoint always stay, then the next best until `keep` stay. Of equal regrets, the newer is better.
    """
    if not regrets:
        return []

    def rank(step: int) -> tuple[float, int]:
        return math.inf if math.isnan(regrets[step]) else regrets[step], -step

    protected = {min(regrets, key=rank), max(regrets)}
    rest = sorted(regrets.keys() - protected, key=rank)
    return sorted(rest[max(keep - len(protected), 0) :])

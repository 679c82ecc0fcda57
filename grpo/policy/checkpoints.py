"""Checkpoints on disk: a policy and what its training needs to go on; atomic, hashed, safe to load (safetensors and JSON, no pickle)."""

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
from grpo.policy.files import IncompatibleError, policy_kind
from grpo.policy.policy import Policy, write_tensors

_Policy = TypeVar("_Policy", bound=Policy)

STATE: Final = "state.safetensors"
"""Tensors of the training state, with its JSON among their metadata."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """What training needs, besides the weights, to resume as if it had never stopped.

    Random streams are named by step (`seeding`), so that the step is all of their state.
    """

    step: int
    """Rollouts done."""
    control: Mapping[str, Any]
    """State of the controllers, and the reference's hash, as plain JSON."""
    facts: Mapping[str, Any]
    """What the weights came from: settings, dataset hash."""
    tensors: Mapping[str, Tensor]
    """`optimizer.` Adam's moments; `task.` self-play's round; `training.` trained weights where the policy's are their average."""

    def tensors_of(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names have the prefix, without it."""
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def save_checkpoint(root: Path, policy: Policy, state: TrainingState) -> Path:
    """Write a complete checkpoint below `root` and return its folder; a crash leaves all of it or nothing.

    Raises StorageError when there is no room for it; earlier checkpoints stay as they are.
    """
    target = root / checkpoint_name(state.step)
    with atomic_folder(target) as folder:
        policy.save(folder)
        facts = {"step": state.step, "control": state.control, "facts": state.facts}
        write_tensors(folder / STATE, state.tensors, {"state": json.dumps(facts, sort_keys=True)})
        write_manifest(folder, {"kind": "checkpoint", "step": state.step})
    return target


def load_checkpoint(folder: Path, device: torch.device, kind: type[_Policy]) -> tuple[_Policy, TrainingState]:
    """Return the policy and training state of a checkpoint after checking every file's hash.

    Raises CorruptError when a file is not as it was written, IncompatibleError when its policy is of another kind.
    """
    verified_manifest(folder)
    if (found := policy_kind(folder)) != kind.kind:
        raise IncompatibleError(
            f"{folder} holds a policy of kind {found!r}, and this run trains one of kind {kind.kind!r}: resume from another run"
        )
    with safe_open(folder / STATE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # It is no mapping.
        state = TrainingState(**json.loads(file.metadata()["state"]), tensors=tensors)
    return kind.load(folder, device), state


def checkpoint_folders(root: Path) -> list[Path]:
    """Return the folders of all checkpoints below `root`, oldest first."""
    return sorted(path for path in root.glob("step-*") if re.fullmatch(r"step-\d{8}", path.name))


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def checkpoint_step(folder: Path) -> int:
    """Return the step that a checkpoint's folder is named after."""
    return int(folder.name.removeprefix("step-"))


def checkpoints_to_delete(regrets: Mapping[int, float], *, keep: int) -> list[int]:
    """Return which checkpoints have to go, oldest first, so that `keep` are left.

    The best and the newest one stay, whatever `keep` is; of the rest those with the lowest regret.

    Args:
        regrets: step -> held-out regret of each checkpoint that is there; NaN is the worst.
        keep: how many may stay.
    """
    if not regrets:
        return []

    def badness(step: int) -> tuple[float, int]:
        return math.inf if math.isnan(regrets[step]) else regrets[step], -step

    protected = {min(regrets, key=badness), max(regrets)}
    rest = sorted(regrets.keys() - protected, key=badness)
    return sorted(rest[max(keep - len(protected), 0) :])

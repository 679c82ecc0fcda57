"""Policies and checkpoints on disk: atomic, hashed, complete, and safe to load (safetensors and JSON, no pickle)."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from grpo.base.files import (
    CorruptError,
    atomic_folder,
    remove_folder,
    sha256_text,
    verified_manifest,
    write_json,
    write_manifest,
)
from grpo.policy.distribution import NetworkPolicy
from grpo.policy.files import ACTION_TABLE_HASH, NETWORK, POLICY, WEIGHTS, IncompatibleError, policy_facts, policy_kind
from grpo.policy.networks import make_network
from grpo.policy.trainable import PolicyFormat, TrainablePolicy, refuse_non_finite
from grpo.settings.tree import PolicyConfig

_Policy = TypeVar("_Policy", bound=TrainablePolicy)

_STATE: Final = "state.safetensors"
"""Tensors of the training state, with its JSON among their metadata."""
_JSON_BYTES: Final = 1 << 20  # More than the JSON of a checkpoint takes.
_HASHED_BYTES: Final = 1 << 20  # At a time.


def save_policy(folder: Path, policy: NetworkPolicy, config: PolicyConfig) -> None:
    """Write the weights, and what is needed to use them, into an existing folder."""
    _write_tensors(folder / WEIGHTS, policy.network.state_dict())
    write_json(folder / POLICY, {"policy": config.model_dump(mode="json"), "action_table": ACTION_TABLE_HASH})


def load_policy(folder: Path, device: torch.device) -> tuple[NetworkPolicy, PolicyConfig]:
    """Return the policy of a folder with its configuration.

    Raises IncompatibleError when this code has another action table, or cannot make its network; CorruptError for damaged files;
    NonFiniteError for weights that are NaN or infinite.
    """
    described = policy_facts(folder)["policy"]
    try:
        weights = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise CorruptError(f"{folder / WEIGHTS} is damaged or cut off ({error}): copy it again from where the policy was made") from error
    try:
        config = PolicyConfig.model_validate(described)
        network = make_network(config)
        network.load_state_dict(weights)
    except (ValueError, RuntimeError) as error:  # Of pydantic for settings, of torch for weights, that this code does not know.
        reason = " ".join(str(error).split())
        raise IncompatibleError(
            f"{folder / POLICY}: this code's network cannot be made from it ({reason}): copy its files again, or use the code that made it"
        ) from error
    refuse_non_finite(network, folder / WEIGHTS)
    return NetworkPolicy(network, device), config


NETWORK_FORMAT: Final = PolicyFormat(kind=NETWORK, save=save_policy, load=load_policy)
"""Of chess networks."""


def weights_hash(policy: TrainablePolicy) -> str:
    """Return a hash of the weights: equal for equal numbers, wherever they lie."""
    return hash_of_weights(policy.network.state_dict())


def hash_of_weights(weights: Mapping[str, Tensor]) -> str:
    """Return the hash of a module's `state_dict`."""
    tensors = _on_cpu(weights)
    return sha256_text("".join(f"{name}{tensor.dtype}{sha256_bytes(tensor)}" for name, tensor in sorted(tensors.items())))


def sha256_bytes(tensor: Tensor) -> str:
    """Return the hash of a tensor's shape and numbers, as hex digits; the tensor is not copied."""
    digest, numbers = sha256(str(tuple(tensor.shape)).encode()), tensor.numpy().reshape(-1).view(np.uint8)
    for start in range(0, len(numbers), _HASHED_BYTES):
        digest.update(numbers[start : start + _HASHED_BYTES].tobytes().hex().encode())
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """What training needs, besides the weights, to resume as if it had never stopped.

    Random streams are named by step (`seeding`), so that the step is all of their state.
    """

    step: int
    """Rollouts done."""
    control: Mapping[str, Any]
    """State of the controllers, of the task, and the reference's hash, as plain JSON."""
    facts: Mapping[str, Any]
    """What the weights came from: settings, dataset hash."""
    tensors: Mapping[str, Tensor]
    """`optimiser.` Adam's moments; `task.` self-play's states; `training.` trained weights where the policy's are their average."""

    def tensors_of(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names have the prefix, without it."""
        return {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}


def save_checkpoint(root: Path, policy: _Policy, config: PolicyConfig, state: TrainingState, policy_format: PolicyFormat[_Policy]) -> Path:
    """Write a complete checkpoint below `root` and return its folder; a crash leaves all of it or nothing.

    Raises StorageError when there is no room for it; earlier checkpoints stay as they are.
    """
    target = root / checkpoint_name(state.step)
    if target.exists() and not _is_whole(target):
        remove_folder(target)  # A run that fell back to an earlier checkpoint comes by again.
    num_bytes = sum(tensor.nbytes for tensors in (policy.network.state_dict(), state.tensors) for tensor in tensors.values())
    with atomic_folder(target, num_bytes=num_bytes + _JSON_BYTES) as folder:
        policy_format.save(folder, policy, config)
        facts = {"step": state.step, "control": state.control, "facts": state.facts}
        _write_tensors(folder / _STATE, state.tensors, {"state": json.dumps(facts, sort_keys=True)})
        write_manifest(folder, {"kind": "checkpoint", "step": state.step})
    return target


def load_checkpoint(
    folder: Path, device: torch.device, policy_format: PolicyFormat[_Policy]
) -> tuple[_Policy, PolicyConfig, TrainingState]:
    """Return the policy and training state of a checkpoint after checking every file's hash.

    Raises CorruptError when a file is not as it was written, IncompatibleError when its policy is of another kind than the format's.
    """
    verified_manifest(folder)
    if (kind := policy_kind(folder)) != policy_format.kind:
        raise IncompatibleError(
            f"{folder} holds a policy of kind {kind!r}, and this run trains one of kind {policy_format.kind!r}: resume from another run"
        )
    policy, config = policy_format.load(folder, device)
    with safe_open(folder / _STATE, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # It is no mapping.
        state = TrainingState(**json.loads(file.metadata()["state"]), tensors=tensors)
    return policy, config, state


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


def _is_whole(folder: Path) -> bool:
    try:
        verified_manifest(folder)
    except CorruptError:
        return False
    return True


def _write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    # Not by `save_file`, whose error for a full disk has no errno.
    path.write_bytes(save(_on_cpu(tensors), metadata))


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}

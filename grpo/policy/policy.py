"""The seam between policies and all that trains, saves and loads them; and the chess network as a policy."""

import copy
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, Final, Protocol, Self

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from grpo.base.errors import NonFiniteError
from grpo.base.files import CorruptError, sha256_text
from grpo.base.seeding import named_seed
from grpo.policy.distribution import MoveDistribution, PositionBatch, on_device
from grpo.policy.files import FACTS, WEIGHTS, IncompatibleError, policy_facts, write_facts
from grpo.policy.networks import make_network
from grpo.settings.kinds import NETWORK
from grpo.settings.tree import PolicyConfig

_HASHED_BYTES: Final = 1 << 20  # At a time.


class Policy(Protocol):
    """A policy with weights, of any kind. Its network is in evaluation mode for good: sampling and scoring must be one function."""

    kind: ClassVar[str]
    """As `policy.kind` names it."""

    @property
    def network(self) -> nn.Module:
        """The module with the weights."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def copied(self) -> Self:
        """Return a policy with a network of its own, of equal weights."""

    def at_precision(self, precision: torch.dtype) -> Self:
        """Return a policy that shares this network and computes at another precision."""

    def save(self, folder: Path) -> None:
        """Write the weights, and what is needed to use them, into a folder; raises OSError with its number where the disk refuses."""

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        """Return the policy that `save` wrote.

        Raises IncompatibleError for what this code does not know, NonFiniteError for weights that are NaN or infinite, and another
        PlainError for damaged files.
        """


class NetworkPolicy:
    """The chess network as a policy."""

    kind: ClassVar[str] = NETWORK

    def __init__(self, network: nn.Module, config: PolicyConfig, device: torch.device, *, precision: torch.dtype = torch.float32) -> None:
        """Move the network to the device and set evaluation mode.

        Args:
            network: Takes a `PositionBatch` and returns logits [B, A].
            config: What it was made from.
            device: Where the network runs.
            precision: Of the forward pass (autocast); the outputs are float32 or better.
        """
        self.network = network.to(device).eval()
        self.config = config
        self.device = device
        self._precision = precision

    def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
        """Return the distribution over the legal moves of each board at this temperature.

        Raises RuntimeError if the network is in training mode.
        """
        if self.network.training:
            raise RuntimeError("the policy's network is in training mode, in which layers such as dropout change its probabilities")
        batch = on_device(positions, self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._precision == torch.bfloat16):
            logits = self.network(batch)
        return MoveDistribution.from_logits(logits, batch.is_legal, temperature=temperature)

    def copied(self) -> Self:
        """Return a policy in full precision with a network of its own, of equal weights."""
        return type(self)(copy.deepcopy(self.network), self.config, self.device)

    def at_precision(self, precision: torch.dtype) -> Self:
        """Return a policy that shares this network and computes at another precision."""
        return type(self)(self.network, self.config, self.device, precision=precision)

    def save(self, folder: Path) -> None:
        """Write the weights, and what is needed to use them, into an existing folder."""
        write_tensors(folder / WEIGHTS, self.network.state_dict())
        write_facts(folder, self.config.model_dump(mode="json"), [WEIGHTS])

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        """Return the policy of a folder.

        Raises IncompatibleError when this code has another action table, or cannot make its network; CorruptError for damaged files;
        NonFiniteError for weights that are NaN or infinite.
        """
        described = policy_facts(folder)["policy"]
        try:
            weights = load_file(folder / WEIGHTS)
        except (SafetensorError, OSError) as error:
            raise CorruptError(
                f"{folder / WEIGHTS} is damaged or cut off ({error}): copy it again from where the policy was made"
            ) from error
        try:
            config = PolicyConfig.model_validate(described)
            network = make_network(config)
            network.load_state_dict(weights)
        except (ValueError, RuntimeError) as error:  # Of pydantic for settings, of torch for weights, that this code does not know.
            reason = " ".join(str(error).split())
            raise IncompatibleError(
                f"{folder / FACTS}: this code's network cannot be made from it ({reason}): copy its files again, or use the code that"
                " made it"
            ) from error
        refuse_non_finite(network, folder / WEIGHTS)
        return cls(network, config, device)


def new_policy(config: PolicyConfig, *, seed: int, device: torch.device) -> NetworkPolicy:
    """Return a policy with random weights that depend only on the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "network"))
        return NetworkPolicy(make_network(config), config, device)


def refuse_non_finite(network: nn.Module, name: Path | str) -> None:
    """Raise NonFiniteError when a weight of a network, with its file or name, is NaN or infinite: such a policy plays, but says nothing."""
    for parameter, weights in network.named_parameters():
        if not torch.isfinite(weights).all():
            raise NonFiniteError(
                f"{name}: its weights are not finite ({parameter} holds NaN or infinity): use an earlier checkpoint of the run"
            )


def weights_hash(policy: Policy) -> str:
    """Return a hash of the weights: equal for equal numbers, wherever they lie."""
    tensors = sorted(policy.network.state_dict().items())
    return sha256_text("".join(f"{name}{tensor.dtype}{_numbers_hash(tensor.detach().cpu().contiguous())}" for name, tensor in tensors))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a file of safetensors."""
    # Not by `save_file`, whose error for a full disk has no errno.
    path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata))


def _numbers_hash(tensor: Tensor) -> str:
    """Return the hash of a tensor's shape and numbers, as hex digits; the tensor is not copied."""
    digest, numbers = sha256(str(tuple(tensor.shape)).encode()), tensor.numpy().reshape(-1).view(np.uint8)
    for start in range(0, len(numbers), _HASHED_BYTES):
        digest.update(numbers[start : start + _HASHED_BYTES].tobytes().hex().encode())
    return digest.hexdigest()

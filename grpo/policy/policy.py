"""`Policy`: interface of all policies with weights. `NetworkPolicy`: a chess network."""

import copy
from collections.abc import Mapping
from dataclasses import replace
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
from grpo.board.features import joined
from grpo.board.replies import cache_replies
from grpo.policy.distribution import MoveDistribution, PositionBatch, on_device
from grpo.policy.files import FACTS, WEIGHTS, IncompatibleError, policy_facts, write_facts
from grpo.policy.networks import LooksAhead, make_network
from grpo.settings.kinds import NETWORK
from grpo.settings.tree import PolicyConfig

MAX_CACHED: Final = 50_000
_NUM_CACHED: Final = 4  # Moves of a board with cached replies: more than the network reads, because training changes the likeliest moves.
_CACHED_AT_ONCE: Final = 1_024  # Boards; limits memory.
_HASHED_BYTES: Final = 1 << 20


class Policy(Protocol):
    """The network is always in evaluation mode, because sampling and loss must compute equal probabilities."""

    kind: ClassVar[str]
    """Value of the setting `policy.kind`."""

    @property
    def network(self) -> nn.Module: ...

    @property
    def device(self) -> torch.device: ...

    def copied(self) -> Self:
        """Return a policy with a deep copy of the network, at precision float32."""

    def at_precision(self, precision: torch.dtype) -> Self:
        """Return a policy with the same network object that computes at this precision."""

    def save(self, folder: Path) -> None:
        """Write the policy's files into an existing folder. Raises OSError."""

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        """Raises IncompatibleError for files of other code, CorruptError for damaged files, NonFiniteError for NaN or infinity."""


class NetworkPolicy:
    kind: ClassVar[str] = NETWORK

    def __init__(self, network: nn.Module, config: PolicyConfig, device: torch.device, *, precision: torch.dtype = torch.float32) -> None:
        """Move the network to the device. `precision` bfloat16 means autocast."""
        self.network = network.to(device).eval()
        self.config = config
        self.device = device
        self._precision = precision

    def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
        """Raises RuntimeError if the network is in training mode."""
        if self.network.training:
            raise RuntimeError("the policy's network is in training mode, so dropout would change its probabilities: call `eval`")
        batch = on_device(positions, self.device)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self._precision == torch.bfloat16):
            logits = self.network(batch)
        return MoveDistribution.from_logits(logits, batch.is_legal, temperature=temperature)

    def prepared(self, positions: PositionBatch) -> PositionBatch:
        """Return the positions with features, and replies if the network looks ahead, for repeated use.

        Features take 1.5 kB per board, replies 9 kB more. A batch of more than `MAX_CACHED` boards gets no replies.
        """
        positions = positions.with_features()
        if not isinstance(self.network, LooksAhead) or not self.network.looks_ahead or len(positions) > MAX_CACHED:
            return positions
        pieces = [positions.select_rows(rows) for rows in torch.split(torch.arange(len(positions)), _CACHED_AT_ONCE)]
        cached = []
        for piece in pieces:
            batch = on_device(piece, self.device)
            replies = cache_replies(batch.encodings, batch.action_ids, self.network.candidates(batch, _NUM_CACHED))
            cached.append(replace(piece, cached_replies=on_device(replies, torch.device("cpu"))))
        return joined(cached)

    def look_ahead(self, is_on: bool) -> None:
        """Turn the network's reading of replies on or off. A new network gives replies weight 0, so its logits do not change."""
        if isinstance(self.network, LooksAhead):
            self.network.looks_ahead = is_on

    def copied(self) -> Self:
        return type(self)(copy.deepcopy(self.network), self.config, self.device)

    def on_cpu(self) -> Self:
        """Return this policy, or, if it is on a GPU, a copy on the CPU in float32.

        Games are faster on the CPU: python-chess takes most of a move's time, so a process per core gains more than a GPU.
        """
        return self if self.device.type == "cpu" else type(self)(copy.deepcopy(self.network), self.config, torch.device("cpu"))

    def at_precision(self, precision: torch.dtype) -> Self:
        return type(self)(self.network, self.config, self.device, precision=precision)

    def save(self, folder: Path) -> None:
        write_tensors(folder / WEIGHTS, self.network.state_dict())
        write_facts(folder, self.config.model_dump(mode="json"), [WEIGHTS])

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        settings = policy_facts(folder)["policy"]
        try:
            weights = load_file(folder / WEIGHTS)
        except (SafetensorError, OSError) as error:
            raise CorruptError(f"{folder / WEIGHTS} is damaged or incomplete ({error}): copy it again from its origin") from error
        try:
            config = PolicyConfig.model_validate(settings)
            network = make_network(config)
            network.load_state_dict(weights)
        except (ValueError, RuntimeError) as error:  # Pydantic refuses the settings, or torch the weights.
            reason = " ".join(str(error).split())
            raise IncompatibleError(
                f"{folder / FACTS} does not describe a network of this code ({reason}): copy the policy's files again, or use the code that"
                " made them"
            ) from error
        refuse_non_finite(network, folder / WEIGHTS)
        return cls(network, config, device)


def new_policy(config: PolicyConfig, *, seed: int, device: torch.device) -> NetworkPolicy:
    """Return a policy with random weights, by `config` and `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed(seed, "network"))
        return NetworkPolicy(make_network(config), config, device)


def refuse_non_finite(network: nn.Module, name: Path | str) -> None:
    """Raise NonFiniteError if a weight is NaN or infinite; such a policy would still play."""
    for parameter, weights in network.named_parameters():
        if not torch.isfinite(weights).all():
            raise NonFiniteError(
                f"{name}: weights are not finite ({parameter} holds NaN or infinity): use an earlier checkpoint of the run"
            )


def weights_hash(policy: Policy) -> str:
    """Return a hash of all weights, equal on every device."""
    tensors = sorted(policy.network.state_dict().items())
    return sha256_text("".join(f"{name}{tensor.dtype}{_numbers_hash(tensor.detach().cpu().contiguous())}" for name, tensor in tensors))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    # Not `save_file`, because its error for a full disk has no errno. `save` refuses tensors that share memory.
    path.write_bytes(save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, metadata))


def _numbers_hash(tensor: Tensor) -> str:
    # Hashed in pieces, because `hex` copies the bytes.
    digest, numbers = sha256(str(tuple(tensor.shape)).encode()), tensor.numpy().reshape(-1).view(np.uint8)
    for start in range(0, len(numbers), _HASHED_BYTES):
        digest.update(numbers[start : start + _HASHED_BYTES].tobytes().hex().encode())
    return digest.hexdigest()

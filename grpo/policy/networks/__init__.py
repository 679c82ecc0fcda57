"""Chess networks, one per file. `policy.network` names the file; its class `Network` is a torch module.

`Network(PolicyConfig)` maps a `PositionBatch` of B boards, with at most A legal moves each, to logits [B, A]. Logits of padding are not
used. A network has no dropout, and a board's logits do not depend on other boards.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor, nn

from grpo.policy.files import IncompatibleError
from grpo.settings.tree import PolicyConfig

if TYPE_CHECKING:
    from grpo.policy.distribution import PositionBatch


@runtime_checkable
class LooksAhead(Protocol):
    """A network that also reads the opponent's replies."""

    looks_ahead: bool
    """Whether `forward` reads replies. False in pretraining's first steps, to save time."""

    def candidates(self, positions: PositionBatch, count: int) -> Tensor:
        """Return the columns (indices in A) of the moves whose replies `forward` will most likely read, [B, count]; -1 fills up."""


def is_network(name: str) -> bool:
    return name.isidentifier() and find_spec(f"{__name__}.{name}") is not None


def make_network(config: PolicyConfig) -> nn.Module:
    """Return a new network with weights drawn from torch's global generator. Raises IncompatibleError for an unknown network."""
    if not is_network(config.network):
        raise IncompatibleError(f"policy.network = {config.network!r}: grpo/policy/networks/{config.network}.py does not exist")
    network = import_module(f"{__name__}.{config.network}").Network(config)
    assert isinstance(network, nn.Module)
    return network

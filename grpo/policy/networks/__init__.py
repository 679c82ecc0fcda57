"""Chess networks, one per file. `policy.network` names the file; its class `Network` is a torch module.

`Network(PolicyConfig)` maps a `PositionBatch` of B boards to logits of their legal moves, [B, A]; logits of padding may be any number. A
network has no dropout, and a board's logits do not depend on other boards.
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
    """A network that also looks at the opponent's replies."""

    looks_ahead: bool
    """False in the first steps of imitation, to save time."""

    def candidates(self, positions: PositionBatch, count: int) -> Tensor:
        """Return the columns of the moves whose replies it will most likely need, [B, count]; -1 for none."""


def is_network(name: str) -> bool:
    return name.isidentifier() and find_spec(f"{__name__}.{name}") is not None


def make_network(config: PolicyConfig) -> nn.Module:
    """Make random weights by torch's global generator. Raises IncompatibleError for an unknown network."""
    if not is_network(config.network):
        raise IncompatibleError(f"policy.network = {config.network!r}: grpo/policy/networks/{config.network}.py does not exist")
    network = import_module(f"{__name__}.{config.network}").Network(config)
    assert isinstance(network, nn.Module)
    return network

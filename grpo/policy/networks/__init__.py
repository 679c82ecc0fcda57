"""Chess networks, one per file. `policy.network` names the file; the file's class `Network` is a torch module.

`Network(PolicyConfig)` maps a `PositionBatch` of B boards to logits of their legal moves, [B, A]; logits of padding may be any number. A
network has no dropout, and a board's logits do not depend on the other boards.
"""

from importlib import import_module
from importlib.util import find_spec

from torch import nn

from grpo.policy.files import IncompatibleError
from grpo.settings.tree import PolicyConfig


def is_network(name: str) -> bool:
    return name.isidentifier() and find_spec(f"{__name__}.{name}") is not None


def make_network(config: PolicyConfig) -> nn.Module:
    """Make random weights with torch's global generator. Raises IncompatibleError for an unknown network."""
    if not is_network(config.network):
        raise IncompatibleError(f"policy.network = {config.network!r}: grpo/policy/networks/{config.network}.py does not exist")
    network = import_module(f"{__name__}.{config.network}").Network(config)
    assert isinstance(network, nn.Module)
    return network

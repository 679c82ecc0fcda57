"""The chess networks, one file each: `policy.network` names the file, and its class `Network` is the torch module.

A `Network` is made from a `PolicyConfig`. It takes a `PositionBatch` and returns the logits of the legal moves, shape [B, A]; other entries
mean nothing. It has no dropout, and a logit does not depend on which other boards are in the batch.
"""

from importlib import import_module
from importlib.util import find_spec

from torch import nn

from grpo.policy.files import IncompatibleError
from grpo.settings.tree import PolicyConfig


def is_network(name: str) -> bool:
    """Return whether there is a file for a value of `policy.network`."""
    return name.isidentifier() and find_spec(f"{__name__}.{name}") is not None


def make_network(config: PolicyConfig) -> nn.Module:
    """Return the network of a configuration, its weights drawn from torch's global stream.

    Raises IncompatibleError where this code has no such network.
    """
    if not is_network(config.network):
        raise IncompatibleError(f"policy.network = {config.network!r}: there is no grpo/policy/networks/{config.network}.py")
    network = import_module(f"{__name__}.{config.network}").Network(config)
    assert isinstance(network, nn.Module)
    return network

"""What training needs of a policy: its weights, their device, and how a folder holds it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import nn

from grpo.base.errors import NonFiniteError
from grpo.settings.tree import PolicyConfig


class TrainablePolicy(Protocol):
    """A policy with weights, of any kind."""

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


_Policy = TypeVar("_Policy", bound=TrainablePolicy)


def refuse_non_finite(network: nn.Module, name: Path | str) -> None:
    """Raise NonFiniteError when a weight of a network, with its file or name, is NaN or infinite: such a policy plays, but says nothing."""
    for parameter, weights in network.named_parameters():
        if not torch.isfinite(weights).all():
            raise NonFiniteError(
                f"{name}: its weights are not finite ({parameter} holds NaN or infinity): use an earlier checkpoint of the run"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFormat(Generic[_Policy]):
    """How a folder holds the policies of one kind."""

    kind: str
    """As `policy.kind` names it."""
    save: Callable[[Path, _Policy, PolicyConfig], None]
    """Writes a policy and its configuration into an existing folder."""
    load: Callable[[Path, torch.device], tuple[_Policy, PolicyConfig]]
    """Returns the policy of a folder with its configuration."""

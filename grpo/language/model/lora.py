"""LoRA: low-rank adapters that are trained beside the frozen weights of linear layers (Hu et al., arXiv 2106.09685).

A layer's output W x becomes W x + alpha / rank * B A x. B begins at 0, so that the policy begins at its reference. Hooks add the change:
the network itself, its names and its files stay what they are, and the same network with another adapter is the reference.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from grpo.base.errors import PlainError
from grpo.base.seeding import torch_stream
from grpo.settings.language import LoraConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class LoraError(PlainError, ValueError):
    """The settings ask for adapters that the model cannot have."""


def target_layers(network: "PreTrainedModel", config: LoraConfig) -> dict[str, nn.Module]:
    """Return the layers that `language.lora.target_modules` names, by their names; all linear layers but the output head if it names none.

    Raises LoraError for a name that no linear layer has, and for a rank above the smaller side of a layer's matrix.
    """
    from transformers.pytorch_utils import Conv1D  # GPT-2's linear layer, with a transposed matrix.

    head: nn.Module | None = network.get_output_embeddings()  # type: ignore[no-untyped-call]
    linear = {name: each for name, each in network.named_modules() if isinstance(each, nn.Linear | Conv1D) and each is not head}
    for target in config.target_modules:
        if not any(_is_named(name, target) for name in linear):
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise LoraError(
                f"language.lora.target_modules: {target!r} is not the name, or the end of the name, of a linear layer of this model; it has"
                f" {known}. The output head and the embeddings cannot have adapters"
            )
    ends = config.target_modules
    found: dict[str, nn.Module] = {name: layer for name, layer in linear.items() if not ends or any(_is_named(name, end) for end in ends)}
    for name, layer in found.items():
        if config.rank > (most := min(_sides(layer))):
            raise LoraError(
                f"language.lora.rank = {config.rank} is above the smaller side of the weights of {name}, {most}: the adapter would be no"
                f" smaller than the layer; give at most {most}, or name wider layers in language.lora.target_modules"
            )
    return found


def adapter_size(network: "PreTrainedModel", config: LoraConfig) -> int:
    """Return the number of an adapter's weights, 0 for rank 0; the network needs no weights. Raises LoraError."""
    return sum(config.rank * sum(_sides(layer)) for layer in target_layers(network, config).values()) if config.rank else 0


def _is_named(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


def _sides(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of a linear layer's inputs and outputs."""
    one, other = layer.get_parameter("weight").shape
    return (other, one) if isinstance(layer, nn.Linear) else (one, other)


@dataclass(slots=True)
class _Worn:
    """Which adapter a network's layers have at present."""

    adapter: "Adapter"


class Adapter(nn.Module):
    """The change of some linear layers of one network: its only parameters are A and B of each."""

    def __init__(self, layers: Mapping[str, nn.Module], config: LoraConfig, *, seed: int) -> None:
        """Make A random, as the linear layers of torch are (uniform to 1 / sqrt(inputs)), from the seed alone, and B zero."""
        super().__init__()
        self._layers, self._scale = layers, config.alpha / config.rank
        self._worn: _Worn | None = None
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for name, layer in layers.items():
            (num_inputs, num_outputs), device = _sides(layer), layer.get_parameter("weight").device
            uniform = torch.rand(config.rank, num_inputs, generator=torch_stream(seed, "lora", name))
            self.a[_key(name)] = nn.Parameter(((2 * uniform - 1) / num_inputs**0.5).to(device))
            self.b[_key(name)] = nn.Parameter(torch.zeros(num_outputs, config.rank, device=device))

    def change(self, name: str, inputs: Tensor) -> Tensor:
        """Return what is added to a layer's output, for the same inputs."""
        return self._scale * nn.functional.linear(nn.functional.linear(inputs, self.a[_key(name)]), self.b[_key(name)])

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Give the network this adapter, and then the one before again: checkpointed blocks are computed once more in the backward pass."""
        assert self._worn is not None
        before, self._worn.adapter = self._worn.adapter, self
        try:
            yield
        finally:
            self._worn.adapter = before

    @torch.no_grad()
    def merged(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the network's `state_dict` with the changes added: that of a network without adapter. What is changed is on the CPU."""
        found = dict(weights)
        for name, layer in self._layers.items():
            a, b = self.a[_key(name)], self.b[_key(name)]
            if b.any():  # Not even the sign of a zero changes before the first update.
                change = self._scale * (b @ a)
                found[f"{name}.weight"] = (found[f"{name}.weight"] + (change if isinstance(layer, nn.Linear) else change.T)).cpu()
        return found


def adapters_of(network: "PreTrainedModel", config: LoraConfig, *, seed: int) -> tuple[Adapter, Adapter]:
    """Freeze a network, and return its adapter that is trained and that of the reference, which is frozen; both change nothing as yet.

    The network has the first one, but for passes within `worn` of the other. Raises LoraError.
    """
    layers = target_layers(network, config)
    network.requires_grad_(requires_grad=False)
    trained, reference = (Adapter(layers, config, seed=seed) for _ in range(2))
    worn = trained._worn = reference._worn = _Worn(trained)
    reference.requires_grad_(requires_grad=False)
    for name, layer in layers.items():

        def add(_: nn.Module, inputs: tuple[Any, ...], output: Tensor, *, name: str = name) -> Tensor:
            return output + worn.adapter.change(name, inputs[0])

        layer.register_forward_hook(add)
    return trained, reference


def _key(name: str) -> str:
    """Return a layer's name as a key of parameters, which may have no dots."""
    return name.replace(".", "/")

"""A causal language model as a policy: network and tokenizer in evaluation mode, for generation, scoring and training."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from grpo.base.errors import NonFiniteError
from grpo.language.model.left_padding import count_positions_by_mask
from grpo.language.model.lora import Adapter, adapters_of
from grpo.policy.distribution import MoveDistribution
from grpo.settings.language import LanguageConfig, LoraConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOrigin:
    """Where a model's initial weights came from."""

    model: str
    """`small`, a name on the Hugging Face hub, or a folder."""
    commit: str
    """Full commit on the hub; empty for `small` and for a folder."""


class LanguagePolicy:
    """A language model that answers prompts."""

    def __init__(
        self,
        network: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        device: torch.device,
        config: LanguageConfig,
        *,
        origin: ModelOrigin,
    ) -> None:
        """Move the network to the device and set evaluation mode, because dropout would change the scored policy.

        The tokenizer must have an end token and a padding token; they may be the same, because all code here uses masks.
        """
        assert tokenizer.eos_token_id is not None
        assert tokenizer.pad_token_id is not None
        network.to(device)  # type: ignore[arg-type]  # Its wrapper of torch's method hides the type.
        self.network: PreTrainedModel = network.eval()  # type: ignore[no-untyped-call]
        self.tokenizer = tokenizer
        self.device = device
        self.config = config
        self.origin = origin
        self.precision = torch.float32
        """Of forward passes (autocast); log-probabilities are float32 in any case."""
        self.adapter: Adapter | None = None
        """What changes the network's layers; None without LoRA."""
        count_positions_by_mask(self.network)

    def at_precision(self, precision: torch.dtype) -> Self:
        """Return a policy that shares this network and computes at another precision."""
        other = copy.copy(self)
        other.precision = precision
        return other

    def adapted(self, config: LoraConfig, *, seed: int) -> tuple[Self, Self]:
        """Return the policy with an adapter that can be trained, and the policy as it is now, as a reference.

        Both share this network, which is frozen. Nobody else may use it: it has the first one's adapter. Raises LoraError.
        """
        policy, reference = copy.copy(self), copy.copy(self)
        policy.adapter, reference.adapter = adapters_of(self.network, config, seed=seed)
        return policy, reference

    def with_reference(self, config: LoraConfig, *, seed: int) -> tuple[Self, Self]:
        """Return the policy as it is to be trained, and the policy as it is now, as a reference: a copy, or with a rank `adapted`."""
        if config.rank:
            return self.adapted(config, seed=seed)
        reference = copy.copy(self)
        reference.network = copy.deepcopy(self.network)
        return self, reference

    @property
    def trained(self) -> nn.Module:
        """The module whose weights training changes: the network, or its adapter."""
        return self.network if self.adapter is None else self.adapter

    def weights(self) -> Mapping[str, torch.Tensor]:
        """Return the weights of the network, with those of an adapter merged into them."""
        weights: Mapping[str, torch.Tensor] = self.network.state_dict()
        return weights if self.adapter is None else self.adapter.merged(weights)

    @property
    def end_id(self) -> int:
        """Id of the token that ends an answer."""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        """Id of the padding token; may be that of the end token."""
        return int(self.tokenizer.pad_token_id)

    @property
    def max_positions(self) -> int | None:
        """Length of the model's context (prompt and answer) by its configuration; None if that does not say."""
        found = getattr(self.network.config, "max_position_embeddings", None)
        return None if found is None else int(found)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without special tokens."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def refuse_nonfinite(self) -> None:
        """Raise NonFiniteError that names weights with NaN or infinity."""
        modules = (self.network,) if self.adapter is None else (self.network, self.adapter)
        broken = [name for module in modules for name, weights in module.named_parameters() if not bool(weights.isfinite().all())]
        if broken:
            raise NonFiniteError(
                f"the language model {self.origin.model!r} has NaN or infinite weights: {broken[0]}"
                + (f" and {len(broken) - 1} more" if broken[1:] else "")
                + "; use an intact model file; if training caused it, go back to an earlier checkpoint, with a lower learning rate"
            )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None, *, num_last: int, **given: Any) -> Any:
        """Return the network's output with the logits of the last columns; others are not computed if the model allows it.

        Args:
            input_ids: [rows, columns], padded on either side.
            attention_mask: [rows, columns], 1 for real tokens; with a cache, of the cached columns too. None for one row without padding.
            num_last: Number of columns.
            given: Further arguments, such as a cache.
        """
        if "logits_to_keep" in inspect.signature(self.network.forward).parameters:
            given["logits_to_keep"] = num_last
        with (
            nullcontext() if self.adapter is None else self.adapter.worn(),
            torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16),
        ):
            return self.network(input_ids=input_ids, attention_mask=attention_mask, **given)

    def logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, num_last: int) -> torch.Tensor:
        """Return the logits of the last columns, [rows, num_last, vocabulary], in float32; see `forward`."""
        output = self.forward(input_ids, attention_mask, num_last=num_last, use_cache=False)
        scores: torch.Tensor = output.logits
        return scores[:, -num_last:].float()


def token_distribution(logits: torch.Tensor, *, temperature: float) -> MoveDistribution:
    """Return the distribution over the whole vocabulary that each row of logits, [rows, vocabulary], stands for.

    Tokens are sampled from it and scored by it: no token is left out, and there is no other temperature.
    """
    log_probs = (logits.float() / temperature).log_softmax(dim=1)
    return MoveDistribution(log_probs=log_probs, is_legal=torch.ones((), dtype=torch.bool, device=logits.device).expand_as(log_probs))

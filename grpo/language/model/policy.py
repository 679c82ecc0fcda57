"""A causal language model as a policy: network and tokenizer, in the one state in which it writes, is scored and is trained."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from grpo.base.errors import NonFiniteError
from grpo.language.model.left_padding import count_positions_by_mask
from grpo.settings.language import LanguageConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOrigin:
    """Where a model's first weights came from."""

    model: str
    """`small`, a hub's name, or a folder."""
    commit: str
    """Of the hub, in full; empty for what is made here or lies in a folder."""


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
        """Move the network to the device and into evaluation mode, in which it stays: dropout would score another policy.

        The tokenizer must have an end and a padding token; they may be the same one, for everything here goes by masks.
        """
        assert tokenizer.eos_token_id is not None
        assert tokenizer.pad_token_id is not None
        network.to(device)  # type: ignore[arg-type]  # It wraps torch's, and hides its type.
        self.network: PreTrainedModel = network.eval()  # type: ignore[no-untyped-call]
        self.tokenizer = tokenizer
        self.device = device
        self.config = config
        self.origin = origin
        count_positions_by_mask(self.network)

    @property
    def end_id(self) -> int:
        """Id of the token that ends an answer."""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        """Id of the token that fills rows; may be that of the end."""
        return int(self.tokenizer.pad_token_id)

    @property
    def max_positions(self) -> int | None:
        """Tokens that the model can read and write together, as its configuration says; None where that says nothing."""
        found = getattr(self.network.config, "max_position_embeddings", None)
        return None if found is None else int(found)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without tokens that a tokenizer would add at its ends."""
        if not texts:
            return []
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def refuse_nonfinite(self) -> None:
        """Raise NonFiniteError naming the weights that are NaN or infinite."""
        broken = [name for name, weights in self.network.named_parameters() if not bool(weights.isfinite().all())]
        if broken:
            raise NonFiniteError(
                f"the language model {self.origin.model!r} has weights that are no numbers: {broken[0]}"
                + (f" and {len(broken) - 1} more" if broken[1:] else "")
                + "; give a model whose file is whole; if training made it so, go back to an earlier checkpoint, with a lower learning rate"
            )

    @torch.no_grad()
    def refuse_nonfinite_logits(self, prompt: str) -> None:
        """Raise NonFiniteError where whole weights give NaN or infinite scores; on a GPU, sampling from such would lose the device."""
        ids = torch.tensor(self.tokens([prompt]), device=self.device)
        if not self.logits(ids, torch.ones_like(ids), num_last=1).isfinite().all():
            raise NonFiniteError("the policy's logits are not finite: its weights are too large for their precision")

    def logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, num_last: int) -> torch.Tensor:
        """Return the scores at the last columns, [rows, num_last, vocabulary], in float32; others are not computed where the model lets us.

        Args:
            input_ids: [rows, columns], padded on either side.
            attention_mask: [rows, columns], 1 where a token is real.
            num_last: how many columns.
        """
        keep: dict[str, Any] = (
            {"logits_to_keep": num_last} if "logits_to_keep" in inspect.signature(self.network.forward).parameters else {}
        )
        output = self.network(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **keep)
        scores: torch.Tensor = output.logits
        return scores[:, -num_last:].float()

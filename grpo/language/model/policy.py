"""A causal language model as a policy: network and tokenizer in evaluation mode, for generation, scoring and training."""

import copy
import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import torch
from safetensors import SafetensorError

from grpo.language.model.loading import hub_commit, network_of_files, quieten_transformers
from grpo.policy.distribution import MoveDistribution
from grpo.policy.files import IncompatibleError, policy_facts, write_facts
from grpo.policy.policy import refuse_non_finite
from grpo.settings.kinds import LANGUAGE
from grpo.settings.language import SMALL, LanguageConfig, model_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_WEIGHTS: Final = "model.safetensors"  # Transformers' name.
_ERROR_NUMBER: Final = re.compile(r"\(os error (\d+)\)")
"""How safetensors tells the disk's refusal: in its text alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOrigin:
    """Where a model's initial weights came from."""

    model: str
    """`small`, a name on the Hugging Face hub, or a folder."""
    commit: str
    """Full commit on the hub; empty for `small` and for a folder."""


class LanguagePolicy:
    """A language model that answers prompts."""

    kind: ClassVar[str] = LANGUAGE

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
        from transformers import GenerationConfig

        assert tokenizer.eos_token_id is not None
        assert tokenizer.pad_token_id is not None
        # What a model's author chose for sampling (top-k, repetition penalties) would make the sampled policy another one than the trained.
        ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        network.generation_config = GenerationConfig(**ids)  # type: ignore[no-untyped-call]
        network.config.eos_token_id, network.config.pad_token_id = ids["eos_token_id"], ids["pad_token_id"]
        network.to(device)  # type: ignore[arg-type]  # Its wrapper of torch's method hides the type.
        self.network: PreTrainedModel = network.eval()  # type: ignore[no-untyped-call]
        self.tokenizer = tokenizer
        self.device = device
        self.config = config
        self.origin = origin
        self.precision = torch.float32
        """Of forward passes (autocast); log-probabilities are float32 in any case."""
        parameters = inspect.signature(self.network.forward).parameters
        self._takes_positions, self._cuts_logits = "position_ids" in parameters, "logits_to_keep" in parameters

    def at_precision(self, precision: torch.dtype) -> Self:
        """Return a policy that shares this network and computes at another precision."""
        other = copy.copy(self)
        other.precision = precision
        return other

    def copied(self) -> Self:
        """Return a policy with a network of its own, of equal weights."""
        other = copy.copy(self)
        other.network = copy.deepcopy(self.network)
        return other

    def save(self, folder: Path) -> None:
        """Write the model as transformers has it (so that anybody can load it from there), and what else is needed, into a folder.

        Raises OSError with its number when the disk refuses.
        """
        others = set(folder.iterdir())
        self.tokenizer.save_pretrained(folder)
        try:
            self.network.save_pretrained(folder, state_dict=self.network.state_dict())
        except SafetensorError as error:
            if (number := _ERROR_NUMBER.search(str(error))) is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
        made = sorted(path.name for path in folder.iterdir() if path not in others and path.name != _WEIGHTS)
        language = self.config.model_dump(mode="json")
        write_facts(folder, {"kind": LANGUAGE}, [_WEIGHTS, *made], language=language, origin=asdict(self.origin))

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        """Return the policy of a folder.

        Raises LanguageModelError when the files are no model's, IncompatibleError when this code does not know its settings,
        NonFiniteError for weights that are NaN or infinite.
        """
        quieten_transformers()
        facts = policy_facts(folder)
        try:
            config = LanguageConfig.model_validate(facts["language"])
            origin = ModelOrigin(**facts["origin"])
        except (KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise IncompatibleError(f"{folder}: no language model that this code knows ({reason}); use the code that made it") from error
        network, tokenizer = network_of_files(str(folder), "")
        refuse_non_finite(network, folder / _WEIGHTS)
        return cls(network, tokenizer, device, config, origin=origin)

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
        ids: list[list[int]] = self.tokenizer(list(texts), add_special_tokens=False)["input_ids"] if texts else []
        return ids

    def refuse_nonfinite(self) -> None:
        """Raise NonFiniteError that names a weight with NaN or infinity."""
        refuse_non_finite(self.network, f"the language model {self.origin.model!r}")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, num_last: int, **given: Any) -> Any:
        """Return the network's output with the logits of the last columns; others are not computed if the model allows it.

        Positions are counted by the mask, so that padding on the left moves no token: a plain forward pass counts columns, and for a GPT-2
        and a row with 37 pads sampled and scored log-probabilities then differed by 5 nats, while all logged metrics looked healthy.

        `input_ids`, [rows, columns], are padded on either side; `attention_mask` is 1 for real tokens, and has the columns of a cache too.
        """
        if self._cuts_logits:
            given["logits_to_keep"] = num_last
        if self._takes_positions:
            given["position_ids"] = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16):
            return self.network(input_ids=input_ids, attention_mask=attention_mask, **given)

    def logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, num_last: int) -> torch.Tensor:
        """Return the logits of the last columns, [rows, num_last, vocabulary], in float32; see `forward`."""
        output = self.forward(input_ids, attention_mask, num_last=num_last, use_cache=False)
        scores: torch.Tensor = output.logits
        return scores[:, -num_last:].float()


def load_model(config: LanguageConfig, *, seed: int, device: torch.device) -> LanguagePolicy:
    """Return the language model that the settings name: made here from the seed, of a hub, or of a folder.

    Raises LanguageModelError with the reason when it cannot be had.
    """
    quieten_transformers()
    if config.model == SMALL:
        from grpo.language.model.small_gpt2 import new_small_model
        from grpo.language.text.tokenizer import chess_tokenizer

        own = chess_tokenizer()
        network = new_small_model(config, own, seed=seed)
        return LanguagePolicy(network, own, device, config, origin=ModelOrigin(model=SMALL, commit=""))
    folder = model_folder(config.model)
    commit = hub_commit(config) if folder is None else ""
    found, tokenizer = network_of_files(config.model if folder is None else str(folder), commit)
    return LanguagePolicy(found, tokenizer, device, config, origin=ModelOrigin(model=config.model, commit=commit))


def token_distribution(logits: torch.Tensor, *, temperature: float) -> MoveDistribution:
    """Return the distribution over the whole vocabulary that each row of logits, [rows, vocabulary], stands for.

    Tokens are sampled from it and scored by it: no token is left out, and there is no other temperature.
    """
    log_probs = (logits.float() / temperature).log_softmax(dim=1)
    return MoveDistribution(log_probs=log_probs, is_legal=torch.ones((), dtype=torch.bool, device=logits.device).expand_as(log_probs))

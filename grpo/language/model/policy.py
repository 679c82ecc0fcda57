"""A causal language model and its tokenizer as a policy."""

import copy
import inspect
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import torch
from safetensors import SafetensorError

from grpo.language.model.loading import LanguageModelError, hub_commit, network_of_files, quieten_transformers
from grpo.language.text.tasks import LABEL_BEST, LABEL_EVALUATIONS
from grpo.policy.distribution import MoveDistribution
from grpo.policy.files import IncompatibleError, policy_facts, write_facts
from grpo.policy.policy import refuse_non_finite
from grpo.settings.kinds import LANGUAGE
from grpo.settings.language import SMALL, LanguageConfig, model_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS: Final = "model.safetensors"  # Transformers' file name.
_NUM_REMEMBERED: Final = 50_000  # Cached texts.
_MAX_PADDED_GAP: Final = 0.05  # Largest change of a logit by padding, from rounding.
_ERROR_NUMBER: Final = re.compile(r"\(os error (\d+)\)")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOrigin:
    """Source of the initial weights."""

    model: str  # `language.model`.
    commit: str  # 40 hex digits of the hub; empty for `small` and a folder.


class LanguagePolicy:
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
        """End token and padding token may be equal, because masks mark the padding."""
        from transformers import GenerationConfig

        assert tokenizer.eos_token_id is not None
        assert tokenizer.pad_token_id is not None
        # Without the model's own sampling settings, such as top-k.
        ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
        network.generation_config = GenerationConfig(**ids)  # type: ignore[no-untyped-call]
        network.config.eos_token_id, network.config.pad_token_id = ids["eos_token_id"], ids["pad_token_id"]
        network.to(device)  # type: ignore[arg-type]  # transformers hides the type of torch's method.
        self.network: PreTrainedModel = network.eval()  # type: ignore[no-untyped-call]
        self.tokenizer = tokenizer
        self.end_id, self.pad_id = int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)
        self.device = device
        self.config = config
        self.origin = origin
        self.precision = torch.float32  # Precision of forward passes (autocast). Log-probabilities are float32 in any case.
        # A cache, because tokenization is as slow as a small model's forward pass.
        self._ids = lru_cache(_NUM_REMEMBERED)(lambda text: tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
        self.text_of_few = lru_cache(_NUM_REMEMBERED)(lambda ids: str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)))
        parameters = inspect.signature(self.network.forward).parameters
        self._takes_positions, self._cuts_logits = "position_ids" in parameters, "logits_to_keep" in parameters
        self.takes_cache = "past_key_values" in parameters

    def at_precision(self, precision: torch.dtype) -> Self:
        """Return a copy that shares the network object."""
        other = copy.copy(self)
        other.precision = precision
        return other

    def copied(self) -> Self:
        other = copy.copy(self)
        other.network, other.precision = copy.deepcopy(self.network), torch.float32
        return other

    def with_legal_moves(self, legal_moves: bool) -> Self:
        other = copy.copy(self)
        other.config = self.config.model_copy(update={"legal_moves": legal_moves})
        return other

    def save(self, folder: Path) -> None:
        """Write model and tokenizer in transformers' format, and `facts.json` (settings, origin, names of the files)."""
        existing = set(folder.iterdir())
        self.tokenizer.save_pretrained(folder)
        try:
            self.network.save_pretrained(folder, state_dict=self.network.state_dict())
        except SafetensorError as error:  # A full disk's errno is only in the text.
            if (number := _ERROR_NUMBER.search(str(error))) is None:
                raise
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(folder)) from error
        written = sorted(path.name for path in folder.iterdir() if path not in existing and path.name != _WEIGHTS)
        language = self.config.model_dump(mode="json")
        write_facts(folder, {"kind": LANGUAGE}, [_WEIGHTS, *written], language=language, origin=asdict(self.origin))

    @classmethod
    def load(cls, folder: Path, device: torch.device) -> Self:
        """Load what `save` wrote.

        Raises the errors of `network_of_files`, IncompatibleError for other settings, NonFiniteError if a weight is NaN or infinite.
        """
        quieten_transformers()
        facts = policy_facts(folder)
        try:
            config = LanguageConfig.model_validate(facts["language"])
            origin = ModelOrigin(**facts["origin"])
        except (KeyError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            message = f"{folder}: this code does not know the model's settings ({reason}); use the code that made it"
            raise IncompatibleError(message) from error
        network, tokenizer = network_of_files(str(folder), "")
        refuse_non_finite(network, folder / _WEIGHTS)
        return cls(network, tokenizer, device, config, origin=origin)

    @property
    def vocabulary(self) -> int:
        """Number of logits."""
        return int(self.network.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int | None:
        """Context length in tokens, prompt and answer together; None if the model states none."""
        length = getattr(self.network.config, "max_position_embeddings", None)
        return None if length is None else int(length)

    def tokens(self, texts: Iterable[str]) -> list[tuple[int, ...]]:
        """Return each text's token ids without special tokens."""
        return [self._ids(text) for text in texts]

    def refuse_nonfinite(self) -> None:
        refuse_non_finite(self.network, f"the language model {self.origin.model!r}")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, *, num_last: int, **arguments: Any) -> Any:
        """Return the network's output. The logits are of the last `num_last` columns, or of all columns if the model cannot cut them.

        `input_ids` is [rows, columns], `attention_mask` [rows, cached columns + columns]. Position ids come from the mask, because a
        model's default positions count padding.
        """
        if self._cuts_logits:
            arguments["logits_to_keep"] = num_last
        if self._takes_positions:
            arguments["position_ids"] = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == torch.bfloat16):
            return self.network(input_ids=input_ids, attention_mask=attention_mask, **arguments)


def load_model(config: LanguageConfig, *, seed: int, device: torch.device) -> LanguagePolicy:
    """Return the initial policy that `language.model` names. `seed` determines the weights of `small`.

    Raises the errors of `hub_commit` and `network_of_files`, and LanguageModelError for an unusable network or tokenizer.
    """
    quieten_transformers()
    if config.model == SMALL:
        from grpo.language.model.small_gpt2 import new_small_model
        from grpo.language.text.tokenizer import ChessTokenizer

        chess_tokenizer = ChessTokenizer()
        small = new_small_model(config, chess_tokenizer, seed=seed)
        return LanguagePolicy(small, chess_tokenizer, device, config, origin=ModelOrigin(model=SMALL, commit=""))
    folder = model_folder(config.model)
    commit = hub_commit(config) if folder is None else ""
    network, tokenizer = network_of_files(config.model if folder is None else str(folder), commit)
    policy = LanguagePolicy(network, tokenizer, device, config, origin=ModelOrigin(model=config.model, commit=commit))
    _refuse_unusable(policy)
    if config.legal_moves and config.lists_moves:
        _refuse_unmaskable(policy)
    return policy


@torch.no_grad()
def _refuse_unusable(policy: LanguagePolicy) -> None:
    """Raise LanguageModelError if the network has no key-value cache, or padding changes its logits."""
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    ids = torch.tensor(policy.tokens([LABEL_BEST]), device=policy.device)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (3, 0))
    fault = "has no key-value cache for each token"
    if policy.takes_cache:
        padded = policy.forward(torch.nn.functional.pad(ids, (3, 0), value=policy.pad_id), mask, num_last=1, use_cache=True)
        cache = getattr(padded, "past_key_values", None)
        if cache is not None and not any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers):
            gap = (padded.logits[:, -1] - policy.network(input_ids=ids).logits[:, -1]).abs().max()
            fault = "counts padding as text" if gap > _MAX_PADDED_GAP else ""
    if fault:
        kind = policy.network.config.model_type
        raise LanguageModelError(f"language.model = {policy.origin.model!r}: a {kind} model {fault}; give one such as GPT-2 or Llama")


def _refuse_unmaskable(policy: LanguagePolicy) -> None:
    """Raise LanguageModelError if moves or labels have other tokens in an answer than alone (`MoveMask`)."""
    head, tail = (" e2e4", " d2d4", LABEL_EVALUATIONS), (LABEL_BEST, " e2e4")
    [whole], first, last = policy.tokens(["".join((*head, " 0.35 -1.20", *tail))]), *(sum(policy.tokens(part), ()) for part in (head, tail))
    if whole[: len(first)] != first or whole[-len(last) :] != last:
        raise LanguageModelError(
            f"language.model = {policy.origin.model!r}: the tokenizer splits moves otherwise in an answer than alone, so no mask fits:"
            " set language.lists_moves = false or language.legal_moves = false"
        )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TokenChoices:
    """The tokens that each row of logits allows: the columns of the row's distribution."""

    ids: torch.Tensor  # [rows, columns], padded with 0.
    is_allowed: torch.Tensor  # [rows, columns] bool, False on padding.

    def columns(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the column of each row's token, [rows]. `tokens`, [rows], must be allowed."""
        return ((self.ids == tokens[:, None]) & self.is_allowed).int().argmax(1)


def token_distribution(logits: torch.Tensor, choices: TokenChoices | None, *, temperature: float) -> MoveDistribution:
    """Return the distribution over the allowed tokens for each row of logits [rows, vocabulary]; None allows the whole vocabulary.

    Sampling and loss both use this function.
    """
    if choices is None:
        is_allowed = torch.ones((), dtype=torch.bool, device=logits.device).expand_as(logits)
        return MoveDistribution.from_logits(logits, is_allowed, temperature=temperature)
    return MoveDistribution.from_logits(logits.gather(1, choices.ids), choices.is_allowed, temperature=temperature)

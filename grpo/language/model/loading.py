"""Loading of language models from the Hugging Face hub or a folder. Files are safetensors and JSON, never pickle, which could run code."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import SafetensorError

from grpo.base.errors import PlainError
from grpo.base.files import read_json
from grpo.policy.files import IncompatibleError
from grpo.settings.language import LanguageConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# A usable tokenizer encodes and decodes this text without loss.
_PROBE: Final = "P: 8/5k2/3p4/1PpP4/4r3/2N5/QB4K1/8 b KQkq c3 0 40    M: e2e4 a7a8q    E: 0.35 -1.20    B: e2e4+0.001+"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_DROPOUTS: Final = ("dropout", "pdrop", "drop_rate", "layerdrop")  # Parts of the names of dropout rates.


class LanguageModelError(PlainError, RuntimeError):
    """A language model cannot be loaded or used as a policy."""


def hub_commit(config: LanguageConfig) -> str:
    """Return the commit that `language.revision` names, from the hub or, without a connection, from the local cache.

    If the revision is a complete hash (not checked), or the cached file's path (`snapshots/COMMIT/...`) has none, return the revision.
    Raises LanguageModelError if neither hub nor cache has the model.
    """
    if _COMMIT.fullmatch(config.revision):
        return config.revision
    from transformers.utils.hub import cached_file, extract_commit_hash

    try:
        path = cached_file(config.model, "config.json", **_at(config.revision))
    except (OSError, ValueError) as error:
        raise _error(config.model, config.revision, error) from error
    return extract_commit_hash(path, None) or config.revision


def quieten_transformers() -> None:
    """Switch off transformers' progress bars and warnings. This module checks models itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def network_of_files(name: str, revision: str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """Load a model of the hub (`revision` is its commit) or of a folder (`revision` is empty).

    Raises LanguageModelError unless the files are a complete causal language model with its tokenizer, IncompatibleError if the saved
    tokens differ from this code's chess tokenizer (of `small`).
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        described = AutoConfig.from_pretrained(name, trust_remote_code=False, **_at(revision))
        if getattr(described, "quantization_config", None):
            raise LanguageModelError(f"language.model = {name!r}: its weights are quantized; give the model that is not")
        # Switch dropout off even in training mode, before `from_pretrained` reads the rates.
        for key, value in vars(described).items():
            if isinstance(value, float) and any(part in key for part in _DROPOUTS):
                setattr(described, key, 0.0)
        result: Any = AutoModelForCausalLM.from_pretrained(
            name,
            config=described,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # Refused below.
            **_at(revision),
        )
        tokenizer = _tokenizer(name, revision)
    except (OSError, ValueError, ImportError, SafetensorError, StrictDataclassError) as error:
        raise _error(name, revision, error) from error
    network: PreTrainedModel = result[0]
    loaded: dict[str, Any] = result[1]
    if wrong := sorted([*map(str, loaded["missing_keys"]), *map(str, loaded["mismatched_keys"])]):
        raise LanguageModelError(
            f"language.model = {name!r}: {len(wrong)} weights are missing in its files or have another shape ({wrong[0]}, ...): the files"
            f" are not a causal language model, or do not match their config.json ({described.model_type})"
        )
    embeddings: Any = network.get_input_embeddings()
    ids: list[int] = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    if max(*ids, int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)) >= (size := int(embeddings.weight.shape[0])):
        raise LanguageModelError(
            f"language.model = {name!r}: the tokenizer has ids beyond the model's {size} tokens; use the model's own tokenizer"
        )
    return network, tokenizer


def _tokenizer(name: str, revision: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    from grpo.language.text.tokenizer import CHESS_TOKENS, ChessTokenizer

    if (tokens := Path(name) / CHESS_TOKENS).is_file():
        chess_tokenizer = ChessTokenizer()
        if read_json(tokens) != chess_tokenizer.convert_ids_to_tokens(list(range(len(chess_tokenizer)))):
            raise IncompatibleError(f"{name}: the tokens differ from this code's chess tokenizer; use the code that made the model")
        return chess_tokenizer
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **_at(revision))
    if tokenizer.eos_token_id is None:
        raise LanguageModelError(f"language.model = {name!r}: the tokenizer has no end-of-text token, so no answer would end; add one")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    tokenizer.chat_template = None  # Unused; several would be saved in a folder.
    ids: list[int] = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    decoded = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)) if ids else ""
    if decoded.strip() != _PROBE:
        # Without tokenizer files, transformers makes an empty tokenizer, which fails here.
        raise LanguageModelError(
            f"language.model = {name!r}: the tokenizer is missing or loses text ({_PROBE[:24]!r}... comes back as {decoded[:24]!r}...);"
            " save the tokenizer into the model's folder with `save_pretrained`"
        )
    return tokenizer


def _at(revision: str) -> dict[str, Any]:
    return {"revision": revision} if revision else {}


def _error(name: str, revision: str, error: Exception) -> LanguageModelError:
    # Cut off transformers' list of all known model types.
    reason = re.sub(r":\s+", ": ", str(error)).strip().partition("\n")[0].partition(" Model type should be one of")[0].rstrip(".")
    what = f"language.model = {name!r}" + (f" at language.revision = {revision!r}" if revision else "")
    return LanguageModelError(
        f"{what} cannot be loaded: {reason}. Give the hub's name of a causal language model with safetensors, or a folder that"
        " `save_pretrained` wrote. language.model = 'small' needs no hub."
    )

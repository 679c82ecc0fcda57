"""Networks and tokenizers of language models, from a hub or a folder: by safetensors and JSON alone, never by pickle."""

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

_PROBE: Final = "P: 8/5k2/3p4/1PpP4/4r3/2N5/QB4K1/8 b KQkq c3 0 40    M: e2e4 a7a8q    E: 0.35 -1.20    B: e2e4+0.001+"
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_DROPOUTS: Final = ("dropout", "pdrop", "drop_rate", "layerdrop")


class LanguageModelError(PlainError, RuntimeError):
    """A language model cannot be loaded, or is none that could be a policy."""


def hub_commit(config: LanguageConfig) -> str:
    """Return the commit that a hub's name and revision stand for now, so that all files are of one.

    A revision that is a whole commit is returned as it is: the hub need not be asked. Without the hub it is that of the hub's cache.

    Raises LanguageModelError when neither hub nor cache has the model.
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
    """Let transformers draw no bars and give no advice: what matters of it is checked here, and said plainly."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def network_of_files(name: str, revision: str) -> tuple["PreTrainedModel", "PreTrainedTokenizerBase"]:
    """Return what a hub's name at a commit, or a folder, has; raises LanguageModelError when that is no language model of one piece."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        described = AutoConfig.from_pretrained(name, trust_remote_code=False, **_at(revision))
        # Before the modules are made: dropout would make the trained policy another one than the sampled.
        for key, value in vars(described).items():
            if isinstance(value, float) and any(part in key for part in _DROPOUTS):
                setattr(described, key, 0.0)
        found: Any = AutoModelForCausalLM.from_pretrained(
            name,
            config=described,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            **_at(revision),
        )
        tokenizer = _tokenizer(name, revision)
    except (OSError, ValueError, SafetensorError) as error:
        raise _error(name, revision, error) from error
    network: PreTrainedModel = found[0]
    loaded: dict[str, Any] = found[1]
    if wrong := sorted([*map(str, loaded["missing_keys"]), *map(str, loaded["mismatched_keys"])]):
        raise LanguageModelError(
            f"language.model = {name!r}: {len(wrong)} weights are not in its files or have another shape ({wrong[0]}, ...): it is no causal"
            f" language model, or another one than its config.json says ({described.model_type})"
        )
    embeddings: Any = network.get_input_embeddings()
    ids: list[int] = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    if max(*ids, int(tokenizer.eos_token_id), int(tokenizer.pad_token_id)) >= (size := int(embeddings.weight.shape[0])):
        raise LanguageModelError(
            f"language.model = {name!r}: its tokenizer has ids beyond the model's {size} tokens: they do not belong together"
        )
    return network, tokenizer


def _tokenizer(name: str, revision: str) -> "PreTrainedTokenizerBase":
    """Return the tokenizer, which pads on the left, with its end when it has no padding; refuse one that cannot write chess."""
    from transformers import AutoTokenizer

    from grpo.language.text.tokenizer import CHESS_TOKENS, chess_tokenizer

    if (tokens := Path(name) / CHESS_TOKENS).is_file():
        own = chess_tokenizer()
        if read_json(tokens) != own.convert_ids_to_tokens(list(range(len(own)))):
            raise IncompatibleError(f"{name}: its tokens are not those of this code's chess tokenizer; use the code that made it")
        return own
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(name, trust_remote_code=False, **_at(revision))
    if tokenizer.eos_token_id is None:
        raise LanguageModelError(
            f"language.model = {name!r}: its tokenizer has no end-of-text token, without which no answer ends; give it one"
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    ids: list[int] = tokenizer(_PROBE, add_special_tokens=False)["input_ids"]
    back = str(tokenizer.decode(ids, clean_up_tokenization_spaces=False)) if ids else ""
    if back.strip() != _PROBE:
        # transformers makes an empty tokenizer, without a word, where a folder has none.
        raise LanguageModelError(
            f"language.model = {name!r}: its tokenizer is missing or loses text ({_PROBE[:24]!r}... comes back as {back[:24]!r}...); put"
            " the files beside the model that the tokenizer's `save_pretrained` writes"
        )
    return tokenizer


def _at(revision: str) -> dict[str, Any]:
    return {"revision": revision} if revision else {}


def _error(name: str, revision: str, error: Exception) -> LanguageModelError:
    reason = str(error).strip().partition("\n")[0].partition(" Model type should be one of")[0]
    what = f"language.model = {name!r}" + (f" at language.revision = {revision!r}" if revision else "")
    return LanguageModelError(
        f"{what} cannot be loaded: {reason} Give a causal language model with safetensors, by a hub's name, or by the folder that"
        " `save_pretrained` wrote; without a hub, language.model = 'small' is made here."
    )

"""The files that a policy is on disk, known without torch: who only names or checks a policy need not wait for its import."""

from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, read_json, sha256_text
from grpo.board.actions import ACTIONS

NETWORK: Final = "network"
LANGUAGE: Final = "language"
"""The kinds of policies, as `policy.kind` names them."""
WEIGHTS: Final = "weights.safetensors"
"""Of a network."""
LANGUAGE_WEIGHTS: Final = "model.safetensors"
"""Of a language model, as transformers names it."""
POLICY: Final = "policy.json"
CHESS_TOKENS: Final = "chess_tokens.json"
"""Of a language model whose tokenizer is ours, which transformers does not know."""
_LANGUAGE_CONFIG: Final = "config.json"
# What transformers writes beside the weights of a causal model, and the vocabularies of its tokenizers.
_LANGUAGE_FILES: Final = (
    _LANGUAGE_CONFIG,
    "generation_config.json",
    CHESS_TOKENS,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
)
ACTION_TABLE_HASH: Final = sha256_text(" ".join(move.uci() for move in ACTIONS))


class IncompatibleError(PlainError, RuntimeError):
    """A policy was made with another action table."""


def missing_files(folder: Path) -> list[str]:
    """Return which files a folder lacks to be a policy: of a language model where it has one of its files, else of a network."""
    is_language = any((folder / name).is_file() for name in (LANGUAGE_WEIGHTS, _LANGUAGE_CONFIG))
    wanted = (LANGUAGE_WEIGHTS, _LANGUAGE_CONFIG, POLICY) if is_language else (WEIGHTS, POLICY)
    return [name for name in wanted if not (folder / name).is_file()]


def is_policy(folder: Path) -> bool:
    """Return whether a policy's files are in this folder: of a network or of a language model."""
    return not missing_files(folder)


def policy_kind(folder: Path) -> str:
    """Return `NETWORK` or `LANGUAGE`; raises as `policy_facts` does."""
    kind = policy_facts(folder)["policy"].get("kind", NETWORK)  # Policies that do not say were made before there were two kinds.
    if kind not in (NETWORK, LANGUAGE):
        raise IncompatibleError(f"{folder}: a policy of kind {kind!r}, which this code does not know; use the code that made it")
    return str(kind)


def weights_file(folder: Path) -> Path:
    """Return the file with a policy's weights; raises as `policy_facts` does."""
    return folder / (WEIGHTS if policy_kind(folder) == NETWORK else LANGUAGE_WEIGHTS)


def policy_file_names(folder: Path) -> list[str]:
    """Return the names of all files that are the policy, of those in its folder, which may hold a whole checkpoint; sorted.

    Raises as `policy_facts` does.
    """
    if policy_kind(folder) == NETWORK:
        return sorted((POLICY, WEIGHTS))
    names = (POLICY, LANGUAGE_WEIGHTS, *_LANGUAGE_FILES)
    return sorted(name for name in names if (folder / name).is_file())


def policy_facts(folder: Path) -> dict[str, Any]:
    """Return what is written beside a policy's weights.

    Raises IncompatibleError when this code has another action table, CorruptError when the file does not say.
    """
    try:
        facts = dict(read_json(folder / POLICY))
        table = str(facts["action_table"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{folder / POLICY} is missing or unreadable ({error})") from None
    if table != ACTION_TABLE_HASH:
        raise IncompatibleError(
            f"{folder}: action_table is {table[:12]}, this code's is {ACTION_TABLE_HASH[:12]}; use the code that made it"
        )
    return facts

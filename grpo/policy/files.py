"""Files of a policy on disk: names, kind and compatibility checks; needs no import of torch."""

import shutil
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, read_json, sha256_text
from grpo.board.actions import ACTIONS

NETWORK: Final = "network"
LANGUAGE: Final = "language"
"""The kinds of policies: the values of `policy.kind`."""
WEIGHTS: Final = "policy.safetensors"
"""Weights of a chess network."""
LANGUAGE_WEIGHTS: Final = "model.safetensors"
"""Weights of a language model, under transformers' name."""
FACTS: Final = "facts.json"
"""What a policy is: its settings and the hash of its action table."""
CHESS_TOKENS: Final = "chess_tokens.json"
"""Vocabulary of our own chess tokenizer, for language models that use it."""
_LANGUAGE_CONFIG: Final = "config.json"
# Files that transformers writes beside the weights of a causal LM, and the vocabularies of its tokenizers.
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
    """A policy was made with another action table or by another version of the code."""


def missing_files(folder: Path) -> list[str]:
    """Return the files that a folder lacks to be a policy: a language model if it has one of its files, else a network."""
    is_language = any((folder / name).is_file() for name in (LANGUAGE_WEIGHTS, _LANGUAGE_CONFIG))
    required = (LANGUAGE_WEIGHTS, _LANGUAGE_CONFIG, FACTS) if is_language else (WEIGHTS, FACTS)
    return [name for name in required if not (folder / name).is_file()]


def is_policy(folder: Path) -> bool:
    """Return whether the folder has all files of a policy of either kind."""
    return not missing_files(folder)


def policy_kind(folder: Path) -> str:
    """Return `NETWORK` or `LANGUAGE`; raises the errors of `policy_facts`."""
    kind = policy_facts(folder)["policy"]["kind"]
    if kind not in (NETWORK, LANGUAGE):
        raise IncompatibleError(f"{folder}: a policy of kind {kind!r}, which this code does not know; use the code that made it")
    return str(kind)


def weights_file(folder: Path) -> Path:
    """Return the file with a policy's weights; raises the errors of `policy_facts`."""
    return folder / (WEIGHTS if policy_kind(folder) == NETWORK else LANGUAGE_WEIGHTS)


def policy_file_names(folder: Path) -> list[str]:
    """Return the sorted names of the policy's files in a folder, which may also contain the rest of a checkpoint.

    Raises the errors of `policy_facts`.
    """
    if policy_kind(folder) == NETWORK:
        return sorted((FACTS, WEIGHTS))
    names = (FACTS, LANGUAGE_WEIGHTS, *_LANGUAGE_FILES)
    return sorted(name for name in names if (folder / name).is_file())


def copy_policy(folder: Path, target: Path) -> None:
    """Copy the policy's files of a folder, and nothing else that lies there, into a new folder."""
    target.mkdir()
    for name in policy_file_names(folder):
        shutil.copy(folder / name, target / name)


def policy_facts(folder: Path) -> dict[str, Any]:
    """Return the content of `facts.json`.

    Raises IncompatibleError if this code has another action table, CorruptError if the file is missing or unreadable.
    """
    try:
        facts = dict(read_json(folder / FACTS))
        table, _ = str(facts["action_table"]), facts["policy"]["kind"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{folder / FACTS} is missing or unreadable ({error}): copy it again from where the policy was made") from None
    if table != ACTION_TABLE_HASH:
        raise IncompatibleError(
            f"{folder}: action_table is {table[:12]}, this code's is {ACTION_TABLE_HASH[:12]}; use the code that made it"
        )
    return facts

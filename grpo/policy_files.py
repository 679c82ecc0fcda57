"""The files that a policy is on disk, known without torch: who only names or checks a policy need not wait for its import."""

from pathlib import Path
from typing import Any, Final

from grpo.actions import ACTIONS
from grpo.content import CorruptError, read_json, sha256_text
from grpo.errors import PlainError

WEIGHTS: Final = "weights.safetensors"
POLICY: Final = "policy.json"
ACTION_TABLE_HASH: Final = sha256_text(" ".join(move.uci() for move in ACTIONS))


class IncompatibleError(PlainError, RuntimeError):
    """A policy was made with another action table."""


def is_policy(folder: Path) -> bool:
    """Return whether a policy's files are in this folder."""
    return all((folder / name).is_file() for name in (WEIGHTS, POLICY))


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

"""A policy's files on disk: `facts.json` has the policy's settings and the names of its other files.

The action table numbers all moves of chess; a network needs the table of its training. Functions that read `facts.json` raise the errors of
`policy_facts`.
"""

import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import CorruptError, read_json, sha256_text, write_json
from grpo.settings.kinds import KINDS

WEIGHTS: Final = "policy.safetensors"
"""Weights file of a chess network. The library `transformers` names a language model's weights file."""
FACTS: Final = "facts.json"


class IncompatibleError(PlainError, RuntimeError):
    """Files of a policy that this code, this kind of policy or this run cannot use."""


@cache
def action_table_hash() -> str:
    from grpo.board.actions import ACTIONS

    return sha256_text(" ".join(move.uci() for move in ACTIONS))


def checkpoint_name(step: int) -> str:
    return f"step-{step:08d}"


def write_facts(folder: Path, policy: Mapping[str, Any], files: Sequence[str], **more: Any) -> None:
    """`policy`: settings `[policy]`. `files`: names of the other files, the weights file first."""
    write_json(folder / FACTS, {"policy": policy, "files": files, "action_table": action_table_hash(), **more})


def policy_facts(folder: Path) -> dict[str, Any]:
    """Return the content of `facts.json`.

    Raises IncompatibleError for another action table or an unknown kind, CorruptError for a missing, unreadable or incomplete file.
    """
    try:
        facts = dict(read_json(folder / FACTS))
        table, kind = str(facts["action_table"]), facts["policy"]["kind"]
        facts["files"] = [Path(name).name for name in facts["files"]]  # No path may lead out of the folder.
        facts["files"][0]  # Raises IndexError for an empty list.
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CorruptError(f"{folder / FACTS} is missing or unreadable ({error}): copy it again from its origin") from None
    if table != action_table_hash():
        raise IncompatibleError(
            f"{folder}: action_table is {table[:12]}, this code's is {action_table_hash()[:12]}; use the code that made it"
        )
    if kind not in KINDS:
        raise IncompatibleError(f"{folder}: a policy of kind {kind!r}, which this code does not know; use the code that made it")
    return facts


def policy_kind(folder: Path) -> str:
    """Return a key of `KINDS`."""
    return str(policy_facts(folder)["policy"]["kind"])


def policy_file_names(folder: Path) -> list[str]:
    """Return the names of the policy's files. The folder may hold others, such as a checkpoint's."""
    return [FACTS, *policy_facts(folder)["files"]]


def missing_files(folder: Path) -> list[str]:
    """Return the missing files' names. If `facts.json` is missing, return only its name."""
    names = policy_file_names(folder) if (folder / FACTS).is_file() else [FACTS]
    return [name for name in names if not (folder / name).is_file()]


def is_policy(folder: Path) -> bool:
    return not missing_files(folder)


def weights_file(folder: Path) -> Path:
    return folder / str(policy_facts(folder)["files"][0])


def copy_policy(folder: Path, target: Path) -> None:
    """Copy the policy's files into the new folder `target`. Raises FileExistsError."""
    target.mkdir()
    for name in policy_file_names(folder):
        shutil.copy(folder / name, target / name)

"""Publishes an exported folder on the Hugging Face hub, and writes the metadata at the top of its card."""

import json
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from grpo.base.errors import PlainError
from grpo.reading.web import hub_address, hub_token

RepoKind = Literal["model", "dataset"]

OWN_LICENCE, OTHER_LICENCE = "mit", "other"
"""Of what is made of nothing but this project's code and its engine games, and of what others have rights in."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_WHY: Final = {
    401: "it does not accept the token; make one at {hub}/settings/tokens with the right to write",
    403: "the token has no right to write to {name}; make one with the right to write, or name a repository of your own",
    404: "there is no {name}, or the token may not see it; name a repository of your own",
    409: "somebody wrote to {name} at the same moment",
    413: "a file is too large for it",
    429: "it has had too many requests; wait some minutes",
}


class PushError(PlainError, RuntimeError):
    """The hub has not taken an exported folder; the message says why, that the folder is kept, and which command goes on."""


def require_hub(name: str) -> None:
    """Check what can be known to fail before an export: the repository's name, the package, the token. Raises PushError."""
    if not _NAME.fullmatch(name):
        raise PushError(f"--push {name}: not the name of a repository; give USER/NAME, of letters, digits, '-', '_' and '.'")
    if find_spec("huggingface_hub") is None:
        raise PushError(
            "--push needs the package huggingface_hub, which is not installed; install the extra: pip install '.[language]', or leave"
            " --push out, and upload the folder from another environment"
        )
    if not hub_token():
        raise PushError(
            f"--push needs a token of {hub_address()} with the right to write: set HF_TOKEN, or log in once by `hf auth login`; nothing"
            " was exported"
        )


def push(folder: Path, name: str, kind: RepoKind, *, is_private: bool, again: str) -> str:
    """Create a repository if it is not there, upload a folder, and return the repository's address.

    A second call sends only what the repository does not have.

    Args:
        folder: the exported folder; files of the repository that it does not have stay.
        name: `USER/NAME`.
        kind: of repository.
        is_private: whether a new repository is private.
        again: the command that goes on after a failure, for its message.

    Raises PushError if the hub cannot be reached or refuses.
    """
    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    disable_progress_bars()
    hub = hub_address()
    api = HfApi(endpoint=hub, token=hub_token())
    try:
        address = api.create_repo(name, repo_type=kind, private=is_private or None, exist_ok=True)
        api.upload_folder(repo_id=name, repo_type=kind, folder_path=folder, commit_message=f"Export of chess-grpo: {folder.name}")
    # The library's HTTP client is not always the same: `errors` has the base of its exceptions. RuntimeError is what hf_xet, which uploads
    # large files, raises when its connection breaks.
    except (errors.HTTPError, OSError, RuntimeError, ValueError) as error:  # type: ignore[attr-defined]
        raise PushError(
            f"{hub} did not take {name}: {_why(error, name, hub)}. The exported folder is whole and stays: {folder}. Go on with: {again}"
        ) from None
    return str(address)


def _why(error: Exception, name: str, hub: str) -> str:
    """Return the reason in words that hold no token: of a message only the server's own first line."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in _WHY:
        return _WHY[status].format(name=name, hub=hub)
    if status is not None:
        said = str(getattr(error, "server_message", None) or "").strip().split("\n")[0][:200]
        return f"it answered {status}{f' ({said})' if said else ''}"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "true", "yes"):
        return "HF_HUB_OFFLINE is set; unset it"
    if isinstance(error, ValueError):
        last_line = (str(error).strip().splitlines() or [""])[-1][:200]
        about = "it refuses the metadata at the top of README.md, correct them" if "metadata" in str(error) else "its answer is unknown"
        return f"{about} ({last_line})"
    return f"the connection broke ({type(error).__name__})"


def front_matter(facts: Mapping[str, Any]) -> str:
    """Return metadata as the YAML block at the top of a card; empty values are left out.

    >>> print(front_matter({"license": "mit", "tags": ["chess"], "base_model": ""}), end="")
    ---
    license: "mit"
    tags: ["chess"]
    ---
    <BLANKLINE>
    """
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in facts.items() if value not in ("", [], None))
    return f"---\n{lines}---\n\n"


def licence_facts(licence: str) -> dict[str, str]:
    """Return a licence as a card's metadata; the hub asks for a name of one that it does not know."""
    return {"license": licence} | ({"license_name": "see-the-card"} if licence == OTHER_LICENCE else {})

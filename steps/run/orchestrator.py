"""Checks of Metaflow's configuration and metadata service, whose faults Metaflow reports as tracebacks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError
from steps.run.machine import require_home

_SECONDS: Final = (2.0, 3.0)  # To connect, and to answer.
_MAX_REPLY: Final = 200  # Characters in a message.


class OrchestratorError(PlainError, RuntimeError):
    """Metaflow cannot start."""


def configuration(environment: Mapping[str, str]) -> str:
    """Return the path of Metaflow's configuration file, or a note that there is none.

    Raises OrchestratorError for a file that is unreadable or no JSON object, and for a METAFLOW_PROFILE without a file.
    """
    require_home()
    home = Path(environment.get("METAFLOW_HOME", "~/.metaflowconfig")).expanduser()
    profile = environment.get("METAFLOW_PROFILE")
    file = home / (f"config_{profile}.json" if profile else "config.json")
    try:
        if not file.exists():
            if not profile:
                return "no configuration: runs are kept in the nearest .metaflow, from the working directory upward"
            profiles = ", ".join(sorted(path.stem.removeprefix("config_") for path in home.glob("config_*.json"))) or "none"
            raise OrchestratorError(
                f"METAFLOW_PROFILE={profile}: there is no {file}; unset METAFLOW_PROFILE, or set it to a profile of {home} ({profiles})"
            )
        if not isinstance(json.loads(file.read_text(encoding="utf-8")), dict):
            raise OrchestratorError(f"{file} is not a JSON object: correct it, or let `metaflow configure aws` write it")
    except (OSError, ValueError) as error:
        raise OrchestratorError(f"{file} cannot be read ({error}): correct it, or let `metaflow configure aws` write it") from None
    return str(file)


def service() -> str:
    """Return a line: where Metaflow keeps metadata. Raises OrchestratorError if a service has no address or fails."""
    import requests
    from metaflow import metaflow_config

    if metaflow_config.DEFAULT_METADATA != "service":
        return f"metadata: {metaflow_config.DEFAULT_METADATA}"
    address, remedy = metaflow_config.SERVICE_URL, "or set METAFLOW_DEFAULT_METADATA=local"
    if not address:
        raise OrchestratorError(f"METAFLOW_DEFAULT_METADATA is service and METAFLOW_SERVICE_URL is not set: set it, {remedy}")
    try:
        response = requests.get(f"{address.rstrip('/')}/ping", headers=metaflow_config.SERVICE_HEADERS, timeout=_SECONDS)
    except (requests.RequestException, ValueError) as error:  # A ValueError for some wrong host names, such as `a..b`.
        kind = type(error).__name__
        raise OrchestratorError(
            f"Metaflow's metadata service {address} does not answer ({kind}): correct METAFLOW_SERVICE_URL, {remedy}"
        ) from None
    if not response.ok:
        reply = " ".join(response.text.split())[:_MAX_REPLY]
        raise OrchestratorError(
            f"Metaflow's metadata service {address} answers {response.status_code} ({reply}): correct METAFLOW_SERVICE_URL or"
            f" METAFLOW_SERVICE_AUTH_KEY, {remedy}"
        )
    return f"metadata: {address}"

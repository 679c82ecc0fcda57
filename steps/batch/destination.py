"""Place where tasks run (AWS Batch, Kubernetes or this machine); environment variables, queue and image of tasks on other machines."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from grpo.base.errors import PlainError
from grpo.settings.tree import TaskResources
from steps.run.commands import option_values
from steps.run.machine import BATCH_JOB, LOOPBACK, MIRROR, POD, SECRETS, STORE, sqlite_file, without_secrets
from steps.run.processes import LAUNCHER, PLACES
from steps.run.versions import CODE

GPU_QUEUE: Final = "CHESS_GRPO_BATCH_GPU_QUEUE"
GPU_IMAGE: Final = "CHESS_GRPO_BATCH_GPU_IMAGE"
_TRACKING: Final = "MLFLOW_TRACKING_URI"
_MIRROR: Final = "WANDB_BASE_URL"
# Variables that tasks get from the launcher.
_BY_VALUE: Final = (
    *(_TRACKING, "MLFLOW_TRACKING_INSECURE_TLS", STORE, SECRETS, CODE),
    *(MIRROR, _MIRROR, "WANDB_ENTITY", "WANDB_PROJECT"),
)
BY_NAME_ONLY: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
"""Variables with secrets. A task gets them from AWS Secrets Manager, never from the launcher."""


class DestinationError(PlainError, RuntimeError):
    """Tasks cannot run on other machines."""


def place_of(arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return where a command's tasks run: one of `PLACES`, or "" for this machine.

    A container's variable (`BATCH_JOB` or `POD`) shows the place, otherwise the command: `--with PLACE`, `argo-workflows` (Kubernetes), or
    `PLACE step NAME`, Metaflow's internal command for one task.
    """
    for variable, place in ((BATCH_JOB, "batch"), (POD, "kubernetes")):
        if variable in environment:
            return place
    names = [*option_values(arguments), *(name for name, command in itertools.pairwise(arguments) if command == "step")]
    named_places = {name.partition(":")[0] for name in names} | ({"kubernetes"} if "argo-workflows" in arguments else set())
    return next((place for place in PLACES if place in named_places), "")


def reachable(environment: Mapping[str, str]) -> str:
    """Return the tracking store's address, without contacting the store.

    Raises DestinationError if other machines cannot reach the address, or if the address or WANDB_BASE_URL has a user, password or query.
    """
    address = environment.get(_TRACKING, "")
    if reason := _not_reached(address):
        raise DestinationError(
            f"{_TRACKING}: {reason}, but the tasks run on other machines: set it to the address of an MLflow server that they"
            " can reach (docs/aws.md)"
        )
    for name in (_TRACKING, _MIRROR):
        if without_secrets(value := environment.get(name, "")) != value:
            raise DestinationError(
                f"{name} holds a name, password or query, which each job's description would show. Leave it out, store the needed ones of"
                f" {', '.join(BY_NAME_ONLY)} in AWS Secrets Manager, and list the secrets' names in {SECRETS} (docs/aws.md)"
            )
    return address


def _not_reached(address: str) -> str:
    """Return why other machines cannot reach a tracking store, or ""."""
    if not address:
        return "it is not set"
    if sqlite_file(address) is not None or "://" not in address:
        return f"{without_secrets(address)} is a file of this machine"
    return f"{without_secrets(address)} is a port of this machine" if urlsplit(address).hostname in LOOPBACK else ""


def forwarded(environment: Mapping[str, str], task: TaskResources, place: str) -> dict[str, str]:
    """Return a task's environment variables. Call `reachable` first, because it refuses addresses with secrets."""
    facts = {"CHESS_GRPO_DEVICE": "cuda" if task.num_gpus else "cpu", "CHESS_GRPO_THREADS": str(task.num_cpus), LAUNCHER: place}
    return {name: environment[name] for name in _BY_VALUE if environment.get(name)} | facts


def batch_place(task: TaskResources, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `queue` and `image` of a GPU task, if set. Otherwise Metaflow's configuration applies."""
    place = {"queue": environment.get(GPU_QUEUE), "image": environment.get(GPU_IMAGE)} if task.num_gpus else {}
    return {name: value for name, value in place.items() if value}


def secret_names(environment: Mapping[str, str]) -> list[str]:
    return [name.strip() for name in environment.get(SECRETS, "").split(",") if name.strip()]

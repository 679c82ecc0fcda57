"""Whether the flow's tasks run on AWS Batch, and which environment variables they are given there.

A container has an empty disk and none of the launcher's variables: it gets only the variables that are named here.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from grpo.base.errors import PlainError
from grpo.settings.tree import TaskResources
from steps.run.commands import option_values
from steps.run.machine import LOOPBACK, MIRROR, SECRETS, STORE, sqlite_file, without_secrets
from steps.run.versions import CODE

GPU_QUEUE: Final = "CHESS_GRPO_BATCH_GPU_QUEUE"
GPU_IMAGE: Final = "CHESS_GRPO_BATCH_GPU_IMAGE"
"""Variables: queue and image of tasks that request a GPU."""
_TRACKING: Final = "MLFLOW_TRACKING_URI"
_MIRROR: Final = "WANDB_BASE_URL"
_BY_VALUE: Final = (
    *(_TRACKING, "MLFLOW_TRACKING_INSECURE_TLS", STORE, SECRETS, CODE),
    *(MIRROR, _MIRROR, "WANDB_ENTITY", "WANDB_PROJECT"),
)
BY_NAME_ONLY: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
"""Variables with secrets: a task gets them from AWS Secrets Manager."""


class DestinationError(PlainError, RuntimeError):
    """Something that tasks on AWS Batch need is not set; the message says what to set."""


def sends_to_batch(arguments: Sequence[str]) -> bool:
    """Return whether this command sends tasks to AWS Batch: with `--with batch`, or as the launcher's process of one, `batch step NAME`."""
    given = [*option_values(arguments), *(name for name, command in itertools.pairwise(arguments) if command == "step")]
    return any(value.partition(":")[0] == "batch" for value in given)


def reachable(environment: Mapping[str, str]) -> str:
    """Return the address of the tracking store.

    Raises DestinationError when tasks could not reach the tracking store, and for a secret that everybody could see.
    """
    address = environment.get(_TRACKING, "")
    if was := _not_reached(address):
        raise DestinationError(
            f"{_TRACKING}: {was}, but tasks on AWS Batch run on other machines: set it to the address of an MLflow server that they reach"
            " (docs/aws.md)"
        )
    for name in (_TRACKING, _MIRROR):
        if without_secrets(given := environment.get(name, "")) != given:
            raise DestinationError(
                f"{name} holds a name or password, which would be visible in each job's description: leave it out, and name secrets of"
                f" AWS Secrets Manager that hold {', '.join(BY_NAME_ONLY)} in {SECRETS} (docs/aws.md)"
            )
    return address


def _not_reached(address: str) -> str:
    """Return why no other machine can reach a tracking store; empty when it can."""
    if not address:
        return "it is not set"
    if sqlite_file(address) is not None or "://" not in address:
        return f"{without_secrets(address)} is a file of this machine"
    return f"{without_secrets(address)} is a port of this machine" if urlsplit(address).hostname in LOOPBACK else ""


def forwarded(environment: Mapping[str, str], task: TaskResources) -> dict[str, str]:
    """Return the environment variables of a task on Batch: addresses, names of secrets, and the device; never a secret."""
    facts = {"CHESS_GRPO_DEVICE": "cuda" if task.num_gpus else "cpu", "CHESS_GRPO_THREADS": str(task.num_cpus)}
    return {name: environment[name] for name in _BY_VALUE if environment.get(name)} | facts


def batch_place(task: TaskResources, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `queue` and `image` of a task, each only where it is not the one that Metaflow is configured with."""
    place = {"queue": environment.get(GPU_QUEUE), "image": environment.get(GPU_IMAGE)} if task.num_gpus else {}
    return {name: value for name, value in place.items() if value}


def secret_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets that tasks on Batch receive."""
    return [name.strip() for name in environment.get(SECRETS, "").split(",") if name.strip()]

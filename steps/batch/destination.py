"""Where the flow's tasks run: here, or in containers that AWS Batch and others start; and what of this machine they are told.

A container has an empty disk, no network folder and none of the launcher's variables: what a task needs is named here, or it is not there.
"""

import itertools
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from grpo.base.errors import PlainError
from grpo.settings.tree import TaskResources
from steps.runtime.machine import MIRROR, SECRETS, SHARED, is_container, sqlite_file

DECORATORS: Final = ("batch", "kubernetes")
"""Destinations by `--with`."""
DEPLOYMENTS: Final = ("argo-workflows", "step-functions", "airflow", "kubeflow-pipelines")
"""Destinations by command."""
_LAUNCHES: Final = ("run", "resume", *DEPLOYMENTS)
_TRACKING: Final = "MLFLOW_TRACKING_URI"
_MIRROR: Final = "WANDB_BASE_URL"
_BY_VALUE: Final = (_TRACKING, "MLFLOW_TRACKING_INSECURE_TLS", SHARED, SECRETS, MIRROR, _MIRROR, "WANDB_ENTITY", "WANDB_PROJECT")
_BY_NAME_ONLY: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
_DATASTORE: Final = "METAFLOW_DEFAULT_DATASTORE"


class DestinationError(PlainError, RuntimeError):
    """What containers need is not there; the message says what to set."""


def destination(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return where tasks of this command run: a name of DECORATORS or DEPLOYMENTS, `container` inside of one, None for this machine."""
    if is_container(environment):
        return "container"
    given = [value for option, value in itertools.pairwise(arguments) if option == "--with"]
    given += [option.removeprefix("--with=") for option in arguments if option.startswith("--with=")]
    names = [name for name in (value.partition(":")[0] for value in given) if name in DECORATORS]
    return next(iter([*names, *(name for name in DEPLOYMENTS if name in arguments)]), None)


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Set what Metaflow reads when it is imported, so that `run --with batch` needs no further options; return notes for the user.

    Raises DestinationError before any work when tasks in containers could not reach the tracking store.
    """
    target = destination(arguments, environment)
    if target in (None, "container"):
        return []
    # Set before Metaflow's import, which reads it once; tasks elsewhere cannot read a folder of this machine.
    environment.setdefault(_DATASTORE, "s3")
    if not any(command in arguments for command in _LAUNCHES):
        return []
    address = environment.get(_TRACKING, "")
    if not address or sqlite_file(address) is not None or "://" not in address:
        was = f"{address} is a file of this machine" if address else "it is not set"
        raise DestinationError(
            f"{_TRACKING}: {was}, and tasks on {target} run on others: set it to the address of an MLflow server that they reach"
            " (infra/stack.yaml has one; docs/aws.md)"
        )
    for name, keys in ((_TRACKING, f"{_BY_NAME_ONLY[0]} and {_BY_NAME_ONLY[1]}"), (_MIRROR, _BY_NAME_ONLY[-1])):
        if urlsplit(given := environment.get(name, "")).password or urlsplit(given).username:
            raise DestinationError(
                f"{name} holds a name or password, which would stand in each job's description: leave them out of it, and give them by"
                f" {SECRETS}, the names of secrets in AWS Secrets Manager that hold {keys} (docs/aws.md)"
            )
    kept = [name for name in _BY_NAME_ONLY if name in environment]
    if kept and not environment.get(SECRETS):
        return [f"note: {', '.join(kept)} of this machine are not sent to {target}; name secrets that hold them in {SECRETS} (docs/aws.md)"]
    return []


def forwarded(environment: Mapping[str, str], task: TaskResources) -> dict[str, str]:
    """Return the variables that a task in a container is given: addresses, names of secrets, and the device; never a secret."""
    facts = {"CHESS_GRPO_DEVICE": "cuda" if task.num_gpus else "cpu", "CHESS_GRPO_THREADS": str(task.num_cpus)}
    return {name: environment[name] for name in _BY_VALUE if environment.get(name)} | facts


def secret_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets that tasks in containers are to be given."""
    return [name.strip() for name in environment.get(SECRETS, "").split(",") if name.strip()]

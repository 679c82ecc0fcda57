"""Where the flow's tasks run: on this machine or in containers (AWS Batch, Kubernetes), and which environment variables are forwarded.

A container has an empty disk, no network folder and none of the launcher's variables: it gets only the variables that are named here.
"""

import itertools
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

from grpo.base.errors import PlainError
from grpo.settings.tree import TaskResources
from steps.runtime.machine import MIRROR, NOTIFY, SECRETS, SHARED, holds_secret, is_container, sqlite_file, without_secrets

DECORATORS: Final = ("batch", "kubernetes")
"""Destinations given by `--with`."""
DEPLOYMENTS: Final = ("argo-workflows", "step-functions", "airflow", "kubeflow-pipelines")
"""Destinations given by a command."""
_LAUNCHES: Final = ("run", "resume", *DEPLOYMENTS)
_TRACKING: Final = "MLFLOW_TRACKING_URI"
_MIRROR: Final = "WANDB_BASE_URL"
_BY_VALUE: Final = (_TRACKING, "MLFLOW_TRACKING_INSECURE_TLS", SHARED, SECRETS, MIRROR, _MIRROR, "WANDB_ENTITY", "WANDB_PROJECT")
_BY_NAME_ONLY: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY", NOTIFY)
_DATASTORE: Final = "METAFLOW_DEFAULT_DATASTORE"


class DestinationError(PlainError, RuntimeError):
    """Something that containers need is not set; the message says what to set."""


def destination(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return where this command runs tasks: a name of DECORATORS or DEPLOYMENTS, `container` inside of one, None for this machine."""
    if is_container(environment):
        return "container"
    given = [value for option, value in itertools.pairwise(arguments) if option == "--with"]
    given += [option.removeprefix("--with=") for option in arguments if option.startswith("--with=")]
    names = [name for name in (value.partition(":")[0] for value in given) if name in DECORATORS]
    return next(iter([*names, *(name for name in DEPLOYMENTS if name in arguments)]), None)


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Set the variables that Metaflow reads at import, so that `run --with batch` needs no further options; return notes for the user.

    Raises DestinationError when tasks in containers could not reach the tracking store.
    """
    target = destination(arguments, environment)
    if target in (None, "container"):
        return []
    # Metaflow reads it once, at import; containers cannot read a local folder.
    environment.setdefault(_DATASTORE, "s3")
    if not any(command in arguments for command in _LAUNCHES):
        return []
    address = environment.get(_TRACKING, "")
    if not address or sqlite_file(address) is not None or "://" not in address:
        was = f"{without_secrets(address)} is a file of this machine" if address else "it is not set"
        raise DestinationError(
            f"{_TRACKING}: {was}, but tasks on {target} run on other machines: set it to the address of an MLflow server that they reach"
            " (infra/stack.yaml has one; docs/aws.md)"
        )
    for name, keys in ((_TRACKING, f"{_BY_NAME_ONLY[0]} and {_BY_NAME_ONLY[1]}"), (_MIRROR, _BY_NAME_ONLY[3])):
        if holds_secret(environment.get(name, "")):
            raise DestinationError(
                f"{name} holds a name or password, which would be visible in each job's description: leave them out of it, and set"
                f" {SECRETS} to the names of secrets in AWS Secrets Manager that hold {keys} (docs/aws.md)"
            )
    not_sent = [name for name in _BY_NAME_ONLY if name in environment]
    if not_sent and not environment.get(SECRETS):
        return [
            f"note: {', '.join(not_sent)} of this machine are not sent to {target}; name secrets that hold them in {SECRETS} (docs/aws.md)"
        ]
    return []


def forwarded(environment: Mapping[str, str], task: TaskResources) -> dict[str, str]:
    """Return the environment variables of a task in a container: addresses, names of secrets, and the device; never a secret."""
    facts = {"CHESS_GRPO_DEVICE": "cuda" if task.num_gpus else "cpu", "CHESS_GRPO_THREADS": str(task.num_cpus)}
    return {name: environment[name] for name in _BY_VALUE if environment.get(name)} | facts


def secret_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets that tasks in containers receive."""
    return [name.strip() for name in environment.get(SECRETS, "").split(",") if name.strip()]

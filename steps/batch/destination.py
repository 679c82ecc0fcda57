"""Where the flow's tasks run: on this machine or in containers (AWS Batch, Kubernetes), and which environment variables are forwarded.

A container has an empty disk, no network folder and none of the launcher's variables: it gets only the variables that are named here.
"""

import itertools
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from grpo.base.errors import PlainError
from grpo.settings.tree import TaskResources
from steps.runtime.machine import MIRROR, SECRETS, SHARED, holds_secret, is_container, shared_store, sqlite_file, without_secrets

DECORATORS: Final = ("batch", "kubernetes")
"""Destinations given by `--with`."""
DEPLOYMENTS: Final = ("argo-workflows", "step-functions", "airflow", "kubeflow-pipelines")
"""Destinations given by a command."""
_LAUNCHES: Final = ("run", "resume", *DEPLOYMENTS)
_TRACKING: Final = "MLFLOW_TRACKING_URI"
TRACKING_INTERNAL: Final = "CHESS_GRPO_TRACKING_INTERNAL_URI"
"""Variable: the tracking server's address as tasks in containers reach it, where it differs from the launcher's (a tunnel's port)."""
GPU_QUEUE: Final = "CHESS_GRPO_BATCH_GPU_QUEUE"
GPU_IMAGE: Final = "CHESS_GRPO_BATCH_GPU_IMAGE"
"""Variables: queue and image of tasks that request a GPU."""
_MIRROR: Final = "WANDB_BASE_URL"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_BY_VALUE: Final = ("MLFLOW_TRACKING_INSECURE_TLS", SHARED, SECRETS, MIRROR, _MIRROR, "WANDB_ENTITY", "WANDB_PROJECT")
_BY_NAME_ONLY: Final = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
_DATASTORE: Final = "METAFLOW_DEFAULT_DATASTORE"
_OTHER_CLOUDS: Final = ("gs", "azure")
"""Metaflow's names of Google's and Azure's stores."""


class DestinationError(PlainError, RuntimeError):
    """Something that containers need is not set; the message says what to set."""


def destination(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return where this command runs tasks: a name of DECORATORS or DEPLOYMENTS, `container` inside of one, None for this machine."""
    if is_container(environment):
        return "container"
    given = [value for option, value in itertools.pairwise(arguments) if option == "--with"]
    given += [option.removeprefix("--with=") for option in arguments if option.startswith("--with=")]
    # The launcher's process of one task says `batch step NAME`; it has no `--with` when `Deployment` chose the task's queue.
    given += [name for name, command in itertools.pairwise(arguments) if command == "step"]
    names = [name for name in (value.partition(":")[0] for value in given) if name in DECORATORS]
    return next(iter([*names, *(name for name in DEPLOYMENTS if name in arguments)]), None)


def prepare(arguments: Sequence[str], environment: MutableMapping[str, str]) -> list[str]:
    """Set the variables that Metaflow reads at import, so that `run --with batch` needs no further options; return notes for the user.

    Raises DestinationError when tasks in containers could not reach the tracking store or share outputs, and MachineError for a shared
    store that is not S3.
    """
    target = destination(arguments, environment)
    if target in (None, "container"):
        return []
    # Metaflow reads it once, at import; containers cannot read a local folder.
    environment.setdefault(_DATASTORE, "s3")
    if not any(command in arguments for command in _LAUNCHES):
        return []
    if not shared_store(environment) and environment[_DATASTORE] in _OTHER_CLOUDS:
        raise DestinationError(
            f"{_DATASTORE}={environment[_DATASTORE]}: tasks share outputs and progress in S3 only, and {SHARED} names no other place: set"
            f" {_DATASTORE}=s3 and METAFLOW_DATASTORE_SYSROOT_S3 (docs/aws.md)"
        )
    if was := _not_reached(environment):
        raise DestinationError(
            f"{was}, but tasks on {target} run on other machines: set it to the address of an MLflow server that they reach"
            " (infra/stack.yaml has one; docs/aws.md)"
        )
    account = f"{_BY_NAME_ONLY[0]} and {_BY_NAME_ONLY[1]}"
    for name, keys in ((_TRACKING, account), (TRACKING_INTERNAL, account), (_MIRROR, _BY_NAME_ONLY[3])):
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


def _not_reached(environment: Mapping[str, str]) -> str:
    """Return which variable holds which address that no task in a container can reach; empty when they can."""
    address, name = environment.get(TRACKING_INTERNAL, ""), TRACKING_INTERNAL
    if not address:
        address, name = environment.get(_TRACKING, ""), _TRACKING
        if "://" in address and urlsplit(address).hostname in _LOOPBACK:
            return f"{TRACKING_INTERNAL}: it is not set and {_TRACKING}, {without_secrets(address)}, is a port of this machine"
    if not address:
        return f"{_TRACKING}: it is not set"
    if sqlite_file(address) is not None or "://" not in address:
        return f"{name}: {without_secrets(address)} is a file of this machine"
    return ""


def forwarded(environment: Mapping[str, str], task: TaskResources) -> dict[str, str]:
    """Return the environment variables of a task in a container: addresses, names of secrets, and the device; never a secret."""
    facts = {"CHESS_GRPO_DEVICE": "cuda" if task.num_gpus else "cpu", "CHESS_GRPO_THREADS": str(task.num_cpus)}
    tracking = environment.get(TRACKING_INTERNAL) or environment.get(_TRACKING)
    return {name: environment[name] for name in _BY_VALUE if environment.get(name)} | ({_TRACKING: tracking} if tracking else {}) | facts


def batch_place(task: TaskResources, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the `queue` and the `image` of a task on AWS Batch, each only where it is not the one that Metaflow is configured with.

    Args:
        task: what it requests.
        environment: the variables where the run is launched; Metaflow's profile holds none of ours.
    """
    place = {"queue": environment.get(GPU_QUEUE), "image": environment.get(GPU_IMAGE)} if task.num_gpus else {}
    return {name: value for name, value in place.items() if value}


def secret_names(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the secrets that tasks in containers receive."""
    return [name.strip() for name in environment.get(SECRETS, "").split(",") if name.strip()]

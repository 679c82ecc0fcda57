"""Reads MLflow's model registry and artifacts without writing to the tracking store."""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from grpo.base.errors import PlainError
from steps.runtime.machine import Machine, sqlite_file
from steps.store.outputs import StepOutput
from steps.tracking.client import TABLES_LOCK
from steps.tracking.outages import in_short
from steps.tracking.registry import MODEL, POLICY_STEP, version_with_alias
from steps.tracking.tags import OUTPUT_HASH, PARENT, RUN, STEP, VERSION

# isort: split
# After `steps.tracking.client`, which sets environment variables that MLflow reads at import.
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from sqlalchemy.exc import SQLAlchemyError


class RegistryError(PlainError, RuntimeError):
    """The registry has no such policy, or does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredPolicy:
    """A registered policy with an alias."""

    metaflow_run: str
    policy_step: int
    """0 is the pretrained policy."""
    output: StepOutput
    """The output of the step that chose it."""
    folder: str
    """Its folder in that output."""
    mlflow_run: str
    """The MLflow run that has that output among its artifacts."""


def registered_policy(machine: Machine, alias: str) -> RegisteredPolicy:
    """Return the policy that has this alias.

    Raises RegistryError when there is none, or when the tracking store does not answer.
    """
    with reading(machine, instead="give a policy's folder") as client:
        if client is None or not client.search_registered_models(f"name = '{MODEL}'"):
            raise _no_alias(machine, alias)
        version = version_with_alias(client, alias)
        if version is None:
            raise _no_alias(machine, alias)
        child, parent = client.get_run(version.run_id), client.get_run(version.tags[PARENT])
        tags = child.data.tags
        if OUTPUT_HASH not in tags:
            raise RegistryError(
                f"{alias}: the run that registered it ({version.run_id} in {machine.tracking_uri}) did not finish, so its files cannot be"
                " verified; let a run finish"
            )
        output = StepOutput(step=tags[STEP], version=tags[VERSION], output_hash=tags[OUTPUT_HASH], reused=True)
        return RegisteredPolicy(
            metaflow_run=parent.data.tags[RUN],
            policy_step=int(version.tags[POLICY_STEP]),
            output=output,
            folder=PurePosixPath(version.source).name,
            mlflow_run=version.run_id,
        )


def download(machine: Machine, mlflow_run: str, names: tuple[str, ...], target: Path) -> None:
    """Download artifacts (files or folders) of a run to an existing folder.

    Raises RegistryError when the tracking store does not answer.
    """
    with reading(machine, instead="give a policy's folder") as client:
        for name in names:
            if client is None:
                raise RegistryError(f"{machine.tracking_uri} is gone")
            client.download_artifacts(mlflow_run, name, str(target))


@contextmanager
def reading(machine: Machine, *, instead: str = "") -> Iterator[MlflowClient | None]:
    """Yield a client, or None when an SQLite store does not exist yet: connecting would create its tables.

    Args:
        machine: says where the store is.
        instead: what the user can do without a store, for the message.

    Raises RegistryError when the store does not answer.
    """
    uri = machine.tracking_uri
    with ExitStack() as stack:
        if (file := sqlite_file(uri)) is not None:
            if not file.is_file():
                yield None
                return
            if (lock := file.parent / TABLES_LOCK).exists():  # Held by a process that creates the tables.
                fcntl.flock(stack.enter_context(lock.open()), fcntl.LOCK_SH)
        try:
            yield MlflowClient(uri, registry_uri=uri)
        except (MlflowException, SQLAlchemyError, OSError) as error:
            raise RegistryError(
                f"{uri} does not answer ({in_short(error)}); start it, or set MLFLOW_TRACKING_URI to the store that the run wrote to"
                + (f", or {instead}" if instead else "")
            ) from error


def _no_alias(machine: Machine, alias: str) -> RegistryError:
    return RegistryError(
        f"no policy has the alias {alias!r} in {machine.tracking_uri}; let a run finish first (`make run`), or set CHESS_GRPO_HOME or"
        " MLFLOW_TRACKING_URI to where one did"
    )

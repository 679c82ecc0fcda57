"""Connects to a tracking store (MLflow's server or database) at the first use."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from grpo.base.files import locked
from steps.run.machine import LOOPBACK, Machine, sqlite_file, without_secrets
from steps.track.outages import TrackingAwayError, TrackingRefusedError

# MLflow reads some variables only at its import. The defaults send telemetry and wait 244 s for a dead server.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# No retries, because a request that timed out may have created a run.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

# These loggers print a database's creation, and tracebacks of exceptions that are raised too.
for _name, _level in {"mlflow.store": logging.CRITICAL, "alembic": logging.WARNING, "sqlalchemy.pool": logging.CRITICAL}.items():
    logging.getLogger(_name).setLevel(_level)

EXPERIMENT: Final = "chess-grpo"
RUN: Final = "chess_grpo.run"  # Tag of a parent (a run): Metaflow's id, which two machines may give, and the start time.
CHILD: Final = "chess_grpo.child"  # Tag of a child (a step): PARENT'S TAG/STEP/PART/VERSION; of a registered policy: PARENT'S TAG/ROLE.
METAFLOW_RUN: Final = "metaflow.run"  # Tag of parents and children: Metaflow's id.
_SECONDS_FOR_FILES: Final = 120  # A server may forward a file to S3 before it answers.
_CLOUD_SCHEMES: Final = ("s3", "gs", "wasbs", "abfss")
# Variables with accounts, which MLflow and databases' drivers send to any server.
_SERVER_ACCOUNTS: Final = (
    *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_AUTH"),
    *("MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
_DATABASE_ACCOUNTS: Final = ("PGPASSWORD", "MYSQL_PWD")
_CREDENTIALS: Final = Path("~/.mlflow/credentials")
_TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_SHORT: Final = os.environ[_TIMEOUT]


class TrackingStore:
    def __init__(self, uri: str) -> None:
        self._uri, self._file = uri, sqlite_file(uri)

    @classmethod
    def of_run(cls, belongs_to: str, machine: Machine) -> "TrackingStore":
        """Return the store at `belongs_to`, an address without secrets. This machine's account is used only for `machine.tracking_uri`.

        Raises TrackingAwayError if another store's SQLite file is missing, or if the account would be sent to another store.
        """
        if machine.shown_uri == belongs_to:
            return cls(machine.tracking_uri)
        store = cls(belongs_to)
        if not store.exists:
            raise TrackingAwayError(f"the tracking store {belongs_to}, which the run belongs to, is not on this machine")
        if store._file is None and (account := _account(belongs_to)):
            raise TrackingAwayError(
                f"the account for the tracking store {belongs_to}, which the run belongs to, is missing: {account} is for"
                f" {machine.shown_uri}. Set MLFLOW_TRACKING_URI={belongs_to} and its account, then `chess-grpo track`"
            )
        return store

    def refuse_foreign_place(self, address: str) -> None:
        """Raise TrackingRefusedError unless `address` is in the server, in cloud storage, or, if no server is remote, a folder."""
        files, server = urlsplit(address), urlsplit(self._uri)
        is_server = server.scheme in ("http", "https")
        is_local = files.scheme in ("", "file") and files.netloc in ("", "localhost")
        is_in_server = files.scheme == "mlflow-artifacts" and files.netloc in ("", server.netloc.rpartition("@")[2])
        if files.scheme in _CLOUD_SCHEMES or is_in_server or (is_local and (not is_server or server.hostname in LOOPBACK)):
            return
        # A remote server could otherwise use this machine's folders, or make this machine send the account to another host.
        raise TrackingRefusedError(
            f"the tracking store {without_secrets(self._uri)} names {without_secrets(address)!r} as the place of files, which this machine"
            " does not use: let the server keep its files (mlflow server --serve-artifacts), or put the files into a bucket"
        )

    @property
    def exists(self) -> bool:
        """False for a missing SQLite file, which `client` would create."""
        return self._file is None or self._file.is_file()

    @cached_property
    def client(self) -> MlflowClient:
        """A lock guards the connection, because two first connections at once would corrupt a new SQLite file."""
        with nullcontext() if self._file is None else locked(self._file.parent / "mlflow.lock"):
            return MlflowClient(self._uri, registry_uri=self._uri)

    @cached_property
    def experiment(self) -> str:
        if (experiment := self.client.get_experiment_by_name(EXPERIMENT)) is None:
            root = None if self._file is None else (self._file.parent / "mlartifacts").as_uri()
            with ignore_existing():
                # Without this tag the UI shows a GenAI experiment.
                tags = {"mlflow.experimentKind": "custom_model_development"}
                self.client.create_experiment(EXPERIMENT, artifact_location=root, tags=tags)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
        return str(experiment.experiment_id)


def _account(address: str) -> str:
    """Return the names of the account's variables, or the account's file, or ""."""
    is_server = address.startswith(("http://", "https://"))
    names = [name for name in (_SERVER_ACCOUNTS if is_server else _DATABASE_ACCOUNTS) if os.environ.get(name)]
    return ", ".join(names) or (str(_CREDENTIALS) if is_server and _CREDENTIALS.expanduser().exists() else "")


@contextmanager
def ignore_existing() -> Iterator[None]:
    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def long_timeout() -> Iterator[None]:
    """Raise MLflow's HTTP timeout to 120 s or more while the block transfers files. All threads share the timeout."""
    os.environ[_TIMEOUT] = str(max(_SECONDS_FOR_FILES, int(_SHORT)))
    try:
        yield
    finally:
        os.environ[_TIMEOUT] = _SHORT

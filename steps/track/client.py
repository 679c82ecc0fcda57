"""MLflow's client for one address: it connects when it is first used, and waits seconds and not minutes."""

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

# Must precede MLflow's import, which reads some of these once. By default it sends telemetry, and waits 244 s for a server that is down.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# To publish again is the retry: MLflow's own are not idempotent, and would create a second run when a response is late.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

# No traceback of what is raised as well, and no steps of making a database.
for _name, _level in {"mlflow.store": logging.CRITICAL, "alembic": logging.WARNING, "sqlalchemy.pool": logging.CRITICAL}.items():
    logging.getLogger(_name).setLevel(_level)

EXPERIMENT: Final = "chess-grpo"
"""The experiment of all runs."""
RUN: Final = "chess_grpo.run"
"""Tag of a parent: Metaflow's id and the time of the start, for another machine's Metaflow counts from 1 too."""
CHILD: Final = "chess_grpo.child"
"""Tag of a child: that key, step and part; of a version: that key and its role."""
METAFLOW_RUN: Final = "metaflow.run"
"""Tag of parents and children."""
_SECONDS_FOR_FILES: Final = 120  # A server with artifacts in S3 answers after it has forwarded the whole file.
_CLOUDS: Final = ("s3", "gs", "wasbs", "abfss")
_SERVER_ACCOUNTS: Final = (
    *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_AUTH"),
    *("MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
)
_DATABASE_ACCOUNTS: Final = ("PGPASSWORD", "MYSQL_PWD")
_CREDENTIALS: Final = Path("~/.mlflow/credentials")
"""Variables, and MLflow's file, with accounts that know no address."""
_TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_SHORT: Final = os.environ[_TIMEOUT]


class TrackingStore:
    """An MLflow tracking store and its registry. Asking it creates nothing there."""

    def __init__(self, uri: str) -> None:
        """Store MLflow's address, with user and password if it has any."""
        self._uri, self._file = uri, sqlite_file(uri)

    @classmethod
    def of_run(cls, belongs_to: str, machine: Machine) -> "TrackingStore":
        """Return the store that a run belongs to: its rows are offered to no other one.

        The environment's address is taken where it is the same but for secrets, which no record holds. The environment's account belongs
        to that address: a store at another address is never asked with it.

        Raises TrackingAwayError when the store is an SQLite file that this machine does not have, or when its account is missing.
        """
        if machine.shown_uri == belongs_to:
            return cls(machine.tracking_uri)
        store = cls(belongs_to)
        if not store.exists:
            raise TrackingAwayError(f"the tracking store {belongs_to}, which the run belongs to, is not on this machine")
        if store._file is None and (account := _account(belongs_to)):
            raise TrackingAwayError(
                f"the account for the tracking store {belongs_to}, which the run belongs to, is missing: {account} is for"
                f" {machine.shown_uri} and goes to no other address."
                f" Set MLFLOW_TRACKING_URI={belongs_to} and its account, then `chess-grpo track`"
            )
        return store

    def refuse_foreign_place(self, address: str) -> None:
        """Raise TrackingRefusedError for a place of files that this store must not name.

        A server may keep its files itself, or in a cloud's storage. It may not name a folder of this machine, which would be read or
        written for it, nor another host, which would get the account.
        """
        files, server = urlsplit(address), urlsplit(self._uri)
        is_server = server.scheme in ("http", "https")
        is_local = files.scheme in ("", "file") and files.netloc in ("", "localhost")
        is_in_server = files.scheme == "mlflow-artifacts" and files.netloc in ("", server.netloc.rpartition("@")[2])
        if files.scheme in _CLOUDS or is_in_server or (is_local and (not is_server or server.hostname in LOOPBACK)):
            return
        raise TrackingRefusedError(
            f"the tracking store {without_secrets(self._uri)} names {without_secrets(address)!r} as the place of files, which this machine"
            " neither reads nor writes: let the server keep its files (mlflow server --serve-artifacts), or put them into a bucket"
        )

    @property
    def exists(self) -> bool:
        """Whether there is a store to ask: connecting to an SQLite file that does not exist would create it."""
        return self._file is None or self._file.is_file()

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client. Tables of an SQLite store are made under a lock beside it: simultaneous first connections would corrupt it."""
        with nullcontext() if self._file is None else locked(self._file.parent / "mlflow.lock"):
            return MlflowClient(self._uri, registry_uri=self._uri)

    @cached_property
    def experiment(self) -> str:
        """The id of the experiment, which is created when there is none."""
        if (experiment := self.client.get_experiment_by_name(EXPERIMENT)) is None:
            root = None if self._file is None else (self._file.parent / "mlartifacts").as_uri()
            with ignore_existing():
                # Without a kind the UI shows it as a GenAI experiment.
                tags = {"mlflow.experimentKind": "custom_model_development"}
                self.client.create_experiment(EXPERIMENT, artifact_location=root, tags=tags)
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
        return str(experiment.experiment_id)


def _account(address: str) -> str:
    """Return what holds an account that MLflow, or a database's driver, would send to any address; empty when there is none."""
    is_server = address.startswith(("http://", "https://"))
    names = [name for name in (_SERVER_ACCOUNTS if is_server else _DATABASE_ACCOUNTS) if os.environ.get(name)]
    return ", ".join(names) or (str(_CREDENTIALS) if is_server and _CREDENTIALS.expanduser().exists() else "")


@contextmanager
def ignore_existing() -> Iterator[None]:
    """Create what nobody has created yet."""
    try:
        yield
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


@contextmanager
def long_timeout() -> Iterator[None]:
    """Raise MLflow's HTTP time-out, a variable that it reads at each call, while files pass; another thread's files may be tried again."""
    os.environ[_TIMEOUT] = str(max(_SECONDS_FOR_FILES, int(_SHORT)))
    try:
        yield
    finally:
        os.environ[_TIMEOUT] = _SHORT

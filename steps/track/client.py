"""MLflow's client for one address: connects when it is first used, waits seconds and not minutes, and says what failed."""

import atexit
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

from steps.run.machine import Machine, sqlite_file, without_secrets
from steps.track.outages import ArtifactError, TrackingAwayError, TrackingRefusedError, failures_of, quiet_libraries

# Must precede MLflow's import, which reads some of these once. By default it sends telemetry, and waits 244 s for a server that is down.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Retries are made here: MLflow's own are not idempotent, and would create a second run when a response is late.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

EXPERIMENT: Final = "chess-grpo"
"""The experiment of all runs."""
# Tags that runs, models and registered versions share.
RUN: Final = "chess_grpo.run"
"""Of a parent: Metaflow's id and the time of the start, for another machine's Metaflow counts from 1 too."""
CHILD: Final = "chess_grpo.child"
"""Of a child: that key, step and part; of a version: that key and its role."""
METAFLOW_RUN: Final = "metaflow.run"
VERSION: Final = "chess_grpo.version"
"""Of a step's output."""
OUTPUT_HASH: Final = "chess_grpo.output_hash"
FILES: Final = "chess_grpo.files"
"""Of a model and its versions: the hash of the hashes of its files."""
_TABLES_LOCK: Final = "mlflow.lock"
"""Lock file beside an SQLite store; held while its tables are created, for simultaneous first connections corrupt it."""
_WAITS: Final = (0.5, 1.0)
"""Seconds between questions to a store that does not answer: a locked database, or one call that was lost."""
_SECONDS_FOR_FILES: Final = 120  # A server with artifacts in S3 answers after it has forwarded the whole file.
_TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"

_Answer = TypeVar("_Answer")


class TrackingStore:
    """An MLflow tracking store and its registry. Asking it creates nothing there."""

    def __init__(self, uri: str) -> None:
        """Store MLflow's address, with user and password if it has any."""
        quiet_libraries()
        self._uri = uri
        self.address = without_secrets(uri)
        """As people may see it."""

    @classmethod
    def of(cls, machine: Machine) -> "TrackingStore":
        """Return the store of a machine."""
        return cls(machine.tracking_uri)

    @classmethod
    def of_run(cls, belongs_to: str, machine: Machine) -> "TrackingStore":
        """Return the store that a run belongs to: its rows are offered to no other one.

        The environment's address is taken where it is the same but for secrets, which no record holds.
        Raises TrackingAwayError when it is an SQLite file that this machine does not have.
        """
        if machine.shown_uri == belongs_to:
            return cls(machine.tracking_uri)
        store = cls(belongs_to)
        if not store.exists:
            raise TrackingAwayError(f"the tracking store {belongs_to}, which the run belongs to, is not on this machine")
        return store

    @property
    def exists(self) -> bool:
        """Whether there is a store to ask: connecting to an SQLite file that does not exist would create it."""
        file = sqlite_file(self._uri)
        return file is None or file.is_file()

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client; the first to open an SQLite store creates its tables, under a lock."""
        with self._tables_locked():
            try:
                return MlflowClient(self._uri, registry_uri=self._uri)
            except ModuleNotFoundError as error:
                raise TrackingRefusedError(
                    f"the tracking store {self.address} needs the Python package {error.name}, which is not installed: `pip install` the"
                    " database's driver, or set MLFLOW_TRACKING_URI to another store"
                ) from None
            finally:
                if self._uri.startswith("sqlite:///") and "%" in self._uri:
                    atexit.register(_remove_stray, Path(self._uri.removeprefix("sqlite:///")).parent)

    @cached_property
    def experiment(self) -> str:
        """The id of the experiment, which is created when there is none."""
        with self._tables_locked():
            found = self.client.get_experiment_by_name(EXPERIMENT)
            file = sqlite_file(self._uri)
            root = None if file is None else (file.parent / "mlartifacts").as_uri()
            if found is None:
                try:
                    # Without a kind the UI shows it as a GenAI experiment.
                    kind = {"mlflow.experimentKind": "custom_model_development"}
                    return str(self.client.create_experiment(EXPERIMENT, artifact_location=root, tags=kind))
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                found = self.client.get_experiment_by_name(EXPERIMENT)  # Another machine created it first.
        return str(found.experiment_id)

    def ask(self, what: str, question: Callable[[], _Answer]) -> _Answer:
        """Return the store's answer, asked for a second or two while it is away. Raises TrackingAwayError, TrackingRefusedError."""
        for seconds in _WAITS:
            try:
                with failures_of(self.address, what):
                    return question()
            except TrackingRefusedError:
                raise
            except TrackingAwayError:
                time.sleep(seconds)
        with failures_of(self.address, what):
            return question()

    def download(self, artifacts: str, folder: Path) -> Path:
        """Download what is stored at an address of artifacts, and return its folder, which is below `folder`.

        Raises ArtifactError when it is missing, or its store does not answer.
        """
        from mlflow.artifacts import download_artifacts

        try:
            with waiting(), failures_of(self.address, f"the files {artifacts}"):
                return Path(download_artifacts(artifacts, dst_path=str(folder), tracking_uri=self._uri))
        except TrackingAwayError as error:
            raise ArtifactError(f"{error}: its files were deleted, or are stored where this machine has no access") from error

    @contextmanager
    def _tables_locked(self) -> Iterator[None]:
        file = sqlite_file(self._uri)
        # Who creates the store has created the lock before, so that a store without one is complete, and is left as it is.
        if file is None or (file.is_file() and not (file.parent / _TABLES_LOCK).exists()):
            yield
            return
        with locked(file.parent / _TABLES_LOCK):  # Beside the file, not in the home, because several homes can share a store.
            yield


def _remove_stray(folder: Path) -> None:
    """Remove the empty folders that MLflow makes because it takes a quoted path for a path."""
    with suppress(OSError):
        os.removedirs(folder)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, for which others of this disk wait; it ends with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_SHORT: Final = os.environ[_TIMEOUT]
_num_waiting = 0
_waiting_lock: Final = threading.Lock()


@contextmanager
def waiting() -> Iterator[None]:
    """Raise MLflow's HTTP time-out, a variable that it reads at each call, while files pass in any thread."""
    global _num_waiting  # noqa: PLW0603 - Environment variables are of the process.
    with _waiting_lock:
        _num_waiting += 1
        os.environ[_TIMEOUT] = str(max(_SECONDS_FOR_FILES, int(_SHORT)))
    try:
        yield
    finally:
        with _waiting_lock:
            _num_waiting -= 1
            if not _num_waiting:
                os.environ[_TIMEOUT] = _SHORT


def cut(text: str, longest: int) -> str:
    """Return a text of at most so many characters, which says so where it was longer."""
    return text if len(text) <= longest else f"{text[: longest - 20]} ... (cut here)"

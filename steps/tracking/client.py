"""MLflow's tracking store: a client that connects lazily, with time-outs and retries, and queries of runs and artifacts."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from steps.runtime.machine import Machine, sqlite_file
from steps.store.file_lock import waiting_lock
from steps.store.outputs import StepOutput
from steps.tracking.notes import experiment_note
from steps.tracking.tags import EXPERIMENT, HOLDS, NOTE, OUTPUT_HASH, STEP, VERSION

# Must precede MLflow's import, which reads some of these once. By default it sends telemetry, and waits 244 s for a server that is down.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# Retries are made here: MLflow's own retries are not idempotent, and would create a second run when a response is late.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from steps.tracking.outages import (
    ArtifactError,
    RetryPolicy,
    TrackingAwayError,
    TrackingRefusedError,
    failures,
    first_line,
    is_absence,
    is_refusal,
)

if TYPE_CHECKING:
    from mlflow.store.entities import PagedList

TABLES_LOCK: Final = "mlflow.lock"
"""Lock file beside an SQLite store; held while its tables are created."""

_PAGE: Final = 1_000
"""Runs that MLflow is asked for at a time."""
_PATIENCE: Final = 0.5
"""Seconds after which a store that did not answer a person is asked once more."""
_SECONDS_FOR_A_FILE: Final = 10.0  # A server with artifacts in S3 answers after it has forwarded the whole file.
_BYTES_PER_SECOND: Final = 1_000_000.0
_SECONDS_FOR_A_DOWNLOAD: Final = 120.0  # The size is not known before.

_Answer = TypeVar("_Answer")


class TrackingStore:
    """The MLflow tracking store of this machine or project. Asking it creates nothing there."""

    uri: str
    """Its address, as messages show it."""

    def __init__(self, machine: Machine, waits: tuple[float, ...]) -> None:
        """Store the address; the first use connects.

        Args:
            machine: says where the store is.
            waits: seconds between the attempts of a query that fails; empty for one attempt.
        """
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self.uri = machine.shown_uri
        self._machine = machine
        self._waits = waits

    @classmethod
    def of(cls, machine: Machine) -> "TrackingStore":
        """Return the store of a machine, to ask; a task of a flow waits longer for the answer than a person does."""
        return TrackingStore(machine, RetryPolicy().between_asks if machine.task else (_PATIENCE,))

    @property
    def exists(self) -> bool:
        """Whether there is a store to ask: connecting to an SQLite file that does not exist would create it."""
        file = sqlite_file(self._machine.tracking_uri)
        return file is None or file.is_file()

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client; the first to open an SQLite store creates its tables, under a lock.

        Raises TrackingRefusedError when this machine lacks the driver of the store's database.
        """
        uri = self._machine.tracking_uri
        with _tables_lock(uri):
            try:
                return MlflowClient(uri, registry_uri=uri)
            except ModuleNotFoundError as error:
                raise TrackingRefusedError(
                    f"{self.uri} needs the Python package {error.name}, which is not installed: `pip install` the database's driver, or set"
                    " MLFLOW_TRACKING_URI to another store"
                ) from None

    @cached_property
    def experiment(self) -> str:
        """The id of the experiment, which is created when there is none."""
        client = self.client
        with _tables_lock(self._machine.tracking_uri):
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                root = self._machine.artifact_root
                try:
                    return str(client.create_experiment(EXPERIMENT, artifact_location=None if root is None else root.as_uri()))
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                experiment = client.get_experiment_by_name(EXPERIMENT)  # Another machine created it first.
        return str(experiment.experiment_id)

    def describe_experiment(self) -> None:
        """Write the experiment's description."""
        # Without a kind the UI shows it as a GenAI experiment.
        for name, value in {"mlflow.experimentKind": "custom_model_development", NOTE: experiment_note()}.items():
            self.client.set_experiment_tag(self.experiment, name, value)

    def asked(self, ask: Callable[[], _Answer], is_final: Callable[[Exception], bool] = is_refusal) -> _Answer:
        """Return the store's answer, with retries while it is away.

        Raises TrackingAwayError when all attempts fail, TrackingRefusedError when another attempt would not help; without waits, the error
        itself.
        """
        for seconds in (*self._waits, None):
            try:
                return ask()
            except failures() as error:
                if not self._waits or isinstance(error, TrackingAwayError):
                    raise
                refuses = is_final(error)
                if seconds is None or refuses:
                    raise (TrackingRefusedError if refuses else TrackingAwayError)(
                        f"the tracking store {self.uri} does not answer ({first_line(error)}): start it or fix the network, or set"
                        " MLFLOW_TRACKING_URI to the store that has the run; a flow then goes on by `python flows/chess_grpo.py resume`"
                    ) from error
            time.sleep(seconds)
        raise AssertionError("the last attempt returns or raises")

    def search(self, condition: str, *, newest: int | None = None) -> list[Run]:
        """Return the active runs that match the filter string, the earliest first; or so many of them, the newest first."""
        if not self.exists:
            return []
        size, order_by = min(_PAGE, newest or _PAGE), [f"attributes.start_time {'ASC' if newest is None else 'DESC'}"]

        def found() -> list[Run]:
            experiment = self.client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                return []
            search = partial(self.client.search_runs, [experiment.experiment_id], condition, max_results=size, order_by=order_by)
            return list(islice(pages(lambda token: search(page_token=token)), newest))

        return self.asked(found)

    def holder(self, output: StepOutput) -> str | None:
        """Return the id of a run that has this output among its artifacts, or None."""
        facts = {STEP: output["step"], VERSION: output["version"], OUTPUT_HASH: output["output_hash"], HOLDS: str(True)}
        found = self.search(" and ".join(f"tags.`{name}` = '{value}'" for name, value in facts.items()))
        return None if not found else str(found[0].info.run_id)

    def download(self, run_id: str, name: str, folder: Path) -> Path:
        """Download an artifact of a run to the same relative path below `folder`, and return its path.

        Raises ArtifactError when it is missing or the artifact store does not answer.
        """
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with waiting(_SECONDS_FOR_A_DOWNLOAD):
                fetched = Path(self.asked(lambda: self.client.download_artifacts(run_id, name, str(target.parent)), is_absence))
        except failures() as error:
            why = error.__cause__ if isinstance(error, TrackingAwayError) and error.__cause__ is not None else error
            raise ArtifactError(
                f"{name} of MLflow run {run_id} cannot be downloaded from {self.uri} ({first_line(why)}): its artifacts were deleted, or"
                " are stored where this machine has no access; restore them, or resume from another run"
            ) from None
        return fetched.rename(target)  # MLflow preserves the file's name, but not always its folders.


_TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"
_timeouts: Final[list[int]] = []
"""The usual one, and those that threads want now."""
_timeouts_lock: Final = threading.Lock()


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Raise MLflow's HTTP time-out, a variable that it reads at each call, while the block lasts; of several threads the longest counts."""
    wanted = math.ceil(seconds)
    with _timeouts_lock:
        _timeouts[:] = [*(_timeouts or [int(os.environ[_TIMEOUT])]), wanted]
        os.environ[_TIMEOUT] = str(max(_timeouts))
    try:
        yield
    finally:
        with _timeouts_lock:
            _timeouts.remove(wanted)
            os.environ[_TIMEOUT] = str(max(_timeouts))
            if len(_timeouts) == 1:
                _timeouts.clear()


def seconds_for_a_file(num_bytes: int) -> float:
    """Return the time-out for the upload of a file of this size."""
    return _SECONDS_FOR_A_FILE + num_bytes / _BYTES_PER_SECOND


def pages(ask: Callable[[str | None], "PagedList[_Answer]"]) -> Iterator[_Answer]:
    """Yield what MLflow finds from all pages; `ask` takes the token of a page, None for the first."""
    token: str | None = None
    while True:
        found = ask(token)
        yield from found
        if not (token := found.token):
            return


def _tables_lock(tracking_uri: str) -> AbstractContextManager[None]:
    """Hold the SQLite store's lock: simultaneous first connections corrupt a new SQLite store."""
    file = sqlite_file(tracking_uri)
    lock_file = None if file is None else file.parent / TABLES_LOCK
    # Who creates the store has created the lock before, so that a store without one is complete, and is left as it is.
    if file is None or lock_file is None or (file.is_file() and not lock_file.exists()):
        return nullcontext()
    # The lock is beside the file, not in the home, because several homes can share a store.
    file.parent.mkdir(parents=True, exist_ok=True)
    return waiting_lock(lock_file)

"""MLflow's tracking store: a client that connects lazily, with time-outs and retries, and queries of runs and artifacts."""

import fcntl
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

from grpo.base.errors import PlainError
from steps.runtime.machine import Machine, sqlite_file
from steps.store.outputs import StepOutput
from steps.tracking.notes import experiment_note
from steps.tracking.saved_views import saved_views
from steps.tracking.tags import (
    FLOW,
    HOLDS,
    NOTE,
    NOTE_DIGEST,
    OUTPUT_HASH,
    PARENT,
    PEAK_STEP,
    RUN,
    STEP,
    VERSION,
    digest_of_note,
    is_own_note,
)

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

from steps.tracking.outages import TrackingAwayError, failures, first_line, is_absence, is_refusal

EXPERIMENT: Final = "chess-grpo"
TABLES_LOCK: Final = "mlflow.lock"
"""Lock file beside an SQLite store; held while its tables are created."""

_SECONDS_FOR_A_FILE: Final = 10.0  # A server with artifacts in S3 answers after it has forwarded the whole file.
_BYTES_PER_SECOND: Final = 1_000_000.0
_SECONDS_FOR_A_DOWNLOAD: Final = 120.0  # The size is not known before.

_Answer = TypeVar("_Answer")


class ArtifactError(PlainError, RuntimeError):
    """A file is not in the tracking store or cannot be downloaded; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowRun:
    """A parent run, with the outputs of its steps."""

    mlflow_run: str
    metaflow_run: str
    peak_step: int | None
    """None when it ended before `select`."""
    outputs: dict[str, StepOutput]
    """Step -> its last output."""


class TrackingStore:
    """The MLflow tracking store of this machine or project."""

    def __init__(self, machine: Machine, waits: tuple[float, ...]) -> None:
        """Store the address; the first use connects.

        Args:
            machine: says where the store is.
            waits: seconds between the attempts of a query that fails; empty for one attempt.
        """
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self.uri = machine.tracking_uri
        self._machine = machine
        self._waits = waits

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client; the first to open an SQLite store creates its tables, under a lock."""
        with _tables_lock(self._machine):
            return MlflowClient(self.uri, registry_uri=self.uri)

    @cached_property
    def experiment(self) -> str:
        """The id of the experiment, which is created when there is none."""
        client = self.client
        with _tables_lock(self._machine):
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
        """Write the experiment's description, unless a person has edited it, and its saved views."""
        experiment, client = self.experiment, self.client
        note = experiment_note(experiment)
        tags = client.get_experiment(experiment).tags
        # Otherwise the UI shows it as a GenAI experiment.
        wanted = {"mlflow.experimentKind": "custom_model_development"}
        if is_own_note(tags.get(NOTE), tags.get(NOTE_DIGEST)):
            wanted |= {NOTE: note, NOTE_DIGEST: digest_of_note(note)}
        # An existing view may have been changed by a user.
        wanted |= {name: view for name, view in saved_views().items() if name not in tags}
        for name, value in wanted.items():
            if tags.get(name) != value:
                client.set_experiment_tag(experiment, name, value)

    def asked(self, ask: Callable[[], _Answer], is_final: Callable[[Exception], bool] = is_refusal) -> _Answer:
        """Return the store's answer, with retries while it is away.

        Raises TrackingAwayError when all attempts fail; the error itself when it is final (not retryable) or there are no waits.
        """
        for seconds in (*self._waits, None):
            try:
                return ask()
            except failures() as error:
                if is_final(error) or not self._waits:
                    raise
                if seconds is None:
                    raise TrackingAwayError(
                        f"the tracking store {self.uri} does not answer ({first_line(error)}), but this step needs its answer: restart the"
                        " server or repair the network, then run `python flows/chess_grpo.py resume`"
                    ) from error
            time.sleep(seconds)
        raise AssertionError("the last attempt returns or raises")

    def search(self, condition: str) -> list[Run]:
        """Return the active runs that match the filter string, the earliest first."""
        return self.asked(lambda: list(self.client.search_runs([self.experiment], condition, order_by=["attributes.start_time ASC"])))

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

    def flow_run(self, name: str) -> FlowRun | None:
        """Return the run with this Metaflow or MLflow id, or None."""
        if not name or not all(character.isalnum() or character in "-_" for character in name):
            return None
        found = self.search(f"tags.`{RUN}` = '{name}' and tags.`{STEP}` = '{FLOW}'")
        found += self.search(f"attributes.run_id = '{name}' and tags.`{STEP}` = '{FLOW}'")
        if not found:
            return None
        parent = found[0]
        outputs: dict[str, StepOutput] = {}
        for child in self.search(f"tags.`{PARENT}` = '{parent.info.run_id}'"):
            tags = child.data.tags
            if OUTPUT_HASH in tags:
                outputs[tags[STEP]] = StepOutput(step=tags[STEP], version=tags[VERSION], output_hash=tags[OUTPUT_HASH], reused=True)
        peak = parent.data.tags.get(PEAK_STEP)
        return FlowRun(
            mlflow_run=parent.info.run_id,
            metaflow_run=parent.data.tags[RUN],
            peak_step=None if peak is None else int(peak),
            outputs=outputs,
        )

    def artifact_uri(self, run_id: str) -> str:
        """Return the artifact URI of a run."""
        return str(self.asked(lambda: self.client.get_run(run_id)).info.artifact_uri)


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


@contextmanager
def _tables_lock(machine: Machine) -> Iterator[None]:
    """Hold the SQLite store's lock: simultaneous first connections corrupt a new SQLite store."""
    file = sqlite_file(machine.tracking_uri)
    if file is None:
        yield
        return
    # The lock is beside the file, not in the home, because several homes can share a store.
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / TABLES_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

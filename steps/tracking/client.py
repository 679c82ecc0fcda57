"""The tracking store as it is asked: connected to when it is first needed, with bounded waits, and read."""

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

# Before MLflow's import, which reads some of these once: without them it phones home, and waits 244 s for a server that is down.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
# What is tried again is kept account of here: MLflow would, when an answer is late, make a second run and know nothing of it.
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
"""File beside an sqlite store; held while the store's tables are made."""

_SECONDS_FOR_A_FILE: Final = 10.0  # A server that keeps its files in S3 answers when it has passed all of one on.
_BYTES_PER_SECOND: Final = 1_000_000.0
_SECONDS_FOR_A_DOWNLOAD: Final = 120.0  # How large it is, is not known before.

_Answer = TypeVar("_Answer")


class ArtifactError(PlainError, RuntimeError):
    """A file is not in the tracking store, or cannot be had from it; the message says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowRun:
    """A parent run, with what its steps gave."""

    mlflow_run: str
    metaflow_run: str
    peak_step: int | None
    """None when it ended before `select`."""
    outputs: dict[str, StepOutput]
    """By step: of each its last."""


class TrackingStore:
    """The tracking store of this machine or project."""

    def __init__(self, machine: Machine, waits: tuple[float, ...]) -> None:
        """Connect to nothing yet.

        Args:
            machine: which knows where the store is.
            waits: seconds between the tries of a question that is not answered; with none of them it is tried once.
        """
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self.uri = machine.tracking_uri
        self._machine = machine
        self._waits = waits

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's; the first to open an embedded store makes its tables, alone."""
        with _alone(self._machine):
            return MlflowClient(self.uri, registry_uri=self.uri)

    @cached_property
    def experiment(self) -> str:
        """The id of the experiment, which is made when there is none."""
        client = self.client
        with _alone(self._machine):
            experiment = client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                root = self._machine.artifact_root
                try:
                    return str(client.create_experiment(EXPERIMENT, artifact_location=None if root is None else root.as_uri()))
                except MlflowException as error:
                    if error.error_code != "RESOURCE_ALREADY_EXISTS":
                        raise
                experiment = client.get_experiment_by_name(EXPERIMENT)  # Another machine was first.
        return str(experiment.experiment_id)

    def describe_experiment(self) -> None:
        """Say on the experiment's page what it is and how to read it, unless a person has written there."""
        experiment, client = self.experiment, self.client
        note = experiment_note(experiment)
        tags = client.get_experiment(experiment).tags
        # Else the UI takes it for one of prompts and traces.
        wanted = {"mlflow.experimentKind": "custom_model_development"}
        if is_own_note(tags.get(NOTE), tags.get(NOTE_DIGEST)):
            wanted |= {NOTE: note, NOTE_DIGEST: digest_of_note(note)}
        # A view that is there already may have been changed by whoever uses it.
        wanted |= {name: view for name, view in saved_views().items() if name not in tags}
        for name, value in wanted.items():
            if tags.get(name) != value:
                client.set_experiment_tag(experiment, name, value)

    def asked(self, ask: Callable[[], _Answer], is_final: Callable[[Exception], bool] = is_refusal) -> _Answer:
        """Return an answer of the store, which is waited for a little when it is away.

        Raises TrackingAwayError when it stays away; the error itself when it is final, as a refusal is, or when there is to be no wait.
        """
        for seconds in (*self._waits, None):
            try:
                return ask()
            except failures() as error:
                if is_final(error) or not self._waits:
                    raise
                if seconds is None:
                    raise TrackingAwayError(
                        f"the tracking store {self.uri} does not answer ({first_line(error)}), and what it knows is needed here: start its"
                        " server again or see to the network, and run `python flows/chess_grpo.py resume`"
                    ) from error
            time.sleep(seconds)
        raise AssertionError("the last try returns or raises")

    def search(self, condition: str) -> list[Run]:
        """Return the runs, not deleted, for which the condition holds, the earliest first."""
        return self.asked(lambda: list(self.client.search_runs([self.experiment], condition, order_by=["attributes.start_time ASC"])))

    def holder(self, output: StepOutput) -> str | None:
        """Return the id of a run whose artifacts are this output, or None."""
        facts = {STEP: output["step"], VERSION: output["version"], OUTPUT_HASH: output["output_hash"], HOLDS: str(True)}
        found = self.search(" and ".join(f"tags.`{name}` = '{value}'" for name, value in facts.items()))
        return None if not found else str(found[0].info.run_id)

    def download(self, run_id: str, name: str, folder: Path) -> Path:
        """Fetch a file of a run's artifacts to the same place below `folder`, and return where it is now.

        Raises ArtifactError when it is not there, or the store of files does not give it.
        """
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with waiting(_SECONDS_FOR_A_DOWNLOAD):
                fetched = Path(self.asked(lambda: self.client.download_artifacts(run_id, name, str(target.parent)), is_absence))
        except failures() as error:
            why = error.__cause__ if isinstance(error, TrackingAwayError) and error.__cause__ is not None else error
            raise ArtifactError(
                f"{name} of MLflow run {run_id} cannot be fetched from {self.uri} ({first_line(why)}): its artifacts were deleted, or are"
                " kept where this machine does not reach; bring them back, or go on from another run"
            ) from None
        return fetched.rename(target)  # MLflow keeps the file's name, and not always its folders.

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
        """Return where the artifacts of a run are."""
        return str(self.asked(lambda: self.client.get_run(run_id)).info.artifact_uri)


_TIMEOUT: Final = "MLFLOW_HTTP_REQUEST_TIMEOUT"


class _Timeout:
    """MLflow's time-out, which it reads from the environment at each call: of all who want another at once, in threads, the longest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: list[float] = []
        self._usual = ""

    def add(self, seconds: float) -> None:
        with self._lock:
            if not self._wanted:
                self._usual = os.environ[_TIMEOUT]
            self._wanted.append(seconds)
            self._set()

    def remove(self, seconds: float) -> None:
        with self._lock:
            self._wanted.remove(seconds)
            self._set()

    def _set(self) -> None:
        longest = max((math.ceil(seconds) for seconds in self._wanted), default=0)
        os.environ[_TIMEOUT] = str(max(longest, int(self._usual)))


_timeout: Final = _Timeout()


@contextmanager
def waiting(seconds: float) -> Iterator[None]:
    """Let MLflow wait so long for an answer, where that is longer than usual."""
    _timeout.add(seconds)
    try:
        yield
    finally:
        _timeout.remove(seconds)


def seconds_for_a_file(num_bytes: int) -> float:
    """Return how long a server may take to answer when it has been given a file of this size."""
    return _SECONDS_FOR_A_FILE + num_bytes / _BYTES_PER_SECOND


@contextmanager
def _alone(machine: Machine) -> Iterator[None]:
    """Hold the embedded store's lock: three first connections at once break a new sqlite store for good."""
    file = sqlite_file(machine.tracking_uri)
    if file is None:
        yield
        return
    # Beside the file, not in the home: several homes can share a store.
    file.parent.mkdir(parents=True, exist_ok=True)
    with (file.parent / TABLES_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""MLflow: a parent run for the flow run, a child run a step, and outputs of steps as artifacts that can be fetched back."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.errors import PlainError
from grpo.metrics import Record
from steps.machine import Machine, sqlite_file
from steps.store import StepOutput

# Before MLflow's import, which reads these once: without them it phones home, and waits 244 s for a server that is down.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunStatus, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

EXPERIMENT: Final = "chess-grpo"
FLOW: Final = "flow"
"""Value of the step tag on the parent run."""

STEP: Final = "chess_grpo.step"
VERSION: Final = "chess_grpo.version"
OUTPUT_HASH: Final = "chess_grpo.output_hash"
_HOLDS: Final = "chess_grpo.holds_output"
"""Tag of a run whose artifacts are its whole output: set after the last file, so that no half of one is ever taken for it."""
_HELD_BY: Final = "chess_grpo.output_held_by"
RUN: Final = "metaflow.run"
PARENT: Final = "mlflow.parentRunId"
_NOTE: Final = "mlflow.note.content"
PEAK_STEP: Final = "chess_grpo.peak_step"
TABLES_LOCK: Final = "mlflow.lock"
"""File beside an sqlite store; held while the store's tables are made."""

_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms whether it carries one or many.
_PARAMS_PER_CALL: Final = 100
_MAX_PARAM_LENGTH: Final = 500
_SECONDS_BETWEEN_CALLS: Final = 5.0
_SECONDS_FOR_A_FILE: Final = 120  # A server that keeps its files in S3 answers when it has passed all of one on.


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


class ChildRun:
    """The tracker's view of one step at work; a sink for its records, which it sends in batches."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
        self.holder = run_id
        """The run whose artifacts are this step's output: this one, or an earlier one with the same output; see `Tracker.archive`."""
        self._client = client
        self._waiting: list[Metric] = []
        self._last_call = time.monotonic()

    def take(self, record: Record) -> None:
        """Queue a record's metrics; a full or old queue is sent."""
        now = int(time.time() * 1000)
        self._waiting += [Metric(name, value, now, record.step) for name, value in record.metrics.items()]
        if len(self._waiting) >= _METRICS_PER_CALL or time.monotonic() - self._last_call > _SECONDS_BETWEEN_CALLS:
            self.flush()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take no note: progress is for people who watch."""

    def flush(self) -> None:
        """Send what is queued."""
        for start in range(0, len(self._waiting), _METRICS_PER_CALL):
            self._client.log_batch(self.run_id, metrics=self._waiting[start : start + _METRICS_PER_CALL])
        self._waiting.clear()
        self._last_call = time.monotonic()

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self._client.log_batch(self.run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])

    def note(self, markdown: str) -> None:
        """Describe the run, in Markdown, on its page."""
        self.tag({_NOTE: markdown})

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder."""
        if path.is_dir():
            self._client.log_artifacts(self.run_id, str(path), folder)
        else:
            self._client.log_artifact(self.run_id, str(path), folder)

    def finished(self, output: StepOutput) -> None:
        """Say what came out, so that a later run can find it."""
        self.tag({VERSION: output["version"], OUTPUT_HASH: output["output_hash"], "chess_grpo.reused": output["reused"]})

    def dataset(self, *, digest: str, source: str, profile: Mapping[str, Any]) -> None:
        """Name the dataset that the step made or read."""
        data = Dataset(
            name="boards",
            digest=digest[:32],
            source_type="local",
            source=json.dumps({"uri": source}),
            profile=json.dumps(profile),
        )
        self._client.log_inputs(self.run_id, [DatasetInput(data, [InputTag("mlflow.data.context", "training")])])


class Tracker:
    """The tracking store of this machine or project."""

    def __init__(self, machine: Machine) -> None:
        """Connect; the first to open an embedded store makes its tables, alone."""
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self.uri = machine.tracking_uri
        with _alone(machine):
            self.client = MlflowClient(self.uri, registry_uri=self.uri)
            self._experiment = self._found_or_made(machine)

    def _found_or_made(self, machine: Machine) -> str:
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            root = machine.artifact_root
            try:
                return str(self.client.create_experiment(EXPERIMENT, artifact_location=None if root is None else root.as_uri()))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            experiment = self.client.get_experiment_by_name(EXPERIMENT)  # Another machine was first.
        return str(experiment.experiment_id)

    def start_flow_run(self, *, metaflow_run: str, settings: Mapping[str, Any], tags: Mapping[str, Any], note: str) -> str:
        """Return the id of a new parent run with the settings as flat parameters."""
        run = self.client.create_run(
            self._experiment,
            run_name=metaflow_run,
            tags={STEP: FLOW, RUN: metaflow_run, _NOTE: note, **{key: str(value) for key, value in tags.items()}},
        )
        params = [Param(key, value[:_MAX_PARAM_LENGTH]) for key, value in _flat(settings).items()]
        for start in range(0, len(params), _PARAMS_PER_CALL):
            self.client.log_batch(run.info.run_id, params=params[start : start + _PARAMS_PER_CALL])
        return str(run.info.run_id)

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Close the parent run."""
        self.client.log_batch(run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])
        self.client.set_terminated(run_id)

    def tag_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self.client.log_batch(run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])

    @contextmanager
    def child(self, parent: str, step: str, tags: Mapping[str, Any]) -> Iterator[ChildRun]:
        """Give a child run that ends as finished or failed; a parent that had failed (and is resumed) runs again."""
        self.client.update_run(parent, status=RunStatus.to_string(RunStatus.RUNNING))
        run = self.client.create_run(
            self._experiment, run_name=step, tags={PARENT: parent, STEP: step, **{key: str(value) for key, value in tags.items()}}
        )
        child = ChildRun(self.client, run.info.run_id)
        try:
            yield child
            child.flush()
        except BaseException:
            self.client.set_terminated(child.run_id, status=RunStatus.to_string(RunStatus.FAILED))
            self.client.set_terminated(parent, status=RunStatus.to_string(RunStatus.FAILED))
            raise
        self.client.set_terminated(child.run_id)

    def archive(self, child: ChildRun, output: StepOutput, folder: Path) -> None:
        """Keep an output's whole folder as artifacts of the child run, unless a run that was not deleted has the same output already.

        Either way `child.holder` is the run that has it.
        """
        holder = self.holder(output)
        if holder is None:
            with _patience():
                child.file(folder)
            child.tag({_HOLDS: True, VERSION: output["version"], OUTPUT_HASH: output["output_hash"]})
        child.holder = child.run_id if holder is None else holder
        child.tag({_HELD_BY: child.holder})

    def holder(self, output: StepOutput) -> str | None:
        """Return the id of a run whose artifacts are this output, or None."""
        facts = {STEP: output["step"], VERSION: output["version"], OUTPUT_HASH: output["output_hash"], _HOLDS: str(True)}
        found = self._search(" and ".join(f"tags.`{name}` = '{value}'" for name, value in facts.items()))
        return None if not found else str(found[0].info.run_id)

    def download(self, run_id: str, name: str, folder: Path) -> Path:
        """Fetch a file of a run's artifacts to the same place below `folder`, and return where it is now.

        Raises ArtifactError when it is not there, or the store of files does not give it.
        """
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _patience():
                fetched = Path(self.client.download_artifacts(run_id, name, str(target.parent)))
        except (MlflowException, OSError, *_storage_errors()) as error:
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            raise ArtifactError(
                f"{name} of MLflow run {run_id} cannot be fetched from {self.uri} ({first_line}): its artifacts were deleted, or are kept"
                " where this machine does not reach; bring them back, or go on from another run"
            ) from None
        return fetched.rename(target)  # MLflow keeps the file's name, and not always its folders.

    def flow_run(self, name: str) -> FlowRun | None:
        """Return the run with this Metaflow or MLflow id, or None."""
        if not name or not all(character.isalnum() or character in "-_" for character in name):
            return None
        found = self._search(f"tags.`{RUN}` = '{name}' and tags.`{STEP}` = '{FLOW}'")
        found += self._search(f"attributes.run_id = '{name}' and tags.`{STEP}` = '{FLOW}'")
        if not found:
            return None
        parent = found[0]
        outputs: dict[str, StepOutput] = {}
        for child in self._search(f"tags.`{PARENT}` = '{parent.info.run_id}'"):
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
        return str(self.client.get_run(run_id).info.artifact_uri)

    def _search(self, condition: str) -> list[Run]:
        return list(self.client.search_runs([self._experiment], condition, order_by=["attributes.start_time ASC"]))


@contextmanager
def _patience() -> Iterator[None]:
    """Wait longer than usual for an answer of the server: files are larger than numbers."""
    name = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    before = os.environ[name]
    os.environ[name] = str(max(int(before), _SECONDS_FOR_A_FILE))
    try:
        yield
    finally:
        os.environ[name] = before


def _storage_errors() -> tuple[type[Exception], ...]:
    """Return the errors of S3, which are no OSErrors; imported only when something has failed."""
    from botocore.exceptions import BotoCoreError, ClientError

    return BotoCoreError, ClientError


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


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

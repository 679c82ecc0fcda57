"""MLflow: a parent run for the flow run, a child run a step, and a registry whose aliases say which policy is which."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypedDict

from grpo.errors import PlainError
from grpo.metrics import Record
from steps.machine import Machine
from steps.store import StepOutput

# Before MLflow's import, which reads these once: without them it phones home, and waits 244 s for a server that is down.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "3")

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunStatus, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

EXPERIMENT: Final = "chess-grpo"
MODEL: Final = "chess-policy"
FLOW: Final = "flow"
"""Value of the step tag on the parent run."""

_STEP: Final = "chess_grpo.step"
_VERSION: Final = "chess_grpo.version"
_OUTPUT_HASH: Final = "chess_grpo.output_hash"
_RUN: Final = "metaflow.run"
_PARENT: Final = "mlflow.parentRunId"
_NOTE: Final = "mlflow.note.content"
_POLICY_STEP: Final = "chess_grpo.policy_step"
PEAK_STEP: Final = "chess_grpo.peak_step"

_METRICS_PER_CALL: Final = 500  # MLflow takes 1,000; a call costs 28 ms whether it carries one or many.
_PARAMS_PER_CALL: Final = 100
_MAX_PARAM_LENGTH: Final = 500
_SECONDS_BETWEEN_CALLS: Final = 5.0


class OriginError(PlainError, ValueError):
    """The run or policy to resume from cannot be found."""


class Origin(TypedDict):
    """Where a resumed run comes from: plain data, kept in the run."""

    name: str
    """What the user asked for: peak, champion, or a run."""
    mlflow_run: str
    """The parent run."""
    metaflow_run: str
    policy_step: int
    """The checkpoint's step; 0 is the pretrained policy."""
    outputs: dict[str, StepOutput]
    """By step."""


class ChildRun:
    """The tracker's view of one step at work; a sink for its records, which it sends in batches."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self.run_id = run_id
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
        self.tag({_VERSION: output["version"], _OUTPUT_HASH: output["output_hash"], "chess_grpo.reused": output["reused"]})

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
            self._client = MlflowClient(self.uri, registry_uri=self.uri)
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            if experiment is None:
                root = machine.artifact_root.as_uri() if machine.tracking_uri.startswith("sqlite:") else None
                self._experiment = self._client.create_experiment(EXPERIMENT, artifact_location=root)
            else:
                self._experiment = experiment.experiment_id

    def start_flow_run(self, *, metaflow_run: str, settings: Mapping[str, Any], tags: Mapping[str, Any], note: str) -> str:
        """Return the id of a new parent run with the settings as flat parameters."""
        run = self._client.create_run(
            self._experiment,
            run_name=metaflow_run,
            tags={_STEP: FLOW, _RUN: metaflow_run, _NOTE: note, **{key: str(value) for key, value in tags.items()}},
        )
        params = [Param(key, value[:_MAX_PARAM_LENGTH]) for key, value in _flat(settings).items()]
        for start in range(0, len(params), _PARAMS_PER_CALL):
            self._client.log_batch(run.info.run_id, params=params[start : start + _PARAMS_PER_CALL])
        return str(run.info.run_id)

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Close the parent run."""
        self._client.log_batch(run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])
        self._client.set_terminated(run_id)

    def tag_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._client.log_batch(run_id, tags=[RunTag(key, str(value)) for key, value in tags.items()])

    @contextmanager
    def child(self, parent: str, step: str, tags: Mapping[str, Any]) -> Iterator[ChildRun]:
        """Give a child run that ends as finished or failed; a parent that had failed (and is resumed) runs again."""
        self._client.update_run(parent, status=RunStatus.to_string(RunStatus.RUNNING))
        run = self._client.create_run(
            self._experiment, run_name=step, tags={_PARENT: parent, _STEP: step, **{key: str(value) for key, value in tags.items()}}
        )
        child = ChildRun(self._client, run.info.run_id)
        try:
            yield child
            child.flush()
        except BaseException:
            self._client.set_terminated(child.run_id, status=RunStatus.to_string(RunStatus.FAILED))
            self._client.set_terminated(parent, status=RunStatus.to_string(RunStatus.FAILED))
            raise
        self._client.set_terminated(child.run_id)

    def register(self, child: ChildRun, folder: str, *, parent: str, policy_step: int, description: str, aliases: tuple[str, ...]) -> str:
        """Make a model version of a policy that the child run has logged below `folder`, give it the aliases, and return its number."""
        if not self._client.search_registered_models(f"name = '{MODEL}'"):
            self._client.create_registered_model(
                MODEL, description="Chess policies; `champion` is the one to play, `peak` the one to go on from."
            )
        run = self._client.get_run(child.run_id)
        version = self._client.create_model_version(
            MODEL,
            source=f"{run.info.artifact_uri}/{folder}",
            run_id=child.run_id,
            tags={_PARENT: parent, _POLICY_STEP: str(policy_step)},
            description=description,
        )
        for alias in aliases:
            self._client.set_registered_model_alias(MODEL, alias, version.version)
        return str(version.version)

    def has_alias(self, alias: str) -> bool:
        """Return whether a policy has this alias."""
        return self._version_of(alias) is not None

    def origin(self, name: str) -> Origin:
        """Return where `peak`, `champion` or a run (Metaflow's or MLflow's id) can be resumed from.

        Raises OriginError when there is no such policy or run, or when the run ended before it had a peak.
        """
        if name in ("peak", "champion"):
            version = self._version_of(name)
            if version is None:
                raise OriginError(f"--resume-from {name}: no policy has the alias {name!r} in {self.uri}; let a run finish first")
            return self._origin(name, self._client.get_run(version.tags[_PARENT]), int(version.tags[_POLICY_STEP]))
        runs = self._search(f"tags.`{_RUN}` = '{_quotable(name)}' and tags.`{_STEP}` = '{FLOW}'")
        runs += self._search(f"attributes.run_id = '{_quotable(name)}' and tags.`{_STEP}` = '{FLOW}'")
        if not runs:
            raise OriginError(
                f"--resume-from {name}: no such run in {self.uri}; give peak, champion, or a run id as `python flows/chess_grpo.py"
                " run` printed it"
            )
        if PEAK_STEP not in runs[0].data.tags:
            raise OriginError(
                f"--resume-from {name}: this run ended before `select`, so it has no peak; finish it by"
                f" `python flows/chess_grpo.py resume --origin-run-id {runs[0].data.tags[_RUN]}`"
            )
        return self._origin(name, runs[0], int(runs[0].data.tags[PEAK_STEP]))

    def _origin(self, name: str, parent: Run, policy_step: int) -> Origin:
        outputs: dict[str, StepOutput] = {}
        for child in self._search(f"tags.`{_PARENT}` = '{parent.info.run_id}'"):
            tags = child.data.tags
            if _OUTPUT_HASH in tags:
                outputs[tags[_STEP]] = StepOutput(step=tags[_STEP], version=tags[_VERSION], output_hash=tags[_OUTPUT_HASH], reused=True)
        return Origin(
            name=name,
            mlflow_run=parent.info.run_id,
            metaflow_run=parent.data.tags[_RUN],
            policy_step=policy_step,
            outputs=outputs,
        )

    def _search(self, condition: str) -> list[Run]:
        return list(self._client.search_runs([self._experiment], condition, order_by=["attributes.start_time ASC"]))

    def _version_of(self, alias: str) -> Any:
        if not self._client.search_registered_models(f"name = '{MODEL}'"):
            return None
        try:
            return self._client.get_model_version_by_alias(MODEL, alias)
        except MlflowException as error:
            if error.error_code in ("INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"):
                return None
            raise


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat


def _quotable(text: str) -> str:
    if not all(character.isalnum() or character in "-_" for character in text):
        raise OriginError(f"--resume-from {text!r}: give peak, champion, or the id of a run")
    return text


@contextmanager
def _alone(machine: Machine) -> Iterator[None]:
    """Hold the embedded store's lock: three first connections at once break a new sqlite store for good."""
    if not machine.tracking_uri.startswith("sqlite:"):
        yield
        return
    machine.home.mkdir(parents=True, exist_ok=True)
    with (machine.home / "mlflow.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

"""MLflow: a parent run for the flow run, a child run a step, and outputs of steps as artifacts that can be fetched back.

Whatever a run has to say is written to its outbox first and told to the store from there (`steps.outbox`, `steps.delivery`). So an outage
costs nothing but that it is told later: at the step's end, with the next step, in `end`, with the next run's `start`, or by the command
`chess-grpo track`. Only `start` needs the store, for a run's id is the store's to give.
"""

import base64
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from grpo.content import MANIFEST, read_json, sha256_file
from grpo.metrics import Record
from steps.machine import Machine
from steps.objects import Objects, SharedStoreError
from steps.store import StepOutput, Store
from steps.tracking_store import EXPERIMENT, TABLES_LOCK, ArtifactError, FlowRun, TrackingStore
from steps.tracking_tags import CHILD, FLOW, NOTE, OUTPUT_HASH, PARENT, PEAK_STEP, RUN, STEP, VERSION

# isort: split
# After `steps.tracking_store`, which sets what MLflow reads once.
from mlflow.entities import RunStatus

from steps.courier import Courier
from steps.outages import Patience, TrackingAwayError
from steps.outbox import Journal, Outbox
from steps.registry import Chosen

__all__ = [
    "EXPERIMENT",
    "FLOW",
    "OUTPUT_HASH",
    "PARENT",
    "PEAK_STEP",
    "RUN",
    "STEP",
    "TABLES_LOCK",
    "VERSION",
    "ArtifactError",
    "ChildRun",
    "FlowRun",
    "Tracker",
    "TrackingAwayError",
]

_MAX_PARAM_LENGTH: Final = 500
_RUNNING, _FINISHED, _FAILED = (RunStatus.to_string(each) for each in (RunStatus.RUNNING, RunStatus.FINISHED, RunStatus.FAILED))


class ChildRun:
    """The tracker's view of one step at work; a sink for its records. What it is told is kept, and delivered beside the work."""

    def __init__(self, journal: Journal, courier: Courier, outputs: Path, key: str, patience: Patience) -> None:
        self.key = key
        """Its `CHILD` tag."""
        self.num_bytes = 0
        """Of the files that were logged."""
        self._journal = journal
        self._courier = courier
        self._outputs = outputs
        self._patience = patience

    @property
    def run_id(self) -> str:
        """MLflow's id, which is not known before all that the child was told so far is delivered.

        Raises TrackingAwayError when the store is away.
        """
        if not self._courier.finish(self._patience.at_end, self.num_bytes):
            raise TrackingAwayError(f"the tracking store does not answer ({self._courier.reason}), and the id of {self.key} is its to give")
        return self._journal.progress().run_id

    @property
    def holder(self) -> str:
        """The run whose artifacts are this step's output: this one, or an earlier one with the same output; see `archive`.

        As `run_id`, it is not known before all is delivered.
        """
        return self.run_id if not (progress := self._journal.progress()).holder else progress.holder

    def take(self, record: Record) -> None:
        """Keep a record's metrics, with the time of now."""
        if record.metrics:
            now = _now()
            rows = [[name, float(value), now, record.step] for name, value in record.metrics.items()]
            self._journal.append("metrics", rows=rows)
        self._courier.poke()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take no note: progress is for people who watch."""

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self._journal.append("tags", tags=_plain(tags))

    def tag_flow_run(self, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._journal.append("parent_tags", tags=_plain(tags))

    def note(self, markdown: str) -> None:
        """Describe the run, in Markdown, on its page."""
        self.tag({NOTE: markdown})

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder.

        One of an output is named, and read when it is delivered; another, which may be gone by then, is kept: let it be small.
        """
        for each in sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]:
            below = each.relative_to(path).parent.as_posix() if path.is_dir() else "."
            self._file("file", each, "/".join(part for part in (folder, below) if part not in (None, ".")) or None)

    def archive(self, output: StepOutput, folder: Path) -> None:
        """Keep an output's whole folder as artifacts, unless a run that was not deleted has the same output already.

        Which that is, `holder` says: it is decided on delivery.
        """
        plain = dict(output)
        self._journal.append("holding", output=plain)
        for each in sorted(part for part in folder.rglob("*") if part.is_file()):
            below = each.relative_to(folder).parent.as_posix()
            self._file("held_file", each, None if below == "." else below)
        self._journal.append("held", output=plain)

    def choose(self, chosen: Chosen) -> None:
        """Register what `select` chose, and offer it the aliases; what became of that is said when it is delivered."""
        self._journal.append("chosen", chosen=asdict(chosen), key=self.key)

    def finished(self, output: StepOutput) -> None:
        """Say what came out, so that a later run can find it."""
        self.tag({VERSION: output["version"], OUTPUT_HASH: output["output_hash"], "chess_grpo.reused": output["reused"]})

    def dataset(self, *, digest: str, source: str, profile: Mapping[str, Any]) -> None:
        """Name the dataset that the step made or read."""
        self._journal.append("dataset", digest=digest, source=source, profile=dict(profile))

    def _file(self, kind: str, path: Path, folder: str | None) -> None:
        if not path.is_relative_to(self._outputs):
            content = base64.b64encode(path.read_bytes()).decode()
            self._journal.append(kind, name=path.name, folder=folder, content=content)
            return
        step, version, *name = path.relative_to(self._outputs).parts
        manifest = self._outputs / step / version / MANIFEST
        digest = read_json(manifest)["output_hash"] if manifest.is_file() else ""
        output = StepOutput(step=step, version=version, output_hash=digest, reused=True)
        self.num_bytes += path.stat().st_size
        self._journal.append(kind, output=output, name="/".join(name), folder=folder, sha256=sha256_file(path))


class Tracker(TrackingStore):
    """The tracking store as a run uses it: what it reads is asked for with patience, what it says is kept until it can be told."""

    def __init__(
        self, machine: Machine, *, must_answer: bool = True, objects: Objects | None = None, patience: Patience | None = None
    ) -> None:
        """Connect.

        Args:
            machine: which knows where the store is.
            must_answer: raise what the store raises when it does not answer now; of steps at work only `start` does.
            objects: where what could not be told is kept, on a machine whose disk goes with it.
            patience: how long is waited for it.
        """
        self.patience = Patience() if patience is None else patience
        super().__init__(machine, self.patience.between_asks)
        self.outbox = Outbox(machine.home, objects)
        self._outputs = Store(machine.home)
        if must_answer:
            _ = self.experiment

    @property
    def _experiment(self) -> str:
        return self.experiment

    def start_flow_run(self, *, metaflow_run: str, settings: Mapping[str, Any], tags: Mapping[str, Any], note: str) -> str:
        """Return the id of a new parent run with the settings as flat parameters; raises TrackingAwayError when the store is away."""
        key = _key(metaflow_run, FLOW)
        wanted = {STEP: FLOW, RUN: metaflow_run, CHILD: key, NOTE: note, **_plain(tags)}

        def found_or_made() -> str:
            runs = self.client.search_runs([self.experiment], f"tags.`{CHILD}` = '{key}'")
            return str((runs[0] if runs else self.client.create_run(self.experiment, run_name=metaflow_run, tags=wanted)).info.run_id)

        run_id = self.asked(found_or_made)
        params = {name: value[:_MAX_PARAM_LENGTH] for name, value in _flat(settings).items()}
        self._tell(run_id, "start", [("parent_params", {"params": params})])
        return run_id

    def tag_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._tell(run_id, "tags", [("parent_tags", {"tags": _plain(tags)})])

    def end_flow_run(self, run_id: str, tags: Mapping[str, Any]) -> int:
        """Close the parent run, and return how many records of all that the run said still wait to be told."""
        ended = {"status": _FINISHED, "time": _now()}
        self._tell(run_id, "end", [("parent_tags", {"tags": _plain(tags)}), ("parent_status", ended)])
        return self.outbox.num_waiting(run_id)

    def deliver(self, run_id: str, seconds: float) -> str:
        """Tell what steps of a run left untold, as far as the store answers and the time is enough; return why not all, or nothing."""
        courier = self._courier(run_id, None)
        courier.finish(seconds)
        return courier.reason

    def deliver_left(self) -> None:
        """Tell what earlier runs of this home left untold, for a little while; who will not wait for that is none of this run's steps."""
        for run_id in self.outbox.parents():
            if reason := self.deliver(run_id, self.patience.at_end):
                waiting = self.outbox.num_waiting(run_id)
                print(f"tracking: WARNING: {waiting:,} records of run {run_id} still wait to be told to {self.uri} ({reason})", flush=True)
                return

    @contextmanager
    def child(self, parent: str, step: str, tags: Mapping[str, Any]) -> Iterator[ChildRun]:
        """Give a child run that ends as finished or failed; a parent that had failed (and is resumed) runs again."""
        key = _key(tags.get(RUN, parent), step)
        with self._journal(parent, step) as (journal, courier):
            child = ChildRun(journal, courier, self._outputs.folder("", ""), key, self.patience)
            journal.append("parent_status", status=_RUNNING)
            journal.append("child", key=key, step=step, tags=_plain(tags), time=_now())
            courier.poke()
            seconds, is_well = self.patience.at_failure, False
            try:
                yield child
                seconds, is_well = self.patience.at_end, True
            finally:
                status = _FINISHED if is_well else _FAILED
                journal.append("ended", key=key, status=status, time=_now())
                if not is_well:
                    journal.append("parent_status", status=_FAILED, time=_now())
                self._finish(courier, journal, step, seconds, child.num_bytes)

    def archive(self, child: ChildRun, output: StepOutput, folder: Path) -> None:
        """See `ChildRun.archive`."""
        child.archive(output, folder)

    def _tell(self, parent: str, name: str, records: list[tuple[str, dict[str, Any]]]) -> None:
        with self._journal(parent, name) as (journal, courier):
            for kind, facts in records:
                journal.append(kind, **facts)
            self._finish(courier, journal, name, self.patience.at_end, 0)

    @contextmanager
    def _journal(self, parent: str, name: str) -> Iterator[tuple[Journal, Courier]]:
        journal = self.outbox.begin(parent, name)
        courier = self._courier(parent, journal)
        try:
            yield journal, courier
        finally:
            try:
                courier.leave()
            except SharedStoreError as error:
                print(f"{name}: WARNING: what was not told to {self.uri} stays on this machine, in {journal.path}: {error}", flush=True)

    def _finish(self, courier: Courier, journal: Journal, name: str, seconds: float, num_bytes: int) -> None:
        if not courier.finish(seconds, num_bytes):
            num_waiting = len(journal.waiting())
            print(
                f"{name}: WARNING: the tracking store {self.uri} is away ({courier.reason}): the run goes on, and {num_waiting:,} records"
                f" wait in {journal.path} for a later step, the next run's start, or `chess-grpo track`",
                flush=True,
            )

    def _courier(self, parent: str, journal: Journal | None) -> Courier:
        # The store for its thread alone; it waits for nothing, since it will be tried again.
        store = TrackingStore(self._machine, ())
        return Courier(parent, outbox=self.outbox, store=store, outputs=self._outputs, patience=self.patience, journal=journal)


def _key(run: str, step: str) -> str:
    return f"{run}/{step}/{uuid.uuid4().hex[:12]}"


def _now() -> int:
    """Return milliseconds since 1970, as MLflow counts."""
    return time.time_ns() // 1_000_000


def _plain(tags: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in tags.items()}


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat

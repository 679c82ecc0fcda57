"""An MLflow child run per step: metrics, tags and artifacts go to a journal first and are logged from there."""

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.base.files import MANIFEST, read_json, sha256_file
from grpo.metrics.table import Record
from steps.store.outputs import StepOutput
from steps.tracking.delivery_thread import DeliveryThread
from steps.tracking.journal import Journal
from steps.tracking.outages import RetryPolicy, TrackingAwayError
from steps.tracking.registry import Chosen
from steps.tracking.tags import NOTE, OUTPUT_HASH, REUSED, VERSION


class ChildRun:
    """The MLflow run of one step, and a sink for its records: everything goes to the journal, which a thread delivers."""

    def __init__(self, journal: Journal, delivery: DeliveryThread, outputs: Path, key: str, retry_policy: RetryPolicy) -> None:
        self.key = key
        """Value of its `CHILD` tag."""
        self.num_bytes = 0
        """Total size of the logged files."""
        self._journal = journal
        self._delivery = delivery
        self._outputs = outputs
        self._retry_policy = retry_policy

    @property
    def journal(self) -> Path:
        """The journal's file; it is deleted when MLflow has all of it."""
        return self._journal.path

    @property
    def run_id(self) -> str:
        """MLflow's run id; known only after delivery, so this delivers the whole journal first.

        Raises TrackingAwayError when the store is away.
        """
        if not self._delivery.finish(self._retry_policy.at_end, self.num_bytes):
            raise TrackingAwayError(f"the tracking store does not answer ({self._delivery.reason}), so {self.key} has no run id yet")
        return self._journal.progress().run_id

    @property
    def holder(self) -> str:
        """The run that has this step's output as artifacts: this one, or an earlier one with the same output; see `archive`.

        Like `run_id`, it is known only after delivery.
        """
        return self.run_id if not (progress := self._journal.progress()).holder else progress.holder

    def log(self, record: Record) -> None:
        """Log a record's metrics with the current time."""
        if record.metrics:
            time_of_now = now()
            rows = [[name, float(value), time_of_now, record.step] for name, value in record.metrics.items()]
            self._journal.append("metrics", rows=rows)
        self._delivery.poke()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Ignore progress, which is not logged to MLflow."""

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self._journal.append("tags", tags=plain(tags))

    def tag_flow_run(self, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._journal.append("parent_tags", tags=plain(tags))

    def note(self, markdown: str) -> None:
        """Set the run's description on its MLflow page, in Markdown."""
        self.tag({NOTE: markdown})

    def headline(self, metrics: Mapping[str, float]) -> None:
        """Log headline metrics on the parent run: one value each, however often the step is retried."""
        if metrics:
            self._journal.append("parent_metrics", metrics=dict(metrics), time=now())

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder, as artifacts.

        A file of an output is recorded by name and read at delivery. Any other file is stored in the journal, so it should be small.
        """
        for each in sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]:
            below = each.relative_to(path).parent.as_posix() if path.is_dir() else "."
            self._file("file", each, "/".join(part for part in (folder, below) if part not in (None, ".")) or None)

    def archive(self, output: StepOutput, folder: Path) -> None:
        """Log an output's whole folder as artifacts, unless an active run has the same output already.

        `holder` says which run has it; this is decided at delivery.
        """
        plain = dict(output)
        self._journal.append("holding", output=plain)
        for each in sorted(part for part in folder.rglob("*") if part.is_file()):
            below = each.relative_to(folder).parent.as_posix()
            self._file("held_file", each, None if below == "." else below)
        self._journal.append("held", output=plain)

    def choose(self, chosen: Chosen) -> None:
        """Register the policies that `select` chose, and offer them the aliases; delivery prints the result."""
        self._journal.append("chosen", chosen=asdict(chosen), key=self.key)

    def finished(self, output: StepOutput) -> None:
        """Tag the run with its output, so that later runs find it."""
        self.tag({VERSION: output["version"], OUTPUT_HASH: output["output_hash"], REUSED: output["reused"]})

    def dataset(self, *, digest: str, source: str, profile: Mapping[str, Any], schema: Sequence[Mapping[str, Any]] = ()) -> None:
        """Log the dataset that the step made or read, on this run and its parent.

        Args:
            digest: hash of its file.
            source: path of its file.
            profile: summary of its content; MLflow shows `num_rows`.
            schema: its columns in MLflow's format, each with `name`, `type` and `required`.
        """
        self._journal.append("dataset", digest=digest, source=source, profile=dict(profile), schema=list(schema))

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


def now() -> int:
    """Return the time in milliseconds since 1970, MLflow's unit."""
    return time.time_ns() // 1_000_000


def plain(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags with values as strings."""
    return {name: str(value) for name, value in tags.items()}

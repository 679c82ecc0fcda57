"""What the tracking store is told of one step at work, written down as it is said."""

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.base.files import MANIFEST, read_json, sha256_file
from grpo.metrics.table import Record
from steps.store.outputs import StepOutput
from steps.tracking.delivery_thread import Courier
from steps.tracking.journal import Journal
from steps.tracking.outages import Patience, TrackingAwayError
from steps.tracking.registry import Chosen
from steps.tracking.tags import NOTE, OUTPUT_HASH, REUSED, VERSION


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
    def journal(self) -> Path:
        """Where all that the child is told is written down; the file goes when the tracking store has it."""
        return self._journal.path

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

    def log(self, record: Record) -> None:
        """Keep a record's metrics, with the time of now."""
        if record.metrics:
            time_of_now = now()
            rows = [[name, float(value), time_of_now, record.step] for name, value in record.metrics.items()]
            self._journal.append("metrics", rows=rows)
        self._courier.poke()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Take no note: progress is for people who watch."""

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self._journal.append("tags", tags=plain(tags))

    def tag_flow_run(self, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        self._journal.append("parent_tags", tags=plain(tags))

    def note(self, markdown: str) -> None:
        """Describe the run, in Markdown, on its page."""
        self.tag({NOTE: markdown})

    def headline(self, metrics: Mapping[str, float]) -> None:
        """Give the parent run these numbers, by which runs are compared: one value each, whatever the step is tried again."""
        if metrics:
            self._journal.append("parent_metrics", metrics=dict(metrics), time=now())

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
        self.tag({VERSION: output["version"], OUTPUT_HASH: output["output_hash"], REUSED: output["reused"]})

    def dataset(self, *, digest: str, source: str, profile: Mapping[str, Any], schema: Sequence[Mapping[str, Any]] = ()) -> None:
        """Name the dataset that the step made or read, on its page and the parent's.

        Args:
            digest: of its file.
            source: where that is.
            profile: what is in it; `num_rows` is what MLflow shows.
            schema: its columns as MLflow describes them, each with `name`, `type` and `required`.
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
    """Return milliseconds since 1970, as MLflow counts."""
    return time.time_ns() // 1_000_000


def plain(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags as the store takes them."""
    return {name: str(value) for name, value in tags.items()}

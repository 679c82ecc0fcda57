"""An MLflow child run per step: metrics, tags and artifacts go to a journal, from which MLflow and W&B are told."""

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from grpo.metrics.table import Record
from steps.step_io.work import record_row
from steps.store.outputs import StepOutput
from steps.tracking.delivery import DeliveryThread
from steps.tracking.journal import Journal
from steps.tracking.registry import Chosen
from steps.tracking.tags import NOTE, OUTPUT_HASH, REUSED, VERSION


class ChildRun:
    """The MLflow run of one step, and a sink for its records: everything goes to the journal, which a thread delivers."""

    def __init__(self, journal: Journal, delivery: DeliveryThread, key: str = "") -> None:
        self.journal = journal
        self.delivery = delivery
        self.key = key
        """Value of its `CHILD` tag; empty for a journal that concerns the parent alone."""
        self.num_bytes = 0
        """Total size of the logged output."""
        self._output: StepOutput | None = None

    def log(self, record: Record) -> None:
        """Log a record's metrics with the current time; raises StorageError when the disk is full, here or of the tracking store."""
        if record.metrics:
            self.journal.append("record", time=now(), record=record_row(record))
        self.delivery.check()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Ignore progress, which is not logged to MLflow."""

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        self.journal.append("log", is_parent=False, tags=plain(tags), params={})

    def tag_flow_run(self, tags: Mapping[str, Any], params: Mapping[str, str] | None = None) -> None:
        """Set tags and parameters on the parent run."""
        self.journal.append("log", is_parent=True, tags=plain(tags), params=dict(params or {}))

    def note(self, markdown: str) -> None:
        """Set the run's description on its MLflow page, in Markdown."""
        self.tag({NOTE: markdown})

    def note_flow_run(self, markdown: str) -> None:
        """Set the parent's description; a later one stays, though it is delivered first."""
        self.journal.append("story", note=markdown, time=now())

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder, as artifacts; their content is stored in the journal, so it should be small."""
        for each in sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]:
            below = each.relative_to(path).parent.as_posix() if path.is_dir() else "."
            self.content(each.name, each.read_bytes(), "/".join(part for part in (folder, below) if part not in (None, ".")))

    def content(self, name: str, content: bytes, folder: str = "") -> None:
        """Log a small file, given its content; of the parent, in a journal that concerns it alone."""
        encoded = base64.b64encode(content).decode()
        self.journal.append("file", is_parent=not self.key, name=name, folder=folder or None, content=encoded)

    def ended(self, status: str) -> None:
        """Set the final status of the run, or of the parent in a journal that concerns it alone; a failed run fails its parent."""
        self.journal.append("ended", is_parent=not self.key, status=status, time=now())

    def output(self, output: StepOutput, folder: Path, *, is_archived: bool, published: Sequence[str] = ()) -> None:
        """Log the files of an output, which are read at delivery, and its headline metrics on the parent run.

        Args:
            output: the output.
            folder: where it is.
            is_archived: log all files, unless an active run has the same output already; else only manifest, history and `published`.
            published: files that are logged by themselves, if they are there.
        """
        self._output = output
        self.num_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.journal.append("output", output=dict(output), is_archived=is_archived, published=list(published), time=now())

    def choose(self, chosen: Chosen) -> None:
        """Register the policies that `select` chose and whose output was logged, and offer them the aliases; delivery prints the result."""
        self.journal.append("chosen", chosen=asdict(chosen), key=self.key, output=self._output)

    def finished(self, output: StepOutput) -> None:
        """Tag the run with its output, so that later runs find it."""
        self.tag({VERSION: output["version"], OUTPUT_HASH: output["output_hash"], REUSED: output["reused"]})

    def dataset(self, *, name: str, digest: str, source: str, profile: Mapping[str, Any]) -> None:
        """Log the dataset that the step made or read, on this run and its parent.

        Args:
            name: what MLflow shows of it in the table of runs, before the digest.
            digest: hash of its file.
            source: path of its file.
            profile: summary of its content; MLflow shows `num_rows`.
        """
        self.journal.append("dataset", name=name, digest=digest, source=source, profile=dict(profile))


def now() -> int:
    """Return the time in milliseconds since 1970, MLflow's unit."""
    return time.time_ns() // 1_000_000


def plain(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags with values as strings."""
    return {name: str(value) for name, value in tags.items()}

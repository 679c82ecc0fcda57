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
from steps.tracking.delivery_thread import DeliveryThread
from steps.tracking.journal import Journal
from steps.tracking.registry import Chosen
from steps.tracking.tags import NOTE, OUTPUT_HASH, REUSED, VERSION


class ChildRun:
    """The MLflow run of one step, and a sink for its records: everything goes to the journal, which a thread delivers."""

    def __init__(self, journal: Journal, delivery: DeliveryThread, key: str) -> None:
        self.key = key
        """Value of its `CHILD` tag."""
        self.num_bytes = 0
        """Total size of the logged output."""
        self._journal = journal
        self._delivery = delivery

    @property
    def journal(self) -> Path:
        """The journal's file; it is deleted when all of it is logged."""
        return self._journal.path

    def log(self, record: Record) -> None:
        """Log a record's metrics with the current time."""
        if record.metrics:
            self._journal.append("record", time=now(), record=record_row(record))
        self._delivery.poke()

    def progress(self, done: int, total: int, unit: str) -> None:
        """Ignore progress, which is not logged to MLflow."""

    def tag(self, tags: Mapping[str, Any]) -> None:
        """Set tags."""
        log(self._journal, is_parent=False, tags=tags)

    def tag_flow_run(self, tags: Mapping[str, Any]) -> None:
        """Set tags on the parent run."""
        log(self._journal, is_parent=True, tags=tags)

    def note(self, markdown: str) -> None:
        """Set the run's description on its MLflow page, in Markdown."""
        self.tag({NOTE: markdown})

    def file(self, path: Path, folder: str | None = None) -> None:
        """Log a file, or all files of a folder, as artifacts; their content is stored in the journal, so it should be small."""
        for each in sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]:
            below = each.relative_to(path).parent.as_posix() if path.is_dir() else "."
            log_file(self._journal, each.name, each.read_bytes(), "/".join(part for part in (folder, below) if part not in (None, ".")))

    def output(self, output: StepOutput, folder: Path, *, is_archived: bool, published: Sequence[str] = ()) -> None:
        """Log the files of an output, which are read at delivery, and its headline metrics on the parent run.

        Args:
            output: the output.
            folder: where it is.
            is_archived: log all files, unless an active run has the same output already; else only manifest, history and `published`.
            published: files that are logged by themselves, if they are there.
        """
        self.num_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self._journal.append("output", output=dict(output), is_archived=is_archived, published=list(published), time=now())

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


def log(journal: Journal, *, is_parent: bool, tags: Mapping[str, Any], params: Mapping[str, str] | None = None) -> None:
    """Journal tags and parameters of a run or its parent."""
    journal.append("log", is_parent=is_parent, tags=plain(tags), params=dict(params or {}))


def log_file(journal: Journal, name: str, content: bytes, folder: str = "", *, is_parent: bool = False) -> None:
    """Journal a small file of a run or its parent."""
    journal.append("file", is_parent=is_parent, name=name, folder=folder or None, content=base64.b64encode(content).decode())


def now() -> int:
    """Return the time in milliseconds since 1970, MLflow's unit."""
    return time.time_ns() // 1_000_000


def plain(tags: Mapping[str, Any]) -> dict[str, str]:
    """Return tags with values as strings."""
    return {name: str(value) for name, value in tags.items()}

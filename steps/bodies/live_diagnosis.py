"""The diagnosis of a run while it trains: findings for log, card and tracker. Bodies do not import it, so that it is in no version."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from grpo.base.files import write_json
from grpo.diagnosis.diagnose import Watch
from grpo.metrics.table import Event, Record
from steps.step_io.names import FINDINGS

FINDING: Final = "finding"
"""Name of the event by which sinks learn of a finding."""


class LiveDiagnosis:
    """A `Watcher` that applies the diagnosis to each record."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Begin an empty history; the settings are the run's, as plain data."""
        self._watch = Watch({"grpo": settings["grpo"]})

    def observe(self, record: Record) -> tuple[Event, ...]:
        """Return what is found for the first time with this record."""
        return tuple(Event(FINDING, f"{found.severity}: {found.line}") for found in self._watch.observe(record))

    def write(self, folder: Path) -> str:
        """Write what the whole history shows, and return its tag in a line."""
        diagnosis = self._watch.diagnosis()
        (folder / FINDINGS).parent.mkdir(exist_ok=True)
        write_json(folder / FINDINGS, {**diagnosis.facts(), "tag": diagnosis.tag})
        return f"diagnosis: {diagnosis.tag}"

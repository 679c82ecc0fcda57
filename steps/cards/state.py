"""The state that a card shows: a step's records so far, and its stored output."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo.base.files import read_json
from grpo.policy.files import NETWORK
from grpo.settings.metrics import FINDING, Record
from steps.run.names import HISTORY, REPORT
from steps.run.terminal import Pace
from steps.run.work import read_history


@dataclass(slots=True)
class Seen:
    """The state of a step so far."""

    settings: Mapping[str, Any]
    """Settings of the run, as plain data."""
    records: list[Record] = field(default_factory=list)
    progress: tuple[float, str] | None = None
    """Which fraction is done, and in words; None before the first progress and after the end."""
    folder: Path | None = None
    """Folder of the stored output; None before the end."""
    failure: str = ""
    """The error that ended the step, and its remedy; empty without one."""
    is_reused: bool = False
    """Whether the store already had the output."""
    progress_folder: Path | None = None
    """Where the step keeps what survives a kill, such as the report of training that is over."""
    findings: Sequence[Mapping[str, Any]] = ()
    """Findings of the diagnosis, as plain data."""
    _pace: Pace = field(default_factory=Pace)

    @property
    def kind(self) -> str:
        """The kind of the run's policy."""
        return str(self.settings.get("policy", {}).get("kind", NETWORK))

    def log(self, record: Record) -> None:
        """Keep a record; when it says that the diagnosis has found something, ask it for all that the history shows."""
        self.records.append(record)
        if any(event.name == FINDING for event in record.events):
            from grpo.diagnosis.diagnose import diagnose
            from grpo.diagnosis.history import History

            history = History.of_records(self.records)
            self.findings = diagnose(history).facts()["findings"]

    def progressed(self, done: int, total: int, unit: str) -> None:
        """Update the progress."""
        self.progress = (done / total if total else 0.0, self._pace.text(done, total, unit))

    def finish(self, folder: Path, *, is_reused: bool) -> None:
        """Set the stored output; read its history if the output was reused, so that there are no records."""
        self.folder, self.is_reused, self.progress = folder, is_reused, None
        if not self.records and (folder / HISTORY).exists():
            self.records = read_history(folder)

    def report(self, name: str = REPORT) -> dict[str, Any]:
        """Return the content of a JSON file of the output; empty if it does not exist."""
        return dict(self._read(name) or {})

    def page(self, name: str) -> str:
        """Return the text of an HTML file of the output; empty if it does not exist."""
        return (self.folder / name).read_text(encoding="utf-8") if self.folder is not None and (self.folder / name).exists() else ""

    def listed(self, name: str) -> list[Any]:
        """Return the list in a JSON file of the output; empty if it does not exist."""
        return list(self._read(name) or [])

    def _read(self, name: str) -> Any:
        folder = self.folder or self.progress_folder
        return read_json(folder / name) if folder is not None and (folder / name).exists() else None

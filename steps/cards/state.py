"""What a card is made of: the state that it shows (a step's records so far, and its stored output), and its parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from grpo.base.files import read_json
from grpo.diagnosis.records import Record
from steps.names import HISTORY, REPORT
from steps.run.work import read_history

CardPart = Markup | dict[str, Any]
"""A part of a card: HTML, or the specification of a chart."""


@dataclass(slots=True)
class Seen:
    """The state of a step so far."""

    settings: Mapping[str, Any]
    """Settings of the run, as plain data."""
    records: list[Record] = field(default_factory=list)
    progress: tuple[float, str] | None = None
    """Which fraction is done, and in words; None before the first progress."""
    folder: Path | None = None
    """Folder of the stored output; None before the end."""
    failure: str = ""
    """The error that ended the step, and its remedy; empty without one."""
    is_reused: bool = False
    """Whether the store already had the output."""

    @property
    def kind(self) -> str:
        """The kind of the run's policy."""
        return str(self.settings["policy"]["kind"])

    def history(self) -> list[Record]:
        """Return the records, of an output that was reused from its file."""
        if self.records or self.folder is None or not (self.folder / HISTORY).exists():
            return self.records
        return read_history(self.folder)

    def read(self, name: str = REPORT) -> Any:
        """Return the content of a JSON file, or the text of another file of the output; an empty dict if there is none."""
        if self.folder is None or not (self.folder / name).exists():
            return {}
        return read_json(self.folder / name) if name.endswith(".json") else (self.folder / name).read_text(encoding="utf-8")

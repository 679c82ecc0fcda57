"""What a card is drawn from: what a step has told so far, and what it left when it was done."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpo.base.files import read_json
from grpo.metrics.table import Record
from grpo.policy.files import NETWORK
from steps.cards.html import CardPart, badge, progress_bar
from steps.step_io.names import HISTORY
from steps.step_io.work import progress_text, read_history

_FINDING: Final = "finding"


@dataclass(slots=True)
class Seen:
    """A step as far as it has come."""

    settings: Mapping[str, Any]
    """The run's, as plain data."""
    records: list[Record] = field(default_factory=list)
    progress: str = ""
    """As markup; nothing before the first is told, and when the step is done."""
    folder: Path | None = None
    """The stored output, once there is one, whoever made it."""
    is_reused: bool = False
    """Whether the output was in the store already."""
    learnability: Mapping[str, Any] | None = None
    """What GRPO's look before the first update found."""
    findings: Sequence[Mapping[str, Any]] = ()
    """What the diagnosis says: facts of `Finding`s."""
    _began: tuple[float, int] | None = None

    @property
    def kind(self) -> str:
        """The kind of the run's policy."""
        return str(self.settings.get("policy", {}).get("kind", NETWORK))

    def log(self, record: Record) -> None:
        """Keep a record; when it says that the diagnosis has found something, ask it for all that the history shows."""
        self.records.append(record)
        if any(event.name == _FINDING for event in record.events):
            from grpo.diagnosis.diagnose import diagnose
            from grpo.diagnosis.history import History

            history = History.of_records(self.records)
            self.findings = diagnose(history, self.settings).facts()["findings"]

    def progressed(self, done: int, total: int, unit: str) -> None:
        """Take note of how far the work is; the pace counts from the first time that this is told."""
        now = time.monotonic()
        if self._began is None or done < self._began[1]:
            self._began = now, done
        since, at_first = self._began
        rate = (done - at_first) / (now - since) if done > at_first and now > since else 0.0
        words = progress_text(done, total, unit, rate=rate) if rate else f"{done:,} of {total:,} {unit}"
        self.progress = progress_bar(done, total, words)

    def finish(self, folder: Path, *, is_reused: bool) -> None:
        """Take the stored output, and its history where nothing was told because the step had nothing to do."""
        self.folder, self.is_reused, self.progress = folder, is_reused, ""
        if not self.records and (folder / HISTORY).exists():
            self.records = read_history(folder)

    def report(self, name: str = "report.json") -> dict[str, Any]:
        """Return a file of the output; empty while there is none, or when it is of a time in which it was not written."""
        return dict(self._read(name) or {})

    def listed(self, name: str) -> list[Any]:
        """Return a file of the output that holds a list; empty as `report` is."""
        return list(self._read(name) or [])

    def _read(self, name: str) -> Any:
        return read_json(self.folder / name) if self.folder is not None and (self.folder / name).exists() else None

    def state(self) -> str:
        """Return progress, or how it ended, as markup."""
        if self.folder is not None:
            return f"<p>{badge('done', 'good')} {'taken from the store: nothing had to be computed' if self.is_reused else ''}</p>"
        return self.progress or f"<p>{badge('at work', 'plain')}</p>"

    def last(self, name: str) -> float | None:
        """Return a metric's latest value."""
        return next((record.metrics[name] for record in reversed(self.records) if name in record.metrics), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class KindPages:
    """What the cards draw of one kind of policy."""

    pretrain: Callable[[Seen], list[CardPart]]
    training_figures: Callable[[Seen, Sequence[float]], list[CardPart]]
    """Charts of GRPO, each with its numbers; the second argument is the steps at which something happened."""
    latest: Mapping[str, str]
    """Metric -> its label among the latest numbers."""
    report_figures: Callable[[Sequence[Record]], list[CardPart]]
    """Charts of the training in the final card."""

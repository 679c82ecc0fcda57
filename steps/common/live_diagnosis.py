"""The diagnosis of a run while it trains: findings for terminal, card and tracker. It is in no version, for training does not follow it."""

from collections.abc import Mapping
from pathlib import Path

from grpo.base.documents import write_document
from grpo.diagnosis.diagnose import Watch, look_before, refuse
from grpo.metrics.records import Event, Record
from grpo.metrics.table import FINDING
from grpo.settings.tree import Settings
from steps.names import FINDINGS


class LiveDiagnosis:
    """Applies the diagnosis to each record of `finetune`."""

    def __init__(self, settings: Settings) -> None:
        """Begin an empty history."""
        self._limits = {"critical_entropy": settings.grpo.critical_entropy}
        self._watch = Watch(settings)

    def refuse(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise NotLearnableError where the rollout of the first step, before its update, shows that nothing could be learned."""
        refuse(look_before(metrics, step=step, limits=self._limits))

    def observe(self, record: Record) -> tuple[Event, ...]:
        """Return what is found for the first time with this record; the same records give the same events."""
        return tuple(Event(FINDING, f"{found.severity}: {found.line}") for found in self._watch.observe(record))

    def write(self, folder: Path) -> str:
        """Write, aside in the output, what the whole history shows, and return its tag in a line."""
        diagnosis = self._watch.diagnosis()
        (folder / FINDINGS).parent.mkdir(exist_ok=True)
        write_document(folder / FINDINGS, diagnosis)
        return f"diagnosis: {diagnosis.tag}"

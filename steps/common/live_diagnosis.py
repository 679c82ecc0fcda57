"""Diagnosis of `finetune` during training.

It changes no output's hash, so no step's version (hash of code and inputs) covers this module.
"""

from collections.abc import Mapping
from pathlib import Path

from grpo.base.documents import write_document
from grpo.diagnosis.diagnose import Watch, look_before, refuse
from grpo.metrics.records import Event, Record
from grpo.metrics.table import FINDING
from grpo.settings.tree import Settings
from steps.names import FINDINGS


class LiveDiagnosis:
    def __init__(self, settings: Settings) -> None:
        self._limits = {"critical_entropy": settings.grpo.critical_entropy}
        self._watch = Watch(settings)

    def refuse(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Raise NotLearnableError if the first rollout shows that GRPO could learn nothing."""
        refuse(look_before(metrics, step=step, limits=self._limits))

    def observe(self, record: Record) -> tuple[Event, ...]:
        """Return an event for each new finding."""
        return tuple(Event(FINDING, f"{finding.severity}: {finding.line}") for finding in self._watch.observe(record))

    def write(self, folder: Path) -> str:
        """Write the diagnosis, and return a line for the terminal."""
        diagnosis = self._watch.diagnosis()
        (folder / FINDINGS).parent.mkdir(exist_ok=True)
        write_document(folder / FINDINGS, diagnosis)
        return f"diagnosis: {diagnosis.tag}"

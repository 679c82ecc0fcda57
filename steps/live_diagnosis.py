"""The diagnosis of a run while it trains: findings for terminal, card and tracker. It is in no version, for training does not follow it."""

from pathlib import Path

from grpo.base.files import write_json
from grpo.diagnosis.diagnose import Watch
from grpo.settings.grpo import GrpoConfig
from grpo.settings.metrics import FINDING, Event, Record
from steps.run.names import FINDINGS


class LiveDiagnosis:
    """Applies the diagnosis to each record of `finetune`."""

    def __init__(self, config: GrpoConfig) -> None:
        """Begin an empty history."""
        self._watch = Watch({"grpo": config.model_dump(mode="json")})

    def observe(self, record: Record) -> tuple[Event, ...]:
        """Return what is found for the first time with this record; the same records give the same events."""
        return tuple(Event(FINDING, f"{found.severity}: {found.line}") for found in self._watch.observe(record))

    def write(self, folder: Path) -> str:
        """Write, aside in the output, what the whole history shows, and return its tag in a line."""
        diagnosis = self._watch.diagnosis()
        (folder / FINDINGS).parent.mkdir(exist_ok=True)
        write_json(folder / FINDINGS, {**diagnosis.facts(), "tag": diagnosis.tag})
        return f"diagnosis: {diagnosis.tag}"

"""`results.json`: a run's results, which the step `report` writes. A part that was not measured is None.

- Own start: the run's pretrained policy, which GRPO trains.
- Candidate: the checkpoint that may become champion.
- Ladder: rated opponents.
- Regret: mean win probability that a policy's most likely moves lose on boards outside training.
"""

from pathlib import Path
from typing import Any, Final, Literal

from grpo.base.documents import Document, read_document
from grpo.dataset.games import ENGINE
from grpo.dataset.reports import Boards
from grpo.diagnosis.findings import Diagnosis
from grpo.match.ladder import LadderReport
from grpo.match.selection import Selection
from grpo.metrics.shared import PRETRAINED_STEP
from grpo.metrics.table import ENDS
from grpo.statistics.intervals import Estimate, Unit

_MAX_SOURCES: Final = 3


class Measurement(Document):
    name: str  # Label on pages, the same in all runs.
    unit: Unit
    estimate: Estimate  # Value and 95 % interval; undecided games count as draws.
    adjudicated: Estimate | None = None  # Undecided games go to a side that a search finds 2.5 pawns ahead. Not for the verdict.
    num_games: int | None = None  # None for regret.
    decides: bool = False  # True for the verdict's row: the candidate's games against its own start.
    # Condition (opponent, rules, ladder or boards) -> value (None if unknown). Results with different yardsticks cannot be compared.
    yardstick: dict[str, str | None]
    output: str  # Hash of the output with the measurement.


class Training(Document):
    first_step: int
    last_step: int
    reason: str  # Key of `ENDS`.
    message: str
    mean_entropy_at_end: float | None  # Nats at T = 1; None if not finite.
    control: dict[str, float]  # `control/...` metrics at the end.

    @property
    def end(self) -> str:
        message = f" ({self.message})" if self.message else ""
        why = ENDS.get(self.reason, self.reason)
        return f"GRPO trained from step {self.first_step:,} to {self.last_step:,} and stopped because {why}{message}."


class Dataset(Document):
    boards: Boards
    output_hash: str

    @property
    def name(self) -> str:
        sources = sorted(self.boards.sources, key=lambda source: -self.boards.sources[source])
        names = ["engine games" if source == ENGINE else source for source in sources]
        return ", ".join(names[:_MAX_SOURCES]) + (f" and {len(names) - _MAX_SOURCES} more" if len(names) > _MAX_SOURCES else "")

    def __str__(self) -> str:
        return f"{self.boards.rows:,} boards of {self.name}; dataset {self.output_hash[:12]}"


class ResumedFrom(Document):
    run: str
    step: int

    def __str__(self) -> str:
        start = f"step {PRETRAINED_STEP} of that run, its pretrained policy"
        return f"Resumed from step {self.step:,} of run {self.run}: the verdict is against {start}, not against step {self.step:,}."


class Results(Document):
    format: Literal[3] = 3  # Changes with the meaning of any key.
    kind: str  # `network` or `language`.
    origin: ResumedFrom | None  # None for a new training.
    decision: Selection
    measurements: tuple[Measurement, ...]  # In the order of the steps.
    ladder: LadderReport
    strength: str  # The champion's strength in words.
    regret: dict[str, tuple[float, float | None]]  # Phase of a game -> regret of pretrained policy and candidate, None without candidate.
    quality: dict[str, tuple[float, float | None]]  # Metric of `MOVE_QUALITY` -> value of the same two.
    boards: Boards
    pretraining: dict[str, Any]  # Report of `pretrain`.
    training: Training
    findings: Diagnosis | None  # None if the diagnosis did not run.
    settings: dict[str, Any]  # Dotted name -> value.
    engine: str  # Name, and hash of its file.
    outputs: dict[str, dict[str, str]]  # Step -> `version` and `output_hash`.

    @property
    def dataset(self) -> Dataset:
        return Dataset(boards=self.boards, output_hash=self.outputs["join_boards"]["output_hash"])

    def about(self, step: int) -> str:
        """Return what games show of a checkpoint's strength."""
        return f"{self.decision.strength(step)} {self.strength if step == self.decision.champion_step else ''}".rstrip()


def read_results(path: Path) -> Results:
    """Raises CorruptError, or DocumentError for other code's file."""
    return read_document(path, Results)


def read_dataset(path: Path, output_hash: str) -> Dataset:
    """Raises as `read_results`."""
    return Dataset(boards=read_document(path, Boards), output_hash=output_hash)

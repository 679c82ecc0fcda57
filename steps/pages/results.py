"""`results.json`: the results of a run in one document.

The step `report` writes it. The report, the cards, the model card, MLflow's descriptions and the commands `show`, `compare` and `sweep` are
views of it (`steps.pages.templates`). A part that was not measured is None: `Decision.sentence` says why.
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
    """One result of games or of held-out boards."""

    name: str
    """Name that pages show, the same in all runs."""
    unit: Unit
    estimate: Estimate
    """Result of games as played, or of boards."""
    adjudicated: Estimate | None = None
    """Result of the same games, undecided ones given to the side that a search finds better; it does not change the verdict."""
    num_games: int | None = None
    """None for regret."""
    decides: bool = False
    """Whether the verdict rests on it: on fresh games against the own start, as played."""
    yardstick: dict[str, str | None]
    """Opponent, rules, ladder or boards that it was measured with, by name; None where unknown. With equal ones runs compare."""
    output: str
    """Hash of the step's output that has it: with the same hash two runs share one measurement."""


class Training(Document):
    """How GRPO ended, from the report of `finetune`."""

    first_step: int
    last_step: int
    reason: str
    """Why it ended."""
    message: str
    mean_entropy_at_end: float | None
    """Mean entropy in the last steps, in nats."""
    control: dict[str, float]

    @property
    def end(self) -> str:
        """From which step to which GRPO trained, and why it stopped."""
        message = f" ({self.message})" if self.message else ""
        why = ENDS.get(self.reason, self.reason)
        return f"GRPO trained from step {self.first_step:,} to {self.last_step:,} and stopped because {why}{message}."


class Dataset(Document):
    """The dataset of a run: the boards that `join_boards` made."""

    boards: Boards
    output_hash: str

    @property
    def name(self) -> str:
        """Names of the sources, such as "own.pgn, engine games": at most three, the one with most boards first."""
        sources = sorted(self.boards.sources, key=lambda source: -self.boards.sources[source])
        names = ["engine games" if source == ENGINE else source for source in sources]
        return ", ".join(names[:_MAX_SOURCES]) + (f" and {len(names) - _MAX_SOURCES} more" if len(names) > _MAX_SOURCES else "")

    def __str__(self) -> str:
        return f"{self.boards.rows:,} boards of {self.name}; dataset {self.output_hash[:12]}"


class ResumedFrom(Document):
    """The run and the step that a run was resumed from."""

    run: str
    step: int

    def __str__(self) -> str:
        start = f"step {PRETRAINED_STEP} of that run, its pretrained policy"
        return f"Resumed from step {self.step:,} of run {self.run}: the verdict is against {start}, not against step {self.step:,}."


class Results(Document):
    """The whole document."""

    format: Literal[3] = 3
    """Changed with the meaning of any key."""
    kind: str
    """Kind of policy: `network` or `language`."""
    origin: ResumedFrom | None
    """None for a new training."""
    decision: Selection
    measurements: tuple[Measurement, ...]
    """Results in the order of the steps."""
    ladder: LadderReport
    regret: dict[str, tuple[float, float | None]]
    """Phase -> held-out regret of the pretrained policy, and of the candidate; None where it was not measured."""
    boards: Boards
    pretraining: dict[str, Any]
    """The report of `pretrain`; keys differ between kinds of policy."""
    training: Training
    findings: Diagnosis | None
    """The diagnosis of the training; None if it did not run."""
    settings: dict[str, Any]
    """Dotted name -> value, of all settings that the steps read."""
    engine: str
    outputs: dict[str, dict[str, str]]
    """Step -> `version` and `output_hash` of its output."""

    @property
    def dataset(self) -> Dataset:
        """The boards that it was trained and measured on."""
        return Dataset(boards=self.boards, output_hash=self.outputs["join_boards"]["output_hash"])


def read_results(path: Path) -> Results:
    """Return the document in a file. Raises CorruptError, or DocumentError if another version of the code wrote it."""
    return read_document(path, Results)


def read_dataset(path: Path, output_hash: str) -> Dataset:
    """Return the dataset that the report of `join_boards` in a file describes. Raises as `read_results`."""
    return Dataset(boards=read_document(path, Boards), output_hash=output_hash)

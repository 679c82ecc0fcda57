"""`results.json`: the results of a run in one document.

The step `report` writes it. The report, the cards, the model card, MLflow's descriptions and the commands `show`, `compare` and `sweep` are
views of it (`steps.pages.templates`). A part that was not measured is None: `Decision.sentence` says why.
"""

from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.base.errors import PlainError
from grpo.base.files import read_json
from grpo.dataset.engine_games import ENGINE
from grpo.match.halving import HalvingEntry
from grpo.match.intervals import Estimate, ScoreInterval, Unit, elo_estimate
from grpo.match.phase_guard import PhaseChange
from grpo.match.verdict import Claim, LadderGain, RegretEstimate, Verdict
from grpo.settings.metrics import ENDS
from steps.names import PRETRAINED_STEP

_MAX_SOURCES: Final = 3


class ResultsError(PlainError, ValueError):
    """The document was written by another version of the code; the message says what to do."""


_Form = TypeVar("_Form", bound="_Facts")


class _Facts(BaseModel):
    # The reports of steps have more than any page shows: that is left out.
    model_config = ConfigDict(frozen=True)


class Measurement(_Facts):
    """One result of games or of held-out boards."""

    name: str
    """For people, and the same in all runs."""
    unit: Unit
    estimate: Estimate
    """Of games as played."""
    adjudicated: Estimate | None = None
    """Of the same games, undecided ones given to the side that a search finds better; it decides nothing."""
    num_games: int | None = None
    """None for regret."""
    decides: bool = False
    """Whether the verdict rests on it: on fresh games against the own start, as played."""
    yardstick: dict[str, str | None]
    """Opponent, rules, ladder or boards that it was measured with, by name; None where unknown. With equal ones runs compare."""
    output: str
    """Hash of the step's output that has it: with the same hash two runs share one measurement."""


class Match(_Facts):
    """A match as played, from the first player's side."""

    score: float
    low: float
    high: float
    num_pairs: int
    wins: int
    draws: int
    losses: int
    ends: dict[str, int]
    """How games ended (`grpo.match.matches.End`) -> number of games."""
    num_openings: int
    adjudicated: ScoreInterval | None = None
    answers: dict[str, dict[str, int]] = {}
    """Player (`first`, `second`) -> counts of answers, of players that may fail to name a legal move."""

    @property
    def estimate(self) -> Estimate:
        """The score."""
        return Estimate(value=self.score, low=self.low, high=self.high)


class RungScore(_Facts):
    """A match against an opponent of the ladder."""

    rung: str
    score: float
    num_pairs: int


class Placement(_Facts):
    """A player's place on the ladder, in Elo above a random mover."""

    rating: float
    low: float
    """Of the 95 % interval with the rungs' ratings taken as exact."""
    high: float
    low_of_all: float
    """Of that with the errors of the rungs' ratings."""
    high_of_all: float
    text: str
    games: tuple[RungScore, ...]

    @property
    def estimate(self) -> Estimate:
        """The rating, with the rungs' taken as exact."""
        return Estimate(value=self.rating, low=self.low, high=self.high)


class Rung(_Facts):
    """An opponent of the ladder."""

    name: str
    rating: float
    low: float
    high: float
    gap: float | None = None
    """Rating less that of the rung below; the lowest has none."""
    gap_low: float | None = None
    gap_high: float | None = None


class LadderReport(_Facts):
    """The report of `calibrate`."""

    engine: str
    note: str
    """How to read the ratings."""
    rungs: tuple[Rung, ...]


class Decision(_Facts):
    """The report of `select`. Where no checkpoint could play, what would need a candidate is None."""

    verdict: Verdict
    sentence: str
    """The verdict in one sentence: against the run's own start, and against other opponents."""
    candidate_step: int | None
    promoted: bool
    replaces_previous: bool
    """Whether the registry's champion gives way."""
    champion_step: int
    """0 is the pretrained policy."""
    peak_step: int
    peak_low: float | None
    peak_high: float | None
    """Interval of the peak's score against the pretrained policy, in [0, 1]."""
    claims: tuple[Claim, ...]
    """Those that decide: against the pretrained policy, and against the previous champion if there is one."""
    beside: tuple[Claim, ...]
    """Those that decide nothing."""
    ladder_gain: LadderGain | None
    """The candidate's rating on the ladder less the pretrained policy's, paired by opening."""
    phases: tuple[PhaseChange, ...]
    """The candidate's held-out regret less the pretrained policy's, by phase."""
    screening: tuple[HalvingEntry, ...]
    heldout_regret_best: dict[str, RegretEstimate]
    """By the checkpoint's step."""
    confirmation_best_moves: Match | None
    confirmation_sampled_moves: Match | None
    previous_champion: Match | None
    previous_weights: str | None = None
    """Of the champion before; None where it was not played."""
    ladder: Placement | None
    """Of the candidate."""
    ladder_initial: Placement | None
    """Of the pretrained policy, on the same openings."""
    initial_weights: str
    candidate_weights: str | None

    @property
    def outcome(self) -> str:
        """Who is champion."""
        if not self.promoted:
            return "the pretrained policy stays"
        step = f"step {self.candidate_step:,}"
        if self.replaces_previous:
            return f"{step} is champion"
        return f"{step} is this run's champion; the registry's champion stays, for {step} was not shown to be better than it"

    @property
    def gains(self) -> dict[str, Estimate]:
        """The candidate's gain in Elo against its own start and against other opponents, by label; the first one decides."""
        games, ladder, found = self.confirmation_best_moves, self.ladder_gain, dict[str, Estimate]()
        if games is not None:
            found["own start, as played: decides"] = elo_estimate(games.estimate)
            if games.adjudicated is not None:
                found["own start, adjudicated"] = elo_estimate(games.adjudicated.estimate)
        if ladder is not None:
            found |= {"other opponents, as played": ladder.played, "other opponents, adjudicated": ladder.adjudicated}
        return found

    def strength(self, step: int) -> str:
        """Return in a sentence what games have shown of the policy of this step."""
        screened = {entry.candidate: entry.so_far.estimate for entry in self.screening}
        games = self.confirmation_best_moves if step == self.candidate_step else None
        if step == PRETRAINED_STEP:
            gain = "It is the start of its run, without GRPO"
        elif (found := screened.get(step) if games is None else games.estimate) is None:
            gain = "No game was played by it"
        else:
            chosen = " in the games that chose the candidate, which flatter it" * (games is None)
            gain = f"{elo_estimate(found).text(Unit.ELO, suffix=' Elo')} against its own start{chosen}"
        place = {PRETRAINED_STEP: self.ladder_initial, self.candidate_step: self.ladder}.get(step)
        if place is None:
            return f"{gain}; it was not rated on the ladder."
        return f"{gain}; {place.estimate.text(Unit.ELO, suffix=' Elo')} above a random mover, on the ladder of its run."

    @property
    def placed(self) -> dict[str, Placement]:
        """Name of the start and of the candidate -> its place on the ladder, by the same rungs and openings."""
        if self.ladder is None or self.ladder_initial is None:
            return {}
        return {"pretrained": self.ladder_initial, f"step {self.candidate_step:,}": self.ladder}


class Training(_Facts):
    """The report of `finetune`."""

    first_step: int
    last_step: int
    reason: str
    """Why it ended."""
    message: str
    mean_entropy_at_end: float | None
    """In nats."""
    control: dict[str, float]

    @property
    def end(self) -> str:
        """From which step to which GRPO trained, and why it stopped."""
        message = f" ({self.message})" if self.message else ""
        why = ENDS.get(self.reason, self.reason)
        return f"GRPO trained from step {self.first_step:,} to {self.last_step:,} and stopped because {why}{message}."


class Boards(_Facts):
    """The report of `join_boards`: the dataset's counts."""

    rows: int
    used_games: int
    splits: dict[str, int]
    natural_phases: dict[str, int]
    """As found in the source."""
    phases: dict[str, int]
    """As kept."""
    sources: dict[str, int]
    """File, or `engine` -> boards."""
    labels: dict[str, int]


class Dataset(_Facts):
    """The dataset of a run: the boards that `join_boards` made."""

    boards: Boards
    output_hash: str

    @property
    def name(self) -> str:
        """Names of the sources, such as "own.pgn, engine games": at most three, the one with most boards first."""
        found = sorted(self.boards.sources, key=lambda source: -self.boards.sources[source])
        names = ["engine games" if source == ENGINE else source for source in found]
        return ", ".join(names[:_MAX_SOURCES]) + (f" and {len(names) - _MAX_SOURCES} more" if len(names) > _MAX_SOURCES else "")

    def __str__(self) -> str:
        return f"{self.boards.rows:,} boards of {self.name}; dataset {self.output_hash[:12]}"


class Origin(_Facts):
    """The run and the step that a run was resumed from."""

    run: str
    step: int

    def __str__(self) -> str:
        start = f"step {PRETRAINED_STEP} of that run, its pretrained policy"
        return f"Resumed from step {self.step:,} of run {self.run}: the verdict is against {start}, not against step {self.step:,}."


class Results(_Facts):
    """The whole document."""

    format: Literal[2] = 2
    """Changed with the meaning of any key."""
    kind: str
    """Of the policy: `network` or `language`."""
    origin: Origin | None
    """None for a new training."""
    decision: Decision
    measurements: tuple[Measurement, ...]
    """In the order of the steps."""
    ladder: LadderReport
    regret: dict[str, tuple[float, float | None]]
    """Phase -> held-out regret of the pretrained policy, and of the candidate; None where it was not measured."""
    boards: Boards
    pretraining: dict[str, Any]
    """The report of `pretrain`; keys differ between kinds of policy."""
    training: Training
    findings: dict[str, Any] | None
    """Of the diagnosis (`findings.json`); None if it did not run."""
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
    """Read the document; raises ResultsError if another version of the code wrote it."""
    return _read(path, Results)


def read_dataset(path: Path, output_hash: str) -> Dataset:
    """Return what the report of `join_boards` says of the dataset; raises ResultsError if another version of the code wrote it."""
    return Dataset(boards=_read(path, Boards), output_hash=output_hash)


def _read(path: Path, form: type[_Form]) -> _Form:
    found = read_json(path)
    try:
        return form.model_validate(found)
    except ValidationError:
        remedy = "run the flow again, or use the commit that the output's manifest names"
        raise ResultsError(f"{path} was written by other code, in another form: {remedy}") from None

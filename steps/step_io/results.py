"""`results.json`: the results of a run in one typed document, as plain data.

The step `report` writes it. Report, cards, model card, MLflow's pages and the commands `show`, `compare` and `sweep` are templates of it
(`steps.step_io.results_text` has what they share); a run that has not reached `report` has the same measurements in MLflow's metrics.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NotRequired, TypedDict, cast

from grpo.base.errors import PlainError
from grpo.base.files import read_json
from grpo.statistics.intervals import Z95, Estimate, Unit

FORMAT: Final = 1
"""Of the document; changed with the meaning of any key."""


class ResultsError(PlainError, ValueError):
    """The results were written by another version of the code."""


class IntervalFacts(TypedDict):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class Measurement(IntervalFacts):
    """One evaluation result."""

    name: str
    """For people, and the same in all runs."""
    unit: str
    """A `grpo.statistics.intervals.Unit`."""
    num_games: int | None
    """Games that it was measured by; None for regret, or where unknown."""
    yardstick: dict[str, str | None]
    """Opponent, rules, ladder or boards that it was measured with, by name; None where unknown. With the same ones runs are comparable."""
    output: str
    """Hash of the step's output that has it: with the same hash two runs share one measurement."""


class ScoreFacts(TypedDict):
    """A match score, from the first player's side, with its 95 % interval."""

    score: float
    low: float
    high: float
    num_pairs: int


class MatchFacts(ScoreFacts):
    """A match as played."""

    text: str
    wins: int
    draws: int
    losses: int
    ends: dict[str, int]
    """How games ended (`grpo.play.matches.End`) -> number of games."""
    num_openings: int
    adjudicated: NotRequired[dict[str, Any]]
    """The same with undecided games given to the side that a search of `depth` finds better."""
    answers: NotRequired[dict[str, dict[str, int]]]
    """Player (`first`, `second`) -> counts of answers, of players that may fail to name a legal move."""


class PlacementFacts(TypedDict):
    """A player's place on the ladder, in Elo above a random mover."""

    rating: float
    low: float
    """Of the 95 % interval with the rungs' ratings taken as exact."""
    high: float
    low_of_all: float
    """Of that with the errors of the rungs' ratings."""
    high_of_all: float
    text: str
    games: list[dict[str, Any]]
    """The matches that the rating comes from, each with its `rung`."""


class RungFacts(TypedDict):
    """An opponent of the ladder."""

    name: str
    rating: float
    low: float
    high: float
    gap: NotRequired[float]
    """Rating less that of the rung below; the lowest has none."""
    gap_low: NotRequired[float]
    gap_high: NotRequired[float]


class LadderFacts(TypedDict):
    """The report of `calibrate`."""

    engine: str
    note: str
    """How to read the ratings."""
    rungs: list[RungFacts]


class ClaimFacts(TypedDict):
    """A claim about the candidate."""

    name: str
    interval: ScoreFacts
    text: str
    p_value: float
    adjusted_p: float
    """Holm-adjusted over its family."""
    is_shown: bool


class RoundFacts(TypedDict):
    """A candidate in a round of the halving."""

    round: int
    """From 0."""
    candidate: int
    so_far: ScoreFacts
    text: str
    kept: bool


class PhaseFacts(TypedDict):
    """The candidate's held-out regret less the pretrained policy's, in one phase."""

    phase: str
    change: IntervalFacts
    num_boards: int
    blocks: bool
    """Whether it prevents the promotion."""


class GainFacts(TypedDict):
    """The candidate's rating on the ladder less the pretrained policy's, paired by opening."""

    played: IntervalFacts
    adjudicated: IntervalFacts
    finding: str
    """Against other opponents: a `grpo.evaluation.verdict.LadderFinding`."""
    text: str


class DecisionFacts(TypedDict):
    """The report of `select`."""

    verdict: str
    """A `grpo.evaluation.verdict.Verdict`."""
    sentence: str
    """The verdict in one sentence: against the own start, against other opponents, and whether the two disagree."""
    candidate_step: int
    promoted: bool
    replaces_previous: bool
    """Whether the registry's champion gives way."""
    champion_step: int
    """0 is the pretrained policy."""
    peak_step: int
    peak_low: float
    """Lower bound of the peak's score against the pretrained policy."""
    claims: list[ClaimFacts]
    """Those that decide: against the pretrained policy, and against the previous champion if there is one."""
    beside: list[ClaimFacts]
    """Those that decide nothing."""
    ladder_gain: GainFacts
    phases: list[PhaseFacts]
    screening: list[RoundFacts]
    heldout_regret_best: dict[str, dict[str, float]]
    """Checkpoint's step -> held-out regret, `mean` and `stderr`."""
    confirmation_best_moves: MatchFacts
    confirmation_sampled_moves: MatchFacts
    previous_champion: MatchFacts | None
    ladder: PlacementFacts
    """Of the candidate."""
    ladder_initial: PlacementFacts
    """Of the pretrained policy, on the same openings."""
    initial_weights: str
    candidate_weights: str


class TrainingFacts(TypedDict):
    """The report of `finetune`."""

    first_step: int
    last_step: int
    reason: str
    """Why it ended."""
    message: str
    mean_entropy_at_end: float | None
    """In nats; None right after a rollback."""
    control: dict[str, float]


class BoardFacts(TypedDict):
    """The report of `join_boards`: the dataset's counts."""

    rows: int
    used_games: int
    splits: dict[str, int]
    natural_phases: dict[str, int]
    """As met in the source."""
    phases: dict[str, int]
    """As kept."""
    sources: dict[str, int]
    """File, or `engine` -> boards."""
    labels: dict[str, int]


class Results(TypedDict):
    """The whole document."""

    format: int
    kind: str
    """Of the policy: `network` or `language`."""
    verdict: str
    """The verdict in one sentence, `decision["sentence"]`."""
    decision: DecisionFacts
    measurements: list[Measurement]
    """In the order of the steps."""
    ladder: LadderFacts
    regret: dict[str, dict[str, float | None]]
    """Phase -> held-out regret `before` (the pretrained policy's) and `after` (the candidate's; None where it was not measured)."""
    boards: BoardFacts
    pretraining: dict[str, Any]
    """The report of `pretrain`; keys differ between kinds of policy."""
    training: TrainingFacts
    findings: dict[str, Any] | None
    """Of the diagnosis; None if it did not run."""
    settings: dict[str, Any]
    """Dotted name -> value, of all settings that the steps read."""
    engine: str
    code: dict[str, Any]
    """Commit, dirty flag and lock."""
    outputs: dict[str, dict[str, str]]
    """Step -> `version` and `output_hash` of its output."""
    places: dict[str, str]
    """Champion, peak and checkpoints -> folder below the home."""
    decisions: dict[str, Any]
    """The candidate's moves on held-out boards: changed most, worst and best (`decisions.json`); empty for a language model."""


def read_results(path: Path) -> Results:
    """Read the document; raises ResultsError if another version of the code wrote it."""
    found = read_json(path)
    if found.get("format") != FORMAT:
        raise ResultsError(
            f"{path} has format {found.get('format')!r}, this code reads {FORMAT}: use the code that wrote it, or run the flow again"
        )
    return cast(Results, found)


_GAMES: Final = (
    "evaluation.max_plies",
    "evaluation.opening_book",
    "evaluation.opening_plies",
    "evaluation.max_opening_centipawns",
)
_ADJUDICATED: Final = (*_GAMES, "evaluation.adjudication_depth", "evaluation.adjudication_centipawns", "engine")
_START, _LADDER, _BOARDS = "pretrained policy", "ladder", "held-out boards"
_NODES: Final = "evaluation.opponent_nodes"
_UNKNOWN: Final = "the champion before"
"""A part that is never known: it makes a measurement incomparable."""
_MADE_BY: Final = {_START: "pretrain", _LADDER: "calibrate", _BOARDS: "join_boards"}
"""Part of a yardstick -> the step whose output it is."""


class Measure(NamedTuple):
    """What is measured, and where the steps record it."""

    step: str
    metric: str
    unit: Unit
    name: str
    yardstick: tuple[str, ...]
    """Settings, `engine`, and names in `_MADE_BY`."""


GAIN, GAIN_ADJUDICATED = "selection/score_best", "selection/score_adjudicated"
SAMPLED, PREVIOUS = "selection/score_sampled", "selection/score_previous"
LADDER_GAIN, LADDER_GAIN_ADJUDICATED = "selection/ladder_gain", "selection/ladder_gain_adjudicated"
CANDIDATE_RATING, START_RATING = "selection/rating", "selection/rating_pretrained"
"""Of the same games, which the ladder gain rests on."""
PRETRAINED_RATING: Final = "baseline/rating"
"""Of other games, played before there was a candidate."""
_REGRET: Final = "heldout/regret_best"
REGRET_PRETRAINED, REGRET_CANDIDATE = "held-out regret, pretrained", "held-out regret, candidate"

_ENGINE_MATCH: Final = "pretrained against Stockfish, nodes {nodes}"
_STARTED, _JUDGED, _ENGINE = (_START, *_GAMES), (_START, *_ADJUDICATED), (*_GAMES, "engine", _NODES)
MEASURES: Final = (
    Measure("baseline", "baseline/score_random", Unit.SCORE, "pretrained against a random mover", _GAMES),
    Measure("baseline", "baseline/score_random_adjudicated", Unit.SCORE, "pretrained against a random mover, adjudicated", _ADJUDICATED),
    Measure("baseline", "baseline/score_engine", Unit.SCORE, _ENGINE_MATCH, _ENGINE),
    Measure("baseline", "baseline/score_engine_adjudicated", Unit.SCORE, f"{_ENGINE_MATCH}, adjudicated", (*_ADJUDICATED, _NODES)),
    Measure("baseline", PRETRAINED_RATING, Unit.ELO, "pretrained on the ladder before GRPO, other openings", (_LADDER,)),
    Measure("baseline", _REGRET, Unit.REGRET, REGRET_PRETRAINED, (_BOARDS,)),
    Measure("finetune", _REGRET, Unit.REGRET, REGRET_CANDIDATE, (_BOARDS,)),
    Measure("select", GAIN, Unit.SCORE, "candidate against pretrained, best moves, as played", _STARTED),
    Measure("select", GAIN_ADJUDICATED, Unit.SCORE, "candidate against pretrained, best moves, adjudicated", _JUDGED),
    Measure("select", SAMPLED, Unit.SCORE, "candidate against pretrained, sampled at T = 1", _STARTED),
    Measure("select", f"{SAMPLED}_adjudicated", Unit.SCORE, "candidate against pretrained, sampled, adjudicated", _JUDGED),
    Measure("select", PREVIOUS, Unit.SCORE, "candidate against the champion before", (_UNKNOWN,)),
    Measure("select", f"{PREVIOUS}_adjudicated", Unit.SCORE, "candidate against the champion before, adjudicated", (_UNKNOWN,)),
    Measure("select", LADDER_GAIN, Unit.ELO, "candidate less pretrained on the ladder, as played", (*_STARTED, _LADDER)),
    Measure("select", LADDER_GAIN_ADJUDICATED, Unit.ELO, "candidate less pretrained on the ladder, adjudicated", (*_JUDGED, _LADDER)),
    Measure("select", START_RATING, Unit.ELO, "pretrained on the ladder, openings of the candidate", (_LADDER,)),
    Measure("select", CANDIDATE_RATING, Unit.ELO, "candidate on the ladder", (_LADDER,)),
)
"""All that runs are measured by, in the order of their steps."""
MEASURE_NAMES: Final = {measure.metric: measure.name for measure in MEASURES if measure.metric != _REGRET}
"""Metric -> name of its measurement."""


def measurements(
    metrics: Mapping[str, Mapping[str, float]],
    *,
    outputs: Mapping[str, str],
    settings: Mapping[str, str],
    engine: str | None,
    num_games: Mapping[str, int],
) -> list[Measurement]:
    """Return what was measured; a measure without its metric or interval is left out.

    Args:
        metrics: step -> its last metrics; of `finetune` the candidate's.
        outputs: step -> hash of its output.
        settings: those by which runs are compared (`compared_settings`).
        engine: that of the run.
        num_games: metric -> number of its games, where known.
    """
    found = []
    for measure in MEASURES:
        estimate = _estimate(metrics.get(measure.step, {}), measure.metric)
        if estimate is None or measure.step not in outputs:
            continue
        known: dict[str, str | None] = {name: settings.get(name, "") for name in measure.yardstick if name.startswith("evaluation.")}
        known |= {name: outputs.get(_MADE_BY[name]) for name in measure.yardstick if name in _MADE_BY} | {"engine": engine}
        found.append(
            Measurement(
                name=measure.name.format(nodes=settings.get(_NODES)),
                unit=measure.unit,
                value=estimate.value,
                low=estimate.low,
                high=estimate.high,
                num_games=num_games.get(measure.metric),
                yardstick={name: known.get(name) for name in measure.yardstick},
                output=outputs[measure.step],
            )
        )
    return found


def _estimate(metrics: Mapping[str, float], name: str) -> Estimate | None:
    if metrics.keys() >= {name, f"{name}_low", f"{name}_high"}:
        return Estimate(value=metrics[name], low=metrics[f"{name}_low"], high=metrics[f"{name}_high"])
    if metrics.keys() >= {name, f"{name}_stderr"}:
        return regret_estimate(metrics[name], metrics[f"{name}_stderr"])
    return None


def estimate_of(found: IntervalFacts) -> Estimate:
    """Return an estimate of the document."""
    return Estimate(value=found["value"], low=found["low"], high=found["high"])


def regret_estimate(mean: float, standard_error: float) -> Estimate:
    """Return held-out regret with its 95 % interval; it is never below 0."""
    return Estimate(value=mean, low=max(0.0, mean - Z95 * standard_error), high=mean + Z95 * standard_error)

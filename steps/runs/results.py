"""A run's evaluation results (score, Elo, regret), each with its 95 % confidence interval and the yardstick it was measured with.

Results of two runs can be compared when their yardsticks are the same: the same opponent and rules, the same ladder, the same boards. A
score against the pretrained policy says nothing about a run that began with another one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from grpo.statistics.intervals import Z95, Estimate, difference
from steps.runs.index import TrackedRun, step_metric
from steps.runtime.machine import Machine
from steps.step_io.aliases import PEAK
from steps.tracking.tags import DATASET, ENGINE

_GAMES: Final = (
    "evaluation.max_plies",
    "evaluation.opening_book",
    "evaluation.opening_book_plies",
    "evaluation.opening_plies",
    "evaluation.max_opening_centipawns",
)
_ADJUDICATION: Final = ("evaluation.adjudication_depth", "evaluation.adjudication_centipawns")
GAMES_AS_PLAYED: Final = "candidate against pretrained, best moves, as played"
GAMES_ADJUDICATED: Final = "candidate against pretrained, best moves, adjudicated"
PRETRAINED_RATING: Final = "pretrained on the ladder"
CANDIDATE_RATING: Final = "candidate on the ladder"
LADDER_GAIN: Final = "candidate less pretrained on the ladder, as played"
LADDER_GAIN_ADJUDICATED: Final = "candidate less pretrained on the ladder, adjudicated"
"""Names of results."""

SCORE: Final = "score"
"""A win is 1, a draw 0.5."""
ELO: Final = "Elo"
REGRET: Final = "win probability"
"""Lower is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One evaluation result of a run."""

    name: str
    output: str
    """Hash of the step's output that has it: with the same hash two runs share one measurement."""
    unit: str
    """`SCORE`, `ELO` or `REGRET`."""
    estimate: Estimate
    yardstick: Mapping[str, str | None]
    """Opponent, rules, ladder or boards that it was measured with, by name; None where unknown."""

    def __str__(self) -> str:
        return estimate_text(self.estimate, self.unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResultComparison:
    """The same result of two runs."""

    name: str
    first: Result | None
    second: Result | None
    apart: tuple[str, ...]
    """The parts of their yardsticks that differ or are unknown; empty when the two can be compared."""

    @property
    def is_one_measurement(self) -> bool:
        """Whether both come from the same output, which the later run reused."""
        return self.first is not None and self.second is not None and self.first.output == self.second.output

    @property
    def difference(self) -> Estimate | None:
        """First minus second with its interval, assuming independent samples; None if they cannot be compared."""
        if self.first is None or self.second is None or self.apart or self.is_one_measurement:
            return None
        return difference(self.first.estimate, self.second.estimate)

    @property
    def better(self) -> int:
        """Which is significantly better: 1 the first, 2 the second, 0 neither."""
        change = self.difference
        if change is None or self.first is None or change.low <= 0 <= change.high:
            return 0
        return 1 if (change.value > 0) == (self.first.unit != REGRET) else 2


def estimate_text(estimate: Estimate, unit: str, *, sign: str = "") -> str:
    """Format an estimate with its interval, with digits by its unit.

    >>> shown(Estimate(value=0.6025, low=0.5741, high=0.6295), "score")
    '0.603 [0.574, 0.629]'
    """
    sign, digits = ("+", ",.0f") if unit == ELO else (sign, ".3f" if unit == SCORE else ".4f")
    value, low, high = (format(number, f"{sign}{digits}") for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def all_results(run: TrackedRun, machine: Machine) -> tuple[int | None, list[Result]]:
    """Return the candidate's step, and `results` with the candidate's held-out regret, which takes further queries.

    The step is None for a run without an output of `select`. Raises RegistryError when the store does not answer.
    """
    selected, finetuned = run.output_of("select"), run.output_of("finetune")
    if selected is None or finetuned is None:
        return None, results(run)
    candidate = max(step_metric(machine, selected, "selection/score_best"), default=None)
    regrets, errors = (step_metric(machine, finetuned, f"heldout/regret_best{end}") for end in ("", "_stderr"))
    if candidate is None or candidate not in regrets.keys() & errors.keys():
        return candidate, results(run)
    return candidate, results(run, _with_interval(regrets[candidate], errors[candidate]))


def results(run: TrackedRun, regret_after: Estimate | None = None) -> list[Result]:
    """Return the results that a run has, in the order of its steps.

    Args:
        run: the run.
        regret_after: the candidate's held-out regret, one of many values of its metric.
    """
    games = _params(run, _GAMES)
    adjudicated = {**games, **_params(run, _ADJUDICATION), "engine": run.tags.get(ENGINE)}
    nodes = run.params.get("evaluation.opponent_nodes", "")
    ladder = {"ladder": _output_hash(run, "calibrate")}
    dataset = {"held-out boards": _dataset(run)}
    start = {"pretrained policy": _initial_weights(run)}
    stockfish = {**games, "engine": run.tags.get(ENGINE), "evaluation.opponent_nodes": nodes}
    found = [
        *_measured(
            run,
            "baseline",
            ("pretrained against a random mover", "baseline/score_random", SCORE, games),
            (f"pretrained against Stockfish, nodes {nodes}", "baseline/score_engine", SCORE, stockfish),
            (PRETRAINED_RATING, "baseline/rating", ELO, ladder),
        ),
        _regret(run, "baseline", "held-out regret, pretrained", _regret_before(run), dataset),
        _regret(run, "finetune", "held-out regret, candidate", regret_after, dataset),
        *_measured(
            run,
            "select",
            (GAMES_AS_PLAYED, "selection/score_best", SCORE, {**start, **games}),
            (GAMES_ADJUDICATED, "selection/score_adjudicated", SCORE, {**start, **adjudicated}),
            ("candidate against pretrained, sampled at T = 1", "selection/score_sampled", SCORE, {**start, **games}),
            ("candidate against the champion before", "selection/score_previous", SCORE, {"the champion before": None}),
            (LADDER_GAIN, "selection/ladder_gain", ELO, {**start, **ladder, **games}),
            (LADDER_GAIN_ADJUDICATED, "selection/ladder_gain_adjudicated", ELO, {**start, **ladder, **adjudicated}),
            (CANDIDATE_RATING, "selection/rating", ELO, ladder),
        ),
    ]
    return [result for result in found if result is not None]


def headline(run: TrackedRun) -> Result | None:
    """Return the deciding score: of the confirmation games with best moves, scored as the run's claims are; None before `select`."""
    peak = run.policy(PEAK)
    is_adjudicated = peak is not None and (peak.version.initial_weights or "").endswith(", adjudicated")
    wanted = GAMES_ADJUDICATED if is_adjudicated else GAMES_AS_PLAYED
    return next((result for result in results(run) if result.name == wanted), None)


def compare_results(first: list[Result], second: list[Result]) -> list[ResultComparison]:
    """Pair up the results of two runs, in their order."""
    here, there = ({result.name: result for result in each} for each in (first, second))
    names = [*here, *(name for name in there if name not in here)]
    return [
        ResultComparison(name=name, first=here.get(name), second=there.get(name), apart=_apart(here.get(name), there.get(name)))
        for name in names
    ]


def _with_interval(value: float, standard_error: float) -> Estimate:
    # Regret is never below 0.
    return Estimate(value=value, low=max(0.0, value - Z95 * standard_error), high=value + Z95 * standard_error)


def _apart(first: Result | None, second: Result | None) -> tuple[str, ...]:
    if first is None or second is None:
        return ()
    names = [*first.yardstick, *(name for name in second.yardstick if name not in first.yardstick)]
    return tuple(name for name in names if first.yardstick.get(name) is None or first.yardstick.get(name) != second.yardstick.get(name))


def _measured(run: TrackedRun, step: str, *wanted: tuple[str, str, str, Mapping[str, str | None]]) -> Iterator[Result]:
    """Yield results of a step's metrics, given their names, metrics, units and yardsticks."""
    if (output := run.output_of(step)) is None:
        return
    for name, metric, unit, yardstick in wanted:
        names = (metric, f"{metric}_low", f"{metric}_high")
        if output.metrics.keys() >= set(names):  # Runs of early versions have no intervals.
            value, low, high = (output.metrics[each] for each in names)
            estimate = Estimate(value=value, low=low, high=high)
            yield Result(name=name, output=output.output_hash, unit=unit, estimate=estimate, yardstick=yardstick)


def _regret(run: TrackedRun, step: str, name: str, estimate: Estimate | None, dataset: Mapping[str, str | None]) -> Result | None:
    output = run.output_of(step)
    if output is None or estimate is None:
        return None
    return Result(name=name, output=output.output_hash, unit=REGRET, estimate=estimate, yardstick=dataset)


def _regret_before(run: TrackedRun) -> Estimate | None:
    output = run.output_of("baseline")
    if output is None or "heldout/regret_best_stderr" not in output.metrics:
        return None
    return _with_interval(output.metrics["heldout/regret_best"], output.metrics["heldout/regret_best_stderr"])


def _output_hash(run: TrackedRun, step: str) -> str | None:
    return None if (output := run.output_of(step)) is None else output.output_hash


def _dataset(run: TrackedRun) -> str | None:
    return None if (output := run.output_of("join_boards")) is None else output.tags.get(DATASET)


def _initial_weights(run: TrackedRun) -> str | None:
    peak = run.policy(PEAK)
    if peak is None or peak.version.initial_weights is None:
        return None
    return peak.version.initial_weights.partition(",")[0]


def _params(run: TrackedRun, names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: run.params.get(name, "") for name in names}  # Settings that are off are not logged.

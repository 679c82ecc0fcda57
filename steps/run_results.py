"""The numbers that a run is judged by, each with its 95 % interval and the yardstick that it was measured with.

Two runs' numbers can be compared when their yardsticks are the same: the same opponent by the same rules, the same ladder, the same boards.
A score against the pretrained policy says nothing about a run that began with another one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from grpo.statistics import Z95, Estimate, difference
from steps.aliases import PEAK
from steps.machine import Machine
from steps.run_index import TrackedRun, step_metric
from steps.tracking_tags import DATASET, ENGINE

_GAMES: Final = (
    "evaluation.max_plies",
    "evaluation.opening_book",
    "evaluation.opening_book_plies",
    "evaluation.opening_plies",
    "evaluation.max_opening_centipawns",
)
_ADJUDICATION: Final = ("evaluation.adjudication_depth", "evaluation.adjudication_centipawns")
_SHOWN_OF_A_HASH: Final = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One number of a run."""

    name: str
    unit: str
    """`score` (a win is 1, a draw 0.5), `Elo` or `win probability`."""
    estimate: Estimate
    yardstick: Mapping[str, str | None]
    """What it was measured with, by name; None where the run does not say."""

    def __str__(self) -> str:
        return shown(self.estimate, self.unit)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The same number of two runs."""

    name: str
    first: Result | None
    second: Result | None
    apart: tuple[str, ...]
    """In which parts of their yardsticks they differ, or of which one does not say; empty when they can be compared."""

    @property
    def difference(self) -> Estimate | None:
        """First less second with its interval, the samples taken as independent; None where they cannot be compared."""
        if self.first is None or self.second is None or self.apart:
            return None
        return difference(self.first.estimate, self.second.estimate)


def shown(estimate: Estimate, unit: str, *, sign: str = "") -> str:
    """Return an estimate with its interval, as many digits as its unit deserves.

    >>> shown(Estimate(value=0.6025, low=0.5741, high=0.6295), "score")
    '0.603 [0.574, 0.629]'
    """
    sign, digits = ("+", ",.0f") if unit == "Elo" else (sign, ".3f" if unit == "score" else ".4f")
    value, low, high = (format(number, f"{sign}{digits}") for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def all_results(run: TrackedRun, machine: Machine) -> tuple[int | None, list[Result]]:
    """Return the candidate's step, and `results` with the candidate's held-out regret, for which the store is asked again.

    The step is None for a run that has not come to `select`. Raises RegistryError when the store does not answer.
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
    """Return the numbers of a run that are there, in the order in which they came about.

    Args:
        run: the run.
        regret_after: the candidate's held-out regret, which is one of many values of its metric.
    """
    games = _params(run, _GAMES)
    engine = {"engine": run.tags.get(ENGINE)}
    nodes = run.params.get("evaluation.opponent_nodes")
    calibrated, boards = run.output_of("calibrate"), run.output_of("join_boards")
    ladder = {"ladder": None if calibrated is None else calibrated.output_hash[:_SHOWN_OF_A_HASH]}
    dataset = {"held-out boards": None if boards is None else boards.tags.get(DATASET, "")[:_SHOWN_OF_A_HASH] or None}
    start = {"pretrained policy": _initial_weights(run)}
    opponent = {"nodes of the opponent": nodes}
    adjudicated = {**games, **_params(run, _ADJUDICATION), **engine}
    found = [
        _measured(run, "baseline", "pretrained against a random mover", "baseline/score_random", "score", games),
        _measured(
            run,
            "baseline",
            f"pretrained against Stockfish, {nodes} nodes",
            "baseline/score_engine",
            "score",
            {**games, **engine, **opponent},
        ),
        _measured(run, "baseline", "pretrained on the ladder", "baseline/rating", "Elo", ladder),
        _regret(run, dataset),
        None
        if regret_after is None
        else Result(name="held-out regret, candidate", unit="win probability", estimate=regret_after, yardstick=dataset),
        _measured(
            run, "select", "candidate against pretrained, best moves, as played", "selection/score_best", "score", {**start, **games}
        ),
        _measured(run, "select", "the same, adjudicated", "selection/score_adjudicated", "score", {**start, **adjudicated}),
        _measured(run, "select", "candidate against pretrained, sampled at T = 1", "selection/score_sampled", "score", {**start, **games}),
        _measured(
            run, "select", "candidate against the champion before", "selection/score_previous", "score", {"the champion before": None}
        ),
        _measured(run, "select", "candidate on the ladder", "selection/rating", "Elo", ladder),
    ]
    return [result for result in found if result is not None]


def headline(run: TrackedRun) -> Result | None:
    """Return the score that decided: of the confirmation, best moves, counted as the run's claims count it; None before `select`."""
    peak = run.policy(PEAK)
    is_adjudicated = peak is not None and (peak.version.initial_weights or "").endswith(", adjudicated")
    wanted = "the same, adjudicated" if is_adjudicated else "candidate against pretrained, best moves, as played"
    return next((result for result in results(run) if result.name == wanted), None)


def compared(first: list[Result], second: list[Result]) -> list[Compared]:
    """Return two runs' numbers side by side, in their order."""
    here, there = ({result.name: result for result in each} for each in (first, second))
    names = [*here, *(name for name in there if name not in here)]
    return [
        Compared(name=name, first=here.get(name), second=there.get(name), apart=_apart(here.get(name), there.get(name))) for name in names
    ]


def _with_interval(value: float, standard_error: float) -> Estimate:
    # A regret is never below 0.
    return Estimate(value=value, low=max(0.0, value - Z95 * standard_error), high=value + Z95 * standard_error)


def _apart(first: Result | None, second: Result | None) -> tuple[str, ...]:
    if first is None or second is None:
        return ()
    names = [*first.yardstick, *(name for name in second.yardstick if name not in first.yardstick)]
    return tuple(name for name in names if first.yardstick.get(name) is None or first.yardstick.get(name) != second.yardstick.get(name))


def _measured(run: TrackedRun, step: str, name: str, metric: str, unit: str, yardstick: Mapping[str, str | None]) -> Result | None:
    output = run.output_of(step)
    names = (metric, f"{metric}_low", f"{metric}_high")
    if output is None or not output.metrics.keys() >= set(names):  # Early runs recorded no intervals.
        return None
    value, low, high = (output.metrics[each] for each in names)
    return Result(name=name, unit=unit, estimate=Estimate(value=value, low=low, high=high), yardstick=yardstick)


def _regret(run: TrackedRun, dataset: Mapping[str, str | None]) -> Result | None:
    output = run.output_of("baseline")
    if output is None or "heldout/regret_best_stderr" not in output.metrics:
        return None
    estimate = _with_interval(output.metrics["heldout/regret_best"], output.metrics["heldout/regret_best_stderr"])
    return Result(name="held-out regret, pretrained", unit="win probability", estimate=estimate, yardstick=dataset)


def _initial_weights(run: TrackedRun) -> str | None:
    peak = run.policy(PEAK)
    if peak is None or peak.version.initial_weights is None:
        return None
    return peak.version.initial_weights.partition(",")[0][:_SHOWN_OF_A_HASH]


def _params(run: TrackedRun, names: tuple[str, ...]) -> dict[str, str | None]:
    return {name: run.params.get(name, "") for name in names}  # What is off need not be among them.

"""The results of a sweep: a row for each run, and for each combination of settings the mean over seeds with two intervals."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any, Final

from grpo.metrics.table import Record
from grpo.statistics.intervals import Estimate, Unit, elo_estimate
from grpo.statistics.pooling import between_runs, within_runs
from steps.runs.index import TrackedRun, find_runs
from steps.runs.results import run_document, run_measurements
from steps.runs.sweep_plan import PlannedRun, SweepPlan, run_id_file
from steps.runtime.machine import Machine
from steps.step_io.results import (
    CANDIDATE_RATING,
    GAIN,
    GAIN_ADJUDICATED,
    LADDER_GAIN,
    LADDER_GAIN_ADJUDICATED,
    MEASURE_NAMES,
    estimate_of,
)
from steps.step_io.results_text import markdown_table
from steps.tracking.tags import VERDICT

GAINS: Final[Mapping[str, tuple[str, str]]] = {
    "gain_as_played": ("gain, as played", GAIN),
    "gain_adjudicated": ("gain, adjudicated", GAIN_ADJUDICATED),
    "ladder_candidate": ("candidate's rating", CANDIDATE_RATING),
    "ladder_gain_as_played": ("ladder gain", LADDER_GAIN),
    "ladder_gain_adjudicated": ("ladder gain, adjudicated", LADDER_GAIN_ADJUDICATED),
}
"""Measures of a run in Elo -> title, and metric. A gain is the candidate's against its own start; ratings are on the ladder.

The start's rating of the step `baseline` is of other games, so it is not beside the gain."""
_LOGGED: Final[Mapping[str, str]] = {
    "gain_as_played": "sweep/gain_as_played",
    "gain_adjudicated": "sweep/gain_adjudicated",
    "ladder_gain_as_played": "sweep/ladder_gain",
}
SWEEP_NOTES: Final = (
    "Elo, with 95 % intervals in brackets. A gain is the candidate's against its own start in the confirmation games, ratings are above a"
    " random mover with the ladder taken as exact, and the ladder gain is the"
    " candidate's rating less its start's, both from games on the same openings against the same rungs.",
    "Between runs: the mean over seeds with the interval of Student's t, n - 1 degrees of freedom. It comes from how much the runs differ,"
    " so it covers all that a seed changes: dataset, training and games. One seed alone has no such interval.",
    "Within runs: the same mean with the interval that the games of these runs leave, from the runs' own intervals taken as independent. It"
    " does not cover other seeds. Where it is the wider of the two, few runs agree by chance: do not trust the narrower one.",
)
"""What the columns and the two kinds of mean are, a paragraph each."""
_NOT_RUN: Final = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepRow:
    """One run of a sweep, as far as it is."""

    planned: PlannedRun
    run: TrackedRun | None
    """Its newest run; None before it was started."""
    values: Mapping[str, Estimate]
    """Name in `GAINS` -> Elo; only what a finished run has."""

    @property
    def is_finished(self) -> bool:
        """Whether the run reached its end."""
        return self.run is not None and self.run.status == "finished" and VERDICT in self.run.tags

    @property
    def verdict(self) -> str:
        """The run's verdict; the status of a run without one."""
        return _NOT_RUN if self.run is None else self.run.tags[VERDICT] if self.is_finished else self.run.status


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledValue:
    """The mean of one measure over seeds, in Elo."""

    mean: float
    between: Estimate | None
    """With the interval between runs; None for a single run."""
    within: Estimate
    """With the interval within runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledRow:
    """The finished runs of one combination, over its seeds."""

    combination: str
    num_runs: int
    verdicts: Mapping[str, int]
    """Verdict -> number of runs."""
    values: Mapping[str, PooledValue]
    """Name in `GAINS` -> value, of the measures that every one of these runs has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResults:
    """All rows of a sweep, by combination and seed."""

    plan: SweepPlan
    rows: tuple[SweepRow, ...]
    pooled: tuple[PooledRow, ...]
    """One for each combination, in the plan's order."""

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that some run has, in the order of `GAINS`."""
        return tuple(name for name in GAINS if any(name in row.values for row in self.rows))


def read_sweep(plan: SweepPlan, machine: Machine) -> SweepResults:
    """Return what the runs of a sweep have given until now.

    Raises RegistryError or TrackingAwayError when the tracking store does not answer.
    """
    names = {run.key: _run_id(run, machine) for run in plan.runs}
    found = find_runs(filter(None, names.values()), machine)
    rows = [_row(run, found.get(names[run.key]), machine) for run in plan.runs]
    by_combination = [row for combination in plan.combinations for row in rows if row.planned.combination == combination]
    pooled = [pool_rows([row for row in rows if row.planned.combination == combination]) for combination in plan.combinations]
    return SweepResults(plan=plan, rows=tuple(by_combination), pooled=tuple(pooled))


def pool_rows(rows: Sequence[SweepRow]) -> PooledRow:
    """Pool the finished runs of one combination."""
    finished = [row for row in rows if row.is_finished]
    shared = [name for name in GAINS if finished and all(name in row.values for row in finished)]
    return PooledRow(
        combination=rows[0].planned.combination,
        num_runs=len(finished),
        verdicts=dict(Counter(row.verdict for row in finished)),
        values={name: _pooled([row.values[name] for row in finished]) for name in shared},
    )


def sweep_cells(found: SweepResults) -> list[tuple[str, list[list[str]]]]:
    """Return, for each combination, its name and the rows of its table as text: a head, the runs, the means over them."""
    head = ["seed", "verdict", *(GAINS[name][0] for name in found.measures)]
    tables = []
    for pooled in found.pooled:
        runs = [
            [str(row.planned.seed), row.verdict, *(_text(row.values.get(name)) for name in found.measures)]
            for row in found.rows
            if row.planned.combination == pooled.combination
        ]
        tables.append((pooled.combination or found.plan.settings, [head, *runs, *_pooled_cells(pooled, found)]))
    return tables


def sweep_page(found: SweepResults) -> str:
    """Return the sweep as a page of Markdown."""
    lines = [f"# Sweep {found.plan.id}", "", f"`{found.plan.command}`", ""]
    for combination, (head, *rows) in sweep_cells(found):
        lines += [f"## {combination}", "", markdown_table(head, rows), ""]
    return "\n".join([*lines, "\n\n".join(SWEEP_NOTES), ""])


def sweep_facts(found: SweepResults) -> dict[str, Any]:
    """Return the sweep as plain data; all values in Elo."""
    return {
        "sweep": found.plan.id,
        "command": found.plan.command,
        "settings": found.plan.settings,
        "seeds": list(found.plan.seeds),
        "combinations": list(found.plan.combinations),
        "runs": [
            {
                "combination": row.planned.combination,
                "seed": row.planned.seed,
                "run": None if row.run is None else row.run.metaflow_run,
                "mlflow_run": None if row.run is None else row.run.mlflow_run,
                "is_finished": row.is_finished,
                "verdict": row.verdict,
                "values": {name: asdict(value) for name, value in row.values.items()},
            }
            for row in found.rows
        ],
        "pooled": [asdict(row) for row in found.pooled],
    }


def sweep_records(found: SweepResults) -> list[Record]:
    """Return the pooled metrics of each combination; the record's step is the combination's number, from 1."""
    return [Record(number, {"sweep/runs": float(row.num_runs), **dict(_metrics(row))}) for number, row in enumerate(found.pooled, start=1)]


def _run_id(run: PlannedRun, machine: Machine) -> str:
    path = machine.home / run_id_file(run)
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def _row(planned: PlannedRun, run: TrackedRun | None, machine: Machine) -> SweepRow:
    row = SweepRow(planned=planned, run=run, values={})
    return row if run is None or not row.is_finished else replace(row, values=dict(_values(run, machine)))


def _values(run: TrackedRun, machine: Machine) -> Iterator[tuple[str, Estimate]]:
    found = {each["name"]: each for each in run_measurements(run, run_document(run, machine))}
    for name, (_, metric) in GAINS.items():
        if (measured := found.get(MEASURE_NAMES[metric])) is not None:
            estimate = estimate_of(measured)
            yield name, elo_estimate(estimate) if measured["unit"] == Unit.SCORE else estimate


def _pooled(values: Sequence[Estimate]) -> PooledValue:
    numbers = [value.value for value in values]
    return PooledValue(mean=fmean(numbers), between=between_runs(numbers), within=within_runs(values))


def _pooled_cells(row: PooledRow, found: SweepResults) -> list[list[str]]:
    if not row.num_runs:
        return []
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in row.verdicts.items())
    values = [row.values.get(name) for name in found.measures]
    between = ["-" if value is None else _text(value.between) if value.between else f"{value.mean:+,.0f}" for value in values]
    within = [_text(None if value is None else value.within) for value in values]
    who = f"mean over {row.num_runs}"
    return [
        ["mean of one run, no interval" if row.num_runs == 1 else f"{who}, between runs", verdicts, *between],
        [f"{who}, within runs", "", *within],
    ]


def _metrics(row: PooledRow) -> Iterator[tuple[str, float]]:
    for name, metric in _LOGGED.items():
        if (value := row.values.get(name)) is not None:
            yield metric, value.mean
            if value.between is not None:
                yield f"{metric}_low", value.between.low
                yield f"{metric}_high", value.between.high


def _text(value: Estimate | None) -> str:
    return "-" if value is None else value.text(Unit.ELO)

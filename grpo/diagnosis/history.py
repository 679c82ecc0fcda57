"""A run's history: series of quantities by step, summary statistics for quantities without series, and evaluations by games."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Self

from grpo.diagnosis.quantities import is_finite, is_language_model_column, quantity_of
from grpo.settings.metrics import Record

_END_FRACTION: Final = 0.1
_MAX_END: Final = 20
"""Maximum number of rows for the level at either end of a series, which is the median of a tenth of its rows."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a step, or the mean of a window of steps."""

    step: float
    value: float
    end: float
    """Last step of the window, or the step itself."""


@dataclass(frozen=True, slots=True)
class Series:
    """The finite values of one quantity in the order of steps; empty cells are skipped."""

    column: str
    """Name of the column in the file."""
    rows: Sequence[Sample]
    """Never empty; grows during a run."""

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.rows)

    @property
    def values(self) -> tuple[float, ...]:
        """All values."""
        return tuple(row.value for row in self.rows)

    @property
    def first(self) -> Sample:
        """The first row."""
        return self.rows[0]

    @property
    def last(self) -> Sample:
        """The last row."""
        return self.rows[-1]

    @property
    def highest(self) -> Sample:
        """The row with the largest value."""
        return max(self.rows, key=lambda row: row.value)

    @property
    def lowest(self) -> Sample:
        """The row with the smallest value."""
        return min(self.rows, key=lambda row: row.value)

    @property
    def num_steps(self) -> float:
        """Steps from the first to the last."""
        return self.rows[-1].end - self.rows[0].step

    def early(self) -> float:
        """Return the median of the first tenth of the rows."""
        return statistics.median(row.value for row in self.rows[: _end_size(len(self.rows))])

    def late(self) -> float:
        """Return the median of the last tenth of the rows."""
        return statistics.median(row.value for row in self.rows[-_end_size(len(self.rows)) :])

    def median(self) -> float:
        """Return the median of all rows."""
        return statistics.median(self.values)

    def total_rise(self) -> tuple[float, float]:
        """Return the rise of the least-squares line from the first to the last row, and its standard error.

        The error is infinite for fewer than three rows, or if all rows have the same step.
        """
        number, slope, spread, rests = len(self.rows), *self._line()
        if number < 3 or spread == 0:
            return 0.0, math.inf
        square = sum(rest**2 for rest in rests)
        # Autocorrelated rows carry less information: with a lag-one autocorrelation of r, n rows are worth n (1 - r) / (1 + r).
        alike = sum(one * other for one, other in pairwise(rests)) / square if square > 0 else 0.0
        wider = math.sqrt((1 + alike) / (1 - alike)) if 0 < alike < 1 else 1.0
        length = self.rows[-1].step - self.rows[0].step
        return slope * length, wider * math.sqrt(square / (number - 2) / spread) * length

    def rest_deviation(self) -> float:
        """Return the standard deviation of the rows around the least-squares line."""
        _, _, rests = self._line()
        return math.sqrt(sum(rest**2 for rest in rests) / max(1, len(self.rows) - 2))

    def _line(self) -> tuple[float, float, list[float]]:
        """Return the slope of the least-squares line, the sum of squares of the steps around their mean, and the residuals."""
        middle, mean = statistics.fmean(row.step for row in self.rows), statistics.fmean(self.values)
        spread = sum((row.step - middle) ** 2 for row in self.rows)
        slope = sum((row.step - middle) * (row.value - mean) for row in self.rows) / spread if spread else 0.0
        return slope, spread, [row.value - mean - slope * (row.step - middle) for row in self.rows]

    def quantile(self, fraction: float) -> float:
        """Return the value below which this fraction of the rows lies."""
        return sorted(self.values)[round(fraction * (len(self.rows) - 1))]


def _end_size(number: int) -> int:
    return max(1, min(_MAX_END, round(number * _END_FRACTION)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Summary statistics of a quantity without series; None if not recorded."""

    column: str
    source: str = ""
    """Where it was recorded, for evidence, if not in a table."""
    mean: float | None = None
    low: float | None = None
    """The smallest value."""
    high: float | None = None
    """The largest value."""
    first: float | None = None
    last: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Games of one checkpoint; a win is 1, a draw 0.5."""

    step: float
    score: float
    games: float | None
    low: float | None = None
    """Lower end of the score's 95 % interval, if recorded; otherwise it is computed from the number of games."""
    high: float | None = None


@dataclass(slots=True)
class History:
    """Everything recorded of one run; grows during the run."""

    series: dict[str, Series] = field(default_factory=dict)
    """By quantity."""
    summaries: dict[str, Summary] = field(default_factory=dict)
    """By quantity; a quantity may have both a series and a summary."""
    evaluations: tuple[Evaluation, ...] = ()
    not_finite: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By column: steps whose value was recorded as NaN or infinite (not: steps without a record)."""
    events: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By name: steps at which our own trainer logged the event."""
    weights: tuple[tuple[float, str], ...] = ()
    """(step, text) of a column that says which weights a model has."""
    unused: tuple[str, ...] = ()
    """Columns that no rule reads."""
    is_of_language_model: bool = False
    """Whether the run trains a language model: its entropies are over tokens, so that the bound ln(legal moves) does not hold."""
    is_ours: bool = False
    """Whether the run is of our own trainer: entropies and KL divergences are exact, and gradients were measured."""
    _rows: dict[str, list[Sample]] = field(default_factory=dict)

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Self:
        """Return the history of our own trainer's records."""
        history = cls(is_ours=True)
        for record in records:
            history.add(record)
        return history

    def add(self, record: Record) -> None:
        """Add the next record of our own trainer."""
        for event in record.events:
            self.events[event.name] = (*self.events.get(event.name, ()), record.step)
        for name, value in sorted(record.metrics.items()):  # Sorted as in a journal, so that a resumed run gives the same result.
            quantity = quantity_of(name)
            if quantity is None:
                continue
            self.is_of_language_model |= is_language_model_column(name)
            if is_finite(value):
                rows = self._rows.setdefault(quantity, [])
                rows.append(Sample(record.step, float(value), record.step))
                self.series.setdefault(quantity, Series(name, rows))
            else:
                self.not_finite[name] = (*self.not_finite.get(name, ()), record.step)

    def get(self, quantity: str) -> Series | None:
        """Return the series of a quantity, or None if it was not recorded."""
        return self.series.get(quantity)

    def at_same_steps(self, *quantities: str) -> list[tuple[float, tuple[float, ...]]]:
        """Return the steps at which all of these quantities were recorded, with their values."""
        found = [self.get(quantity) for quantity in quantities]
        tables: list[Mapping[float, float]] = [{row.step: row.value for row in series.rows} for series in found if series is not None]
        if len(tables) < len(quantities):
            return []
        return [(step, tuple(table[step] for table in tables)) for step in sorted(set.intersection(*(set(table) for table in tables)))]

    def ends_with(self, event: str) -> bool:
        """Return whether our trainer logged this event at the last step, as a stop rule does."""
        last = max((series.last.end for series in self.series.values()), default=math.inf)
        return max(self.events.get(event, ()), default=-math.inf) >= last

    @property
    def num_rows(self) -> int:
        """Number of rows of the longest series."""
        return max((len(series) for series in self.series.values()), default=0)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that a rule could read."""
        return not (self.series or self.summaries or self.evaluations or self.not_finite)

    def joined(self, other: "History") -> "History":
        """Return the union of both histories; for rows of a quantity at equal steps, this one's are used."""
        series = dict(self.series)
        for quantity, theirs in other.series.items():
            mine = series.get(quantity)
            if mine is None:
                series[quantity] = theirs
                continue
            known = {row.step for row in mine.rows}
            rows = sorted((*mine.rows, *(row for row in theirs.rows if row.step not in known)), key=lambda row: row.step)
            series[quantity] = Series(mine.column, tuple(rows))
        return History(
            series=series,
            summaries={**other.summaries, **self.summaries},
            evaluations=tuple(sorted((*self.evaluations, *other.evaluations), key=lambda each: each.step)),
            not_finite={**other.not_finite, **self.not_finite},
            events={**other.events, **self.events},
            weights=self.weights or other.weights,
            unused=(*self.unused, *(name for name in other.unused if name not in self.unused)),
            is_of_language_model=self.is_of_language_model or other.is_of_language_model,
            is_ours=self.is_ours or other.is_ours,
        )

"""Input of every diagnosis rule: the history, the settings for its remedy, and a function that builds its finding."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from grpo.diagnosis.findings import ENTRIES, Finding, Severity
from grpo.diagnosis.given import Given
from grpo.diagnosis.history import History, Sample, Series
from grpo.diagnosis.trends import Shift, fall_from_peak, level_change, noise

MOST_LEGAL_MOVES: Final = 218
"""The largest number of legal moves in a chess position (R3R2Q/... of Petrovic, 1964)."""

ONE_SIDED: Final = 1.645
"""Standard errors of a one-sided 95 % bound."""
_NOTICED: Final = 0.02
"""Fraction by which a regret must fall to count as falling."""
_FEW: Final = 3
"""Rows of the level at either end of a few evaluations."""
_LINE, _SURE = 10, 3.0
"""Minimum rows of a fitted line, and minimum standard errors of its fall, so that noise is not a fall."""
_FELL: Final = 0.85
"""A median of the second half below this fraction of the early level is a fall; with noise of 5 % on four rows, 1 in 100 looks like one."""
_LEARNS: Final = 2.33
"""Standard errors of a one-sided 99 % bound."""
_SURELY: Final = 3.5
"""Standard errors of a change that is not noise, though the rules look again and again during a run."""
_SOLVED, _SOLVED_DEVIATIONS = 0.9, 1.2
"""A task is solved at this fraction of the largest reward, or after a rise by so many deviations of a single reward."""
_LEFT: Final = 0.25
"""A task is learnt, too, where this fraction of its regret is left."""
_NEARLY: Final = 0.1
"""Of a reward between 0 and 1, in which bonuses or noise may be included."""
_WORTH_IT: Final = 0.15
"""In standard deviations of a single reward: smaller changes of the mean are no change."""
_IN_NOISE: Final = 2.0
"""The same in deviations of the rows, if the deviation of a single reward was not logged."""
_RELATIVE: Final = 0.05
"""And as a fraction of the reward, for rows without noise."""


@dataclass(frozen=True)
class Case:
    """A run to diagnose."""

    history: History
    given: Given

    def early(self, quantity: str) -> float | None:
        """Return the quantity's level at the beginning, from its series or else its statistics."""
        series, summary = self.history.get(quantity), self.history.summaries.get(quantity)
        return series.early() if series is not None else None if summary is None else summary.first

    def late(self, quantity: str) -> float | None:
        """Return the quantity's level at the end."""
        series, summary = self.history.get(quantity), self.history.summaries.get(quantity)
        return series.late() if series is not None else None if summary is None else summary.last

    def typical(self, quantity: str) -> float | None:
        """Return the quantity's median, else its mean, else the middle of its range."""
        series, summary = self.history.get(quantity), self.history.summaries.get(quantity)
        if series is not None:
            return series.median()
        if summary is None:
            return None
        if summary.mean is not None or summary.low is None or summary.high is None:
            return summary.mean
        return (summary.low + summary.high) / 2

    def lowest(self, quantity: str) -> float | None:
        """Return the quantity's smallest value."""
        series, summary = self.history.get(quantity), self.history.summaries.get(quantity)
        return series.lowest.value if series is not None else None if summary is None else summary.low

    def floor(self, quantity: str, fraction: float) -> float | None:
        """Return the quantile of the quantity at this fraction, or else its smallest value."""
        series, summary = self.history.get(quantity), self.history.summaries.get(quantity)
        return series.quantile(fraction) if series is not None else None if summary is None else summary.low

    def source(self, quantity: str) -> str:
        """Return where a quantity without series was recorded, for evidence; "" if that was a table."""
        summary = None if quantity in self.history.series else self.history.summaries.get(quantity)
        return "" if summary is None else summary.source

    @cached_property
    def learns(self) -> bool:
        """Return whether reward rises, or a regret falls, beyond its error."""
        reward = self.history.get("reward")
        rise, error = (0.0, 0.0) if reward is None else reward.total_rise()
        return rise > _LEARNS * error or self.regret_falls

    @cached_property
    def regret_is_low(self) -> bool:
        """Return whether a small fraction of the regret at the beginning is left: of the held-out one, or else of the training states."""
        names = ("regret", "regret_best", "training_regret")
        regret = next((series for name in names if (series := self.history.get(name)) is not None), None)
        if regret is None or len(regret) < 2 * _FEW:
            return False
        before = max(regret.first.value, statistics.median(regret.values[:_FEW]))
        return statistics.median(regret.values[-_FEW:]) < _LEFT * before

    @cached_property
    def regret_falls(self) -> bool:
        """Return whether the regret of the training states or the held-out one falls."""
        return any(_falls(self.history.get(name)) for name in ("training_regret", "regret"))

    @cached_property
    def reward_change(self) -> Shift | None:
        """Return the change of reward from its early to its late part; None if it was not recorded."""
        reward = self.history.get("reward")
        return None if reward is None else level_change(reward)

    @cached_property
    def change_of_note(self) -> float:
        """Return the smallest change of the mean reward that counts: in deviations of a single reward, or else of the rows."""
        reward = self.history.get("reward")
        deviation = self.reward_deviation
        if deviation is not None:
            return _WORTH_IT * deviation
        return math.inf if reward is None else max(_IN_NOISE * noise(reward), _RELATIVE * max(abs(reward.early()), abs(reward.late())))

    @cached_property
    def reward_deviation(self) -> float | None:
        """Return the standard deviation of single rewards, if the history has it or a percentile."""
        reward, logged = self.history.get("reward"), self.early("reward_std")
        if logged is not None and logged > 0:
            return logged
        upper = self.typical("reward_p90")
        # 1.2816: the normal distribution's 90th percentile.
        return None if upper is None or reward is None or upper <= reward.median() else (upper - reward.median()) / 1.2816

    @cached_property
    def improves(self) -> bool:
        """Return whether reward rose for certain and by an amount of note, and has not lost half of that again."""
        change, reward = self.reward_change, self.history.get("reward")
        if change is None or reward is None or not change.exceeds(_SURELY) or change.size < self.change_of_note:
            return False
        return fall_from_peak(reward).size > -change.size / 2

    @cached_property
    def is_solved(self) -> bool:
        """Return whether nearly nothing is left to learn: reward is near its largest value, or has risen far, or regret is low."""
        reward, change = self.history.get("reward"), self.reward_change
        if self.regret_is_low:
            return True
        if reward is None or change is None:
            return False
        best = self.late("reward_best")
        is_fraction = reward.quantile(0.05) >= -_NEARLY and reward.quantile(0.95) <= 1 + _NEARLY
        if (is_fraction and change.after >= _SOLVED) or (best is not None and 0 < _SOLVED * best <= change.after):
            return True
        deviation = self.reward_deviation
        return self.improves and deviation is not None and change.size > _SOLVED_DEVIATIONS * deviation

    def at_start(self, quantity: str) -> tuple[float, str] | None:
        """Return the quantity's value before or at the first update, with a text that says where; None if it was not recorded."""
        series, summary = self.history.get(quantity), self.history.summaries.get(quantity)
        is_first = series is not None and series.first.step <= (1 if self.history.is_ours else 0)
        if series is not None and is_first and series.first.end == series.first.step:
            return series.first.value, f"{series.column} is {series.first.value:.3g} at step {series.first.step:,.0f}"
        if summary is not None and summary.first is not None:
            return summary.first, f"{summary.column} is {summary.first:.3g} in the first step"
        return None

    def found(
        self,
        name: str,
        evidence: Iterable[str],
        *,
        rows: Iterable[Sample] = (),
        remedy: str = "",
        cause: str = "",
        severity: Severity | None = None,
    ) -> Finding:
        """Return the finding with this name.

        Args:
            name: Name in the table of findings.
            evidence: Evidence with numbers and steps.
            rows: The rows of the evidence.
            remedy: Remedy for this run, put before that of the table.
            cause: Cause in this run, put before that of the table.
            severity: Severity, if not that of the table.
        """
        entry = ENTRIES[name]
        evidence_rows = list(rows)
        return Finding(
            name=name,
            severity=severity or entry.severity,
            evidence=tuple(evidence),
            cause=f"{cause} {(entry.ours if self.history.is_ours else '') or entry.cause}".strip(),
            remedy=f"{remedy} {entry.remedy}".strip(),
            first_step=round(min(row.step for row in evidence_rows)) if evidence_rows else None,
            last_step=round(max(row.end for row in evidence_rows)) if evidence_rows else None,
        )


def _falls(series: Series | None) -> bool:
    if series is None or len(series) < 3:
        return False
    rise, error = series.total_rise()
    # A line through a few noisy rows often falls, and a single row is not a level.
    is_line = len(series) >= _LINE and rise + _SURE * error < 0 and -rise > _NOTICED * series.early()
    return is_line or statistics.median(series.values[len(series) // 2 :]) < _FELL * series.early()


DiagnosisRule = Callable[[Case], Finding | None]


def way(series: Series) -> str:
    """Return a text with a series' first and last value."""
    first, last = series.first, series.last
    return f"{series.column} from {first.value:.3g} (step {first.step:,.0f}) to {last.value:.3g} (step {last.end:,.0f})"

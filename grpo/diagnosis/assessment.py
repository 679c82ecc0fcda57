"""Properties of a run's history that several checks need.

- Quantity: what a log's column measures, under one name for all trainers (`dialects.toml`).
- Single reward: of one sampled move or answer, not a row's mean.
- Gain: the policy's reward minus the reference policy's reward on the same states.
- Regret: the value that the policy's moves lose against the best move.
- Block: successive rows, usually ten, represented by their median.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import History, Series, When
from grpo.diagnosis.trends import Array, Trend, median, trend_of

NOTED: Final = 0.15
"""Smallest notable change of reward, in standard deviations of a single reward."""
# Without a single reward's deviation, the larger of these two changes replaces `NOTED`.
_NOTED_IN_NOISE: Final = 1.0  # In standard deviations of the rows (`Trend.noise`).
_NOTED_OF_LEVEL: Final = 0.03  # As a fraction of the larger of first and last reward.
# Each of these signs shows that little is left to learn (`is_solved`).
_SOLVED: Final = 0.9  # The reward reaches this fraction of its maximum.
_SOLVED_BY_RISE: Final = 1.2  # The reward rises by this many standard deviations of a single reward.
_LEFT: Final = 0.25  # The regret falls below this fraction of its first value.


@dataclass(frozen=True, slots=True)
class Evidence:
    facts: tuple[str, ...]
    begin: float  # First step.
    end: float  # Last step.
    severity: Severity | None = None  # None: as in `checks.toml`.


@dataclass(frozen=True, slots=True)
class Unclear:
    reason: str


Answer = Evidence | Unclear | None
"""Evidence of the fault, the reason why the check cannot judge, or None for no fault."""


def evidence_of(series: Series, *facts: str, begin: float | None = None, severity: Severity | None = None) -> Evidence:
    """Return evidence from step `begin` (default: the first) to the series' last step."""
    return Evidence(facts, float(series.at[0]) if begin is None else begin, float(series.at[-1]), severity)


def tail(values: Array) -> float:
    """Return the median of the last 5 % of the rows (3 to 20 rows). So few, because many runs are stopped soon after they fall apart."""
    return median(values[-max(3, min(20, len(values) // 20)) :])


def fifth(values: Array) -> Array:
    return values[: max(3, len(values) // 5)]


class Assessment:
    def __init__(self, history: History) -> None:
        self.history = history
        self.get = history.series.get
        self.is_live = history.when != When.END
        self.is_of_actions = history.dialect.entropy_of == "actions"
        self.reward = self.get("gain") or self.get("reward")  # Easier states raise the reward but not the gain.
        self.trend: Trend | None = None if self.reward is None else trend_of(self.reward.values)

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation of a single reward: first block of `reward_std`, else from the 90th percentile. None if unknown or 0."""
        if (levels := self.history.levels("reward_std")) is not None:
            return levels[0] or None
        pairs = self.history.together("reward", "reward_p90")
        # 1.2816: the normal distribution's 90th percentile.
        return median([upper - mean for _, mean, upper in pairs]) / 1.2816 if pairs else None

    @cached_property
    def notable_change(self) -> float:
        """Smallest notable change of the reward; infinite without a reward."""
        if self.trend is None:
            return math.inf
        if self.deviation is None:
            return max(_NOTED_IN_NOISE * self.trend.noise, _NOTED_OF_LEVEL * max(abs(self.trend.start), abs(self.trend.end)))
        # A gain has less noise than a reward, so a tenth of the change is notable.
        return NOTED * self.deviation / (10 if "gain" in self.history.series else 1)

    @cached_property
    def has_fallen(self) -> bool:
        """Whether the reward fell notably, or certainly lost more than half of its rise and a notable amount.

        A notable fall of a gain must end below 0.
        """
        if self.trend is None:
            return False
        falls = -self.trend.change > self.notable_change and (self.trend.end < 0 or "gain" not in self.history.series)
        lost = self.trend.best - self.trend.last
        return falls or (self.trend.has_lost and lost > max(self.notable_change, (self.trend.best - self.trend.start) / 2))

    @cached_property
    def measures_rise(self) -> bool:
        """Whether a regret certainly falls by more than 15 %, or a held-out reward certainly rises."""
        regrets = [series for name in ("training_regret", "regret", "regret_best") if (series := self.get(name)) is not None]
        falls = [trend_of(series.values) for series in regrets if len(series) > 2]
        heldout = self.get("heldout_reward")
        rises = heldout is not None and len(heldout) > 3 and trend_of(heldout.values).change > 0
        return rises or any(-fall.change > 0.15 * abs(fall.end - fall.change) for fall in falls)

    @cached_property
    def rises(self) -> bool:
        return (self.trend is not None and self.trend.change > 0 and not self.has_fallen) or self.measures_rise

    @cached_property
    def improves(self) -> bool:
        """Whether the reward rises notably or `measures_rise`, without `has_fallen`. Always True before the end, so checks are lenient."""
        rises_notably = self.trend is not None and self.trend.change > self.notable_change and not self.has_fallen
        return self.is_live or rises_notably or (self.measures_rise and not self.has_fallen)

    @cached_property
    def is_high(self) -> bool:
        """Whether the reward ends at 90 % or more of `reward_best`, or of 1 if rewards look like fractions. False for a gain."""
        if self.trend is None or self.reward is None or "gain" in self.history.series:
            return False
        (low, high), best = np.quantile(self.reward.values, [0.05, 0.95]), self.get("reward_best")
        maximum = 1.0 if best is None else median(best.values)
        is_maximum_known = (best is not None and float(np.ptp(self.reward.values)) > 0) or (low >= -0.1 and 0.8 <= high <= 1.1)
        return is_maximum_known and maximum > 0 and min(self.trend.end, self.trend.last) >= _SOLVED * maximum

    @cached_property
    def is_solved(self) -> bool:
        names = ("regret", "regret_best", "training_regret")
        regret = next((series for name in names if (series := self.get(name)) is not None and len(series) >= 6), None)
        if regret is not None and median(regret.values[-3:]) < _LEFT * median(regret.values[:3]):
            return True
        has_risen = self.trend is not None and self.deviation is not None and self.trend.change > _SOLVED_BY_RISE * self.deviation
        return self.is_high or (has_risen and not self.has_fallen)

    def is_of_moves(self, early: float) -> bool:
        """Return whether an entropy that begins at `early` nats is over chess moves. Other trainers' entropies are, from 1.2 nats on."""
        return not self.history.is_of_language_model and not self.is_of_actions and (self.history.is_ours or early >= 1.2)

    def beyond(self, quantity: str, *, above: float = math.inf, below: float = -math.inf, at_end: bool = False) -> Evidence | None:
        """Return evidence that a block's median is beyond a limit. With `at_end`, the last block's median must be beyond the limit too."""
        if (series := self.get(quantity)) is None:
            return None
        blocks = self.history.blocks(series)  # Columns: first step, last step, median.
        bad = blocks[(blocks[:, 2] > above) | (blocks[:, 2] < below)]
        if not len(bad) or (at_end and bad[-1, 1] < blocks[-1, 1]):
            return None
        worst = bad[np.argmax(np.maximum(bad[:, 2] - above, below - bad[:, 2])), 2]
        fact = f"{series.column} is {worst:.3g} at worst between steps {bad[0, 0]:,.0f} and {bad[-1, 1]:,.0f}"
        return Evidence((fact,), float(bad[0, 0]), float(bad[-1, 1]))

    def at_start(self, quantity: str) -> float | None:
        """Return a quantity's value at the first rollout; None if this value is not logged."""
        series = self.get(quantity)
        if series is None or self.history.dialect.first_row == "later":
            return None
        interval = 1.0 if len(series) < 3 or self.history.is_ours else max(1.0, median(np.diff(series.steps)))
        return float(series.logged[0]) if series.at[0] <= interval else None

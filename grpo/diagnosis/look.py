"""Questions that several checks ask of a history: whether reward rises, how much of it is left to gain, what entropies are of."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import History, Series, When
from grpo.diagnosis.trends import Array, Trend, median, trend

NOTED: Final = 0.15
"""Change of the mean reward that matters, in standard deviations of a single reward."""
_NOTED_IN_NOISE, _NOTED_OF_LEVEL = 1.0, 0.03
"""The same where that deviation is unknown: in deviations of the rows, and as a fraction of the reward."""
_SOLVED, _SOLVED_BY_RISE, _LEFT = 0.9, 1.2, 0.25
"""A task is solved at this fraction of the largest reward, after a rise by so many deviations, or with this fraction of the regret left."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of a check: words with numbers and steps, and the steps at which it begins and ends."""

    words: tuple[str, ...]
    begin: float
    end: float
    severity: Severity | None = None  # Where it is not that of the table.


@dataclass(frozen=True, slots=True)
class Unclear:
    """A check that cannot tell; the reason."""

    why: str


Answer = Evidence | Unclear | None
"""Found, cannot tell, not found."""


def span(series: Series, *words: str, begin: float | None = None) -> Evidence:
    """Return evidence from a step, or the beginning of a series, to its end."""
    return Evidence(words, float(series.at[0]) if begin is None else begin, float(series.at[-1]))


def tail(values: Array) -> float:
    """Return the median of the last twentieth, of 3 to 20 rows: a run is often stopped soon after it falls apart."""
    return median(values[-max(3, min(20, len(values) // 20)) :])


def fifth(values: Array) -> Array:
    """Return the first fifth of the rows, or three."""
    return values[: max(3, len(values) // 5)]


class Look:
    """A history with what its checks have in common, computed once."""

    def __init__(self, history: History) -> None:
        """Look at a history as it is now."""
        self.history = history
        self.get = history.series.get
        self.is_live = history.when != When.END
        self.is_of_actions = history.dialect.entropy_of == "actions"
        self.reward = self.get("gain") or self.get("reward")  # New states do not move the gain over the reference on equal states.
        self.trend: Trend | None = None if self.reward is None else trend(self.reward.values)

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation of single rewards, from the history or a percentile of them."""
        if (levels := self.history.levels("reward_std")) is not None:
            return levels[0] or None
        pairs = self.history.together("reward", "reward_p90")
        # 1.2816: the normal distribution's 90th percentile.
        return median([upper - mean for _, mean, upper in pairs]) / 1.2816 if pairs else None

    @cached_property
    def of_note(self) -> float:
        """Smallest change of the reward that matters."""
        if self.trend is None:
            return math.inf
        if self.deviation is None:
            return max(_NOTED_IN_NOISE * self.trend.noise, _NOTED_OF_LEVEL * max(abs(self.trend.start), abs(self.trend.end)))
        return NOTED * self.deviation / (10 if "gain" in self.history.series else 1)  # A gain has no noise of states and their values.

    @cached_property
    def has_fallen(self) -> bool:
        """Whether a reward fell for certain, a gain below 0, or it lost half of what it had gained."""
        if self.trend is None:
            return False
        falls = -self.trend.change > self.of_note and (self.trend.end < 0 or "gain" not in self.history.series)
        lost = self.trend.best - self.trend.last
        return falls or (self.trend.has_lost and lost > max(self.of_note, (self.trend.best - self.trend.start) / 2))

    @cached_property
    def measures_rise(self) -> bool:
        """Whether a regret falls by a sixth, or a held-out reward rises."""
        regrets = [series for name in ("training_regret", "regret", "regret_best") if (series := self.get(name)) is not None]
        found = [trend(each.values) for each in regrets if len(each) > 2]
        heldout = self.get("heldout_reward")
        rises = heldout is not None and len(heldout) > 3 and trend(heldout.values).change > 0
        return rises or any(-each.change > 0.15 * abs(each.end - each.change) for each in found)

    @cached_property
    def rises(self) -> bool:
        """Whether it is shown that reward or a held-out measure gets better, by whatever amount."""
        return (self.trend is not None and self.trend.change > 0 and not self.has_fallen) or self.measures_rise

    @cached_property
    def improves(self) -> bool:
        """Whether reward rises by an amount that matters, or a held-out measure; while a run goes on, it has the benefit of the doubt."""
        noted = self.trend is not None and self.trend.change > self.of_note and not self.has_fallen
        return self.is_live or noted or (self.measures_rise and not self.has_fallen)

    @cached_property
    def is_high(self) -> bool:
        """Whether reward is near the largest that it can be, as far as that is known."""
        if self.trend is None or self.reward is None or "gain" in self.history.series:
            return False
        (low, high), best = np.quantile(self.reward.values, [0.05, 0.95]), self.get("reward_best")
        most = 1.0 if best is None else median(best.values)
        is_known = (best is not None and float(np.ptp(self.reward.values)) > 0) or (low >= -0.1 and 0.8 <= high <= 1.1)
        return is_known and most > 0 and min(self.trend.end, self.trend.last) >= _SOLVED * most

    @cached_property
    def is_solved(self) -> bool:
        """Whether nearly nothing is left to learn: reward is high, or has risen far, or regret is low."""
        names = ("regret", "regret_best", "training_regret")
        regret = next((series for name in names if (series := self.get(name)) is not None and len(series) >= 6), None)
        if regret is not None and median(regret.values[-3:]) < _LEFT * median(regret.values[:3]):
            return True
        has_risen = self.trend is not None and self.deviation is not None and self.trend.change > _SOLVED_BY_RISE * self.deviation
        return self.is_high or (has_risen and not self.has_fallen)

    def is_of_moves(self, early: float) -> bool:
        """Return whether an entropy is over chess moves, so that nats say something; that of tokens usually begins below 1.2."""
        return not self.history.is_of_language_model and not self.is_of_actions and (self.history.is_ours or early >= 1.2)

    def beyond(self, quantity: str, *, above: float = math.inf, below: float = -math.inf, at_end: bool = False) -> Evidence | None:
        """Return evidence of a quantity whose level is beyond a limit in a part of the rows, or in the last part."""
        if (series := self.get(quantity)) is None:
            return None
        blocks = self.history.blocks(series)
        bad = blocks[(blocks[:, 2] > above) | (blocks[:, 2] < below)]
        if not len(bad) or (at_end and bad[-1, 1] < blocks[-1, 1]):
            return None
        worst = bad[np.argmax(np.maximum(bad[:, 2] - above, below - bad[:, 2])), 2]
        words = f"{series.column} is {worst:.3g} between steps {bad[0, 0]:,.0f} and {bad[-1, 1]:,.0f}"
        return Evidence((words,), float(bad[0, 0]), float(bad[-1, 1]))

    def at_start(self, quantity: str) -> float | None:
        """Return a quantity's value in the first row, if the log begins with the run: at step 0 or 1, or after one interval of logging."""
        series = self.get(quantity)
        if series is None or self.history.dialect.first_row == "later":
            return None
        interval = 1.0 if len(series) < 3 or self.history.is_ours else max(1.0, median(np.diff(series.steps)))
        return float(series.found[0]) if series.at[0] <= interval else None

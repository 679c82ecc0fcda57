"""Diagnosis rules about runs that fall apart, and about the size of updates: KL, ratios, gradient norm, loss, learning rate."""

import math
import statistics
from collections.abc import Callable
from typing import Final

from grpo.diagnosis.case import Case
from grpo.diagnosis.findings import Finding
from grpo.diagnosis.history import Sample, Series
from grpo.diagnosis.rules_reward import falling_reward
from grpo.diagnosis.trends import early_values, tail

_FAR: Final = 0.8
"""Nats per move or token from the reference: useful updates of language models stay below about 0.1 to 0.5."""
_FAR_FOR_ANSWERS: Final = 50.0
"""Nats of an answer of many tokens."""
_LEARNING_ALLOWS: Final = 2.0
"""How many times further from the reference a policy may be if it gets better."""
_LEARNT_ALLOWS, _LEVELS_OFF = 4.0, 0.6
"""The first, if next to no regret is left and KL was gained step by step and grows in the second half by at most this fraction of the first
half's growth: a policy over 30 moves that has become sure of the best one is 2 to 3 nats from a reference that was not."""
_STEADY, _ACCELERATING_ALLOWS = 6.0, 0.6
"""A KL accelerates from this ratio of its end to the median of its first half on: a straight line from 0 has 4."""
_ACCELERATES, _NEAR_FAR = 10.0, 0.2
"""A KL at this fraction of the limit counts if it is this many times its median in the first half: a steady drift is at most 4 times it."""
_GREW: Final = 4.0
_FAR_PER_UPDATE, _LARGE_PER_UPDATE = 0.5, 0.1
"""Nats between the sampled and the updated policy; PPO's usual targets are 0.01 to 0.05."""
_GRADIENT_GREW, _GRADIENT_GREW_LEARNING, _GRADIENT_GREW_FROM_SILENCE = 8.0, 30.0, 100.0
"""Ratio to the median of the first rows: without a better reward, with it, and with it where most groups had equal rewards at first."""
_SUDDEN: Final = 10.0
"""Ratio of the end to the median of all rows."""
_TAIL: Final = 20
_LOSS_GREW: Final = 100.0
_RATIO_MAX, _RATIO_MIN = 6.0, 1e-3
_MIN_ROWS, _MIN_PART = 8, 3
_QUANTILE: Final = 0.9
_MOST: Final = 0.5

_STABLE_QUANTITIES: Final = ("kl", "kl_old", "gradient_norm", "ratio_max", "ratio_min", "loss", "policy_loss")


def diverging(case: Case) -> Finding | None:
    """Find a run that falls apart: the policy runs away from the reference, or ratios, gradients or the loss explode."""
    evidence, rows = [], []
    for name in _STABLE_QUANTITIES:
        series = case.history.get(name)
        limit = None if series is None or len(series) < _MIN_ROWS else _limit(case, name, series)
        if series is None or limit is None:
            continue
        beyond = _beyond(series, limit)
        rows += beyond
        evidence.append(
            f"{series.column} is {tail(series):.3g} at the end, beyond {limit:.3g} from step {beyond[0].step:,.0f} on; in the first fifth"
            f" of the rows it is {Series(series.column, series.rows[: len(early_values(series))]).median():.3g}"
        )
    if not evidence:
        return None
    rate, raised = case.history.get("learning_rate"), case.given.named("kl_coefficient")
    if rate is not None:
        at = min(rows, key=lambda row: row.step).step
        evidence.append(f"{rate.column} is {_at(rate, at):.3g} where it begins")
    begin = min(row.step for row in rows)
    remedy = f"Go back to a checkpoint from before step {begin:,.0f}. Lower {case.given.named('learning_rate')}, or raise {raised}."
    return case.found("diverging", evidence, rows=rows, remedy=remedy)


def _limit(case: Case, name: str, series: Series) -> float | None:
    """Return the limit that the end of a series is beyond; None if it is not."""
    limit = _LIMITS[name](case, series)
    return limit if limit is not None and math.isfinite(limit) else None


def _kl_limit(case: Case, series: Series) -> float | None:
    unit = _FAR_FOR_ANSWERS if series.column == "language/kl_reference" else _FAR
    half = statistics.median(series.values[: len(series) // 2])
    end, early = tail(series), statistics.median(early_values(series))
    # A useful KL grows ever more slowly, so that only one that does may be further away.
    is_accelerating = end > _STEADY * max(half, 0.0)
    if is_accelerating or falling_reward(case) is not None:
        limit = unit * _ACCELERATING_ALLOWS
    else:
        limit = unit * (_LEARNING_ALLOWS if case.improves or case.regret_falls else 1.0)
        middle = tail(Series(series.column, series.rows[: len(series) // 2]))
        if case.improves and case.regret_is_low and early < unit and end - middle < _LEVELS_OFF * middle:
            limit = unit * _LEARNT_ALLOWS
    if end > limit and (end > _GREW * early or early > limit):
        return limit
    if not case.improves and end > _NEAR_FAR * limit and end > _ACCELERATES * max(half, 0.0) and _grows(series):
        return max(_NEAR_FAR * limit, _ACCELERATES * half)
    return None


def _grows(series: Series) -> bool:
    """Return whether each quarter lies above the one before."""
    size = len(series) // 4
    quarters = [statistics.median(series.values[index * size : (index + 1) * size]) for index in range(4)]
    return sorted(quarters) == quarters


def _update_kl_limit(_: Case, series: Series) -> float | None:
    end, early = abs(tail(series)), abs(statistics.median(early_values(series)))
    if end > _FAR_PER_UPDATE:
        return _FAR_PER_UPDATE
    return _LARGE_PER_UPDATE if end > _LARGE_PER_UPDATE and end > _ACCELERATES * early else None


def _gradient_limit(case: Case, series: Series) -> float | None:
    first, end = statistics.median(series.values[: max(_MIN_PART, len(series) // _TAIL)]), tail(series)
    is_sudden = end > _SUDDEN * series.median()
    silent = case.early("silent_groups")
    began_silent = silent is not None and silent > _MOST
    useful = _GRADIENT_GREW_FROM_SILENCE if began_silent else _GRADIENT_GREW_LEARNING
    limit = first * (useful if case.improves and not is_sudden else _GRADIENT_GREW)
    return limit if 0 < limit < end else None


def _loss_limit(case: Case, series: Series) -> float | None:
    sizes = Series(series.column, [Sample(row.step, abs(row.value), row.end) for row in series.rows])
    limit = _LOSS_GREW * _upper(sizes)
    is_sudden = tail(sizes) > _LOSS_GREW * sizes.median()
    if 0 < limit < tail(sizes) and (is_sudden or not case.improves):
        return limit
    return None


def _largest_ratio_limit(_: Case, series: Series) -> float | None:
    return _RATIO_MAX if tail(series) > max(_RATIO_MAX, _GREW * statistics.median(early_values(series))) else None


def _smallest_ratio_limit(_: Case, series: Series) -> float | None:
    return _RATIO_MIN if tail(series) < _RATIO_MIN and statistics.median(early_values(series)) > 100 * _RATIO_MIN else None


_LIMITS: Final[dict[str, Callable[[Case, Series], float | None]]] = {
    "kl": _kl_limit,
    "kl_old": _update_kl_limit,
    "gradient_norm": _gradient_limit,
    "ratio_max": _largest_ratio_limit,
    "ratio_min": _smallest_ratio_limit,
    "loss": _loss_limit,
    "policy_loss": _loss_limit,
}
assert tuple(_LIMITS) == _STABLE_QUANTITIES


def _upper(series: Series) -> float:
    """Return a value that few rows of the early part exceed."""
    values = sorted(early_values(series))
    return values[round(_QUANTILE * (len(values) - 1))]


def _beyond(series: Series, limit: float) -> list[Sample]:
    """Return the rows beyond the limit, in the direction of the end."""
    end = tail(series)
    is_above = abs(end) >= abs(limit)
    rows = [row for row in series.rows if (abs(row.value) >= abs(limit)) == is_above]
    return rows or [series.last]


def _at(series: Series, step: float) -> float:
    return next((row.value for row in reversed(series.rows) if row.step <= step), series.first.value)

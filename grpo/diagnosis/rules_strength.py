"""Rules about playing strength: what evaluations by games allow to say."""

import math
from typing import Final

from grpo.diagnosis.case import Case
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Evaluation, Row
from grpo.statistics import wilson_interval

_LEVEL: Final = 0.05
_ENOUGH_GAMES: Final = 100


def unbelievable_peak(case: Case) -> Finding | None:
    """Find a best evaluation that luck explains."""
    looks = [each for each in case.history.evaluations if each.games is not None and each.low is None]
    if len(looks) < 2:
        return None
    best = max(looks, key=lambda each: each.score)
    others = [each for each in looks if each is not best]
    if best.score <= min(each.score for each in others):
        return None
    chance = _chance(best, others) * len(looks)
    if chance < _LEVEL:
        return None
    assert best.games is not None
    low, high = wilson_interval(best.score * best.games, round(best.games))
    evidence = [f"{best.score:.3g} of {best.games:.0f} games at step {best.step:.0f}: 95 % interval {low:.3f} to {high:.3f}"]
    evidence.append("beside " + ", ".join(f"{each.score:.3g} at step {each.step:.0f}" for each in others[:6]))
    evidence.append(
        f"the best of {len(looks)} equal checkpoints would look so far above the others with a chance of {min(1.0, chance):.2f}"
    )
    return case.found("unbelievable_peak", evidence, rows=[Row(best.step, best.score, best.step)])


def _chance(best: Evaluation, others: list[Evaluation]) -> float:
    """Return the one-sided p-value of the best against the mean of the others, all games pooled for the variance, by a normal tail."""
    assert best.games is not None
    games = sum(each.games or 0.0 for each in others)
    points = sum(each.score * (each.games or 0.0) for each in others)
    pooled = (points + best.score * best.games) / (games + best.games)
    # A draw makes the variance smaller than this, so that too few peaks are believed and not too many.
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / games + 1 / best.games))
    return 0.5 * math.erfc((best.score - points / games) / error / math.sqrt(2))


def no_baseline(case: Case) -> Finding | None:
    """Find that strength was not measured before training."""
    looks = case.history.evaluations
    if looks:
        first = min(looks, key=lambda each: each.step)
        if first.step <= 0:
            return None
        evidence = f"the first evaluation is of step {first.step:.0f} ({first.score:.3g})"
        return case.found("no_baseline", (evidence,), rows=[Row(first.step, first.score, first.step)])
    measured = case.history.get("regret_best") or case.history.get("regret")
    if measured is not None and measured.first.step <= 0:
        return None
    if case.history.is_ours:
        return None  # Its baseline is another step's.
    return case.found("no_baseline", ("no playing strength was recorded at all",), severity=Severity.NOTE)


def regret_without_strength(case: Case) -> Finding | None:
    """Find that moves got better and games did not."""
    regret = case.history.get("regret_best") or case.history.get("regret")
    looks = case.history.evaluations
    if regret is None or len(regret) < 2 or len(looks) < 2:
        return None
    fall = regret.early() - regret.late()
    stderr = case.typical("regret_best_stderr") or 0.0
    if not (fall > 0.1 * regret.early() and (len(regret) >= 5 or fall > stderr)):
        return None
    first, last = looks[0], looks[-1]
    low, high = _interval(first), _interval(last)
    if low is None or high is None or (last.games or 0) < _ENOUGH_GAMES or high[0] > low[1]:
        return None
    evidence = (
        f"{regret.column} from {regret.early():.4g} to {regret.late():.4g}",
        f"score {first.score:.3f} [{low[0]:.3f}, {low[1]:.3f}] at step {first.step:.0f}, {last.score:.3f} [{high[0]:.3f}, {high[1]:.3f}] at"
        f" step {last.step:.0f}",
    )
    remedy = f"Raise {case.given.named('own_games')}."
    return case.found("regret_without_strength", evidence, rows=[Row(last.step, last.score, last.step)], remedy=remedy)


def _interval(look: Evaluation) -> tuple[float, float] | None:
    if look.low is not None and look.high is not None:
        return look.low, look.high
    return None if look.games is None else wilson_interval(look.score * look.games, round(look.games))

"""Rules about playing strength: what evaluations by games allow to say."""

import math
from typing import Final

from grpo.diagnosis.case import ONE_SIDED, Case
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Evaluation, Sample
from grpo.statistics.intervals import wilson_interval

_LEVEL: Final = 0.05
_WORTH_A_WORD: Final = 0.06
"""A gain of the score that could not be excluded is no gain that is missing: 0.06 is some 40 Elo."""
_PLATEAU, _MANY_GAMES = 0.02, 400
_MANY_ROWS: Final = 10


def unbelievable_peak(case: Case) -> Finding | None:
    """Find a best evaluation that luck explains; a note where the scores rise as a whole."""
    looks = [each for each in case.history.evaluations if each.games is not None and each.low is None]
    if len(looks) < 2:
        return None
    best = max(looks, key=lambda each: each.score)
    others = [each for each in looks if each is not best]
    assert best.games is not None
    rest = sum(each.score * (each.games or 0) for each in others) / sum(each.games or 0 for each in others)
    if best.score - rest < (_PLATEAU if best.games >= _MANY_GAMES else 1e-9):
        return None
    chance = _chance(best, others) * len(looks)
    if chance < _LEVEL:
        return None
    low, high = wilson_interval(best.score * best.games, round(best.games))
    evidence = [f"{best.score:.3g} of {best.games:.0f} games at step {best.step:.0f}: 95 % interval {low:.3f} to {high:.3f}"]
    evidence.append("beside " + ", ".join(f"{each.score:.3g} at step {each.step:.0f}" for each in others[:6]))
    evidence.append(
        f"the best of {len(looks)} equal checkpoints would look so far above the others with a chance of {min(1.0, chance):.2f}"
    )
    severity = None
    if _trend(looks) > ONE_SIDED:
        severity = Severity.NOTE
        evidence.append("the scores rise as a whole, so that the policy did get better; how good the best is, fresh games say")
    return case.found("unbelievable_peak", evidence, rows=[Sample(best.step, best.score, best.step)], severity=severity)


def _trend(looks: list[Evaluation]) -> float:
    """Return by how many standard errors scores rise with the step (the test of Cochran and Armitage; draws make it too careful)."""
    games = [each.games or 0.0 for each in looks]
    total = sum(games)
    pooled = sum(each.score * count for each, count in zip(looks, games, strict=True)) / total
    middle = sum(each.step * count for each, count in zip(looks, games, strict=True)) / total
    moment = sum(count * (each.step - middle) * (each.score - pooled) for each, count in zip(looks, games, strict=True))
    spread = sum(count * (each.step - middle) ** 2 for each, count in zip(looks, games, strict=True))
    return moment / math.sqrt(pooled * (1 - pooled) * spread) if 0 < pooled < 1 and spread > 0 else 0.0


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
        # A run that went on from elsewhere begins where its history begins.
        begun = min((series.first.step for series in case.history.series.values()), default=0.0)
        if first.step <= max(0.0, begun):
            return None
        evidence = f"the first evaluation is of step {first.step:.0f} ({first.score:.3g})"
        return case.found("no_baseline", (evidence,), rows=[Sample(first.step, first.score, first.step)])
    measured = case.history.get("regret_best") or case.history.get("regret")
    if measured is not None and measured.first.step <= 0:
        return None
    if case.history.is_ours:
        return None  # Its baseline is another step's.
    return case.found("no_baseline", ("no playing strength was recorded at all",), severity=Severity.NOTE)


def regret_without_strength(case: Case) -> Finding | None:
    """Find that moves got better and games did not, where there are games enough to say so."""
    regret = case.history.get("regret_best") or case.history.get("regret")
    gain = _gain(case)
    if regret is None or len(regret) < 2 or gain is None:
        return None
    fall = regret.early() - regret.late()
    stderr = case.typical("regret_best_stderr") or 0.0
    if not (fall > 0.1 * regret.early() and (len(regret) >= _MANY_ROWS or fall > ONE_SIDED * stderr)):
        return None
    difference, error, words = gain
    if difference > ONE_SIDED * error or difference + ONE_SIDED * error > _WORTH_A_WORD:
        return None
    evidence = (f"{regret.column} from {regret.early():.4g} to {regret.late():.4g}", words)
    last = case.history.evaluations[-1]
    remedy = f"Raise {case.given.named('self_play')}."
    return case.found("regret_without_strength", evidence, rows=[Sample(last.step, last.score, last.step)], remedy=remedy)


def lost_strength(case: Case) -> Finding | None:
    """Find that the policy plays worse than it did."""
    gain = _gain(case)
    if gain is None or gain[0] > -ONE_SIDED * gain[1]:
        return None
    last = case.history.evaluations[-1]
    return case.found("lost_strength", (gain[2],), rows=[Sample(last.step, last.score, last.step)])


def _gain(case: Case) -> tuple[float, float, str] | None:
    """Return by how much the last score is above the first, its standard error, and both in words; None when one has no interval."""
    looks = case.history.evaluations
    if len(looks) < 2:
        return None
    first, last = looks[0], looks[-1]
    low, high = _interval(first), _interval(last)
    if low is None or high is None:
        return None
    error = math.hypot(low[1] - low[0], high[1] - high[0]) / (2 * 1.96)
    words = (
        f"score {first.score:.3f} [{low[0]:.3f}, {low[1]:.3f}] at step {first.step:.0f}, {last.score:.3f} [{high[0]:.3f}, {high[1]:.3f}] at"
        f" step {last.step:.0f}"
    )
    return last.score - first.score, error, words


def _interval(look: Evaluation) -> tuple[float, float] | None:
    if look.low is not None and look.high is not None:
        return look.low, look.high
    return None if look.games is None else wilson_interval(look.score * look.games, round(look.games))

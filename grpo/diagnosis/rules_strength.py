"""Diagnosis rules about playing strength, from evaluations by games."""

import math
from typing import Final

from grpo.diagnosis.case import ONE_SIDED, Case
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Evaluation, Sample
from grpo.statistics.intervals import wilson_interval

_LEVEL: Final = 0.05
_WORTH_A_WORD: Final = 0.06
"""Score gain that must be excluded before a missing gain is reported: 0.06 is about 40 Elo."""
_PLATEAU, _MANY_GAMES = 0.02, 400
_MANY_ROWS: Final = 10


def unbelievable_peak(case: Case) -> Finding | None:
    """Find a best evaluation that chance explains; a note if the scores rise as a whole."""
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
    """Return the rise of the scores with the step in standard errors (Cochran-Armitage test; draws make it conservative)."""
    games = [each.games or 0.0 for each in looks]
    total = sum(games)
    pooled = sum(each.score * count for each, count in zip(looks, games, strict=True)) / total
    middle = sum(each.step * count for each, count in zip(looks, games, strict=True)) / total
    moment = sum(count * (each.step - middle) * (each.score - pooled) for each, count in zip(looks, games, strict=True))
    spread = sum(count * (each.step - middle) ** 2 for each, count in zip(looks, games, strict=True))
    return moment / math.sqrt(pooled * (1 - pooled) * spread) if 0 < pooled < 1 and spread > 0 else 0.0


def _chance(best: Evaluation, others: list[Evaluation]) -> float:
    """Return the one-sided p-value of the best score against the mean of the others (normal approximation, pooled variance)."""
    assert best.games is not None
    games = sum(each.games or 0.0 for each in others)
    points = sum(each.score * (each.games or 0.0) for each in others)
    pooled = (points + best.score * best.games) / (games + best.games)
    # Draws make the true variance smaller, so that this test is conservative.
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / games + 1 / best.games))
    return 0.5 * math.erfc((best.score - points / games) / error / math.sqrt(2))


def no_baseline(case: Case) -> Finding | None:
    """Find a missing measurement of strength before training."""
    looks = case.history.evaluations
    if looks:
        first = min(looks, key=lambda each: each.step)
        # A resumed run begins where its history begins.
        begun = min((series.first.step for series in case.history.series.values()), default=0.0)
        if first.step <= max(0.0, begun):
            return None
        evidence = f"the first evaluation is of step {first.step:.0f} ({first.score:.3g})"
        return case.found("no_baseline", (evidence,), rows=[Sample(first.step, first.score, first.step)])
    measured = case.history.get("regret_best") or case.history.get("regret")
    if measured is not None and measured.first.step <= 0:
        return None
    if case.history.is_ours:
        return None  # Another pipeline step measures its baseline.
    return case.found("no_baseline", ("no playing strength was recorded at all",), severity=Severity.NOTE)


def regret_without_strength(case: Case) -> Finding | None:
    """Find falling regret without a rising score, if there are enough games."""
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
    """Find a policy that plays worse than at the beginning."""
    gain = _gain(case)
    if gain is None or gain[0] > -ONE_SIDED * gain[1]:
        return None
    last = case.history.evaluations[-1]
    return case.found("lost_strength", (gain[2],), rows=[Sample(last.step, last.score, last.step)])


def _gain(case: Case) -> tuple[float, float, str] | None:
    """Return the last score minus the first, its standard error, and a text with both; None if one has no interval."""
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

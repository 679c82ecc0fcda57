"""Diagnosis rules about playing strength, from evaluations by games."""

import math
from typing import Final

from grpo.diagnosis.case import ONE_SIDED, Case
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Evaluation, Sample, Series
from grpo.diagnosis.trends import fall_from_peak, level_change
from grpo.match.intervals import wilson_interval

_LEVEL: Final = 0.05
_WORTH_A_WORD: Final = 0.06
"""Score gain that must be excluded before a missing gain is reported: 0.06 is about 40 Elo."""
_FEW_GAMES, _STANDS_OUT, _STANDS_OUT_OF_FEW = 200, 2.2, 0.03
"""Of few games a best score that is so much higher tempts; of more games it must stand out by standard errors (not yet corrected)."""
_MANY_ROWS: Final = 10
_WORSE_REGRET: Final = 0.15
"""Fraction of the level before."""
_LOST_SIGMAS: Final = 2.33
"""Standard errors of a one-sided 99 % bound, for a critical finding."""
_TREND_SIGMAS: Final = 2.0
_FEW_MEASURES, _WORSE_OF_FEW = 6, 0.3
"""Below so many held-out measures, they must get worse by so much."""
_SURELY, _SURELY_BY_LINE = 3.0, 4.0
"""Standard errors of a fall between two levels, and of a line through all measures."""


def unbelievable_peak(case: Case) -> Finding | None:
    """Find a best evaluation that chance explains; a note if the scores rise as a whole."""
    looks = _counted(case)
    if len(looks) < 2:
        return None
    best = max(looks, key=lambda each: each.score)
    others = [each for each in looks if each is not best]
    assert best.games is not None
    rest = sum(each.score * (each.games or 0) for each in others) / sum(each.games or 0 for each in others)
    chance = _chance(best, others)
    if best.score - rest < _STANDS_OUT_OF_FEW or (best.games >= _FEW_GAMES and chance > _tail_chance(_STANDS_OUT)):
        return None  # Level evaluations: nobody would call the best one a peak.
    chance *= len(looks)
    if chance < _LEVEL:
        return None
    low, high = wilson_interval(best.score * best.games, round(best.games))
    evidence = [f"{best.score:.3g} of {best.games:.0f} games at step {best.step:,.0f}: 95 % interval {low:.3f} to {high:.3f}"]
    evidence.append("beside " + ", ".join(f"{each.score:.3g} at step {each.step:,.0f}" for each in others[:6]))
    evidence.append(
        f"if all {len(looks)} checkpoints were equally strong, the best would stand out as far with probability {min(1.0, chance):.2f}"
    )
    severity = None
    if best.games >= _FEW_GAMES:
        severity = Severity.NOTE
    if _trend(looks) > ONE_SIDED:
        severity = Severity.NOTE
        evidence.append("the scores rise as a whole, so that the policy did get better; how good the best is, fresh games say")
    return case.found("unbelievable_peak", evidence, rows=[Sample(best.step, best.score, best.step)], severity=severity)


def _counted(case: Case) -> list[Evaluation]:
    """Return the evaluations whose games were counted, and that have no interval of their own."""
    return [each for each in case.history.evaluations if each.games is not None and each.low is None]


def _trend(looks: list[Evaluation]) -> float:
    """Return the rise of the scores with the step in standard errors (Cochran-Armitage test; draws make it conservative)."""
    games = [each.games or 0.0 for each in looks]
    total = sum(games)
    if total == 0:
        return 0.0
    pooled = sum(each.score * count for each, count in zip(looks, games, strict=True)) / total
    middle = sum(each.step * count for each, count in zip(looks, games, strict=True)) / total
    moment = sum(count * (each.step - middle) * (each.score - pooled) for each, count in zip(looks, games, strict=True))
    spread = sum(count * (each.step - middle) ** 2 for each, count in zip(looks, games, strict=True))
    return moment / math.sqrt(pooled * (1 - pooled) * spread) if 0 < pooled < 1 and spread > 0 else 0.0


def _fall_as_a_whole(case: Case) -> bool:
    """Return whether the scores between the first and the last fall too; with two scores there is nothing between."""
    looks = _counted(case)
    return len(looks) < 3 or _trend(looks) < -_TREND_SIGMAS


def _chance(best: Evaluation, others: list[Evaluation]) -> float:
    """Return the one-sided p-value of the best score against the mean of the others (normal approximation, pooled variance)."""
    assert best.games is not None
    games = sum(each.games or 0.0 for each in others)
    points = sum(each.score * (each.games or 0.0) for each in others)
    pooled = (points + best.score * best.games) / (games + best.games)
    # Draws make the true variance smaller, so that this test is conservative.
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / games + 1 / best.games))
    return _tail_chance((best.score - points / games) / error)


def _tail_chance(sigmas: float) -> float:
    """Return the one-sided tail probability of the normal distribution."""
    return 0.5 * math.erfc(sigmas / math.sqrt(2))


def no_baseline(case: Case) -> Finding | None:
    """Find a missing measurement of strength before training."""
    looks = case.history.evaluations
    if looks:
        first = min(looks, key=lambda each: each.step)
        # A resumed run begins where its history begins.
        begun = min((series.first.step for series in case.history.series.values()), default=0.0)
        if first.step <= max(0.0, begun):
            return None
        evidence = f"the first evaluation is of step {first.step:,.0f} ({first.score:.3g})"
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
    """Find a policy that plays worse than at the beginning, by games or by a held-out measure."""
    gain = _gain(case)
    if gain is not None and gain[0] <= -_LOST_SIGMAS * gain[1] and _fall_as_a_whole(case):
        last = case.history.evaluations[-1]
        return case.found("lost_strength", (gain[2],), rows=[Sample(last.step, last.score, last.step)])
    worse = [] if case.improves else _worse_heldout(case, is_peak_enough=False)
    return case.found("lost_strength", [words for _, words in worse], rows=[row for row, _ in worse]) if worse else None


def reward_hacking(case: Case) -> Finding | None:
    """Find a reward that rises while a held-out measure gets worse."""
    reward, change = case.history.get("reward"), case.reward_change
    if reward is None or change is None or not case.improves:
        return None
    evidence = _worse_heldout(case, is_peak_enough=True)
    if not evidence:
        return None
    words = [f"{reward.column} rises from {change.before:.3g} to {change.after:.3g}", *(words for _, words in evidence)]
    remedy = f"Raise {case.given.named('kl_coefficient')}."
    return case.found("reward_hacking", words, rows=[row for row, _ in evidence], remedy=remedy)


def _worse_heldout(case: Case, *, is_peak_enough: bool) -> list[tuple[Sample, str]]:
    """Return the last row of each held-out measure that got worse, with a text: compared with its beginning, or also with its best."""
    found = []
    for name in ("regret", "regret_best"):
        series = case.history.get(name)
        if series is None or len(series) < 3:
            continue
        goodness = Series(series.column, [Sample(row.step, -row.value, row.end) for row in series.rows])
        change, best = level_change(goodness), fall_from_peak(goodness)
        least = _WORSE_REGRET if len(series) >= _FEW_MEASURES else _WORSE_OF_FEW
        needed = least * abs(change.before)
        if is_peak_enough and -best.size > -change.size and best.before > change.before:
            change, needed = best, max(least * abs(best.before), (best.before - goodness.early()) / 2)
        if -change.size > needed and _is_certain_fall(goodness, change.error, -change.size):
            words = f"{series.column} goes from {abs(change.before):.3g} to {abs(change.after):.3g} (step {series.last.end:,.0f})"
            found.append((series.last, words))
    return found


def _is_certain_fall(goodness: Series, error: float, fall: float) -> bool:
    """Return whether a fall is beyond noise; of a few evaluations, all of the last third must be below all of the first third."""
    if len(goodness) >= _MANY_ROWS:
        line, line_error = goodness.total_rise()
        return fall > _SURELY * error or -line > _SURELY_BY_LINE * line_error
    third = max(2, len(goodness) // 3) if len(goodness) > 3 else 1
    peak = max(range(len(goodness)), key=lambda index: goodness.values[index])
    before = goodness.values[:third] if peak < third else goodness.values[max(0, peak - third // 2) : peak + 1]
    return max(goodness.values[-third:]) < min(before)


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
        f"score {first.score:.3f} [{low[0]:.3f}, {low[1]:.3f}] at step {first.step:,.0f}, {last.score:.3f} [{high[0]:.3f}, {high[1]:.3f}]"
        f" at step {last.step:,.0f}"
    )
    return last.score - first.score, error, words


def _interval(look: Evaluation) -> tuple[float, float] | None:
    if look.low is not None and look.high is not None:
        return look.low, look.high
    return None if look.games is None else wilson_interval(look.score * look.games, round(look.games))

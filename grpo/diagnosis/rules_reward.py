"""Diagnosis rules about rewards, groups and answer format."""

import math
import statistics
from typing import Final

from grpo.diagnosis.case import ONE_SIDED, Case, way
from grpo.diagnosis.conditions import have_zero_advantage
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Series
from grpo.diagnosis.trends import Shift, fall_from_peak, noise

_MOSTLY: Final = 0.5
_AGREEING: Final = 0.75
_FAILED: Final = 0.05
_PILED_UP: Final = 0.1
_MIN_STEPS: Final = 100
_A_FEW: Final = 3
_UNNOTICED, _NOTHING = 0.2, 0.06
"""In standard deviations of a reward; the second for a rise that is certain, and still worth nothing."""
_LEARNT: Final = 0.5
_SURELY, _SURELY_FROM_PEAK, _CERTAIN, _NEARLY_CERTAIN = 3.5, 4.5, 3.0, 2.33
"""Standard errors of a fall that is not noise, of one from the best of several parts, of a rise, and of a fall that a line shows too."""
_SURELY_BY_LINE, _SURELY_OF_FEW, _RELATIVE = 4.0, 8.0, 0.05
"""Standard errors of a fall of the line through all rows and through four or five, and the fraction of the reward that it must fall by."""
_LOST: Final = 0.5
"""Fraction of its gain that a reward must lose again to count as falling."""
_NOTICED: Final = 0.25
"""In standard deviations of a reward: a fall from the peak below that is a fluctuation."""
_FORGOTTEN: Final = 0.2
"""Fraction of all answers; with about a hundred answers per evaluation, its error is below 0.1."""


def unlearned_language_model(case: Case) -> Finding | None:
    """Find a language model that cannot write valid answers yet."""
    parsed, truncated = case.history.get("parsed"), case.history.get("truncated")
    evidence = []
    if parsed is not None and parsed.first.value < 0.1 and parsed.late() < _LEARNT:
        evidence.append(f"{parsed.column} is {parsed.first.value:.3g} at step {parsed.first.step:,.0f}")
        if truncated is not None and truncated.first.value > 0.5:
            evidence.append(f"{truncated.column} is {truncated.first.value:.3g}")
        reward = case.history.get("reward")
        if reward is not None:
            evidence.append(f"{reward.column} is {reward.first.value:.3g}")
    random = [step for step, words in case.history.weights if words == "random"]
    if random:
        evidence.append(f"weights are random at step {random[0]:,.0f}")
    if parsed is not None and evidence and parsed.first.value < 0.1 and not evidence[0].startswith(parsed.column):
        evidence.append(f"{parsed.column} is {parsed.first.value:.3g} at step {parsed.first.step:,.0f}")
    return case.found("unlearned_language_model", evidence, rows=() if parsed is None else parsed.rows[:1]) if evidence else None


def lost_format(case: Case) -> Finding | None:
    """Find a language model that loses the answer format."""
    parsed, truncated = case.history.get("parsed"), case.history.get("truncated")
    if parsed is None or len(parsed) < _A_FEW or parsed.early() - parsed.late() <= _FORGOTTEN:
        return None
    evidence = [way(parsed)]
    if truncated is not None and truncated.late() > truncated.early():
        evidence.append(way(truncated))
    middle = (parsed.early() + parsed.late()) / 2
    fallen = [row for row in parsed.rows if row.value < middle]
    return case.found("lost_format", evidence, rows=fallen, remedy=f"Lower {case.given.named('learning_rate')}.")


def failed_values(case: Case) -> Finding | None:
    """Find many states that the engine failed on, or failures that were counted as rewards."""
    dropped, trained, at_end = (case.history.get(name) for name in ("states_dropped", "states", "reward_at_end"))
    if dropped is not None and trained is not None:
        lost, kept = sum(dropped.values), sum(trained.values)
        if lost > _FAILED * (lost + kept):
            return case.found("failed_values", (f"{lost:.0f} states dropped beside {kept:.0f} that trained",), rows=dropped.rows)
    # Few engine values are exactly 0 or 1; a binary reward, with nearly all values there, is not a failure.
    if at_end is not None and _PILED_UP < at_end.median() < 1 - _PILED_UP:
        evidence = f"{at_end.column} has a median of {at_end.median():.2f}: so many rewards are exactly 0 or 1"
        return case.found("failed_values", (evidence,), rows=at_end.rows)
    return None


def silent_groups(case: Case) -> Finding | None:
    """Find zero-variance groups."""
    silent, late = case.history.get("silent_groups"), case.late("silent_groups")
    is_solved = case.is_solved
    if late is not None and late > _MOSTLY:
        severity = Severity.NOTE if is_solved else Severity.CRITICAL if have_zero_advantage(late) else None
        evidence = f"{late:.0%} of the groups are silent at the end" if silent is None else way(silent)
        return case.found("silent_groups", (evidence,), rows=() if silent is None else silent.rows[-1:], severity=severity)
    for name in ("group_std", "reward_std"):
        spread = case.history.get(name)
        if spread is not None and len(spread) >= 3 and spread.late() < 1e-6:
            severity = Severity.NOTE if is_solved else Severity.CRITICAL
            return case.found("silent_groups", (way(spread),), rows=spread.rows[-1:], severity=severity)
    return None


def group_agreement(case: Case) -> Finding | None:
    """Find groups whose moves are nearly all the same."""
    series, late = case.history.get("agreement"), case.late("agreement")
    if late is None or late <= _AGREEING:
        return None
    evidence = [f"agreement is {late:.3g} at the end" if series is None else way(series)]
    if (most := case.history.summaries.get("agreement_max")) is not None and most.last is not None:
        evidence.append(f"{most.column} {most.last:.3g}")
    severity = Severity.NOTE if case.is_solved else None
    return case.found("group_agreement", evidence, rows=() if series is None else series.rows[-1:], severity=severity)


def falling_reward(case: Case) -> Finding | None:
    """Find a reward that falls, or that loses what it gained, while no regret falls."""
    reward, change = case.history.get("reward"), case.reward_change
    if reward is None or change is None or case.regret_falls or any(row.end > row.step for row in reward.rows):
        return None
    evidence = ""
    if change.falls_by(_SURELY) and -change.size > case.change_of_note:
        evidence = f"{reward.column} falls from {change.before:.3g} in the first fifth of the rows to {change.after:.3g} in the last"
    else:
        peak, early = fall_from_peak(reward), change.before
        deviation = case.reward_deviation
        least = case.change_of_note if deviation is None else _NOTICED * deviation
        gain = peak.before - early
        if peak.falls_by(_SURELY_FROM_PEAK) and -peak.size > max(least, _LOST * gain) and gain > _CERTAIN * peak.error:
            evidence = (
                f"{reward.column} is {early:.3g} in the first fifth of the rows, {peak.before:.3g} at its best, {peak.after:.3g} at last"
            )
        elif _falls_by_line(case, reward, change):
            evidence = f"{way(reward)}: by a straight line it falls by {-reward.total_rise()[0]:.3g}"
    if not evidence:
        return None
    begin = reward.highest.step
    remedy = (
        f"Go back to a checkpoint near step {begin:,.0f}. Lower {case.given.named('learning_rate')}, or raise"
        f" {case.given.named('kl_coefficient')}."
    )
    return case.found("falling_reward", (evidence,), rows=[row for row in reward.rows if row.step >= begin], remedy=remedy)


def _falls_by_line(case: Case, reward: Series, change: Shift) -> bool:
    """Return whether a line through all rows falls for certain, though its ends differ by little beside the noise of the rows."""
    line, error = reward.total_rise()
    least = max(reward.rest_deviation(), _RELATIVE * max(abs(change.before), abs(change.after)))
    least = least if case.reward_deviation is None else case.change_of_note
    if math.isinf(change.error):  # Too few rows for levels.
        return len(reward) > _A_FEW and -line > max(_SURELY_OF_FEW * error, least)
    return -line > max(_SURELY_BY_LINE * error, least) and change.falls_by(_NEARLY_CERTAIN)


def flat_reward(case: Case) -> Finding | None:
    """Find a reward that does not rise, if there are enough rows."""
    reward = case.history.get("reward")
    if reward is None or reward.num_steps < _MIN_STEPS or case.is_solved or falling_reward(case) is not None:
        return None
    spread, learns = case.reward_deviation, case.learns
    rise, error = reward.total_rise()
    if case.regret_falls or (spread is None and rise > _CERTAIN * error):
        return None
    if any(row.end > row.step for row in reward.rows):
        best = max((row.value for row in reward.rows[1:]), default=math.inf)
        if learns or len(reward) < 3 or spread is None or best - reward.first.value >= 0.1 * spread:
            return None
        evidence = f"{way(reward)}, never above {best:.3g} in {len(reward)} windows, where one reward's deviation is about {spread:.2g}"
        return case.found("flat_reward", (evidence,), rows=reward.rows)
    if len(reward) < 5:
        return None
    possible = rise + ONE_SIDED * error
    quick = reward.late() - statistics.median(reward.values[:_A_FEW])
    # Without the reward's own deviation, use that of the rows around the line: a rise within two of these is noise.
    unnoticed = 2 * reward.rest_deviation() if spread is None else (_NOTHING if rise > _CERTAIN * error else _UNNOTICED) * spread
    # A quick rise with a plateau is not linear, but still counts as learning.
    if possible > unnoticed or quick > max(unnoticed, _CERTAIN * noise(reward)):
        return None
    return case.found(
        "flat_reward", (f"{way(reward)}: by a straight line it changes by {rise:+.3g}, at most {possible:+.3g}",), rows=reward.rows
    )

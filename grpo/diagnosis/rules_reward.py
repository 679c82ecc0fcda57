"""Diagnosis rules about rewards, groups and answer format."""

import math
import statistics
from typing import Final

from grpo.diagnosis.case import ONE_SIDED, Case, way
from grpo.diagnosis.conditions import have_zero_advantage
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Series
from grpo.diagnosis.quantities import names_weights
from grpo.diagnosis.trends import Shift, fall_from_peak, level_change, noise, tail
from grpo.settings.grpo import AlarmConfig

_ALARMS: Final = AlarmConfig()
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
_LONGER, _SHORTER = 3.0, 0.25
_CUT_OFF, _MORE_CUT_OFF = 0.5, 0.25
_ANSWERS: Final = 10
"""Rows below which a length has no trend."""
_SAME: Final = 1e-6
"""Relative difference of two rewards that are equal up to rounding."""
_UPDATES_NOTHING, _IS_ROUNDING = 1e-5, 1e-8
"""Nats: the KL of an update between these is one of a policy that does not move; below, one that was measured before the update."""
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
    for column, rows in case.history.notes.items():
        random = [step for step, words in rows if words.lower() in ("random", "random weights", "untrained", "scratch")]
        if random and names_weights(column):
            evidence.append(f"{column} says random at step {random[0]:,.0f}")
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
        severity = Severity.NOTE if is_solved else Severity.CRITICAL if have_zero_advantage(late, _ALARMS) else None
        evidence = f"{late:.0%} of the groups are silent at the end" if silent is None else way(silent)
        return case.found("silent_groups", (evidence,), rows=() if silent is None else silent.rows[-1:], severity=severity)
    for name in ("group_std", "reward_std"):
        spread = case.history.get(name)
        if spread is not None and len(spread) >= 3 and spread.late() < 1e-6:
            severity = Severity.NOTE if is_solved else Severity.CRITICAL
            return case.found("silent_groups", (way(spread),), rows=spread.rows[-1:], severity=severity)
    equal = _all_equal(case)
    severity = Severity.NOTE if is_solved else Severity.CRITICAL
    return None if equal is None else case.found("silent_groups", (equal,), severity=severity)


def _all_equal(case: Case) -> str | None:
    """Return evidence that all rewards or advantages of most steps are equal; None if they are not."""
    ranges = (("reward_worst", "reward_best"), ("advantage_min", "advantage_max"))
    for low, high in ranges:
        rows = case.history.at_same_steps(low, high)
        same = [step for step, (least, most) in rows if most - least <= _SAME * max(abs(least), abs(most))]
        if len(rows) >= _ANSWERS and len(same) > _MOSTLY * len(rows):
            names = [case.history.series[name].column for name in (low, high)]
            return f"{names[0]} and {names[1]} are equal in {len(same)} of {len(rows)} rows"
    reward = case.history.get("reward")
    spreads = ("group_std", "reward_std", "silent_groups", *(name for pair in ranges for name in pair))
    is_measured = any(case.history.get(name) is not None for name in spreads)
    if reward is None or not case.reward_is_constant or case.history.is_of_environment or is_measured:
        return None
    return f"{reward.column} is {reward.first.value:.3g} in all of {len(reward)} rows"


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


def answer_length(case: Case) -> Finding | None:
    """Find answers that are cut off, or whose length runs away or collapses without a better reward."""
    truncated, length = case.history.get("truncated"), case.history.get("answer_length")
    if truncated is not None and len(truncated) >= _A_FEW and tail(truncated) > _CUT_OFF:
        change = level_change(truncated)
        if change.size > _MORE_CUT_OFF or (change.before > _CUT_OFF and not case.learns):
            return case.found("answer_length", (way(truncated),), rows=[row for row in truncated.rows if row.value > _CUT_OFF])
    if length is None or len(length) < _ANSWERS or case.improves:
        return None
    change = level_change(length)
    if change.before <= 0 or _SHORTER * change.before <= change.after <= _LONGER * change.before or abs(change.size) <= 3 * change.error:
        return None
    return case.found("answer_length", (way(length),), rows=length.rows)


def flat_reward(case: Case) -> Finding | None:
    """Find a reward that does not rise, if there are enough rows."""
    reward = case.history.get("reward")
    if reward is None or reward.num_steps < _MIN_STEPS or case.is_solved or falling_reward(case) is not None:
        return None
    spread, learns = case.reward_deviation, case.learns
    rise, error = reward.total_rise()
    if case.heldout_improves() or (spread is None and rise > _CERTAIN * error):
        return None
    if any(row.end > row.step for row in reward.rows):
        best = max((row.value for row in reward.rows[1:]), default=math.inf)
        if learns or len(reward) < 3 or spread is None or best - reward.first.value >= 0.1 * spread:
            return None
        evidence = f"{way(reward)}, never above {best:.3g} in {len(reward)} windows, where one reward's deviation is about {spread:.2g}"
        return case.found("flat_reward", (evidence,), rows=reward.rows)
    if len(reward) < 5:
        return None
    if _stands_still(case) and rise <= _CERTAIN * error:
        evidence = f"{way(reward)}, while updates do not change the policy: their KL is about {case.typical('kl_old'):.2g} nats"
        return case.found("flat_reward", (evidence,), rows=reward.rows)
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


def _stands_still(case: Case) -> bool:
    """Return whether updates leave a policy in an environment as it is, so that a rise of its running mean reward is chance."""
    update, clipped = case.history.get("kl_old"), case.history.get("clip_fraction")
    if update is None or clipped is None or not case.history.is_of_environment:
        return False
    return _IS_ROUNDING < update.median() < _UPDATES_NOTHING and clipped.highest.value == 0

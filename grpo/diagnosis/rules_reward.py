"""Diagnosis rules about rewards, groups and answer format."""

import math
from typing import Final

from grpo.diagnosis.case import ONE_SIDED, Case, way
from grpo.diagnosis.conditions import have_zero_advantage
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Series
from grpo.settings.grpo import AlarmConfig

_ALARMS: Final = AlarmConfig()
_MOSTLY: Final = 0.5
_AGREEING: Final = 0.75
_FAILED: Final = 0.05
_PILED_UP: Final = 0.1
_MIN_STEPS: Final = 100
_A_FEW: Final = 3
_UNNOTICED: Final = 0.15
"""In standard deviations of a reward."""
_LEARNT: Final = 0.5
_FORGOTTEN: Final = 0.2
"""Fraction of all answers; with about a hundred answers per evaluation, its error is below 0.1."""


def unlearned_language_model(case: Case) -> Finding | None:
    """Find a language model that cannot write valid answers yet."""
    parsed, truncated = case.history.get("parsed"), case.history.get("truncated")
    evidence = []
    if parsed is not None and parsed.first.value < 0.1 and parsed.late() < _LEARNT:
        evidence.append(f"{parsed.column} is {parsed.first.value:.3g} at step {parsed.first.step:.0f}")
        if truncated is not None and truncated.first.value > 0.5:
            evidence.append(f"{truncated.column} is {truncated.first.value:.3g}")
        reward = case.history.get("reward")
        if reward is not None:
            evidence.append(f"{reward.column} is {reward.first.value:.3g}")
    for column, rows in case.history.notes.items():
        random = [step for step, words in rows if words.lower() in ("random", "random weights", "untrained", "scratch")]
        if random and "weight" in column.lower():
            evidence.append(f"{column} says random at step {random[0]:.0f}")
    if parsed is not None and evidence and parsed.first.value < 0.1 and not evidence[0].startswith(parsed.column):
        evidence.append(f"{parsed.column} is {parsed.first.value:.3g} at step {parsed.first.step:.0f}")
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
    if late is not None and late > _MOSTLY:
        severity = Severity.CRITICAL if have_zero_advantage(late, _ALARMS) else None
        evidence = f"{late:.0%} of the groups are silent at the end" if silent is None else way(silent)
        return case.found("silent_groups", (evidence,), rows=() if silent is None else silent.rows[-1:], severity=severity)
    for name in ("group_std", "reward_std"):
        spread = case.history.get(name)
        if spread is not None and len(spread) >= 3 and spread.late() < 1e-6:
            return case.found("silent_groups", (way(spread),), rows=spread.rows[-1:], severity=Severity.CRITICAL)
    return None


def group_agreement(case: Case) -> Finding | None:
    """Find groups whose moves are nearly all the same."""
    series, late = case.history.get("agreement"), case.late("agreement")
    if late is None or late <= _AGREEING:
        return None
    evidence = [f"agreement is {late:.3g} at the end" if series is None else way(series)]
    if (most := case.history.summaries.get("agreement_max")) is not None and most.last is not None:
        evidence.append(f"{most.column} {most.last:.3g}")
    return case.found("group_agreement", evidence, rows=() if series is None else series.rows[-1:])


def flat_reward(case: Case) -> Finding | None:
    """Find a reward that does not rise, if there are enough rows."""
    reward = case.history.get("reward")
    if reward is None or reward.num_steps < _MIN_STEPS or case.learns():
        return None
    spread = _spread(case, reward)
    if any(row.end > row.step for row in reward.rows):
        best = max((row.value for row in reward.rows[1:]), default=math.inf)
        if len(reward) < 3 or spread is None or best - reward.first.value >= 0.1 * spread:
            return None
        evidence = f"{way(reward)}, never above {best:.3g} in {len(reward)} windows, where one reward's deviation is about {spread:.2g}"
        return case.found("flat_reward", (evidence,), rows=reward.rows)
    if len(reward) < 5:
        return None
    rise, error = reward.total_rise()
    possible = rise + ONE_SIDED * error
    # Without the reward's own deviation, use that of the rows around the line: a rise within two of these is noise.
    unnoticed = 2 * reward.rest_deviation() if spread is None else _UNNOTICED * spread
    # A quick rise with a plateau is not linear, but still counts as learning.
    if possible > unnoticed or reward.late() - reward.early() > unnoticed:
        return None
    return case.found(
        "flat_reward", (f"{way(reward)}: by a straight line it rises by {rise:.3g}, at most {possible:.3g}",), rows=reward.rows
    )


def _spread(case: Case, reward: Series) -> float | None:
    """Return the standard deviation of single rewards, if the history has it or a percentile."""
    logged = case.typical("reward_std")
    if logged is not None:
        return logged
    upper = case.typical("reward_p90")
    # 1.2816: the normal distribution's 90th percentile.
    return None if upper is None or upper <= reward.median() else (upper - reward.median()) / 1.2816

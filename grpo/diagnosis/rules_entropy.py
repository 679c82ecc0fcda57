"""Rules about entropy, and what was done to keep it."""

import math
from typing import Final

from grpo.diagnosis.case import MOST_LEGAL_MOVES, Case, way
from grpo.diagnosis.conditions import is_certain
from grpo.diagnosis.findings import Finding
from grpo.diagnosis.history import Series
from grpo.grpo_config import AlarmConfig, RecoveryConfig

_MOST: Final = math.log(MOST_LEGAL_MOVES)
_OVER_LEGAL: Final = 1.25
"""Of ln(legal moves): above it is no rounding, and no noise."""
_ALARMS, _HEALTHY_NATS = AlarmConfig(), RecoveryConfig().healthy_entropy
_KEPT_SHARE: Final = 0.4
_STOPPED: Final = "entropy_critical"
"""The event with which our trainer stops at critical entropy, wherever its settings draw that line."""
_BOOSTED: Final = 3.0
_STILL: Final = 0.15
_LONG: Final = 1_000


def impossible_entropy(case: Case) -> Finding | None:
    """Find entropies that no distribution over legal moves has."""
    if _is_of_words(case):
        return None  # Its alphabet is larger.
    series, summary = case.history.get("entropy"), case.history.summaries.get("entropy")
    if series is not None:
        limits = {step: limit for step, (limit,) in case.history.at_same_steps("log_num_legal")}
        bad = [row for row in series.rows if not -0.01 <= row.value <= min(_MOST, _OVER_LEGAL * limits.get(row.step, math.inf))]
        if bad:
            worst = max(bad, key=lambda row: abs(row.value))
            return case.found(
                "impossible_entropy",
                (
                    f"{series.column} is {worst.value:.4g} at step {worst.step:.0f}, and above ln {MOST_LEGAL_MOVES} = {_MOST:.2f} (or"
                    f" ln of the legal moves there) or negative in {len(bad)} of {len(series)} rows",
                ),
                rows=bad,
            )
    elif summary is not None and summary.high is not None and summary.high > _MOST:
        return case.found(
            "impossible_entropy", (f"{summary.column} reaches {summary.high:.4g}, above ln {MOST_LEGAL_MOVES} = {_MOST:.2f}",)
        )
    return None


def entropy_collapse(case: Case) -> Finding | None:
    """Find a policy that grew certain."""
    if not _has_collapsed(case):
        return None
    entropy = _possible(case)
    if entropy is None:
        normalised = case.history.get("normalised_entropy")
        assert normalised is not None
        return case.found("entropy_collapse", (way(normalised),), rows=normalised.rows[-1:], remedy=_slower(case))
    evidence = [
        f"{way(entropy)}: from about {math.exp(entropy.early()):.0f} effective moves, exp(entropy), to {math.exp(entropy.late()):.1f}",
    ]
    healthy = [row for row in entropy.rows if row.value >= (entropy.early() + entropy.late()) / 2]
    evidence += [way(series) for name in ("reward", "reward_std") if (series := case.history.get(name)) is not None and len(series) > 1]
    loss = case.history.get("loss")
    cause = ""
    if loss is not None and len(loss) > 1 and abs(loss.late()) < abs(loss.early()):
        evidence.append(way(loss))
        cause = "The loss goes to 0 because advantages vanish with the entropy, not because something was learnt."
    return case.found(
        "entropy_collapse",
        evidence,
        rows=[row for row in entropy.rows if row.step > healthy[-1].step] or entropy.rows[-1:],
        cause=cause,
        remedy=f"Entropy was last above half of its way down at step {healthy[-1].step:.0f}. {_slower(case)}",
    )


def kl_trap(case: Case) -> Finding | None:
    """Find a collapse that a rising entropy coefficient did not stop."""
    coefficient = case.history.get("entropy_coefficient")
    if coefficient is None or not _has_collapsed(case):
        return None
    before, after = coefficient.early(), coefficient.highest.value
    if not (before > 0 and after >= _BOOSTED * before):
        return None
    evidence = [
        f"{coefficient.column} was raised from {before:.3g} to {after:.3g} ({after / before:.0f}-fold) by step"
        f" {coefficient.highest.step:.0f}"
    ]
    entropy = _possible(case)
    evidence += [] if entropy is None else [way(entropy)]
    for name in ("kl", "kl_ratio", "kl_coefficient"):
        if (summary := case.history.summaries.get(name)) is not None and summary.last is not None:
            evidence.append(f"{summary.column} {summary.last:.3g}")
    remedy = f"Leave {case.given.named('entropy_coefficient')} where it is and lower {case.given.named('learning_rate')}."
    return case.found("kl_trap", evidence, rows=coefficient.rows, remedy=remedy)


def dead_monitor(case: Case) -> Finding | None:
    """Find an entropy controller or monitor that never acted."""
    idle = case.history.get("entropy_idle")
    if idle is not None:
        if idle.num_steps < 100 or idle.lowest.value < 0.85:
            return None
        return case.found(
            "dead_monitor", (f"{idle.column} is never below {idle.lowest.value:.2f} in {idle.num_steps:.0f} steps",), rows=idle.rows
        )
    bonus, low = case.history.get("entropy_bonus"), case.lowest("entropy")
    floor = case.given.value("entropy_floor")
    evidence = []
    if bonus is not None and len(bonus) >= 3 and bonus.num_steps >= _LONG and is_still(bonus) and is_nearly_all(case):
        evidence.append(
            f"{bonus.column} stays between {bonus.lowest.value:.3g} and {bonus.highest.value:.3g} for {bonus.num_steps:.0f} steps, as"
            " nearly all of the loss: whatever watches entropy has not moved it once"
        )
    if not evidence:
        return None
    if floor is not None and low is not None and low > floor:
        evidence.append(f"entropy was never below {low:.3g}, and {case.given.named('entropy_floor')} lies below that: it cannot fire")
    return case.found("dead_monitor", evidence, rows=() if bonus is None else bonus.rows)


def is_still(series: Series) -> bool:
    """Return whether a series hardly moves: neither from end to end nor in its middle three fifths by a seventh of itself."""
    values, size = sorted(series.values), _STILL * abs(series.median())
    middle = values[round(0.8 * (len(values) - 1))] - values[round(0.2 * (len(values) - 1))]
    return size > 0 and middle < size and abs(series.late() - series.early()) < size


def is_nearly_all(case: Case) -> bool:
    """Return whether the entropy bonus is nearly all of the loss, by absolute values."""
    rows = case.history.at_same_steps("policy_loss", "entropy_bonus")
    return bool(rows) and sum(abs(bonus) > 0.9 * (abs(bonus) + abs(policy)) for _, (policy, bonus) in rows) > len(rows) / 2


def _has_collapsed(case: Case) -> bool:
    if _is_of_words(case):
        return False
    normalised = case.late("normalised_entropy")
    if (normalised is not None and is_certain(normalised, _ALARMS)) or case.history.ends_with(_STOPPED):
        return True
    entropy = _possible(case)
    return entropy is not None and len(entropy) >= 3 and entropy.late() < min(_HEALTHY_NATS, _KEPT_SHARE * entropy.early())


def _possible(case: Case) -> Series | None:
    """Return entropy without the values that are none."""
    series = case.history.get("entropy")
    if series is None:
        return None
    rows = [row for row in series.rows if -0.01 <= row.value <= _MOST]
    return Series(series.column, rows) if rows else None


def _is_of_words(case: Case) -> bool:
    return "parsed" in case.history.series or "parsed" in case.history.summaries


def _slower(case: Case) -> str:
    rate, bonus = case.given.named("learning_rate"), case.given.named("entropy_coefficient")
    return f"Lower {rate}, or raise {bonus} with the exact entropy, before entropy is gone."

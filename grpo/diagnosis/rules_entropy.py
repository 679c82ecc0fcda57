"""Diagnosis rules about entropy and entropy controllers."""

import math
import statistics
from typing import Final

from grpo.diagnosis.case import MOST_LEGAL_MOVES, Case, way
from grpo.diagnosis.conditions import is_certain
from grpo.diagnosis.findings import Finding
from grpo.diagnosis.history import Series
from grpo.diagnosis.trends import early_values, tail
from grpo.settings.grpo import RecoveryConfig

_MOST: Final = math.log(MOST_LEGAL_MOVES)
_BEYOND, _BEYOND_FRACTION = 1.1, 0.05
"""One value this far above the bound is enough; of values closer to it, more than this fraction of the rows."""
_OVER_LEGAL: Final = 1.25
"""Ratio to ln(legal moves) above which rounding and noise are excluded."""
_HEALTHY_NATS = RecoveryConfig().healthy_entropy
_LEFT_FRACTION, _COLLAPSED, _GONE = 0.4, 1.2 * _HEALTHY_NATS, 0.15
_LEFT_FRACTION_LEARNING, _COLLAPSED_LEARNING = 0.25, 0.8 * _HEALTHY_NATS
"""If reward rises for certain: a policy that gets better gets surer."""
_RELATIVE_LEFT, _RELATIVE_LEFT_IF_LEARNING = 0.2, 0.08
"""Of entropies whose scale is unknown: of tokens or answers."""
_MOVES_HAVE: Final = 1.2
"""Nats: a policy over chess moves starts above that, the entropy of a language model's tokens usually below."""
_ROSE_NATS, _NEARLY_UNIFORM, _ROSE_MOVES, _UNIFORM_NATS = 0.6, 0.9, 1.5, 3.15
"""Of moves: ln(legal moves) is 3.4 in the mean of a game's positions."""
_ROSE_TOKENS, _TOKENS_BABBLE = 2.5, 1.5
_MIN_ROWS: Final = 8
_A_FEW: Final = 3
_NO_ENTROPY: Final = " (by this column: see impossible_entropy)"
_STOPPED: Final = "entropy_critical"
"""The event with which our trainer stops at critical entropy."""
_BOOSTED, _FALLING = 3.0, 0.8
_STILL: Final = 0.15
_LONG: Final = 1_000


def impossible_entropy(case: Case) -> Finding | None:
    """Find entropies that are impossible for a distribution over legal moves."""
    if not _is_of_moves(case, is_strict=False):
        return None  # A vocabulary is larger than any number of moves.
    series, summary = case.history.get("entropy"), case.history.summaries.get("entropy")
    if series is not None:
        limits = {step: limit for step, (limit,) in case.history.at_same_steps("log_num_legal")}
        bad = [row for row in series.rows if not -0.01 <= row.value <= min(_MOST, _OVER_LEGAL * limits.get(row.step, math.inf))]
        if any(not -0.1 <= row.value <= _BEYOND * _MOST for row in bad) or len(bad) > max(1, _BEYOND_FRACTION * len(series)):
            worst = max(bad, key=lambda row: abs(row.value))
            return case.found(
                "impossible_entropy",
                (
                    f"{series.column} is {worst.value:.4g} at step {worst.step:,.0f}, and above ln {MOST_LEGAL_MOVES} = {_MOST:.2f} (or"
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
    """Find an entropy collapse."""
    if not has_collapsed(case):
        return None
    entropy = _possible(case)
    if entropy is None:
        normalised = case.history.get("normalised_entropy")
        seen = (
            [way(normalised)]
            if normalised is not None
            else [
                f"{summary.column} ends at {summary.last:.3g}"
                for name in ("entropy", "normalised_entropy")
                if (summary := case.history.summaries.get(name)) is not None and summary.last is not None
            ]
        )
        return case.found("entropy_collapse", seen, rows=() if normalised is None else normalised.rows[-1:], remedy=_slower(case))
    evidence = [way(entropy) + (_effective(case, entropy) if _is_of_moves(case) else "")]
    middle = (entropy.early() + entropy.late()) / 2
    # A later rise is not a recovery if values were impossible: it comes from the estimator.
    fallen = next((index for index, row in enumerate(entropy.rows) if row.value < middle), len(entropy) - 1)
    healthy = entropy.rows[max(0, fallen - 1)]
    evidence += [way(series) for name in ("reward", "reward_std") if (series := case.history.get(name)) is not None and len(series) > 1]
    loss = case.history.get("loss")
    cause = ""
    if loss is not None and len(loss) > 1 and abs(loss.late()) < abs(loss.early()):
        evidence.append(way(loss))
        cause = "The loss goes to 0 because advantages vanish with the entropy, not because something was learnt."
    return case.found(
        "entropy_collapse",
        evidence,
        rows=[row for row in entropy.rows if row.step > healthy.step] or entropy.rows[-1:],
        cause=cause,
        remedy=f"Entropy was above half of its way down until step {healthy.step:,.0f}. {_slower(case)}",
    )


def entropy_explosion(case: Case) -> Finding | None:
    """Find an entropy that grows towards that of a uniform policy without a better reward."""
    entropy = _possible(case)
    if case.improves or case.regret_falls or entropy is None or len(entropy) < _MIN_ROWS:
        return None
    early, end = statistics.median(early_values(entropy)), tail(entropy)
    if not _is_of_moves(case):
        has_exploded = early > 0 and end > max(_TOKENS_BABBLE, _ROSE_TOKENS * early)
    else:
        legal = case.late("log_num_legal")
        is_near = end > min(_ROSE_MOVES * early, _UNIFORM_NATS) if legal is None else end > _NEARLY_UNIFORM * legal
        has_exploded = end > early + _ROSE_NATS and is_near
    if not has_exploded:
        return None
    rows = [row for row in entropy.rows if row.value > (early + end) / 2]
    return case.found("entropy_explosion", (way(entropy),), rows=rows, remedy=f"Lower {case.given.named('entropy_coefficient')}.")


def _effective(case: Case, entropy: Series) -> str:
    """Return an entropy in effective moves; of a column that is no entropy, only that."""
    if impossible_entropy(case) is not None:
        return _NO_ENTROPY
    return f": from about {math.exp(entropy.early()):.0f} effective moves, exp(entropy), to {math.exp(entropy.late()):.1f}"


def kl_trap(case: Case) -> Finding | None:
    """Find an entropy collapse despite a rising entropy coefficient."""
    coefficient, boost = case.history.get("entropy_coefficient"), _boost(case)
    if coefficient is None or boost is None:
        return None
    before, after = boost
    evidence = [
        f"{coefficient.column} was raised from {before:.3g} to {after:.3g} ({after / before:.0f}-fold) by step"
        f" {coefficient.highest.step:,.0f}, while entropy fell"
    ]
    entropy = _possible(case)
    evidence += [] if entropy is None else [way(entropy) + (_NO_ENTROPY if impossible_entropy(case) is not None else "")]
    for name in ("kl", "kl_ratio", "kl_coefficient"):
        if (summary := case.history.summaries.get(name)) is not None and summary.last is not None:
            evidence.append(f"{summary.column} {summary.last:.3g}")
    remedy = f"Leave {case.given.named('entropy_coefficient')} where it is and lower {case.given.named('learning_rate')}."
    return case.found("kl_trap", evidence, rows=coefficient.rows, remedy=remedy)


def _boost(case: Case) -> tuple[float, float] | None:
    """Return the entropy coefficient before and after it was raised during a collapse; None if it was not raised, or without collapse."""
    coefficient, entropy = case.history.get("entropy_coefficient"), _possible(case)
    if coefficient is None or entropy is None or not has_collapsed(case):
        return None
    fell = next((row.step for row in entropy.rows if row.value < _FALLING * entropy.early()), entropy.last.step)
    # A rise before that is a warm-up.
    before = [row.value for row in coefficient.rows if row.step <= fell]
    after = max((row.value for row in coefficient.rows if row.step > fell), default=0.0)
    return (before[-1], after) if before and 0 < _BOOSTED * before[-1] <= after else None


def dead_monitor(case: Case) -> Finding | None:
    """Find an entropy controller or monitor that never acted."""
    bonus, low = case.history.get("entropy_bonus"), case.lowest("entropy")
    floor = case.given.value("entropy_floor")
    evidence = []
    is_alone = bonus is not None and is_nearly_all(case) and not case.learns
    if bonus is not None and is_alone and len(bonus) >= 3 and bonus.num_steps >= _LONG and is_still(bonus):
        evidence.append(
            f"{bonus.column} stays between {bonus.lowest.value:.3g} and {bonus.highest.value:.3g} for {bonus.num_steps:,.0f} steps, as"
            " nearly all of the loss: whatever watches entropy has not moved it once"
        )
    if not evidence:
        return None
    if floor is not None and low is not None and low > floor:
        evidence.append(
            f"entropy was never below {low:.3g}{case.source('entropy')}, and {case.given.named('entropy_floor')} lies below that: it cannot"
            " fire"
        )
    return case.found("dead_monitor", evidence, rows=() if bonus is None else bonus.rows)


def is_still(series: Series) -> bool:
    """Return whether a series is nearly constant: its ends, and its middle three fifths, differ by less than a seventh of its median."""
    values, size = sorted(series.values), _STILL * abs(series.median())
    middle = values[round(0.8 * (len(values) - 1))] - values[round(0.2 * (len(values) - 1))]
    return size > 0 and middle < size and abs(series.late() - series.early()) < size


def is_nearly_all(case: Case) -> bool:
    """Return whether the entropy bonus is nearly all of the loss, by absolute values."""
    rows = case.history.at_same_steps("policy_loss", "entropy_bonus")
    return bool(rows) and sum(abs(bonus) > 0.9 * (abs(bonus) + abs(policy)) for _, (policy, bonus) in rows) > len(rows) / 2


def has_collapsed(case: Case) -> bool:
    """Return whether entropy has collapsed; for a language model, the threshold depends on whether it learns."""
    early, late = case.early("entropy"), case.late("entropy")
    is_of_moves = _is_of_moves(case)
    if "entropy" in case.history.series:
        entropy = _possible(case) if is_of_moves else case.history.series["entropy"]
        early, late = (entropy.early(), entropy.late()) if entropy is not None and len(entropy) >= _A_FEW else (None, None)
    if case.history.ends_with(_STOPPED):
        return True
    if not is_of_moves:
        fraction = _RELATIVE_LEFT_IF_LEARNING if case.learns else _RELATIVE_LEFT
        return early is not None and late is not None and 0 < late < fraction * early and not case.is_solved
    normalised = case.late("normalised_entropy")
    if normalised is not None and is_certain(normalised):
        # A reward that was as high from the beginning on is no success of this policy.
        return not (case.is_solved and (case.improves or case.regret_falls))
    if case.is_solved:
        return False
    if early is None or late is None:
        return False
    nats, fraction = (_COLLAPSED_LEARNING, _LEFT_FRACTION_LEARNING) if case.improves else (_COLLAPSED, _LEFT_FRACTION)
    return late < _GONE or late < min(nats, fraction * early)


def _possible(case: Case) -> Series | None:
    """Return entropy without impossible values."""
    series = case.history.get("entropy")
    if series is None:
        return None
    rows = [row for row in series.rows if -0.01 <= row.value <= (_MOST if _is_of_moves(case) else math.inf)]
    return Series(series.column, rows) if rows else None


def _is_of_moves(case: Case, *, is_strict: bool = True) -> bool:
    """Return whether entropy is over chess moves, so that nats say something; strictly, it must also begin as large as one of moves."""
    history = case.history
    if history.is_of_language_model:
        return False
    early = case.early("entropy")
    return history.is_ours or not is_strict or early is None or early >= _MOVES_HAVE


def _slower(case: Case) -> str:
    rate, bonus = case.given.named("learning_rate"), case.given.named("entropy_coefficient")
    if _boost(case) is not None:
        return f"Lower {rate}; raising {bonus} did not help here."
    return f"Lower {rate}, or raise {bonus} with the exact entropy, before entropy is gone."

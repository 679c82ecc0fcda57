"""Diagnosis rules about the objective: scoring, terms, controllers, clipping, NaN and infinite values."""

from typing import Final

from grpo.diagnosis.case import Case, way
from grpo.diagnosis.conditions import cancels, dominates, is_constant
from grpo.diagnosis.findings import Finding, Severity
from grpo.diagnosis.history import Sample, Series
from grpo.diagnosis.rules_entropy import impossible_entropy, is_still
from grpo.diagnosis.rules_reward import flat_reward
from grpo.settings.metrics import TERM_PAIRS, TERMS

_STEPS_AT_BOUND: Final = 20
_CLIPPED: Final = 0.2
_CLIPPED_FOR_CERTAIN: Final = 0.35
"""Above what the updates of one step clip, if the number of updates is unknown."""
_CLIPPED_ALONE: Final = 0.01
"""For ratios that must all be 1."""
_KL, _PENALTY = 1e-3, 1e-5
"""Above rounding errors: a KL in nats, and a KL times its coefficient."""
_SCORED_OTHERWISE: Final = 0.01
"""In nats per token: rounding in float32 is below 0.0001, and padding that shifts positions gives several nats."""
_NEGATIVE_KL: Final = -0.05
"""Nats: the sampled estimate of a KL scatters around a value that is not negative."""
_KL_BY_SCORING: Final = 0.5
"""In nats: a larger KL before any update means another model, not another way of scoring (temperature 1.3 against 1.0 gives 0.05)."""
_ROSE: Final = 3.0
_NEAR: Final = 0.25
_MANY_STEPS: Final = 4
_A_FEW: Final = 4
_MOST_COLUMNS: Final = 4
"""Columns that are listed by name."""
_SPREAD_RATIOS: Final = 0.7
_KL_PER_UPDATE: Final = 0.1
"""Nats between the sampled and the updated policy; PPO's usual targets are 0.01 to 0.05."""
_POINTS_ELSEWHERE: Final = 0.15
"""Groups of four on a random network have a cosine of 0.3, groups of sixteen 0.6 or more; with swapped groups it is 0 +- 0.1."""
_KL_TARGET_MISSED: Final = 1.5
_FEW: Final = 0.1
"""Fraction of the rows that may violate a condition because of noise."""


def nan_steps(case: Case) -> Finding | None:
    """Find NaN and infinite values."""
    evidence, rows = [], []
    bad = case.history.not_finite
    for number, (column, steps) in enumerate(bad.items()):
        rows += [Sample(step, 0.0, step) for step in steps]
        if number >= _MOST_COLUMNS:
            continue
        shown = ", ".join(f"{step:,.0f}" for step in steps[:5])
        more = f", ... ({len(steps)} rows)" if len(steps) > 5 else ""
        evidence.append(f"{column} is not finite at step {shown}{more}")
    if len(bad) > _MOST_COLUMNS:
        evidence.append(f"nor are {len(bad) - _MOST_COLUMNS} further columns")
    skipped = case.history.get("skipped")
    if skipped is not None and skipped.highest.value > 0:
        hit = [row for row in skipped.rows if row.value > 0]
        evidence.append(f"{skipped.column}: {sum(row.value for row in hit):.0f} steps, the first at {hit[0].step:,.0f}")
        rows += hit
    return case.found("nan_steps", evidence, rows=rows, remedy=f"Lower {case.given.named('learning_rate')}.") if evidence else None


def kl_at_step_zero(case: Case) -> Finding | None:
    """Find a KL above 0 before the first update."""
    evidence = [words for _, words in _divergence(case)]
    return case.found("kl_at_step_zero", evidence, rows=_first_rows(case, "kl", "kl_penalty", "kl_old")) if evidence else None


def _divergence(case: Case) -> list[tuple[float, str]]:
    """Return KL values above 0 before any update; for a penalty, whose coefficient is unknown, the threshold is lower."""
    # KL to the policy that was sampled is not 0 after some updates of the same step.
    names = ["kl", *(["kl_old"] if case.typical("optimiser_steps") == 1 and not case.history.is_ours else [])]
    limits = {**dict.fromkeys(names, _KL), "kl_penalty": _PENALTY}
    return [start for name, limit in limits.items() for start in _starts(case, name) if start[0] > limit]


def _starts(case: Case, quantity: str) -> list[tuple[float, str]]:
    found = case.at_start(quantity)
    return [] if found is None else [found]


def _first_rows(case: Case, *quantities: str) -> list[Sample]:
    return [series.first for quantity in quantities if (series := case.history.get(quantity)) is not None]


def scored_otherwise(case: Case) -> Finding | None:
    """Find a language model whose tokens are scored with other log-probabilities than they were sampled with."""
    evidence: list[str] = []
    rows: list[Sample] = []
    gap = case.history.get("sampled_scored_gap")
    bad = [] if gap is None else [row for row in gap.rows if row.value > _SCORED_OTHERWISE]
    if gap is not None and bad:
        evidence.append(
            f"{gap.column} is {bad[0].value:.3g} nats at step {bad[0].step:,.0f}, above {_SCORED_OTHERWISE} in {len(bad)} of {len(gap)}"
            " rows"
        )
        rows += bad
    if case.history.is_of_language_model:
        evidence += _negative_kl(case) + _clipped_always(case, _CLIPPED_FOR_CERTAIN)
    return case.found("scored_otherwise", evidence, rows=rows) if evidence else None


def _negative_kl(case: Case) -> list[str]:
    """Return evidence that an estimated KL is negative beyond noise."""
    series = case.history.get("kl")
    if series is None or len(series) < _A_FEW or series.median() >= _NEGATIVE_KL or series.quantile(1 - _FEW) >= 0:
        return []
    return [f"{series.column} has a median of {series.median():.3g}; a KL between the sampled and the reference policy is not negative"]


def temperature_mismatch(case: Case) -> Finding | None:
    """Find moves that are scored by another distribution than they were sampled from."""
    if case.history.is_of_language_model:
        return None  # For language models more than the temperature can differ: see scored_otherwise and kl_at_step_zero.
    if case.history.is_ours:
        return _measured_mismatch(case)
    clipped = _CLIPPED if _divergence(case) else _CLIPPED_FOR_CERTAIN
    negative = _negative_kl(case)
    evidence = [words for value, words in _starts(case, "clip_fraction") if value > clipped] + _clipped_always(case, clipped)
    steps = case.typical("optimiser_steps")
    if steps is not None and steps > _MANY_STEPS and not negative:
        return None  # The updates may be the cause: see stale_policy.
    if evidence and not negative:
        late, early = case.late("clip_fraction"), case.early("clip_fraction")
        if late is not None and early is not None and late > 2 * early:
            return None
    evidence += negative
    evidence += [f"{words}, before any update" for value, words in _divergence(case) if value < _KL_BY_SCORING]
    if not evidence:
        return None
    sampled, scored = case.given.value("rollout_temperature"), case.given.value("loss_temperature")
    remedy = ""
    if sampled is not None and scored != sampled:
        loss = "the settings name none for the loss" if scored is None else f"{scored:g} for the loss"
        remedy = f"{case.given.named('rollout_temperature')} is for sampling, and {loss}: give both the same."
    return case.found("temperature_mismatch", evidence, rows=_first_rows(case, "clip_fraction", "kl_penalty"), remedy=remedy)


def _measured_mismatch(case: Case) -> Finding | None:
    """Return the finding for our own trainer, whose ratios before a rollout's first update must all be 1."""
    first, clipped, steps = case.history.get("kl_old_first"), case.history.get("clip_fraction"), case.typical("optimiser_steps")
    evidence: list[str] = []
    rows: list[Sample] = []
    if first is not None and first.median() > _KL:
        evidence.append(f"{first.column} has a median of {first.median():.3g}")
        rows += first.rows
    if clipped is not None and steps == 1 and clipped.median() > _CLIPPED_ALONE:
        evidence.append(f"{clipped.column} has a median of {clipped.median():.3g} with one optimiser step a rollout")
        rows += clipped.rows
    return case.found("temperature_mismatch", evidence, rows=rows) if evidence else None


def _clipped_always(case: Case, clipped: float) -> list[str]:
    """Return evidence that clipping is high from the first row on and does not grow, as it would because of updates."""
    series, lowest = case.history.get("clip_fraction"), case.floor("clip_fraction", _FEW)
    if lowest is None or lowest <= clipped:
        return []
    if series is None:
        return [f"the clip fraction was never below {lowest:.3g}{case.source('clip_fraction')}"]
    if series.first.step > series.num_steps or series.late() > 1.25 * series.early():
        return []
    return [
        f"{series.column} is {series.first.value:.3g} in the first row, hardly ever below {lowest:.3g}, and does not grow, as by updates"
    ]


def cancelling_terms(case: Case) -> Finding | None:
    """Find two terms whose gradients cancel."""
    for one, other in TERM_PAIRS:
        rows = case.history.at_same_steps(f"logit_cosine/{one}_{other}", f"logit_gradient/{one}", f"logit_gradient/{other}")
        hit = [step for step, (cosine, norm, norm_of_other) in rows if cancels(cosine, norm, norm_of_other)]
        if rows and 2 * len(hit) >= len(rows):
            evidence = f"the gradients of {one} and {other} are opposite and alike in size in {len(hit)} of {len(rows)} steps"
            return case.found("cancelling_terms", (evidence,), rows=[Sample(step, 0.0, step) for step in hit])
    return _cancelling_values(case)


def _cancelling_values(case: Case) -> Finding | None:
    """Find cancelling terms if only values of the loss's terms were logged."""
    values = case.history.at_same_steps("kl_penalty", "entropy_bonus")
    if not values or sum(penalty * bonus < 0 for _, (penalty, bonus) in values) < 0.8 * len(values):
        return None
    penalty, bonus = case.history.series["kl_penalty"], case.history.series["entropy_bonus"]
    evidence = []
    coefficients = case.history.at_same_steps("kl_penalty", "kl", "entropy_bonus", "entropy")
    near = [step for step, (p, kl, b, h) in coefficients if kl > 0 and h > 0 and _is_near(p / kl, -b / h)]
    if case.learns or not (_divergence(case) or impossible_entropy(case)):
        return None  # Exact terms do not cancel, whatever their values; only these signs show that the terms are sampled estimates.
    if coefficients and 2 * len(near) >= len(coefficients):
        evidence.append(
            f"their coefficients, value over quantity, are within a quarter of each other in {len(near)} of {len(coefficients)} rows"
        )
    if len(penalty) >= 3 and penalty.first.value > _PENALTY and is_still(bonus):
        rest = sorted(penalty.values[1:])
        risen = rest[len(rest) // 2] / penalty.first.value
        if risen >= _ROSE:
            evidence.append(
                f"{way(penalty)}, {risen:.0f}-fold in the median, while {bonus.column} stayed within {bonus.lowest.value:.3g} and"
                f" {bonus.highest.value:.3g}: the policy hardly moved, so that it is the KL coefficient that rose, against the bonus"
            )
    if not evidence:
        return None
    entropy_coefficient = case.given.value("entropy_coefficient")
    bound = "kl_coefficient" if case.given.value("max_kl_coefficient") is None else "max_kl_coefficient"
    kl_coefficient = case.given.value(bound)
    if entropy_coefficient is not None and kl_coefficient is not None:
        evidence.append(
            f"by the settings, {case.given.key('entropy_coefficient')} less {case.given.key(bound)}, {entropy_coefficient:g} -"
            f" {kl_coefficient:g} = {entropy_coefficient - kl_coefficient:g} is left of both"
        )
    remedy = f"Set {case.given.named('kl_coefficient', largest='max_kl_coefficient')} or {case.given.named('entropy_coefficient')} to 0."
    return case.found("cancelling_terms", evidence, rows=penalty.rows, remedy=remedy)


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= _NEAR * max(abs(one), abs(other)) and one > 0


def loss_budget(case: Case) -> Finding | None:
    """Find a regulariser that makes up nearly all of the loss."""
    for term in TERMS:
        share = case.history.get(f"logit_share/{term}")
        if share is not None and term not in ("policy", "recovery_kl") and dominates(share.median()):
            return case.found("loss_budget", (f"{share.column} has a median of {share.median():.1%}",), rows=share.rows)
    names = [name for name in ("policy_loss", "kl_penalty", "entropy_bonus") if case.history.get(name) is not None]
    if "policy_loss" not in names or len(names) < 2:
        return None
    rows = case.history.at_same_steps(*names)
    if not _add_up(case, names):
        return None
    for index, name in enumerate(names[1:], start=1):
        fractions = sorted(abs(values[index]) / total for _, values in rows if (total := sum(map(abs, values))) > 0)
        if fractions and dominates(fractions[len(fractions) // 2]):
            series = case.history.series[name]
            evidence = (
                f"{series.column} is {fractions[0]:.1%} to {fractions[-1]:.1%} of the terms' absolute values in {len(fractions)} rows"
            )
            coefficient = "entropy_coefficient" if name == "entropy_bonus" else "kl_coefficient"
            # On-policy a surrogate's value is near 0 whatever its gradient, so if the run learns, this is only a note.
            severity = Severity.NOTE if case.learns and flat_reward(case) is None else None
            remedy = f"Lower {case.given.named(coefficient)}."
            return case.found("loss_budget", (evidence,), rows=series.rows, remedy=remedy, severity=severity)
    return None


def _add_up(case: Case, names: list[str]) -> bool:
    """Return whether the logged terms include their coefficients: if the loss was logged, they add up to it."""
    rows = case.history.at_same_steps("loss", *names)
    hit = [abs(sum(values) - loss) <= 0.1 * max(abs(loss), *map(abs, values)) for _, (loss, *values) in rows]
    return not rows or 2 * sum(hit) >= len(hit)


def saturated_controller(case: Case) -> Finding | None:
    """Find a controller that is stuck at its bound."""
    for name in ("entropy", "kl"):
        share = case.history.get(f"{name}_saturated")
        if share is not None and share.last.end >= _STEPS_AT_BOUND and is_constant(share.late()):
            return case.found("saturated_controller", (f"{share.column} is {share.late():.2f} at the end",), rows=share.rows[-1:])
    evidence: list[str] = []
    rows: list[Sample] = []
    ratio, lowest = case.history.summaries.get("kl_ratio"), case.floor("kl_ratio", _FEW)
    if lowest is not None and lowest > _KL_TARGET_MISSED:
        evidence.append(f"KL was (but for a tenth of the rows at most) never below {lowest:.3g} times its target{case.source('kl_ratio')}")
    elif ratio is not None and ratio.low is None and ratio.last is not None and ratio.last > _KL_TARGET_MISSED:
        evidence.append(f"KL ended at {ratio.last:.3g} times its target{ratio.source}")
    for name in ("kl_coefficient", "entropy_coefficient"):
        coefficient = case.history.get(name)
        half = None if coefficient is None else _at_bound(coefficient)
        if coefficient is not None and half is not None:
            evidence.append(f"{coefficient.column} rose to {half.median():.3g} by step {half.first.step:,.0f} and did not move again")
            rows += half.rows
    penalty, bonus = case.history.get("kl_penalty"), case.history.get("entropy_bonus")
    is_explained = bool(evidence) or case.learns
    if (
        not is_explained
        and penalty is not None
        and bonus is not None
        and len(penalty) >= 4
        and is_still(bonus)
        and penalty.first.value > _PENALTY
    ):
        rest = sorted(penalty.values[1:])
        rest = rest[round(_FEW * len(rest)) : len(rest) - round(_FEW * len(rest))]
        if rest[0] >= _ROSE * penalty.first.value and rest[-1] <= 2 * rest[0]:
            evidence.append(
                f"{penalty.column} rose from {penalty.first.value:.3g} to between {rest[0]:.3g} and {rest[-1]:.3g} and never came"
                f" back while {bonus.column} stood still: so an adaptive coefficient looks at its upper bound"
            )
            rows += penalty.rows
    if not evidence:
        return None
    remedy = ""
    if case.given.value("target_kl") is not None:
        remedy = f"The target, {case.given.named('target_kl')}, cannot be reached at this bound."
    return case.found("saturated_controller", evidence, rows=rows, remedy=remedy)


def _at_bound(coefficient: Series) -> Series | None:
    """Return the part in which a coefficient that a controller raised is constant; None if there is none, or if it was a warm-up."""
    if len(coefficient) < _A_FEW:
        return None
    half = Series(coefficient.column, coefficient.rows[len(coefficient) // 2 :])
    low, high = coefficient.early(), half.median()
    if not (high >= _ROSE * low > 0 and is_still(half)):
        return None
    ramp = [row.value for row in coefficient.rows[: next(index for index, row in enumerate(coefficient.rows) if row.value >= 0.95 * high)]]
    # Half-way up, a linear warm-up is at the middle value; a multiplicative controller is far below it.
    is_straight = len(ramp) >= _A_FEW and ramp[len(ramp) // 2] > 0.8 * (ramp[0] + ramp[-1]) / 2
    return None if is_straight else half


def high_clip_fraction(case: Case) -> Finding | None:
    """Find a high clip fraction in most steps."""
    typical = case.typical("clip_fraction")
    if typical is None or typical <= _CLIPPED:
        return None
    series = case.history.get("clip_fraction")
    evidence = f"the clip fraction is typically {typical:.3g}{case.source('clip_fraction')}"
    if series is not None:
        evidence = f"{series.column} has a median of {typical:.3g} over {len(series)} rows, at most {series.highest.value:.3g}"
    return case.found("high_clip_fraction", (evidence,), rows=() if series is None else series.rows)


def stale_policy(case: Case) -> Finding | None:
    """Find too many or too large updates per rollout."""
    size, clipped = case.history.get("effective_sample_size"), case.history.get("clip_fraction")
    steps = case.typical("optimiser_steps") or case.given.value("optimiser_steps") or 0
    evidence = []
    if size is not None and size.median() < _SPREAD_RATIOS and (steps != 1 or not case.history.is_ours):
        evidence.append(f"{size.column} has a median of {size.median():.2f}")
    if clipped is not None and len(clipped) >= 3 and clipped.early() < 0.15 and clipped.late() > 0.25:
        evidence.append(way(clipped))
    moved = case.history.get("kl_old")
    if moved is not None and len(moved) >= _A_FEW and abs(moved.median()) > _KL_PER_UPDATE:
        evidence.append(f"{moved.column} has a median of {moved.median():.3g} nats")
    many = case.typical("optimiser_steps")
    typical = case.typical("clip_fraction")
    if many is not None and many > _MANY_STEPS and typical is not None and typical > _CLIPPED:
        evidence.append(f"{many:.0f} optimiser steps a rollout, and a clip fraction of {typical:.2f}")
    if not evidence:
        return None
    rows = clipped.rows if clipped is not None else size.rows if size is not None else ()
    return case.found("stale_policy", evidence, rows=rows, remedy=f"Lower {case.given.named('optimiser_steps')}.")


def wrong_gradient(case: Case) -> Finding | None:
    """Find a policy gradient that does not point along the exact gradient."""
    cosine = case.history.get("exact_cosine")
    if cosine is None or cosine.median() >= _POINTS_ELSEWHERE:
        return None
    return case.found("wrong_gradient", (f"{cosine.column} has a median of {cosine.median():.2f}",), rows=cosine.rows)

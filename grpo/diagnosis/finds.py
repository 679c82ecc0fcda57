"""The checks of a training log.

`checks.toml` says what each fault means, and which quantities a check needs. Limits without a source come from simulated runs
(`tests/proofs/made_histories.py`).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from grpo.diagnosis.assessment import Answer, Assessment, Evidence, Unclear, evidence_of, fifth, tail
from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import Series, When
from grpo.diagnosis.trends import Array, median, rank_correlation, trend_of
from grpo.metrics.shared import ENTROPY_CRITICAL, TERM_PAIRS
from grpo.statistics.intervals import wilson_interval

MOST_LEGAL_MOVES: Final = 218
"""R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1 (Petrovic, 1964)."""
_AT_START: Final = (("kl", 1e-3), ("kl_max", 1e-3), ("kl_penalty", 1e-5))
"""Quantity, and the largest first value that rounding explains, in nats."""
_KL_OF_UPDATES: Final = 0.05
"""Largest first KL, in nats, that updates before the first row can cause."""
_KL_GROWS: Final = 0.3
"""Updates can also cause a first KL below this fraction of the next ten rows' median."""
_KL_STAYS: Final = 0.8  # The same if the first row may be a mean of several steps.
_KL_BY_SCORING: Final = 0.5
"""Largest first KL, in nats, that scoring at another temperature than sampling causes (1.0 instead of 1.3: 0.05)."""
_FAR: Final = 0.8  # Limit of the KL to the reference, in nats per move or token; `_exceeded_kl_limit` scales the limit.
_FAR_FOR_ANSWERS: Final = 50.0  # The same in nats per answer.
_FAR_PER_UPDATE: Final = 0.15  # Largest limit of the KL to the policy that sampled, in nats.
_FEWEST_FOR_FLAT: Final = 100  # Fewest steps and rows. If a single reward's deviation is known, half of the rows suffice.
# A reward is flat if the upper bound of its rise (`Trend.most`) is at most:
_FLAT: Final = 0.25  # Without a certain rise, in standard deviations of a single reward.
_FLAT_IN_NOISE: Final = 1.5  # The same in standard deviations of the rows (`Trend.noise`), if a single reward's deviation is unknown.
_NOTHING: Final = 0.03  # Despite a certain rise, in standard deviations of a single reward.
_MISMATCHES: Final = (("sampler_gap", 0.0, 0.05), ("sampler_prob_gap", 0.0, 0.02), ("sampler_ratio", 1.0, 0.3))
"""Quantity, value if sampler and trainer agree, and largest normal difference."""
_EXTREMES: Final = (
    ("kl", 100, 1.0),
    ("kl_old", 100, 1.0),
    ("gradient_norm", 500, 10.0),
    ("loss", 1_000, 10.0),
    ("policy_loss", 1_000, 10.0),
)
"""Quantity, factor, limit. An extreme row exceeds the limit, and the factor times two medians: of all rows, and of the 15 rows around."""
_RUNAWAYS: Final = (("kl_old", 0.1, 10), ("gradient_norm", 0.0, 10), ("ratio_max", 6.0, 4), ("loss", 1.0, 100), ("policy_loss", 1.0, 100))
"""Quantity, and what a runaway exceeds at the end: a value, and a factor times the median of the first rows."""
_WORSE: Final = 0.12  # Smallest loss that matters, as a fraction of a held-out measure.
_WORSE_OF_FEW: Final = 0.3  # The same with fewer than `_MANY_MEASURES` values.
_MANY_MEASURES: Final = 6


def nan_steps(run: Assessment) -> Answer:
    bad = dict(run.history.not_finite)
    facts = [f"{column} is not finite at {len(steps):,} steps, first at step {steps[0]:,.0f}" for column, steps in bad.items()]
    if (skipped := run.get("skipped")) is not None and (skips := skipped.steps[skipped.values > 0]).size:
        facts.append(f"{skipped.column}: optimizer steps were skipped at {len(skips):,} steps, first at step {skips[0]:,.0f}")
        bad[skipped.column] = skips.tolist()
    steps = [step for column_steps in bad.values() for step in column_steps]
    return Evidence(tuple(facts[:4]), min(steps), max(steps)) if steps else None


def unlearned_language_model(run: Assessment) -> Answer:
    parsed, random = run.history.series["parsed"], run.history.random_weights
    is_unread = parsed.logged[0] == 0 or (parsed.logged[0] < 0.1 and not run.is_live and parsed.values.max() <= 0.2)
    # A strict format's reward can stay 0.
    has_learned = not run.is_live and len(parsed) > 2 and (run.rises or median(parsed.values[-max(1, len(parsed) // 5) :]) > 0.5)
    if not random and (not is_unread or has_learned):
        return None
    logged = filter(None, (parsed, run.get("truncated")))
    facts = [f"{series.column} is {series.logged[0]:.3g} at step {series.at[0]:,.0f}" for series in logged]
    return Evidence((*([random] if random else []), *facts), float(parsed.at[0]), float(parsed.at[0]))


def _kl_at_start(run: Assessment) -> Iterator[tuple[float, str]]:
    """Yield value and evidence of each first KL that neither rounding nor updates explain."""
    history = run.history
    is_exact = history.is_ours or history.is_of_windows or "kl_penalty" in history.series
    for name, limit in _AT_START:
        value, series = run.at_start(name), run.get(name)
        if value is None or series is None or abs(value) <= limit or (name == "kl_penalty" and series.at[0] > 0):
            continue
        next_values = series.values[1:11]
        fraction = _KL_GROWS if series.at[0] <= 1 else _KL_STAYS
        is_by_updates = not is_exact and len(next_values) > 0 and (value <= _KL_OF_UPDATES or value < fraction * median(next_values))
        # An answer's KL sums over tokens, so updates explain up to 5 nats.
        is_by_updates = value < 5.0 if "answer" in series.unit and not history.is_ours else is_by_updates
        # From step 0 on, a KL that updates cause grows.
        does_not_grow = value > 10 * limit and series.at[0] <= 0 and len(next_values) >= 5 and value > _KL_STAYS * median(next_values)
        if not is_by_updates or does_not_grow:
            yield value, f"{series.column} is {value:.3g} in the first row (step {series.at[0]:,.0f})"


def kl_at_step_zero(run: Assessment) -> Answer:
    facts = tuple(fact for _, fact in _kl_at_start(run))
    step = min(float(series.at[0]) for series in run.history.series.values())
    return Evidence(facts, step, step) if facts else None


def temperature_mismatch(run: Assessment) -> Answer:
    if run.history.is_of_language_model or run.history.is_ours:
        return None  # `scored_otherwise` judges language models; this project's trainer asserts ratios of 1.
    facts = [fact for value, fact in _kl_at_start(run) if value < _KL_BY_SCORING]
    clipped = run.at_start("clip_fraction")
    # Updates before the first row clip too, so without evidence by the KL the limit is higher.
    if clipped is not None and clipped > (0.2 if facts else 0.35):
        facts.append(f"{run.history.series['clip_fraction'].column} is {clipped:.3g} in the first row")
    return Evidence(tuple(facts), 0, 0) if facts else None


def ratio_not_one(run: Assessment) -> Answer:
    series, first = run.history.series["ratio_mean"], run.at_start("ratio_mean")
    values, noise = series.values, 3 * float(np.std(series.values)) / math.sqrt(len(series))
    if first is not None and abs(first - 1) > 0.1:
        return evidence_of(series, f"{series.column} is {first:.3g} in the first row (step {series.at[0]:,.0f}); it must be 1")
    if max(abs(tail(values) - 1), abs(median(values) - 1)) <= 0.1 + noise:
        return None
    return evidence_of(
        series,
        f"{series.column} has the median {median(values):.3g} and ends at {tail(values):.3g}; it must be 1",
        begin=series.first_step(np.abs(values - 1) > 0.1),
    )


def scored_otherwise(run: Assessment) -> Answer:
    evidence = [run.beyond(name, above=middle + limit, below=middle - limit) for name, middle, limit in _MISMATCHES]
    kl = run.get("kl")
    if kl is not None and len(kl) >= 10 and not run.is_live and median(kl.values) < -0.02 and float(np.quantile(kl.values, 0.9)) < 0:
        evidence.append(evidence_of(kl, f"{kl.column} has the median {median(kl.values):.3g}, but a KL is never negative"))
    return _joined([part for part in evidence if part is not None])


def _joined(evidence: list[Evidence]) -> Evidence | None:
    facts = tuple(fact for part in evidence for fact in part.facts)
    return Evidence(facts, min(part.begin for part in evidence), max(part.end for part in evidence)) if evidence else None


def impossible_entropy(run: Assessment) -> Answer:
    series = run.history.series["entropy"]
    most = math.log(MOST_LEGAL_MOVES)
    is_too_large = (series.values > 1.1 * most) & (not run.history.is_of_language_model)  # A vocabulary is larger than 218.
    bad = (series.values < -0.1) | is_too_large
    if run.is_of_actions or not bad.any():  # Entropy of continuous actions may be negative.
        return None
    steps, values = series.steps[bad], series.values[bad]
    fact = f"{series.column} is {values[np.argmax(np.abs(values))]:.4g}, and impossible in {bad.sum()} of {len(series)} rows"
    range_text = f"an entropy is at least 0, and over legal moves at most ln {MOST_LEGAL_MOVES} = {most:.2f}"
    return Evidence((f"{fact}: {range_text}",), steps[0], steps[-1])


def no_gradient(run: Assessment) -> Answer:
    norm, entropy = run.get("gradient_norm"), run.get("entropy")
    moved = run.get("kl_old") or run.get("kl")
    if norm is not None and len(norm) >= 5:
        is_zero = np.abs(norm.values) <= max(1e-10, 1e-6 * median(np.abs(norm.values[:5])))
        at_end = _num_at_end(is_zero)
        if is_zero.mean() > 0.5 or (at_end >= max(20, len(norm) / 5) and not run.is_solved):
            fact = f"{norm.column} is 0 or almost 0 in {is_zero.sum()} of {len(norm)} rows"
            return evidence_of(norm, fact + (f", among them the last {at_end}" if at_end else ""), begin=norm.first_step(is_zero))
    if entropy is None or len(entropy) < 5 or run.is_live:
        return None
    last, constant = float(entropy.logged[-1]), _num_at_end(entropy.values == entropy.logged[-1])
    if norm is None and moved is not None and np.abs(moved.values).max() <= 1e-10 and np.ptp(entropy.values) <= 1e-6:
        return evidence_of(moved, f"{moved.column} is 0 in all {len(moved)} rows, and {entropy.column} is constant")
    # Entropies of three digits can be equal by rounding.
    if constant >= max(20, len(entropy) / 5) and f"{last:.10g}" != f"{last:.3g}" and not run.is_solved:
        fact = f"{entropy.column} is {last:.10g} in each of the last {constant} rows: the policy does not change"
        return evidence_of(entropy, fact, begin=float(entropy.at[-constant]))
    return None


def _num_at_end(holds: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> int:
    return len(holds) if holds.all() else int(np.argmin(holds[::-1]))


def learning_rate_schedule(run: Assessment) -> Answer:
    rate = run.history.series["learning_rate"]
    values, middle, end = rate.values, float(rate.logged[len(rate) // 2]), tail(rate.values)
    if len(rate) < 16 or values.max() <= 0:
        return None
    stopped = values <= 1e-3 * values.max()
    if stopped[len(rate) // 2 :].all() and stopped.mean() > 0.5:
        fact = f"{rate.column} is at most a thousandth of its largest value in {stopped.sum()} of {len(rate)} rows"
        return evidence_of(rate, fact, begin=rate.first_step(stopped))
    is_endless = _rises_by_quarters(values) and end > 3 * middle > 0
    return evidence_of(rate, f"{rate.column} grows from {middle:.3g} in the middle of the run to {end:.3g}") if is_endless else None


def _rises_by_quarters(values: Array) -> bool:
    quarters = [median(part) for part in np.array_split(values, 4)]
    return sorted(quarters) == quarters


def entropy_collapse(run: Assessment) -> Answer:
    history = run.history
    quantity = "action_std" if run.is_of_actions and "action_std" in history.series else "entropy"
    entropy = history.series[quantity]
    if run.is_of_actions and entropy.values.min() < 0:
        return Unclear("entropies of continuous actions have no minimum")
    if (levels := history.levels(quantity)) is None:
        return None
    early, late = levels
    if history.when == When.BEFORE:
        critical = history.limits.get("critical_entropy", 0.0)
        fact = f"{entropy.column} is {late:.2f} nats, critical below grpo.critical_entropy = {critical:g}"
        return evidence_of(entropy, fact) if late < critical else None
    if history.is_ours:  # This project's trainer raises a collapsed entropy again, so the lowest block counts.
        late = float(history.blocks(entropy)[:, 2].min())
    else:
        early = max(early, float(entropy.logged[0]), median(entropy.values[:3]), median(fifth(entropy.values)))
    answer = _is_collapsed(run, early, late)
    if answer is not True:
        return answer or None
    facts = [f"{entropy.from_to()}{f', {late:.3g} at its lowest' if late < entropy.values[-10:].min() else ''}"]
    if run.is_of_moves(early) and impossible_entropy(run) is None:
        facts.append(f"effective moves, exp(entropy), from about {math.exp(entropy.logged[0]):.0f} to {math.exp(entropy.logged[-1]):.1f}")
    loss, series = history.levels("loss"), history.series.get("loss")
    if loss is not None and series is not None and abs(loss[1]) < abs(loss[0]):
        facts.append(f"{series.from_to()}, because a group of equal moves has no advantages")
    return evidence_of(entropy, *facts, begin=entropy.first_step(entropy.values < (early + late) / 2))


def _is_collapsed(run: Assessment, early: float, late: float) -> bool | Unclear:
    events = {name: steps[-1] for name, steps in run.history.events.items()}
    if not run.is_live and events.get(ENTROPY_CRITICAL, -1) > events.get("recovery_ended", -1):
        return True
    if run.is_of_moves(early):
        normalized = run.history.levels("normalized_entropy")
        left, nats = (0.25, 0.8) if run.improves else (0.4, 1.2)
        is_low = normalized is not None and normalized[1] < 0.15 and not run.improves
        return is_low or late < 0.15 or late < min(nats, left * early)
    if early <= 0 or (run.is_high and run.improves and not run.is_live):
        return False
    if late < (0.08 if run.improves else 0.2) * early:
        return True
    is_low = late < 0.3 * early and not run.rises and not run.is_live
    return Unclear(f"{late / early:.0%} of the entropy is left, and the reward is not shown to rise") if is_low else False


def entropy_explosion(run: Assessment) -> Answer:
    series, spread = run.get("entropy"), run.get("action_std")
    if spread is not None and len(spread) >= 8 and tail(spread.values) > 3 * median(fifth(spread.values)) and not run.improves:
        return evidence_of(spread, spread.from_to())
    if series is None or len(series) < 8 or (early := median(fifth(series.values))) <= 0:
        return None
    end = tail(series.values)
    if run.is_of_moves(early):
        explodes = end > early + 0.6 and end > min(1.5 * early, 3.15) and not run.improves
    elif run.is_of_actions:
        explodes = end > 2 * early and not run.improves
    else:
        factor, least = (5.0, 1.5) if run.improves else (2.5, 0.5)
        explodes = end > factor * early and end - early > least
    return evidence_of(series, series.from_to(), begin=series.first_step(series.values > (early + end) / 2)) if explodes else None


def kl_trap(run: Assessment) -> Answer:
    coefficient, entropy = (run.history.series[name] for name in ("entropy_coefficient", "entropy"))
    collapse, levels = entropy_collapse(run), run.history.levels("entropy")
    if levels is None or not isinstance(collapse, Evidence):
        return None
    is_after = coefficient.steps > entropy.first_step(entropy.values < 0.8 * levels[0])  # Before that, a rise is a warm-up.
    before, after = coefficient.values[~is_after][-1:], coefficient.values[is_after]
    if not len(before) or not len(after) or not 0 < 3 * before[0] <= (most := float(after.max())):
        return None
    fact = f"{coefficient.column} was raised from {before[0]:.3g} to {most:.3g}, {most / before[0]:.0f}-fold, while entropy fell"
    begin = coefficient.first_step(is_after & (coefficient.values > before[0]))
    return evidence_of(coefficient, fact, *collapse.facts[:1], begin=begin)


def canceling_terms(run: Assessment) -> Answer:
    for one, other in TERM_PAIRS:
        rows = run.history.together(f"logit_cosine/{one}_{other}", f"logit_gradient/{one}", f"logit_gradient/{other}")
        steps = [step for step, cosine, norm_1, norm_2 in rows if cosine < -0.95 and 0 < norm_1 <= 2 * norm_2 <= 4 * norm_1]
        if len(steps) >= max(3, len(rows) / 2):
            fact = f"the gradients of {one} and {other} are opposite and alike in size in {len(steps)} of {len(rows)} steps"
            return Evidence((fact,), steps[0], steps[-1])
    # Only estimates from samples cancel. An exact KL is 0 before any update, so a larger first KL is an estimate.
    pairs = run.history.together("kl_penalty", "entropy_bonus")
    is_opposite = sum(penalty * bonus < 0 for _, penalty, bonus in pairs) >= 0.8 * len(pairs)
    return _raised_penalty(run) if is_opposite and any(_kl_at_start(run)) else None


def _is_still(values: Array) -> bool:
    return float(np.ptp(values)) < 0.15 * abs(median(values))


def _raised_penalty(run: Assessment) -> Evidence | None:
    penalty, bonus = run.get("kl_penalty"), run.get("entropy_bonus")
    if penalty is None or bonus is None or len(penalty) < 4 or not _is_still(bonus.values) or run.improves:
        return None
    first, later = float(penalty.logged[0]), penalty.values[1:]
    if not (first > 1e-5 and later.min() >= 3 * first and later.max() <= 2 * later.min()):
        return None
    fact = f"{penalty.from_to()}, while {bonus.column} stayed between {bonus.values.min():.3g} and {bonus.values.max():.3g}"
    return evidence_of(penalty, f"{fact}: the KL coefficient rose to its bound")


def loss_budget(run: Assessment) -> Answer:
    if evidence := run.beyond("logit_share/entropy", above=0.9) or run.beyond("logit_share/reference_kl", above=0.9):
        return evidence
    for name in ("entropy_bonus", "kl_penalty"):
        rows = run.history.together(name, "policy_loss")
        shares = sorted(abs(value) / (abs(value) + abs(policy)) for _, value, policy in rows if value)
        # The policy term can be near 0 with a large gradient, so an improving run has no fault.
        if shares and median(shares) > 0.9 and not run.improves:
            series = run.history.series[name]
            total = f"|{series.column}| + |{run.history.series['policy_loss'].column}|"
            return evidence_of(series, f"{series.column} is {shares[0]:.1%} to {shares[-1]:.1%} of {total}")
    return None


def saturated_controller(run: Assessment) -> Answer:
    for name in ("entropy_saturated", "kl_saturated"):
        if (share := run.get(name)) is not None and share.at[-1] - share.at[0] >= 19 and share.logged[-1] > 0.9:
            return evidence_of(share, f"{share.column} is {share.logged[-1]:.2f} at the end")
    is_trap = {"entropy", "entropy_coefficient"} <= run.history.series.keys() and kl_trap(run) is not None
    # `kl_trap` already reports a raised entropy coefficient. This project's entropy coefficient may rise.
    for name in ("kl_coefficient",) if run.history.is_ours or is_trap else ("kl_coefficient", "entropy_coefficient"):
        if (series := run.get(name)) is not None and (fact := _how_raised(series.values)):
            return evidence_of(series, f"{series.from_to()}: {fact}")
    return _raised_penalty(run)


def _how_raised(values: Array) -> str:
    """Return how a coefficient's tenfold rise ends; "" for smaller rises, and for straight lines (warm-ups)."""
    if len(values) < 20 or not (start := median(values[: max(3, len(values) // 20)])) > 0:
        return ""
    most = float(values.max())
    ramp = values[: int(np.argmax(values >= 0.95 * most)) + 1]
    # The middle is half of the ends' sum on a straight line, and less in an exponential rise.
    is_straight = len(ramp) < 4 or ramp[len(ramp) // 2] > 0.35 * (ramp[0] + ramp[-1])
    if most < 10 * start or tail(values) < 5 * start or is_straight:
        return ""
    return "it stands at its bound" if _is_still(values[-len(values) // 4 :]) else "it is raised without end"


def dead_monitor(run: Assessment) -> Answer:
    bonus = run.history.series["entropy_bonus"]
    if bonus.at[-1] - bonus.at[0] < 1_000 or not _is_still(bonus.values) or loss_budget(run) is None:
        return None
    return evidence_of(bonus, f"{bonus.from_to()}, nearly all of the loss")


def high_clip_fraction(run: Assessment) -> Answer:
    values = run.history.series["clip_fraction"].values
    # In short logs, and in this project's, one high block suffices.
    is_block_enough = run.history.is_ours or len(values) < 10
    is_high = is_block_enough or median(values) > 0.2 or median(values[-max(5, len(values) // 5) :]) > 0.25
    return run.beyond("clip_fraction", above=0.2) if is_high else None


def stale_policy(run: Assessment) -> Answer:
    is_stale = median(run.history.series["effective_sample_size"].values) < 0.7
    return run.beyond("effective_sample_size", below=0.7) if is_stale else None


def cut_updates(run: Assessment) -> Answer:
    steps, rows = run.history.events.get("trust_region", []), run.history.num_rows
    fact = f"the trust region ended the updates of {len(steps):,} of {rows:,} rollouts early, first at step {min(steps, default=0):,.0f}"
    return Evidence((fact,), steps[0], steps[-1]) if len(steps) >= max(10, rows / 2) else None


def diverging(run: Assessment) -> Answer:
    evidence = []
    for name, least, times in (("kl", 0.0, 0), *_RUNAWAYS):
        if (series := run.get(name)) is None or len(series) < 8:
            continue
        if (limit := _exceeded_kl_limit(run, series) if name == "kl" else _exceeded_limit(run, series, least, times)) is not None:
            fact = f"{series.column} is {tail(series.values):.3g} at the end, beyond {limit:.3g}; at first {median(series.values[:3]):.3g}"
            evidence.append(evidence_of(series, fact, begin=series.first_step(np.abs(series.values) > limit)))
    return _joined(evidence)


def _exceeded_kl_limit(run: Assessment, series: Series) -> float | None:
    """Return the limit that the KL exceeds at the end; None if it exceeds none."""
    values, base_limit = series.values, _FAR_FOR_ANSWERS if "answer" in series.unit else _FAR
    end, early, first_half = tail(values), max(median(values[:3]), median(fifth(values))), max(0.0, median(values[: len(values) // 2]))
    is_quick = end > 6 * first_half  # A straight line from 0 ends at 4 times `first_half`.
    if run.improves and not is_quick and run.history.is_ours:
        return None  # This project's exact KL normally grows slowly with the reward.
    limit = base_limit * (1.0 if not run.improves else 2.0 if run.history.is_of_language_model else 4.0) * (0.6 if is_quick else 1.0)
    if end > limit and (end > 4 * early or early > limit):
        return limit
    return 10 * first_half if not run.improves and end > max(0.2 * limit, 10 * first_half) and _rises_by_quarters(values) else None


def _exceeded_limit(run: Assessment, series: Series, least: float, times: float) -> float | None:
    sizes, silent = np.abs(series.values), run.history.levels("silent_groups")
    end, is_slow = tail(sizes), run.improves and tail(sizes) <= 1.5 * times * median(sizes)
    # Slow growth raises the limit 3-fold, or 10-fold if most first groups are silent (of equal rewards) and make gradients small.
    slack = 10 if silent is not None and silent[0] > 0.5 else 3
    limit = max(least, times * (slack if is_slow else 1) * median(sizes[: max(3, len(sizes) // 20)]))
    limit = min(limit, _FAR_PER_UPDATE) if series is run.get("kl_old") else limit
    return limit if 0 < limit < end else None


def extreme_rows(run: Assessment) -> Answer:
    evidence = []
    for name, times, least in _EXTREMES:
        if (series := run.get(name)) is None or len(series) < 20:
            continue
        sizes = np.abs(series.values)
        limit = max(times * median(sizes), least * (100 if "answer" in series.unit else 1))
        # At most 1,000 rows, to save time.
        around = {at: median(sizes[max(0, at - 7) : at + 8]) for at in np.flatnonzero(sizes > limit)[:1_000].tolist()}
        if extremes := [at for at, level in around.items() if sizes[at] > times * level]:
            largest = max(extremes, key=lambda at: float(sizes[at]))
            neighbors = f"the median of its neighbors is {around[largest]:.3g}; {len(extremes)} rows are extreme"
            fact = f"{series.column} is {series.logged[largest]:.3g} at step {series.at[largest]:,.0f}, {neighbors}"
            evidence.append(Evidence((fact,), float(series.at[extremes[0]]), float(series.at[extremes[-1]])))
    return _joined(evidence)


def falling_reward(run: Assessment) -> Answer:
    if run.reward is None or run.trend is None or run.improves or not run.has_fallen:
        return None
    trend, blocks = run.trend, run.history.blocks(run.reward)
    low = _num_at_end(blocks[:, 2] <= (max(trend.best, trend.start) + min(trend.end, trend.last)) / 2)
    fact = f"{run.reward.column} is {trend.start:.3g} at first, {trend.best:.3g} at best, {trend.last:.3g} at the end"
    return evidence_of(run.reward, fact, begin=float(blocks[-low, 0]) if low else float(run.reward.at[-1]))


def flat_reward(run: Assessment) -> Answer:
    reward, trend, deviation = run.reward, run.trend, run.deviation
    assert reward is not None
    assert trend is not None
    if run.history.is_of_windows:
        best = max(reward.logged[1:], default=math.inf)
        is_flat = len(reward) > 2 and deviation is not None and best - reward.logged[0] <= 0.1 * deviation and not run.improves
        return evidence_of(reward, f"{reward.from_to()}, at best {best:.3g} in {len(reward)} windows") if is_flat else None
    fewest = _FEWEST_FOR_FLAT if deviation is None else _FEWEST_FOR_FLAT // 2
    if len(reward) < fewest or reward.at[-1] - reward.at[0] < _FEWEST_FOR_FLAT - 1:
        return Unclear(f"{len(reward)} rows; at least {fewest} over {_FEWEST_FOR_FLAT} steps are needed")
    flat_limit, tiny_rise = (_FLAT_IN_NOISE * trend.noise, -math.inf) if deviation is None else (_FLAT * deviation, _NOTHING * deviation)
    if "gain" in run.history.series and deviation is not None:
        flat_limit = tiny_rise = _NOTHING * deviation / 3  # A gain has less noise than a reward.
    # A gain above 0 is a rise from the reference, even if the first steps reached it.
    is_rise = run.measures_rise or (run.rises and trend.most > tiny_rise) or ("gain" in run.history.series and trend.end > tiny_rise)
    if run.is_solved or is_rise or run.has_fallen or no_gradient(run) is not None:
        return None
    if trend.most > flat_limit:
        return Unclear(f"{reward.column} may have risen by up to {trend.most:.3g} in {len(reward)} rows")
    fact = f"{reward.from_to()}; a straight line through {len(reward)} rows rises by at most {trend.most:.2g}"
    size = f"rows deviate by {trend.noise:.2g}" if deviation is None else f"single rewards deviate by {deviation:.2g}"
    return evidence_of(reward, f"{fact}; {size}")


def silent_groups(run: Assessment) -> Answer:
    if run.is_solved and not run.is_live:
        return None
    least = 0.5 if run.history.is_ours or not run.rises else 0.8
    if evidence := run.beyond("silent_groups", above=least, at_end=not run.history.is_ours):
        return replace(evidence, severity=Severity.CRITICAL) if run.beyond("silent_groups", above=0.95) else evidence
    if run.is_live:
        return None
    if run.reward is not None and len(run.reward) >= 20 and np.ptp(run.reward.values) == 0 and not run.history.is_ours:
        fact = f"{run.reward.column} is {run.reward.logged[0]:.3g} in all rows"
        return evidence_of(run.reward, fact, severity=Severity.CRITICAL)
    for series in filter(None, map(run.get, ("group_std", "reward_std"))):
        if len(series) >= 5 and median(series.values[-max(3, len(series) // 5) :]) < 1e-6:
            return evidence_of(series, series.from_to(), severity=Severity.CRITICAL)
    for low, high in (("reward_worst", "reward_best"), ("advantage_min", "advantage_max")):
        rows = run.history.together(low, high)
        equal = [step for step, lowest, most in rows if most - lowest <= 1e-6 * max(abs(lowest), abs(most))]
        if len(rows) >= 10 and len(equal) > len(rows) / 2:
            columns = " and ".join(run.history.series[name].column for name in (low, high))
            return Evidence((f"{columns} are equal in {len(equal)} of {len(rows)} rows",), equal[0], equal[-1], Severity.CRITICAL)
    return None


def group_agreement(run: Assessment) -> Answer:
    return None if run.is_solved and not run.is_live else run.beyond("agreement", above=0.75)


def exploding_advantages(run: Assessment) -> Answer:
    best, worst = run.get("reward_best"), run.get("reward_worst")
    scale = 1.0 if best is None or worst is None else max(1.0, median(best.values) - median(worst.values))
    return run.beyond("advantage_max", above=30 * scale) or run.beyond("advantage_min", below=-30 * scale)


def lost_format(run: Assessment) -> Answer:
    parsed, levels = run.history.series["parsed"], run.history.levels("parsed")
    if levels is None:
        return None
    most, trend = max(1.0, float(parsed.values.max())), trend_of(parsed.values)  # Above 1: percent or points.
    values, early, late = parsed.values / most, max(levels[0], median(fifth(parsed.values))) / most, levels[1] / most
    is_lost_at_once = not run.history.is_ours and len(values) > 1 and values[0] > 0.5 and values[0] - values[1:].max() > 0.2
    if is_lost_at_once:
        early = float(values[0])
    # A format reward can have a maximum below 1, so low values have a relative limit.
    least = 0.2 if run.history.is_ours or early > 0.5 else max(0.4 * early, 0.05)
    is_noise = not run.is_live and len(parsed) >= 15 and trend.change >= 0 and not trend.has_lost and not is_lost_at_once
    begin = parsed.first_step(values < (early + late) / 2)
    return evidence_of(parsed, parsed.from_to(), begin=begin) if early - late > least and not is_noise else None


def truncated_answers(run: Assessment) -> Answer:
    series = run.history.series["truncated"]
    end, cut = median(series.values[-max(3, len(series) // 5) :]), series.values > 0.5
    fact = f"{series.column} is {end:.0%} at the end, above half in {cut.sum()} of {len(series)} rows"
    return evidence_of(series, fact, begin=series.first_step(cut)) if cut.sum() >= 10 and end > (0.8 if run.improves else 0.6) else None


def answer_length(run: Assessment) -> Answer:
    series = run.history.series["answer_length"]
    trend = trend_of(series.values)
    is_off = len(series) >= 15 and trend.change and trend.start > 0 and not 0.3 * trend.start <= trend.end <= 2.5 * trend.start
    return evidence_of(series, series.from_to()) if is_off and not run.improves else None


def _got_worse(run: Assessment) -> Iterator[Evidence]:
    for name, sign in (("regret", -1), ("regret_best", -1), ("heldout_reward", 1)):
        if (series := run.get(name)) is None or len(series) < 3:
            continue
        good, part = sign * series.values, max(1, len(series) // 5)
        before, after = median(good[:part]), median(good[-part:])
        smooth = np.array([median(good[max(0, at - part // 2) : at + part // 2 + 1]) for at in range(len(good))])
        best, at_best = float(smooth.max()), int(np.argmax(smooth))  # Of medians, because one row can be lucky.
        least = (_WORSE if len(good) >= _MANY_MEASURES else _WORSE_OF_FEW) * max(abs(before), abs(after) if sign > 0 else 0.0, 1e-12)
        turns = best - after > max(least, (best - before) * 0.6) and len(good) >= 8 and _surely_falls(good[at_best:])
        if turns or (before - after > least and _surely_falls(good)):
            middle = f", at best {sign * best:.3g}" if turns else ""
            fact = f"{series.column} is {sign * before:.3g} at first{middle}, {sign * after:.3g} at the end"
            yield evidence_of(series, fact, begin=float(series.at[at_best]))


def _surely_falls(good: Array) -> bool:
    if len(good) >= 15:
        return trend_of(good).change < 0
    third = max(1, len(good) // 3)
    is_below = len(good) >= 3 and bool(good[-third:].max() < good[:third].min())
    return is_below and (len(good) < 5 or rank_correlation(np.arange(len(good)), good)[1] < (0.1 if len(good) == 5 else 0.05))


def reward_hacking(run: Assessment) -> Answer:
    if run.reward is None or run.trend is None or run.trend.change <= 0 or run.has_fallen or not (losses := [*_got_worse(run)]):
        return None
    rise = evidence_of(run.reward, f"{run.reward.column} rises from {run.trend.start:.3g} to {run.trend.end:.3g}")
    return _joined([rise, *losses])


def lost_strength(run: Assessment) -> Answer:
    evidence = [] if reward_hacking(run) is not None else [*_got_worse(run)]
    evaluations = run.history.evaluations
    if len(evaluations) > 1:
        games, steps, scores = (np.array([getattr(evaluation, name) for evaluation in evaluations]) for name in ("games", "step", "score"))
        mean, middle = float(games @ scores / games.sum()), float(games @ steps / games.sum())
        spread = math.sqrt(max(1e-9, mean * (1 - mean)))  # A game's standard deviation without draws.
        error = spread * math.sqrt(1 / games[0] + 1 / games[-1])
        # Linear trend of the scores, in standard errors.
        slope = float(games * (steps - middle) @ (scores - mean)) / (spread * math.sqrt(max(1e-12, float(games @ (steps - middle) ** 2))))
        # One-sided p: 0.005 for 2.6 standard errors, 0.02 for 2.
        if scores[0] - scores[-1] > 2.6 * error and (len(evaluations) < 3 or slope < -2):
            first, last = (f"{scores[at]:.3f} of {games[at]:.0f} games at step {steps[at]:,.0f}" for at in (0, -1))
            evidence.append(Evidence((f"score {first}, {last}",), float(steps[0]), float(steps[-1])))
    return _joined(evidence)


def unbelievable_peak(run: Assessment) -> Answer:
    # Luck is small from 200 games on.
    evaluations = [evaluation for evaluation in run.history.evaluations if 1 <= evaluation.games < 200]
    if len(evaluations) < 2:
        return None
    best = max(evaluations, key=lambda evaluation: evaluation.score)
    others = [evaluation for evaluation in evaluations if evaluation is not best]
    games = sum(evaluation.games for evaluation in others)
    mean_of_others = sum(evaluation.score * evaluation.games for evaluation in others) / games
    pooled = (mean_of_others * games + best.score * best.games) / (games + best.games)
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / games + 1 / best.games))
    # Probability that the best of equal checkpoints is this far ahead (Bonferroni's bound).
    chance = min(1.0, len(evaluations) * math.erfc((best.score - mean_of_others) / error / math.sqrt(2)) / 2)
    tau, by_chance = rank_correlation([evaluation.step for evaluation in evaluations], [evaluation.score for evaluation in evaluations])
    if best.score - mean_of_others < 0.03 or chance < 0.05 or (tau > 0 and by_chance < 0.02):
        return None
    low, high = wilson_interval(round(best.score * best.games), round(best.games))
    facts = (
        f"{best.score:.3g} of {best.games:.0f} games at step {best.step:,.0f}: 95 % interval {low:.3f} to {high:.3f}",
        f"the best of {len(evaluations)} equally strong checkpoints would be this far ahead with probability {chance:.2f} or less",
    )
    return Evidence(facts, best.step, best.step)


def no_baseline(run: Assessment) -> Answer:
    first = run.history.evaluations[0].step
    begun = min((float(series.at[0]) for series in run.history.series.values()), default=0.0)  # Above 0 for a resumed run.
    return Evidence((f"the first games were played at step {first:,.0f}",), first, first) if first > max(0.0, begun) else None

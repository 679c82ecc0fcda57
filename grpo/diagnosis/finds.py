"""One function per check; `checks.toml` says what each fault means, `dialects.toml` what each quantity is.

Limits without a source were chosen on simulated runs (`tests/proofs/made_histories.py`).
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import Series, When
from grpo.diagnosis.look import Answer, Evidence, Look, Unclear, fifth, span, tail
from grpo.diagnosis.trends import Array, median, rank_correlation, trend
from grpo.metrics.shared import ENTROPY_CRITICAL, TERM_PAIRS
from grpo.statistics.intervals import wilson_interval

MOST_LEGAL_MOVES: Final = 218
"""Most legal moves of a position: R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1 (Petrovic, 1964)."""
_AT_START: Final = (("kl", 1e-3), ("kl_max", 1e-3), ("kl_penalty", 1e-5))
"""Quantity, and the largest value that is rounding, in nats. `kl_penalty` is a KL times an unknown coefficient."""
_KL_OF_UPDATES, _KL_STAYS = 0.05, 0.3
"""Updates within the first row explain its KL up to 0.05 nats, or below 0.3 of the next ten rows' median."""
_KL_BY_SCORING: Final = 0.5
"""Nats that another way of scoring can explain: temperature 1.3 against 1.0 gives 0.05. A larger KL is another model."""
_FAR, _FAR_FOR_ANSWERS = 0.8, 50.0  # KL to the reference that is far, in nats: per move or token, and per answer.
_FAR_PER_UPDATE: Final = 0.15  # KL to the sampled policy that is far, in nats; usual targets are 0.01 to 0.05.
_FEWEST_FOR_FLAT: Final = 100  # Rows, and steps from first to last row; half as many rows if the deviation of a single reward is known.
_FLAT, _FLAT_IN_NOISE, _NOTHING = 0.25, 1.5, 0.03
"""A reward is flat if the upper bound of its rise is at most 0.25 standard deviations of a single reward, or 1.5 of the rows if the former
are unknown. A rise that is certain still counts as nothing up to 0.03 standard deviations of a single reward."""
_MISMATCHES: Final = (("sampler_gap", 0.0, 0.05), ("sampler_prob_gap", 0.0, 0.02), ("sampler_ratio", 1.0, 0.3))
"""Quantity, its value if sampler and trainer agree, and the largest difference that is still agreement."""
_EXTREMES: Final = (
    ("kl", 100, 1.0),
    ("kl_old", 100, 1.0),
    ("gradient_norm", 500, 10.0),
    ("loss", 1_000, 10.0),
    ("policy_loss", 1_000, 10.0),
)
"""Quantity. A row is extreme if it exceeds this many times the rows around it, and this absolute value (100-fold per answer)."""
_RUNAWAYS: Final = (("kl_old", 0.1, 10), ("gradient_norm", 0.0, 10), ("ratio_max", 6.0, 4), ("loss", 1.0, 100), ("policy_loss", 1.0, 100))
"""Quantity. It runs away if its end exceeds this absolute value, and this many times its first rows."""
_WORSE, _WORSE_OF_FEW, _FEW_MEASURES = 0.12, 0.3, 6  # Relative loss that counts; the same with few values; fewest values that are not few.


# --- Values and scoring -------------------------------------------------------------------------------------------------------------------


def nan_steps(look: Look) -> Answer:
    bad = dict(look.history.not_finite)
    words = [f"{column} is not finite at {len(steps):,} steps, first at step {steps[0]:,.0f}" for column, steps in bad.items()]
    if (skipped := look.get("skipped")) is not None and (hit := skipped.steps[skipped.values > 0]).size:
        words.append(f"{skipped.column}: optimizer steps were left out at {len(hit):,} steps, first at step {hit[0]:,.0f}")
        bad[skipped.column] = hit.tolist()
    steps = [step for found in bad.values() for step in found]
    return Evidence(tuple(words[:4]), min(steps), max(steps)) if steps else None


def unlearned_language_model(look: Look) -> Answer:
    parsed, random = look.history.series["parsed"], look.history.random_weights
    is_unread = parsed.found[0] == 0 or (parsed.found[0] < 0.1 and not look.is_live and parsed.values.max() <= 0.2)
    has_learned = not look.is_live and len(parsed) > 2 and median(parsed.values[-max(1, len(parsed) // 5) :]) > 0.5
    if not random and (not is_unread or has_learned):
        return None
    series = [each for each in (parsed, look.get("truncated")) if each is not None]
    words = [f"{each.column} is {each.found[0]:.3g} at step {each.at[0]:,.0f}" for each in series]
    return Evidence((*([random] if random else []), *words), float(parsed.at[0]), float(parsed.at[0]))


def _kl_at_start(look: Look) -> Iterator[tuple[float, str]]:
    history = look.history
    is_exact = history.is_ours or history.is_of_windows or "kl_penalty" in history.series
    for name, limit in _AT_START:
        value, series = look.at_start(name), look.get(name)
        if value is None or series is None or abs(value) <= limit or (name == "kl_penalty" and series.at[0] > 0):
            continue
        rest = series.values[1:11]
        is_by_updates = not is_exact and len(rest) > 0 and (value <= _KL_OF_UPDATES or value < _KL_STAYS * median(rest))
        is_by_updates = value < 5.0 if "answer" in series.unit and not history.is_ours else is_by_updates
        # If the log has step 0, a KL that does not grow afterwards does not come from updates.
        does_not_grow = value > 10 * limit and series.at[0] <= 0 and len(rest) >= 5 and value > 0.8 * median(rest)
        if not is_by_updates or does_not_grow:
            yield value, f"{series.column} is {value:.3g} in the first row, before or at the first update (step {series.at[0]:,.0f})"


def kl_at_step_zero(look: Look) -> Answer:
    words = tuple(words for _, words in _kl_at_start(look))
    step = min(float(series.at[0]) for series in look.history.series.values())
    return Evidence(words, step, step) if words else None


def temperature_mismatch(look: Look) -> Answer:
    if look.history.is_of_language_model or look.history.is_ours:
        return None  # `scored_otherwise` judges language models. Our trainer asserts ratios of 1 in every rollout.
    words = [words for value, words in _kl_at_start(look) if value < _KL_BY_SCORING]
    clipped = look.at_start("clip_fraction")
    # Updates of the first row may clip too, so without a KL only a larger fraction is evidence.
    if clipped is not None and clipped > (0.2 if words else 0.35):
        words.append(f"{look.history.series['clip_fraction'].column} is {clipped:.3g} before the first update")
    return Evidence(tuple(words), 0, 0) if words else None


def ratio_not_one(look: Look) -> Answer:
    series, first = look.history.series["ratio_mean"], look.at_start("ratio_mean")
    values, noise = series.values, 3 * float(np.std(series.values)) / math.sqrt(len(series))
    if first is not None and abs(first - 1) > 0.1:
        return span(series, f"{series.column} is {first:.3g} in the first row (step {series.at[0]:,.0f}); it must be 1")
    if max(abs(tail(values) - 1), abs(median(values) - 1)) <= 0.1 + noise:
        return None
    return span(
        series, f"{series.column} ends at {tail(values):.3g}, more than 0.1 from 1", begin=series.first_step(np.abs(values - 1) > 0.1)
    )


def scored_otherwise(look: Look) -> Answer:
    found = [look.beyond(name, above=middle + limit, below=middle - limit) for name, middle, limit in _MISMATCHES]
    kl = look.get("kl")
    if kl is not None and len(kl) >= 10 and not look.is_live and median(kl.values) < -0.02 and float(np.quantile(kl.values, 0.9)) < 0:
        found.append(span(kl, f"{kl.column} has a median of {median(kl.values):.3g}; a KL is never negative, beyond an estimate's noise"))
    return _joined([each for each in found if each is not None])


def _joined(found: list[Evidence]) -> Evidence | None:
    words = tuple(words for each in found for words in each.words)
    return Evidence(words, min(each.begin for each in found), max(each.end for each in found)) if found else None


def impossible_entropy(look: Look) -> Answer:
    series = look.history.series["entropy"]
    most = 1.1 * math.log(MOST_LEGAL_MOVES) if not look.history.is_of_language_model else math.inf  # Tokens: the vocabulary is larger.
    bad = (series.values < -0.1) | (series.values > most)
    if look.is_of_actions or not bad.any():  # Entropy of continuous actions may be negative.
        return None
    steps, values = series.steps[bad], series.values[bad]
    words = f"{series.column} is {values[np.argmax(np.abs(values))]:.4g}, and impossible in {bad.sum()} of {len(series)} rows"
    return Evidence((f"{words}: it is at least 0, over moves at most ln {MOST_LEGAL_MOVES} = {most / 1.1:.2f}",), steps[0], steps[-1])


def no_gradient(look: Look) -> Answer:
    norm, entropy = look.get("gradient_norm"), look.get("entropy")
    moved = look.get("kl_old") or look.get("kl")
    if norm is not None and len(norm) >= 5:
        still = np.abs(norm.values) <= max(1e-10, 1e-6 * median(np.abs(norm.values[:5])))
        at_end = _run_at_end(still)
        if still.mean() > 0.5 or (at_end >= max(20, len(norm) / 5) and not look.is_solved):
            words = f"{norm.column} is 0 in {still.sum()} of {len(norm)} rows, in the last {at_end} without a break"
            return span(norm, words, begin=norm.first_step(still))
    if entropy is None or len(entropy) < 5 or look.is_live:
        return None
    last, constant = float(entropy.found[-1]), _run_at_end(entropy.values == entropy.found[-1])
    if norm is None and moved is not None and np.abs(moved.values).max() <= 1e-10 and np.ptp(entropy.values) <= 1e-6:
        return span(moved, f"{moved.column} is 0 in all {len(moved)} rows, and {entropy.column} is constant")
    # Rounding cannot explain equal rows if the number has more than three digits.
    if constant >= max(20, len(entropy) / 5) and f"{last:.10g}" != f"{last:.3g}" and not look.is_solved:
        words = f"{entropy.column} is {last:.10g} in each of the last {constant} rows: the policy does not change"
        return span(entropy, words, begin=float(entropy.at[-constant]))
    return None


def _run_at_end(holds: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> int:
    """Return the number of rows, counted back from the last, in which a condition holds."""
    return len(holds) if holds.all() else int(np.argmin(holds[::-1]))


def learning_rate_schedule(look: Look) -> Answer:
    rate = look.history.series["learning_rate"]
    values, middle, end = rate.values, float(rate.found[len(rate) // 2]), tail(rate.values)
    if len(rate) < 16 or values.max() <= 0:
        return None
    stopped = values <= 1e-3 * values.max()
    if stopped[len(rate) // 2 :].all() and stopped.mean() > 0.5:
        words = f"{rate.column} is at most a thousandth of its largest value in {stopped.sum()} of {len(rate)} rows: these train nothing"
        return span(rate, words, begin=rate.first_step(stopped))
    is_endless = _rises_by_quarters(values) and end > 3 * middle > 0
    return span(rate, f"{rate.column} grows from {middle:.3g} in the middle of the run to {end:.3g}") if is_endless else None


def _rises_by_quarters(values: Array) -> bool:
    quarters = [median(part) for part in np.array_split(values, 4)]
    return sorted(quarters) == quarters


# --- Entropy ------------------------------------------------------------------------------------------------------------------------------


def entropy_collapse(look: Look) -> Answer:
    entropy, history = look.history.series["entropy"], look.history
    if (levels := history.levels("entropy")) is None:
        return None
    early, late = levels
    if history.when == When.BEFORE:
        critical = history.limits.get("critical_entropy", 0.0)
        seen = f"{entropy.column} is {late:.2f} nats, critical below grpo.critical_entropy = {critical:g}"
        return span(entropy, seen) if late < critical else None
    if history.is_ours:  # Our trainer recovers from a collapse, so the lowest block counts and not the last.
        late = float(history.blocks(entropy)[:, 2].min())
    else:
        early = max(early, median(entropy.values[:3]), median(fifth(entropy.values)))
    answer = _is_collapsed(look, early, late)
    if answer is not True:
        return answer or None
    words = [f"{entropy.way()}{f', {late:.3g} at its lowest' if late < entropy.values[-10:].min() else ''}"]
    if look.is_of_moves(early) and impossible_entropy(look) is None:
        words.append(f"from about {math.exp(entropy.found[0]):.0f} effective moves, exp(entropy), to {math.exp(entropy.found[-1]):.1f}")
    loss, series = history.levels("loss"), history.series.get("loss")
    if loss is not None and series is not None and abs(loss[1]) < abs(loss[0]):
        words.append(f"{series.way()}: it vanishes with the entropy, because equal moves have no advantage")
    return span(entropy, *words, begin=entropy.first_step(entropy.values < (early + late) / 2))


def _is_collapsed(look: Look, early: float, late: float) -> bool | Unclear:
    """Return whether too little entropy is left. A policy that improves may have less."""
    events = {name: steps[-1] for name, steps in look.history.events.items()}
    if not look.is_live and events.get(ENTROPY_CRITICAL, -1) > events.get("recovery_ended", -1):
        return True
    if look.is_of_moves(early):
        normalized = look.history.levels("normalized_entropy")
        left, nats = (0.25, 0.8) if look.improves else (0.4, 1.2)
        is_low = normalized is not None and normalized[1] < 0.15 and not look.improves
        return is_low or late < 0.15 or late < min(nats, left * early)
    if early <= 0 or (look.is_high and look.improves and not look.is_live):
        return False
    if late < (0.08 if look.improves else 0.2) * early:
        return True
    is_low = late < 0.3 * early and not look.rises and not look.is_live
    return Unclear(f"{late / early:.0%} of the entropy is left, and reward is not shown to rise") if is_low else False


def entropy_explosion(look: Look) -> Answer:
    series, spread = look.get("entropy"), look.get("action_std")
    if spread is not None and len(spread) >= 8 and tail(spread.values) > 3 * median(fifth(spread.values)) and not look.improves:
        return span(spread, spread.way())
    if series is None or len(series) < 8 or (early := median(fifth(series.values))) <= 0:
        return None
    end = tail(series.values)
    if look.is_of_moves(early):
        found = end > early + 0.6 and end > min(1.5 * early, 3.15) and not look.improves
    elif look.is_of_actions:
        found = end > 2 * early and not look.improves
    else:
        factor, least = (5.0, 1.5) if look.improves else (2.5, 0.5)
        found = end > factor * early and end - early > least
    return span(series, series.way(), begin=series.first_step(series.values > (early + end) / 2)) if found else None


def kl_trap(look: Look) -> Answer:
    coefficient, entropy, levels = (
        look.history.series["entropy_coefficient"],
        look.history.series["entropy"],
        look.history.levels("entropy"),
    )
    collapse = entropy_collapse(look)
    if levels is None or not isinstance(collapse, Evidence):
        return None
    is_after = coefficient.steps > entropy.first_step(entropy.values < 0.8 * levels[0])  # An earlier rise is a warm-up.
    before, after = coefficient.values[~is_after][-1:], coefficient.values[is_after]
    if not len(before) or not len(after) or not 0 < 3 * before[0] <= (most := float(after.max())):
        return None
    words = f"{coefficient.column} was raised from {before[0]:.3g} to {most:.3g}, {most / before[0]:.0f}-fold, while entropy fell"
    begin = coefficient.first_step(is_after & (coefficient.values > before[0]))
    return span(coefficient, words, *collapse.words[:1], begin=begin)


# --- Terms and controllers ----------------------------------------------------------------------------------------------------------------


def canceling_terms(look: Look) -> Answer:
    """Compare gradients, or values if a trainer logs no gradients."""
    for one, other in TERM_PAIRS:
        rows = look.history.together(f"logit_cosine/{one}_{other}", f"logit_gradient/{one}", f"logit_gradient/{other}")
        hit = [step for step, cosine, norm_1, norm_2 in rows if cosine < -0.95 and 0 < norm_1 <= 2 * norm_2 <= 4 * norm_1]
        if len(hit) >= max(3, len(rows) / 2):
            words = f"the gradients of {one} and {other} are opposite and alike in size in {len(hit)} of {len(rows)} steps"
            return Evidence((words,), hit[0], hit[-1])
    # Exact terms cannot cancel. A KL before any update shows that the terms are sampled estimates.
    pairs = look.history.together("kl_penalty", "entropy_bonus")
    is_opposite = sum(penalty * bonus < 0 for _, penalty, bonus in pairs) >= 0.8 * len(pairs)
    return _raised_penalty(look) if is_opposite and any(_kl_at_start(look)) else None


def _is_still(values: Array) -> bool:
    return float(np.ptp(values)) < 0.15 * abs(median(values))


def _raised_penalty(look: Look) -> Evidence | None:
    """Return evidence of a KL coefficient at its bound: the KL penalty rose and stayed, the entropy bonus did not move."""
    penalty, bonus = look.get("kl_penalty"), look.get("entropy_bonus")
    if penalty is None or bonus is None or len(penalty) < 4 or not _is_still(bonus.values) or look.improves:
        return None
    first, rest = float(penalty.found[0]), penalty.values[1:]
    if not (first > 1e-5 and rest.min() >= 3 * first and rest.max() <= 2 * rest.min()):
        return None
    words = f"{penalty.way()}, while {bonus.column} stayed within {bonus.values.min():.3g} and {bonus.values.max():.3g}"
    return span(penalty, f"{words}: the policy hardly moved, so that it is the KL coefficient that rose and stands at its bound")


def loss_budget(look: Look) -> Answer:
    if found := look.beyond("logit_share/entropy", above=0.9) or look.beyond("logit_share/reference_kl", above=0.9):
        return found
    for name in ("entropy_bonus", "kl_penalty"):
        rows = look.history.together(name, "policy_loss")
        shares = sorted(abs(value) / (abs(value) + abs(policy)) for _, value, policy in rows if value)
        # The policy term's value is near 0 whatever its gradient is, so the share is evidence only if nothing is learned.
        if shares and median(shares) > 0.9 and not look.improves:
            series = look.history.series[name]
            return span(series, f"{series.column} is {shares[0]:.1%} to {shares[-1]:.1%} of itself and the policy term")
    return None


def saturated_controller(look: Look) -> Answer:
    for name in ("entropy_saturated", "kl_saturated"):
        if (share := look.get(name)) is not None and share.at[-1] - share.at[0] >= 19 and share.found[-1] > 0.9:
            return span(share, f"{share.column} is {share.found[-1]:.2f} at the end")
    is_trap = {"entropy", "entropy_coefficient"} <= look.history.series.keys() and kl_trap(look) is not None
    # Our controller moves the entropy coefficient within tenfold bounds, so a tenfold rise is no fault.
    for name in ("kl_coefficient",) if look.history.is_ours or is_trap else ("kl_coefficient", "entropy_coefficient"):
        if (series := look.get(name)) is not None and (words := _raised(series.values)):
            return span(series, f"{series.way()}: {words}")
    return _raised_penalty(look)


def _raised(values: Array) -> str:
    """Return what became of a coefficient that rose tenfold; "" for a smaller rise, or a straight line, which is a warm-up."""
    if len(values) < 20 or not (start := median(values[: max(3, len(values) // 20)])) > 0:
        return ""
    most = float(values.max())
    ramp = values[: int(np.argmax(values >= 0.95 * most)) + 1]
    is_straight = len(ramp) < 4 or ramp[len(ramp) // 2] > 0.35 * (ramp[0] + ramp[-1])
    if most < 10 * start or tail(values) < 5 * start or is_straight:
        return ""
    return "it stands at its bound" if _is_still(values[-len(values) // 4 :]) else "it is raised without end"


def dead_monitor(look: Look) -> Answer:
    bonus = look.history.series["entropy_bonus"]
    if bonus.at[-1] - bonus.at[0] < 1_000 or not _is_still(bonus.values) or loss_budget(look) is None:
        return None
    return span(bonus, f"{bonus.way()}, nearly all of the loss: whatever watches entropy has not moved it once")


def high_clip_fraction(look: Look) -> Answer:
    """Find frequent clipping: in any block of this trainer's rows, in most or the last rows of another trainer's."""
    values = look.history.series["clip_fraction"].values
    is_part_enough = look.history.is_ours or len(values) < 10
    is_high = is_part_enough or median(values) > 0.2 or median(values[-max(5, len(values) // 5) :]) > 0.25
    return look.beyond("clip_fraction", above=0.2) if is_high else None


def stale_policy(look: Look) -> Answer:
    is_stale = median(look.history.series["effective_sample_size"].values) < 0.7
    return look.beyond("effective_sample_size", below=0.7) if is_stale else None


def cut_updates(look: Look) -> Answer:
    steps, rows = look.history.events.get("trust_region", []), look.history.num_rows
    words = f"the trust region ended the updates of {len(steps):,} of {rows:,} rollouts early, first at step {min(steps, default=0):,.0f}"
    return Evidence((words,), steps[0], steps[-1]) if len(steps) >= max(10, rows / 2) else None


# --- Runs that fall apart -----------------------------------------------------------------------------------------------------------------


def diverging(look: Look) -> Answer:
    found = []
    for name, least, times in (("kl", 0.0, 0), *_RUNAWAYS):
        series = look.get(name)
        limit = (
            None if series is None or len(series) < 8 else _kl_limit(look, series) if name == "kl" else _limit(look, series, least, times)
        )
        if series is not None and limit is not None:
            words = f"{series.column} is {tail(series.values):.3g} at the end, beyond {limit:.3g}; at first {median(series.values[:3]):.3g}"
            found.append(span(series, words, begin=series.first_step(np.abs(series.values) > limit)))
    return _joined(found)


def _kl_limit(look: Look, series: Series) -> float | None:
    """Return the limit in nats that the KL exceeds at the end; None if it exceeds none."""
    values, unit = series.values, _FAR_FOR_ANSWERS if "answer" in series.unit else _FAR
    end, early, half = tail(values), max(median(values[:3]), median(fifth(values))), max(0.0, median(values[: len(values) // 2]))
    is_quick = end > 6 * half  # A straight line from 0 ends at 4 * half.
    if look.improves and not is_quick and look.history.is_ours:
        return None  # Our KL is exact, and a slow growth together with the reward is normal.
    limit = unit * (1.0 if not look.improves else 2.0 if look.history.is_of_language_model else 4.0) * (0.6 if is_quick else 1.0)
    if end > limit and (end > 4 * early or early > limit):
        return limit
    return 10 * half if not look.improves and end > max(0.2 * limit, 10 * half) and _rises_by_quarters(values) else None


def _limit(look: Look, series: Series, least: float, times: float) -> float | None:
    """Return the limit that a series exceeds at the end, or None. Slow growth with the reward has a threefold limit."""
    sizes, silent = np.abs(series.values), look.history.levels("silent_groups")
    end, is_slow = tail(sizes), look.improves and tail(sizes) <= 1.5 * times * median(sizes)
    calm = 10 if silent is not None and silent[0] > 0.5 else 3  # Gradients start near 0 if most groups were silent.
    limit = max(least, times * (calm if is_slow else 1) * median(sizes[: max(3, len(sizes) // 20)]))
    limit = min(limit, _FAR_PER_UPDATE) if series is look.get("kl_old") else limit
    return limit if 0 < limit < end else None


def extreme_rows(look: Look) -> Answer:
    found = []
    for name, times, least in _EXTREMES:
        if (series := look.get(name)) is None or len(series) < 20:
            continue
        sizes = np.abs(series.values)
        limit = max(times * median(sizes), least * (100 if "answer" in series.unit else 1))
        around = {at: median(sizes[max(0, at - 7) : at + 8]) for at in np.flatnonzero(sizes > limit)[:1_000].tolist()}
        if hit := [at for at, level in around.items() if sizes[at] > times * level]:
            largest = max(hit, key=lambda at: float(sizes[at]))
            where = f"at step {series.at[largest]:,.0f}, {around[largest]:.3g} around it; so far off in {len(hit)} rows"
            words = f"{series.column} is {series.found[largest]:.3g} {where}"
            found.append(Evidence((words,), float(series.at[hit[0]]), float(series.at[hit[-1]])))
    return _joined(found)


# --- Rewards and answers ------------------------------------------------------------------------------------------------------------------


def falling_reward(look: Look) -> Answer:
    if look.reward is None or look.trend is None or look.improves or not look.has_fallen:
        return None
    found, blocks = look.trend, look.history.blocks(look.reward)
    low = _run_at_end(blocks[:, 2] <= (max(found.best, found.start) + min(found.end, found.last)) / 2)
    words = (
        f"{look.reward.column} is {found.start:.3g} in the first fifth of the rows, {found.best:.3g} at its best, {found.last:.3g} at last"
    )
    return span(look.reward, words, begin=float(blocks[-low, 0]) if low else float(look.reward.at[-1]))


def flat_reward(look: Look) -> Answer:
    reward, found, deviation = look.reward, look.trend, look.deviation
    assert reward is not None
    assert found is not None
    if look.history.is_of_windows:
        best = max(reward.found[1:], default=math.inf)
        is_flat = len(reward) > 2 and deviation is not None and best - reward.found[0] <= 0.1 * deviation and not look.improves
        return span(reward, f"{reward.way()}, at its best {best:.3g} in {len(reward)} windows") if is_flat else None
    fewest = _FEWEST_FOR_FLAT if deviation is None else _FEWEST_FOR_FLAT // 2
    if len(reward) < fewest or reward.at[-1] - reward.at[0] < _FEWEST_FOR_FLAT - 1:
        return Unclear(f"{len(reward)} rows; at least {fewest} over {_FEWEST_FOR_FLAT} steps are needed")
    least, nothing = (_FLAT_IN_NOISE * found.noise, -math.inf) if deviation is None else (_FLAT * deviation, _NOTHING * deviation)
    if "gain" in look.history.series and deviation is not None:
        least = nothing = _NOTHING * deviation / 3  # `gain` compares two policies on equal states, so it has less noise.
    is_rise = look.measures_rise or (look.rises and found.most > nothing)
    if look.is_solved or is_rise or look.has_fallen or no_gradient(look) is not None:
        return None
    if found.most > least:
        return Unclear(f"{reward.column} may have risen by up to {found.most:.3g} in {len(reward)} rows")
    words = f"{reward.way()}; by a straight line through {len(reward)} rows it rises by at most {found.most:.2g}"
    size = f"the rows is {found.noise:.2g}" if deviation is None else f"a single reward is {deviation:.2g}"
    return span(reward, f"{words}, where the deviation of {size}")


def silent_groups(look: Look) -> Answer:
    if look.is_solved and not look.is_live:
        return None
    least = 0.5 if look.history.is_ours or not look.rises else 0.8
    if found := look.beyond("silent_groups", above=least, at_end=not look.history.is_ours):
        return replace(found, severity=Severity.CRITICAL) if look.beyond("silent_groups", above=0.95) else found
    if look.is_live:
        return None
    if look.reward is not None and len(look.reward) >= 20 and np.ptp(look.reward.values) == 0 and not look.history.is_ours:
        return replace(span(look.reward, f"{look.reward.column} is {look.reward.found[0]:.3g} in all rows"), severity=Severity.CRITICAL)
    for series in filter(None, map(look.get, ("group_std", "reward_std"))):
        if len(series) >= 5 and median(series.values[-max(3, len(series) // 5) :]) < 1e-6:
            return replace(span(series, series.way()), severity=Severity.CRITICAL)
    for low, high in (("reward_worst", "reward_best"), ("advantage_min", "advantage_max")):
        rows = look.history.together(low, high)
        same = [step for step, lowest, most in rows if most - lowest <= 1e-6 * max(abs(lowest), abs(most))]
        if len(rows) >= 10 and len(same) > len(rows) / 2:
            columns = " and ".join(look.history.series[name].column for name in (low, high))
            return Evidence((f"{columns} are equal in {len(same)} of {len(rows)} rows",), same[0], same[-1], Severity.CRITICAL)
    return None


def group_agreement(look: Look) -> Answer:
    return None if look.is_solved and not look.is_live else look.beyond("agreement", above=0.75)


def exploding_advantages(look: Look) -> Answer:
    best, worst = look.get("reward_best"), look.get("reward_worst")
    scale = 1.0 if best is None or worst is None else max(1.0, median(best.values) - median(worst.values))
    return look.beyond("advantage_max", above=30 * scale) or look.beyond("advantage_min", below=-30 * scale)


def lost_format(look: Look) -> Answer:
    parsed, levels = look.history.series["parsed"], look.history.levels("parsed")
    if levels is None:
        return None
    early, late, found = max(levels[0], median(fifth(parsed.values))), levels[1], trend(parsed.values)
    least = 0.2 if look.history.is_ours or early > 0.5 else max(0.4 * early, 0.05)  # A format reward's maximum may be below 1.
    is_noise = not look.is_live and len(parsed) >= 15 and found.change >= 0 and not found.has_lost
    begin = parsed.first_step(parsed.values < (early + late) / 2)
    return span(parsed, parsed.way(), begin=begin) if early - late > least and not is_noise else None


def truncated_answers(look: Look) -> Answer:
    series = look.history.series["truncated"]
    end, cut = median(series.values[-max(3, len(series) // 5) :]), series.values > 0.5
    words = f"{series.column} is {end:.0%} at the end, above half in {cut.sum()} of {len(series)} rows"
    return span(series, words, begin=series.first_step(cut)) if cut.sum() >= 10 and end > (0.8 if look.improves else 0.6) else None


def answer_length(look: Look) -> Answer:
    series = look.history.series["answer_length"]
    found = trend(series.values)
    is_off = len(series) >= 15 and found.change and found.start > 0 and not 0.3 * found.start <= found.end <= 2.5 * found.start
    return span(series, series.way()) if is_off and not look.improves else None


# --- Held-out measures and games ----------------------------------------------------------------------------------------------------------


def _got_worse(look: Look) -> Iterator[Evidence]:
    """Yield evidence of each held-out measure that is worse at the end than first or at best."""
    for name, sign in (("regret", -1), ("regret_best", -1), ("heldout_reward", 1)):
        if (series := look.get(name)) is None or len(series) < 3:
            continue
        good, part = sign * series.values, max(1, len(series) // 5)
        before, after = median(good[:part]), median(good[-part:])
        smooth = np.array([median(good[max(0, at - part // 2) : at + part // 2 + 1]) for at in range(len(good))])
        best, top = float(smooth.max()), int(np.argmax(smooth))
        least = (_WORSE if len(good) >= _FEW_MEASURES else _WORSE_OF_FEW) * max(abs(before), abs(after) if sign > 0 else 0.0, 1e-12)
        turns = best - after > max(least, (best - before) * 0.6) and len(good) >= 8 and _surely_falls(good[top:])
        if turns or (before - after > least and _surely_falls(good)):
            words = f"{series.column} goes from {abs(before):.3g}{f' by {abs(best):.3g}' if turns else ''} to {abs(after):.3g}"
            yield span(series, words, begin=float(series.at[top]))


def _surely_falls(good: Array) -> bool:
    """Return whether values fall beyond noise. Fewer than 15 must fall in rank, and the last third must lie below the first."""
    if len(good) >= 15:
        return trend(good).change < 0
    third = max(1, len(good) // 3)
    is_below = len(good) >= 3 and bool(good[-third:].max() < good[:third].min())
    return is_below and (len(good) < 5 or rank_correlation(np.arange(len(good)), good)[1] < (0.1 if len(good) == 5 else 0.05))


def reward_hacking(look: Look) -> Answer:
    if look.reward is None or look.trend is None or look.trend.change <= 0 or look.has_fallen or not (found := [*_got_worse(look)]):
        return None
    rise = span(look.reward, f"{look.reward.column} rises from {look.trend.start:.3g} to {look.trend.end:.3g}")
    return _joined([rise, *found])


def lost_strength(look: Look) -> Answer:
    found = [] if reward_hacking(look) is not None else [*_got_worse(look)]
    looks = look.history.evaluations
    if len(looks) > 1:
        games, steps, scores = (np.array([getattr(each, name) for each in looks]) for name in ("games", "step", "score"))
        mean, middle = float(games @ scores / games.sum()), float(games @ steps / games.sum())
        spread = math.sqrt(max(1e-9, mean * (1 - mean)))  # Draws make the true deviation smaller, so these tests are conservative.
        error = spread * math.sqrt(1 / games[0] + 1 / games[-1])
        slope = float(games * (steps - middle) @ (scores - mean)) / (spread * math.sqrt(max(1e-12, float(games @ (steps - middle) ** 2))))
        if scores[0] - scores[-1] > 2.6 * error and (len(looks) < 3 or slope < -2):
            first, last = (f"{scores[at]:.3f} of {games[at]:.0f} games at step {steps[at]:,.0f}" for at in (0, -1))
            found.append(Evidence((f"score {first}, {last}",), float(steps[0]), float(steps[-1])))
    return _joined(found)


def unbelievable_peak(look: Look) -> Answer:
    looks = [each for each in look.history.evaluations if 1 <= each.games < 200]  # With more games a peak by chance is negligible.
    if len(looks) < 2:
        return None
    best = max(looks, key=lambda each: each.score)
    others = [each for each in looks if each is not best]
    games = sum(each.games for each in others)
    rest = sum(each.score * each.games for each in others) / games
    pooled = (rest * games + best.score * best.games) / (games + best.games)
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / games + 1 / best.games))
    chance = min(1.0, len(looks) * math.erfc((best.score - rest) / error / math.sqrt(2)) / 2)
    tau, by_chance = rank_correlation([each.step for each in looks], [each.score for each in looks])
    if best.score - rest < 0.03 or chance < 0.05 or (tau > 0 and by_chance < 0.02):
        return None
    low, high = wilson_interval(round(best.score * best.games), round(best.games))
    words = (
        f"{best.score:.3g} of {best.games:.0f} games at step {best.step:,.0f}: 95 % interval {low:.3f} to {high:.3f}",
        f"if all {len(looks)} checkpoints were equally strong, the best would stand out as far with probability {chance:.2f}",
    )
    return Evidence(words, best.step, best.step)


def no_baseline(look: Look) -> Answer:
    first = look.history.evaluations[0].step
    begun = min((float(series.at[0]) for series in look.history.series.values()), default=0.0)  # Above 0 for a resumed run.
    return Evidence((f"the first games are of step {first:,.0f}",), first, first) if first > max(0.0, begun) else None

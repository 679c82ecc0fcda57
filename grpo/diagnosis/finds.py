"""What the checks of `checks.toml` look for. Each function has a check's name and answers: found, cannot tell, or not found."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from grpo.diagnosis.history import Series, When
from grpo.diagnosis.look import Answer, Evidence, Look, Severity, Unclear, span, tail
from grpo.diagnosis.trends import Array, median, rank_correlation, trend
from grpo.match.intervals import wilson_interval
from grpo.settings.shared import ENTROPY_CRITICAL, TERM_PAIRS

MOST_LEGAL_MOVES: Final = 218
"""In R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1 (Petrovic, 1964)."""
_MOST_NATS: Final = math.log(MOST_LEGAL_MOVES)
_KL_AT_START, _PENALTY_AT_START = 1e-3, 1e-5
"""Above rounding: a KL in nats, and one times its coefficient, which is unknown."""
_KL_OF_UPDATES, _KL_STAYS = 0.05, 0.3
"""A KL of a first row, whose updates may be in it, counts above this where it is no small fraction of the rows that follow."""
_KL_BY_SCORING: Final = 0.5
"""In nats: more before any update is another model, not another way of scoring (temperature 1.3 against 1.0 gives 0.05)."""
_FAR, _FAR_FOR_ANSWERS = 0.8, 50.0
"""Nats from the reference, of a move or token and of an answer of many tokens."""
_FEWEST_FOR_FLAT: Final = 100
"""Rows, and steps; half as many rows where the deviation of a single reward is known."""
_FLAT, _FLAT_IN_NOISE = 0.25, 1.5
"""A reward is flat where its rise is surely smaller: in deviations of a single reward, or of the rows where that is unknown."""
_NOTHING: Final = 0.03
"""The same for a rise that is certain: in deviations of a single reward."""
_MISMATCHES: Final = (("sampler_gap", 0.0, 0.05), ("sampler_prob_gap", 0.0, 0.02), ("sampler_ratio", 1.0, 0.3))
"""Quantity, its value where sampler and trainer agree, and by how much it may differ."""
_EXTREMES: Final = (
    ("kl", 100, 1.0),
    ("kl_old", 100, 1.0),
    ("gradient_norm", 500, 10.0),
    ("loss", 1_000, 10.0),
    ("policy_loss", 1_000, 10.0),
)
"""Quantity, and how many times the rows around it and how large a single row must be."""
_WORSE, _WORSE_OF_FEW, _FEW_MEASURES = 0.12, 0.3, 6
"""Fraction by which a held-out measure must get worse, and of how few measures by more."""


# --- Values and scoring -------------------------------------------------------------------------------------------------------------------


def nan_steps(look: Look) -> Answer:
    """Find NaN and infinite values, and optimiser steps that were left out because of them."""
    bad = dict(look.history.not_finite)
    words = [f"{column} is not finite at {len(steps):,} steps, first at step {steps[0]:,.0f}" for column, steps in bad.items()]
    if (skipped := look.get("skipped")) is not None and (hit := skipped.steps[skipped.values > 0]).size:
        words.append(f"{skipped.column}: optimiser steps were left out at {len(hit):,} steps, first at step {hit[0]:,.0f}")
        bad[skipped.column] = hit.tolist()
    steps = [step for found in bad.values() for step in found]
    return Evidence(words=tuple(words[:4]), begin=min(steps), end=max(steps)) if steps else None


def unlearned_language_model(look: Look) -> Answer:
    """Find a language model of which no answer can be read; whether enough can be, the gate before GRPO has judged."""
    parsed, words = look.get("parsed"), [look.history.random_weights] if look.history.random_weights else []
    if parsed is None or (parsed.found[0] >= 0.1 and not words):
        return None
    if not words and not look.is_live and len(parsed) > 2 and median(parsed.values[-max(1, len(parsed) // 5) :]) > 0.5:
        return None  # It has learnt the format.
    if not words and parsed.found[0] > 0 and (look.is_live or parsed.values.max() > 0.2):
        return None
    words.append(f"{parsed.column} is {parsed.found[0]:.3g} at step {parsed.at[0]:,.0f}")
    if (truncated := look.get("truncated")) is not None:
        words.append(f"{truncated.column} is {truncated.found[0]:.3g}")
    return Evidence(words=tuple(words), begin=float(parsed.at[0]), end=float(parsed.at[0]))


def _kl_at_start(look: Look) -> list[tuple[float, str]]:
    """Return each KL that is not 0 before the first update, with a text."""
    found = []
    is_exact = look.history.is_ours or look.history.is_of_windows or "kl_penalty" in look.history.series
    for name, limit in (("kl", _KL_AT_START), ("kl_max", _KL_AT_START), ("kl_penalty", _PENALTY_AT_START)):
        value, series = look.at_start(name), look.get(name)
        if value is None or series is None or abs(value) <= limit:
            continue
        rest = series.values[1:11]
        is_by_updates = not is_exact and len(rest) > 0 and (value <= _KL_OF_UPDATES or value < _KL_STAYS * median(rest))
        if "answer" in series.unit and not look.history.is_ours:
            is_by_updates = value < 5.0
        if float(series.at[0]) > 0 and not look.history.is_ours and name == "kl_penalty":
            continue
        if is_by_updates and value > 10 * limit and float(series.at[0]) <= 0 and len(rest) >= 5 and value > 0.8 * median(rest):
            is_by_updates = False  # Rows are counted from 0, and the KL does not grow, as by updates.
        if not is_by_updates:
            found.append(
                (value, f"{series.column} is {value:.3g} in the first row, before or at the first update (step {series.at[0]:,.0f})")
            )
    return found


def kl_at_step_zero(look: Look) -> Answer:
    """Find a KL above 0 before the first update."""
    if not (found := _kl_at_start(look)):
        return None
    step = min(float(series.at[0]) for series in look.history.series.values())
    return Evidence(words=tuple(words for _, words in found), begin=step, end=step)


def temperature_mismatch(look: Look) -> Answer:
    """Find moves that are scored by another distribution than they were sampled from."""
    if look.history.is_of_language_model or look.history.is_ours:
        return None  # More than the temperature can differ, see scored_otherwise; ours asserts ratios of 1 in every rollout.
    words = [words for value, words in _kl_at_start(look) if value < _KL_BY_SCORING]
    clipped = look.at_start("clip_fraction")
    # Updates of the first step may clip too; without a KL, only so many moves show that it was not they.
    if clipped is not None and clipped > (0.2 if words else 0.35):
        words.append(f"{look.history.series['clip_fraction'].column} is {clipped:.3g} before the first update")
    return Evidence(words=tuple(words), begin=0, end=0) if words else None


def ratio_not_one(look: Look) -> Answer:
    """Find a mean probability ratio that is not 1: over what was sampled it is 1 in expectation, whatever the updates."""
    series, first = look.get("ratio_mean"), look.at_start("ratio_mean")
    if series is None:
        return None
    end = tail(series.values)
    if first is not None and abs(first - 1) > 0.1:
        return span(series, f"{series.column} is {first:.3g} in the first row (step {series.at[0]:,.0f}); it must be 1")
    if max(abs(end - 1), abs(median(series.values) - 1)) > 0.1 + 3 * float(np.std(series.values)) / math.sqrt(len(series)):
        off = series.steps[np.abs(series.values - 1) > 0.1]
        return span(series, f"{series.column} ends at {end:.3g}, more than 0.1 from 1", begin=float(off[0]) if len(off) else None)
    return None


def scored_otherwise(look: Look) -> Answer:
    """Find sampler and trainer that give the same tokens other probabilities, or a KL that is negative beyond noise."""
    words, begin = list[str](), list[float]()
    for name, middle, limit in _MISMATCHES:
        if found := look.beyond(name, above=middle + limit, below=middle - limit):
            words += found.words
            begin.append(found.begin)
    kl = look.get("kl")
    if kl is not None and len(kl) >= 10 and not look.is_live and median(kl.values) < -0.02 and float(np.quantile(kl.values, 0.9)) < 0:
        words.append(f"{kl.column} has a median of {median(kl.values):.3g}; a KL is never negative, beyond the noise of an estimate")
        begin.append(float(kl.at[0]))
    end = max(float(series.at[-1]) for series in look.history.series.values())
    return Evidence(words=tuple(words), begin=min(begin), end=end) if words else None


def impossible_entropy(look: Look) -> Answer:
    """Find an entropy that no distribution over legal moves has."""
    series = look.history.series["entropy"]
    if look.is_of_actions:
        return None  # Of continuous actions it may be negative.
    most = math.inf if look.history.is_of_language_model else 1.1 * _MOST_NATS  # A vocabulary is larger than any number of moves.
    bad = (series.values < -0.1) | (series.values > most)
    if not bad.any():
        return None
    worst = series.values[bad][np.argmax(np.abs(series.values[bad]))]
    words = f"{series.column} is {worst:.4g}, and impossible in {bad.sum()} of {len(series)} rows"
    words += ": an entropy is not negative" if math.isinf(most) else f": ln {MOST_LEGAL_MOVES} is {_MOST_NATS:.2f}"
    return Evidence(words=(words,), begin=float(series.steps[bad][0]), end=float(series.steps[bad][-1]))


def no_gradient(look: Look) -> Answer:
    """Find a policy that no update reaches, in all rows or for a long time at the end."""
    norm, entropy = look.get("gradient_norm"), look.get("entropy")
    moved = look.get("kl_old") or look.get("kl")
    if norm is not None and len(norm) >= 5:
        still = np.abs(norm.values) <= max(1e-10, 1e-6 * median(np.abs(norm.values[:5])))
        at_end = len(norm) if still.all() else int(np.argmin(still[::-1]))
        if still.mean() > 0.5 or (at_end >= max(20, len(norm) / 5) and not look.is_solved):
            words = f"{norm.column} is 0 in {still.sum()} of {len(norm)} rows, in the last {at_end} without a break"
            return span(norm, words, begin=float(norm.steps[still][0]))
    if entropy is not None and len(entropy) >= 5 and not look.is_live:
        same = entropy.values == entropy.values[-1]
        constant = len(entropy) if same.all() else int(np.argmin(same[::-1]))
        is_held = moved is not None and norm is None and float(np.abs(moved.values).max()) <= 1e-10
        if moved is not None and is_held and float(np.ptp(entropy.values)) <= 1e-6:
            return span(moved, f"{moved.column} is 0 in all {len(moved)} rows, and {entropy.column} is constant")
        # Of a number with so many digits equal rows are no rounding.
        if constant >= max(20, len(entropy) / 5) and f"{entropy.values[-1]:.10g}" != f"{entropy.values[-1]:.3g}" and not look.is_solved:
            words = f"{entropy.column} is {entropy.values[-1]:.10g} in each of the last {constant} rows: the policy does not change"
            return span(entropy, words, begin=float(entropy.steps[-constant]))
    return None


def learning_rate_schedule(look: Look) -> Answer:
    """Find a learning rate that is 0 for most of the run though it was not at first, or that grows without end."""
    rate = look.get("learning_rate")
    if rate is None or len(rate) < 16 or rate.values.max() <= 0:
        return None
    stopped = rate.values <= 1e-3 * rate.values.max()
    if stopped[len(rate) // 2 :].all() and stopped.mean() > 0.5:
        words = f"{rate.column} is at most a thousandth of its largest value in {stopped.sum()} of {len(rate)} rows: these train nothing"
        return span(rate, words, begin=float(rate.steps[stopped][0]))
    quarters = [median(part) for part in np.array_split(rate.values, 4)]
    if sorted(quarters) == quarters and tail(rate.values) > 3 * float(rate.values[len(rate) // 2]) > 0:
        return span(rate, f"{rate.column} grows from {rate.values[len(rate) // 2]:.3g} in the middle of the run to {tail(rate.values):.3g}")
    return None


# --- Entropy ------------------------------------------------------------------------------------------------------------------------------


def entropy_collapse(look: Look) -> Answer:
    """Find an entropy that is lost, or before the first update too small to begin with."""
    entropy, history = look.history.series["entropy"], look.history
    if (levels := history.levels("entropy")) is None:
        return None
    early, late = levels
    if history.when == When.BEFORE:
        critical = history.limits.get("critical_entropy", 0.0)
        seen = f"{entropy.column} is {late:.2f} nats, critical below grpo.critical_entropy = {critical:g}"
        return span(entropy, seen) if late < critical else None
    if not history.is_ours:
        early = max(early, median(entropy.values[:3]), median(entropy.values[: max(1, len(entropy) // 5)]))
    answer = _is_collapsed(look, early, late)
    if answer is not True:
        return answer or None
    words = [entropy.way()]
    if look.is_of_moves(early) and impossible_entropy(look) is None:
        words.append(f"from about {math.exp(entropy.found[0]):.0f} effective moves, exp(entropy), to {math.exp(entropy.found[-1]):.1f}")
    loss, series = history.levels("loss"), history.series.get("loss")
    if loss is not None and series is not None and abs(loss[1]) < abs(loss[0]):
        words.append(f"{series.way()}: it vanishes with the entropy, because equal moves have no advantage")
    return span(entropy, *words, begin=entropy.first_step(entropy.values < (early + late) / 2))


def _is_collapsed(look: Look, early: float, late: float) -> bool | Unclear:
    """Return whether so little entropy is left that it was lost; a policy that gets better may be surer."""
    events = {name: steps[-1] for name, steps in look.history.events.items()}
    if not look.is_live and events.get(ENTROPY_CRITICAL, -1) > events.get("recovery_ended", -1):
        return True
    if look.is_of_moves(early):
        normalised = look.history.levels("normalised_entropy")
        if normalised is not None and normalised[1] < 0.15 and not look.improves:
            return True
        left, nats = (0.25, 0.8) if look.improves else (0.4, 1.2)
        return late < 0.15 or late < min(nats, left * early)
    if early <= 0 or (look.is_high and look.improves and not look.is_live):
        return False
    if late < (0.08 if look.improves else 0.2) * early:
        return True
    is_low = late < 0.3 * early and not look.rises and not look.is_live
    return Unclear(f"{late / early:.0%} of the entropy is left, and reward is not shown to rise") if is_low else False


def entropy_explosion(look: Look) -> Answer:
    """Find an entropy that grows towards that of a uniform policy without a better reward."""
    series, spread = look.history.series["entropy"], look.get("action_std")
    early, end = median(series.values[: max(3, len(series) // 5)]), tail(series.values)
    if len(series) < 8 or look.is_live:
        return None
    if spread is not None and tail(spread.values) > 3 * median(spread.values[: max(3, len(spread) // 5)]) and not look.improves:
        return span(spread, spread.way())
    if look.is_of_moves(early):
        found = end > early + 0.6 and end > min(1.5 * early, 3.15) and not look.improves
    elif look.is_of_actions:
        found = early > 0 and end > 2 * early and not look.improves
    else:
        factor, least = (5.0, 1.5) if look.improves else (2.5, 0.5)
        found = early > 0 and end > factor * early and end - early > least
    return span(series, series.way(), begin=series.first_step(series.values > (early + end) / 2)) if found else None


def kl_trap(look: Look) -> Answer:
    """Find a collapse in spite of an entropy coefficient that was raised."""
    coefficient, entropy, levels = (
        look.history.series["entropy_coefficient"],
        look.history.series["entropy"],
        look.history.levels("entropy"),
    )
    collapse = entropy_collapse(look)
    if levels is None or not isinstance(collapse, Evidence):
        return None
    fell = entropy.first_step(entropy.values < 0.8 * levels[0])  # A rise before that is a warm-up.
    before, after = coefficient.values[coefficient.steps <= fell][-1:], coefficient.values[coefficient.steps > fell]
    if not len(before) or not len(after) or not 0 < 3 * before[0] <= (most := float(after.max())):
        return None
    begin = float(coefficient.steps[coefficient.steps > fell][after > before[0]][0])
    words = f"{coefficient.column} was raised from {before[0]:.3g} to {most:.3g}, {most / before[0]:.0f}-fold, while entropy fell"
    return span(coefficient, words, *collapse.words[:1], begin=begin)


# --- Terms and controllers ----------------------------------------------------------------------------------------------------------------


def cancelling_terms(look: Look) -> Answer:
    """Find two terms whose gradients cancel; of other trainers by their values."""
    for one, other in TERM_PAIRS:
        rows = look.history.together(f"logit_cosine/{one}_{other}", f"logit_gradient/{one}", f"logit_gradient/{other}")
        hit = [step for step, cosine, norm_1, norm_2 in rows if cosine < -0.95 and 0 < norm_1 <= 2 * norm_2 <= 4 * norm_1]
        if len(hit) >= max(3, len(rows) / 2):
            words = f"the gradients of {one} and {other} are opposite and alike in size in {len(hit)} of {len(rows)} steps"
            return Evidence(words=(words,), begin=hit[0], end=hit[-1])
    # Exact terms do not cancel, whatever their values: a KL before any update shows that these are sampled estimates.
    found = _raised_penalty(look)
    pairs = look.history.together("kl_penalty", "entropy_bonus")
    is_opposite = sum(penalty * bonus < 0 for _, penalty, bonus in pairs) >= 0.8 * len(pairs)
    return found if is_opposite and _kl_at_start(look) else None


def _is_still(values: Array) -> bool:
    """Return whether a series hardly moves."""
    return float(np.ptp(values)) < 0.15 * abs(median(values))


def _raised_penalty(look: Look) -> Evidence | None:
    """Return evidence of an adaptive KL coefficient at its bound, by a penalty that rose and stayed while the bonus stood still."""
    penalty, bonus = look.get("kl_penalty"), look.get("entropy_bonus")
    if penalty is None or bonus is None or len(penalty) < 4 or not _is_still(bonus.values) or look.improves:
        return None
    first, rest = float(penalty.found[0]), penalty.values[1:]
    if not (first > _PENALTY_AT_START and rest.min() >= 3 * first and rest.max() <= 2 * rest.min()):
        return None
    words = f"{penalty.way()}, while {bonus.column} stayed within {bonus.values.min():.3g} and {bonus.values.max():.3g}"
    return span(penalty, f"{words}: the policy hardly moved, so that it is the KL coefficient that rose and stands at its bound")


def loss_budget(look: Look) -> Answer:
    """Find a regulariser that is nearly all of the loss."""
    for term in ("entropy", "reference_kl"):
        if found := look.beyond(f"logit_share/{term}", above=0.9):
            return found
    for name in ("entropy_bonus", "kl_penalty"):
        rows = look.history.together(name, "policy_loss")
        shares = sorted(abs(value) / (abs(value) + abs(policy)) for _, value, policy in rows if value)
        # A surrogate's value is near 0 whatever its gradient, so that it says something only where nothing is learnt.
        if shares and median(shares) > 0.9 and not look.improves:
            column = look.history.series[name].column
            return span(look.history.series[name], f"{column} is {shares[0]:.1%} to {shares[-1]:.1%} of itself and the policy term")
    return None


def saturated_controller(look: Look) -> Answer:
    """Find a controller that stands at its bound, or a coefficient that it raised without end."""
    for name in ("entropy_saturated", "kl_saturated"):
        if (share := look.get(name)) is not None and share.at[-1] - share.at[0] >= 19 and share.found[-1] > 0.9:
            return span(share, f"{share.column} is {share.found[-1]:.2f} at the end")
    is_trap = {"entropy", "entropy_coefficient"} <= look.history.series.keys() and kl_trap(look) is not None
    # Ours moves the entropy coefficient within tenfold bounds.
    for name in ("kl_coefficient",) if look.history.is_ours or is_trap else ("kl_coefficient", "entropy_coefficient"):
        if (series := look.get(name)) is not None and (words := _raised(series.values)):
            return span(series, f"{series.way()}: {words}")
    return _raised_penalty(look)


def _raised(values: Array) -> str:
    """Return how a coefficient was raised tenfold by a controller; "" if it was not, or in a straight line, as in a warm-up."""
    if len(values) < 20 or not (start := median(values[: max(3, len(values) // 20)])) > 0:
        return ""
    most = float(values.max())
    ramp = values[: int(np.argmax(values >= 0.95 * most)) + 1]
    is_straight = len(ramp) < 4 or ramp[len(ramp) // 2] > 0.35 * (ramp[0] + ramp[-1])
    if most < 10 * start or tail(values) < 5 * start or is_straight:
        return ""
    return "it stands at its bound" if _is_still(values[-len(values) // 4 :]) else "it is raised without end"


def dead_monitor(look: Look) -> Answer:
    """Find an entropy bonus that nothing has moved in a long run."""
    bonus = look.history.series["entropy_bonus"]
    if bonus.at[-1] - bonus.at[0] < 1_000 or not _is_still(bonus.values) or loss_budget(look) is None:
        return None
    return span(bonus, f"{bonus.way()}, nearly all of the loss: whatever watches entropy has not moved it once")


def high_clip_fraction(look: Look) -> Answer:
    """Find clipping of a fifth of the moves or more: of ours in any part, of others in most rows or at the end."""
    series = look.history.series["clip_fraction"]
    if look.history.is_ours or len(series) < 10:
        return look.beyond("clip_fraction", above=0.2)
    typical, end = median(series.values), median(series.values[-max(5, len(series) // 5) :])
    return look.beyond("clip_fraction", above=0.2) if typical > 0.2 or end > 0.25 else None


def cut_updates(look: Look) -> Answer:
    """Find a trust region that ends the updates of most rollouts early."""
    steps, rows = look.history.events.get("trust_region", []), look.history.num_rows
    if len(steps) < max(10, rows / 2):
        return None
    words = f"the trust region ended the updates of {len(steps):,} of {rows:,} rollouts early, first at step {steps[0]:,.0f}"
    return Evidence(words=(words,), begin=steps[0], end=steps[-1])


# --- Runs that fall apart -----------------------------------------------------------------------------------------------------------------


def diverging(look: Look) -> Answer:
    """Find a run whose KL, ratios, gradient norm or loss run away, without a better reward."""
    if look.is_live:
        return None
    found = []
    for name, limit_of in _LIMITS.items():
        series = look.get(name)
        if series is not None and len(series) >= 8 and (limit := limit_of(look, series)) is not None:
            words = f"{series.column} is {tail(series.values):.3g} at the end, beyond {limit:.3g}; at first {median(series.values[:3]):.3g}"
            found.append((words, series.first_step(np.abs(series.values) > limit), float(series.at[-1])))
    return Evidence(words=tuple(each[0] for each in found), begin=min(each[1] for each in found), end=found[0][2]) if found else None


def _kl_limit(look: Look, series: Series) -> float | None:
    values, unit = series.values, _FAR_FOR_ANSWERS if "answer" in series.unit else _FAR
    end, early = tail(values), max(median(values[:3]), median(values[: max(3, len(values) // 5)]))
    half = median(values[: len(values) // 2])
    is_quick = end > 6 * max(half, 0.0)  # A straight line from 0 has 4.
    quarters = [median(part) for part in np.array_split(values, 4)]
    allowed = 1.0 if not look.improves else 2.0 if look.history.is_of_language_model else 4.0
    limit = unit * allowed * (0.6 if is_quick else 1.0)
    if look.improves and not is_quick and look.history.is_ours:
        return None  # Ours is exact; an anchor that grows slowly with the reward is what training is.
    if end > limit and (end > 4 * early or early > limit):
        return limit
    return 10 * half if not look.improves and end > 0.2 * limit and end > 10 * half and sorted(quarters) == quarters else None


def _update_kl_limit(_: Look, series: Series) -> float | None:
    end, early = tail(np.abs(series.values)), median(np.abs(series.values[: max(3, len(series) // 5)]))
    return 0.5 if end > 0.5 else 0.1 if end > max(0.1, 10 * early) else None


def _gradient_limit(look: Look, series: Series) -> float | None:
    values = series.values
    first, end = median(values[: max(3, len(values) // 20)]), tail(values)
    silent = look.history.levels("silent_groups")
    calm = 100 if silent is not None and silent[0] > 0.5 else 30
    limit = first * (calm if look.improves and end <= 15 * median(values) else 10)
    return limit if 0 < limit < end else None


def _loss_limit(look: Look, series: Series) -> float | None:
    sizes = np.abs(series.values)
    limit, end = max(1.0, 100 * float(np.quantile(sizes[: max(3, len(sizes) // 5)], 0.9))), tail(sizes)
    return limit if end > limit and (end > 100 * median(sizes) or not look.improves) else None


def _ratio_limit(_: Look, series: Series) -> float | None:
    return 6.0 if tail(series.values) > max(6.0, 4 * median(series.values[: max(3, len(series) // 5)])) else None


_LIMITS: Final[dict[str, Callable[[Look, Series], float | None]]] = {
    "kl": _kl_limit,
    "kl_old": _update_kl_limit,
    "gradient_norm": _gradient_limit,
    "ratio_max": _ratio_limit,
    "loss": _loss_limit,
    "policy_loss": _loss_limit,
}
"""Quantity -> the limit that its end is beyond; None if it is not."""


def extreme_rows(look: Look) -> Answer:
    """Find single rows far beyond their neighbours."""
    words, steps = [], list[float]()
    for name, times, least in _EXTREMES:
        series = look.get(name)
        if series is None or len(series) < 20 or look.is_live:
            continue
        sizes = np.abs(series.values)
        limit = max(times * median(sizes), least * (100 if "answer" in series.unit else 1))
        around = {at: median(sizes[max(0, at - 7) : at + 8]) for at in np.flatnonzero(sizes > limit)[:1_000].tolist()}
        if hit := [at for at, level in around.items() if sizes[at] > times * level]:
            largest = max(hit, key=lambda at: float(sizes[at]))
            value, step = series.values[largest], series.steps[largest]
            words.append(
                f"{series.column} is {value:.3g} at step {step:,.0f}, {around[largest]:.3g} around it; so far off in {len(hit)} rows"
            )
            steps += series.steps[hit].tolist()
    return Evidence(words=tuple(words), begin=min(steps), end=max(steps)) if words else None


# --- Rewards ------------------------------------------------------------------------------------------------------------------------------


def falling_reward(look: Look) -> Answer:
    """Find a reward that falls, or that has lost half of its gain."""
    if look.reward is None or look.trend is None or look.improves or not look.has_fallen:
        return None
    found = look.trend
    blocks = look.history.blocks(look.reward)
    middle = (max(found.best, found.start) + min(found.end, found.last)) / 2
    below = blocks[:, 2] <= middle
    since = len(below) - (len(below) if below.all() else int(np.argmin(below[::-1])))
    begin = float(blocks[since, 0]) if since < len(blocks) else float(look.reward.at[-1])
    words = (
        f"{look.reward.column} is {found.start:.3g} in the first fifth of the rows, {found.best:.3g} at its best, {found.last:.3g} at last"
    )
    return span(look.reward, words, begin=begin)


def flat_reward(look: Look) -> Answer:
    """Find a reward whose rise is surely too small to matter."""
    reward, found, deviation = look.reward, look.trend, look.deviation
    if reward is None or found is None:
        return None
    if look.history.is_of_windows:
        rest = reward.values[1:]
        is_flat = len(rest) > 1 and deviation is not None and rest.max() - reward.found[0] <= 0.1 * deviation and not look.improves
        return span(reward, f"{reward.way()}, at its best {rest.max():.3g} in {len(reward)} windows") if is_flat else None
    fewest = _FEWEST_FOR_FLAT if deviation is None else _FEWEST_FOR_FLAT // 2
    if len(reward) < fewest or reward.at[-1] - reward.at[0] < _FEWEST_FOR_FLAT - 1:
        return Unclear(f"{len(reward)} rows; at least {fewest} over {_FEWEST_FOR_FLAT} steps are needed")
    least, nothing = (_FLAT_IN_NOISE * found.noise, -math.inf) if deviation is None else (_FLAT * deviation, _NOTHING * deviation)
    if "gain" in look.history.series and deviation is not None:
        least = nothing = _NOTHING * deviation / 3  # A gain has no noise of states and their values.
    is_rise = look.regret_falls or look.heldout_rises or (look.rises and found.most > nothing)
    if look.is_solved or is_rise or look.has_fallen or no_gradient(look) is not None:
        return None
    if found.most > least:
        return Unclear(f"{reward.column} may have risen by up to {found.most:.3g} in {len(reward)} rows")
    words = f"{reward.way()}; by a straight line through {len(reward)} rows it rises by at most {found.most:.2g}"
    size = f"the rows is {found.noise:.2g}" if deviation is None else f"a single reward is {deviation:.2g}"
    return span(reward, f"{words}, where the deviation of {size}")


def silent_groups(look: Look) -> Answer:
    """Find groups with equal rewards."""
    if look.is_solved and not look.is_live:
        return None
    least = 0.5 if look.history.is_ours or not look.rises else 0.8
    found = look.beyond("silent_groups", above=least, at_end=not look.history.is_ours)
    if found is not None:
        is_critical = look.beyond("silent_groups", above=0.95) is not None
        return replace(found, severity=Severity.CRITICAL) if is_critical else found
    for name in ("group_std", "reward_std"):
        series = look.get(name)
        if series is not None and not look.is_live and len(series) >= 5 and median(series.values[-max(3, len(series) // 5) :]) < 1e-6:
            return replace(span(series, series.way()), severity=Severity.CRITICAL)
    for low, high in (("reward_worst", "reward_best"), ("advantage_min", "advantage_max")):
        rows = look.history.together(low, high)
        same = [step for step, least, most in rows if most - least <= 1e-6 * max(abs(least), abs(most))]
        if len(rows) >= 10 and len(same) > len(rows) / 2:
            names = [look.history.series[name].column for name in (low, high)]
            words = f"{names[0]} and {names[1]} are equal in {len(same)} of {len(rows)} rows"
            return Evidence(words=(words,), begin=same[0], end=same[-1], severity=Severity.CRITICAL)
    return None


def group_agreement(look: Look) -> Answer:
    """Find groups whose moves are nearly all the same."""
    return None if look.is_solved and not look.is_live else look.beyond("agreement", above=0.75)


def stale_policy(look: Look) -> Answer:
    """Find ratios that spread so far that few samples make up the gradient."""
    series = look.history.series["effective_sample_size"]
    return look.beyond("effective_sample_size", below=0.7) if median(series.values) < 0.7 else None


def exploding_advantages(look: Look) -> Answer:
    """Find advantages that are far larger than differences of rewards."""
    best, worst = look.get("reward_best"), look.get("reward_worst")
    scale = 1.0 if best is None or worst is None else max(1.0, median(best.values) - median(worst.values))
    return look.beyond("advantage_max", above=30 * scale) or look.beyond("advantage_min", below=-30 * scale)


def lost_format(look: Look) -> Answer:
    """Find a language model whose answers can be read less and less."""
    parsed, levels = look.history.series["parsed"], look.history.levels("parsed")
    if levels is None:
        return None
    early = max(levels[0], median(parsed.values[: max(1, len(parsed) // 5)]))
    least = 0.2 if look.history.is_ours or early > 0.5 else max(0.4 * early, 0.05)  # A format reward may be worth less than 1.
    if early - levels[1] <= least or (
        not look.is_live and len(parsed) >= 15 and trend(parsed.values).change >= 0 and not trend(parsed.values).has_lost
    ):
        return None
    return span(parsed, parsed.way(), begin=parsed.first_step(parsed.values < (early + levels[1]) / 2))


def truncated_answers(look: Look) -> Answer:
    """Find answers most of which are cut at their largest length."""
    series = look.history.series["truncated"]
    if look.is_live or len(series) < 5:
        return None
    end, cut = median(series.values[-max(3, len(series) // 5) :]), series.values > 0.5
    if cut.sum() < 10 or end <= (0.8 if look.improves else 0.6):
        return None
    return span(
        series, f"{series.column} is {end:.0%} at the end, above half in {cut.sum()} of {len(series)} rows", begin=series.first_step(cut)
    )


def answer_length(look: Look) -> Answer:
    """Find answers whose length runs away or collapses without a better reward."""
    series = look.history.series["answer_length"]
    if look.improves or len(series) < 15:
        return None
    found = trend(series.values)
    is_off = found.start > 0 and not 0.3 * found.start <= found.end <= 2.5 * found.start
    return span(series, series.way()) if is_off and found.change else None


# --- Held-out measures and games ----------------------------------------------------------------------------------------------------------


def _got_worse(look: Look) -> Iterator[Evidence]:
    """Yield evidence of each held-out measure that got worse, compared with its beginning or its best part."""
    for name, sign in (("regret", -1), ("regret_best", -1), ("heldout_reward", 1)):
        series = look.get(name)
        if series is None or len(series) < 3 or look.is_live:
            continue
        good, part = sign * series.values, max(1, len(series) // 5)
        before, after = median(good[:part]), median(good[-part:])
        smooth = np.array([median(good[max(0, at - part // 2) : at + part // 2 + 1]) for at in range(len(good))])
        best = float(smooth.max())
        least = (_WORSE if len(good) >= _FEW_MEASURES else _WORSE_OF_FEW) * max(abs(before), abs(after) if sign > 0 else 0.0, 1e-12)
        is_sure, is_turned = _surely_falls(good), best - after > max(least, (best - before) * 0.6)
        falls = before - after > least and is_sure
        turns = is_turned and len(good) >= 8 and _surely_falls(good[int(np.argmax(smooth)) :])
        if falls or turns:
            words = f"{series.column} goes from {abs(before):.3g}{f' by {abs(best):.3g}' if turns else ''} to {abs(after):.3g}"
            yield span(series, words, begin=float(series.at[int(np.argmax(smooth))]))


def _surely_falls(good: Array) -> bool:
    """Return whether a series of measures falls beyond noise; of a few, all of the last third must be below all of the first."""
    if len(good) >= 15:
        return trend(good).change < 0
    third = max(1, len(good) // 3)
    if len(good) < 3 or good[-third:].max() >= good[:third].min():
        return False
    return len(good) < 5 or rank_correlation(np.arange(len(good)), good)[1] < 0.1


def reward_hacking(look: Look) -> Answer:
    """Find a reward that rises while a held-out measure gets worse."""
    rises = look.trend is not None and look.trend.change > 0 and not look.has_fallen
    found = list(_got_worse(look)) if rises else []
    if not found or look.reward is None or look.trend is None:
        return None
    words = f"{look.reward.column} rises from {look.trend.start:.3g} to {look.trend.end:.3g}"
    return Evidence(
        words=(words, *(words for each in found for words in each.words)), begin=min(each.begin for each in found), end=found[0].end
    )


def lost_strength(look: Look) -> Answer:
    """Find a policy that plays worse than before, by games or by a held-out measure."""
    found = [] if reward_hacking(look) is not None else list(_got_worse(look))
    looks = look.history.evaluations
    if len(looks) > 1:
        games, steps, scores = (np.array([getattr(each, name) for each in looks]) for name in ("games", "step", "score"))
        mean, middle = float(games @ scores / games.sum()), float(games @ steps / games.sum())
        spread = math.sqrt(max(1e-9, mean * (1 - mean)))  # Draws make the true variance smaller, so that these tests are conservative.
        error = spread * math.sqrt(1 / games[0] + 1 / games[-1])
        slope = float(games * (steps - middle) @ (scores - mean)) / (spread * math.sqrt(max(1e-12, float(games @ (steps - middle) ** 2))))
        if scores[0] - scores[-1] > 2.6 * error and (len(looks) < 3 or slope < -2):
            first, last = (f"{scores[at]:.3f} of {games[at]:.0f} games at step {steps[at]:,.0f}" for at in (0, -1))
            words = f"score {first}, {last}"
            found.append(Evidence(words=(words,), begin=float(steps[0]), end=float(steps[-1])))
    if not found:
        return None
    return Evidence(words=tuple(words for each in found for words in each.words), begin=found[0].begin, end=found[-1].end)


def unbelievable_peak(look: Look) -> Answer:
    """Find a best evaluation of few games that chance explains, where scores do not rise as a whole."""
    looks = [each for each in look.history.evaluations if 1 <= each.games < 200]  # Of more, a best one that chance explains is no peak.
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
    return Evidence(words=words, begin=best.step, end=best.step)


def no_baseline(look: Look) -> Answer:
    """Find games whose first are of a policy that has been trained already."""
    looks = look.history.evaluations
    begun = min((float(series.at[0]) for series in look.history.series.values()), default=0.0)  # A resumed run begins there.
    if not looks or (first := looks[0]).step <= max(0.0, begun):
        return None
    return Evidence(words=(f"the first games are of step {first.step:,.0f}",), begin=first.step, end=first.step)

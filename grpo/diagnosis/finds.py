"""What the checks look for in a history."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from grpo.diagnosis.history import History, Series, When
from grpo.match.intervals import wilson_interval
from grpo.settings.shared import ENTROPY_CRITICAL, TERM_PAIRS

MOST_LEGAL_MOVES: Final = 218
"""In R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1 (Petrovic, 1964)."""
_NOTED, _UNNOTED = 0.15, 0.1
"""In standard deviations of a single reward: a change of the mean that counts, and a rise that nobody would see."""
_KL_AT_START, _PENALTY_AT_START = 1e-3, 1e-5
"""Above rounding: a KL in nats, and one times its coefficient, which is unknown."""
_KL_BY_SCORING: Final = 0.5
"""In nats: more before any update is another model, not another way of scoring (temperature 1.3 against 1.0 gives 0.05)."""
_FAR, _FAR_FOR_ANSWERS = 0.8, 50.0
"""Nats from the reference, of a move or token and of an answer of many tokens."""


class Severity(StrEnum):
    """What a finding means for the run."""

    WARNING = "warning"
    """Something does not serve its purpose."""
    CRITICAL = "critical"
    """The run's measurements or its policy are not reliable; before the first update: it is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a check has seen."""

    words: tuple[str, ...]
    """With numbers and steps."""
    begin: float
    """The step at which it begins."""
    end: float
    severity: Severity | None = None
    """Where it is not that of the table."""


# --- What a series shows ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trend:
    """How the level of a noisy series changes."""

    before: float
    after: float
    best: float
    change: float
    """From the beginning, or its first rows, to the end; 0 where it may be noise."""
    has_lost: bool
    """Whether it is more than noise that the end is below the best part."""


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Return Kendall's tau, and the probability of one as far from 0 by chance."""
    from scipy.stats import kendalltau  # Here, for it takes a second to import.

    found = kendalltau(first, second)
    return float(found.statistic), float(found.pvalue)


def _trend(series: Series) -> Trend:
    number, parts = len(series.values), np.array_split(np.array(series.values), min(5, len(series.values)))
    levels = [float(np.median(part)) for part in parts]
    before, after, best, size = levels[0], levels[-1], max(levels), len(parts[-1])
    if size < 6:  # Too few rows to measure their noise: they are ranked.
        chance = _rank_correlation(range(number), series.values)[1] if number > 3 else 1.0
        return Trend(before, after, best, change=after - before if chance < (0.02 if number < 10 else 0.005) else 0.0, has_lost=False)
    rests = [part - np.polyval(np.polyfit(range(len(part)), part, 1), range(len(part))) for part in parts]
    square = sum(float(rest @ rest) for rest in rests)
    # With a lag-one autocorrelation of r, as of running means, n rows are worth n (1 - r) / (1 + r). Short parts show too little of it.
    alike = sum(float(rest[1:] @ rest[:-1]) for rest in rests) / square if square else 0.0
    alike = min(0.95, max(0.0, alike + (1 + 4 * alike) / size))
    noise = math.sqrt(square / (number - 2 * len(parts)))
    error = 1.2533 * noise * math.sqrt(2 / size * (1 + alike) / (1 - alike))  # Of the difference of two medians.
    # What changes quickly is over before the first part is.
    changes = ((after - before, 3.5 * error), (after - statistics.median(series.values[:3]), 3 * noise))
    change = max((each for each, least in changes if abs(each) > least), key=abs, default=0.0)
    return Trend(before, after, best, change=change, has_lost=best - after > 4.5 * error)


def _reward(history: History) -> Series | None:
    """Return the reward; of our networks the gain over the reference on equal states, which new states do not move."""
    return history.series.get("gain") or history.series.get("reward")


def _deviation(history: History) -> float | None:
    """Return the standard deviation of single rewards, from the history or a percentile of them."""
    if (levels := history.levels("reward_std")) is not None:
        return levels[0] or None
    pairs = history.together("reward", "reward_p90")
    # 1.2816: the normal distribution's 90th percentile.
    return statistics.median(upper - mean for _, mean, upper in pairs) / 1.2816 if pairs else None


def _of_note(history: History, trend: Trend) -> float:
    """Return the smallest change of the reward that counts: a twentieth where the deviation of single rewards is unknown."""
    deviation = _deviation(history)
    least = max(abs(trend.before), abs(trend.after)) / 20 if deviation is None else _NOTED * deviation
    return least / 10 if "gain" in history.series else least  # A gain has no noise of states and their values.


def _improves(history: History) -> bool:
    """Return whether reward rises for certain, or a regret falls; while a run goes on, it has the benefit of the doubt."""
    if history.when == When.DURING:
        return True
    if (reward := _reward(history)) is not None:
        trend = _trend(reward)
        if trend.change > _of_note(history, trend) and not _has_fallen(history, trend):
            return True
    found = [_trend(history.series[name]) for name in ("training_regret", "regret", "regret_best") if name in history.series]
    return any(-trend.change > 0.15 * (trend.after - trend.change) for trend in found)


def _has_fallen(history: History, trend: Trend) -> bool:
    """Return whether a reward fell for certain, a gain below 0, or it lost half of what it had gained."""
    least = _of_note(history, trend)
    falls = -trend.change > least and (trend.after < 0 or "gain" not in history.series)
    return falls or (trend.has_lost and trend.best - trend.after > max(least, (trend.best - trend.before) / 2))


def _beyond(history: History, quantity: str, *, above: float = math.inf, below: float = -math.inf) -> Evidence | None:
    """Return evidence of a quantity whose level is beyond a limit in a part of the rows."""
    series = history.series.get(quantity)
    if series is None or not (bad := [block for block in history.blocks(series) if block[2] > above or block[2] < below]):
        return None
    worst = max((median for _, _, median in bad), key=lambda median: max(median - above, below - median))
    words = f"{series.column} is {worst:.3g} between steps {bad[0][0]:,.0f} and {bad[-1][1]:,.0f}"
    return Evidence(words=(words,), begin=bad[0][0], end=bad[-1][1])


def level(quantity: str, *, above: float = math.inf, below: float = -math.inf) -> Callable[[History], Evidence | None]:
    """Return a check of a quantity's level."""
    return lambda history: _beyond(history, quantity, above=above, below=below)


def _span(series: Series, *words: str, begin: float | None = None) -> Evidence:
    """Return evidence from a step, or the beginning of a series, to its end."""
    return Evidence(words=words, begin=series.steps[0] if begin is None else begin, end=series.steps[-1])


def _is_still(series: Series) -> bool:
    """Return whether a series hardly moves."""
    return max(series.values) - min(series.values) < 0.15 * abs(statistics.median(series.values))


# --- Values and scoring -------------------------------------------------------------------------------------------------------------------


def nan_steps(history: History) -> Evidence | None:
    """Find NaN and infinite values, and optimiser steps that were left out because of them."""
    words = [
        f"{column} is not finite at {len(steps):,} steps, first at step {steps[0]:,.0f}" for column, steps in history.not_finite.items()
    ]
    hit = [step for steps in history.not_finite.values() for step in steps]
    if (skipped := history.series.get("skipped")) is not None:
        bad = [step for step, value in zip(skipped.steps, skipped.values, strict=True) if value > 0]
        words += [f"{skipped.column}: optimiser steps were left out at {len(bad):,} steps, first at step {bad[0]:,.0f}"] if bad else []
        hit += bad
    return Evidence(words=tuple(words[:4]), begin=min(hit), end=max(hit)) if hit else None


def _kl_at_start(history: History) -> list[tuple[float, str]]:
    """Return each KL that is not 0 before the first update, with a text."""
    limits = {"kl": _KL_AT_START, "kl_max": _KL_AT_START, "kl_penalty": _PENALTY_AT_START}
    found = {name: value for name, limit in limits.items() if (value := history.at_start(name)) is not None and not abs(value) <= limit}
    return [(value, f"{history.series[name].column} is {value:.3g} before the first update") for name, value in found.items()]


def kl_at_step_zero(history: History) -> Evidence | None:
    """Find a KL above 0 before the first update."""
    if not (found := _kl_at_start(history)):
        return None
    step = min(series.steps[0] for series in history.series.values())
    return Evidence(words=tuple(words for _, words in found), begin=step, end=step)


def temperature_mismatch(history: History) -> Evidence | None:
    """Find moves that are scored by another distribution than they were sampled from."""
    if history.is_of_language_model or history.is_ours:
        return None  # More than the temperature can differ, see scored_otherwise; ours asserts ratios of 1 in every rollout.
    words = [words for value, words in _kl_at_start(history) if value < _KL_BY_SCORING]
    clipped = history.at_start("clip_fraction")
    # Updates of the first step may clip too; without a KL, only so many moves show that it was not they.
    if clipped is not None and clipped > (0.2 if words else 0.35):
        words.append(f"{history.series['clip_fraction'].column} is {clipped:.3g} before the first update")
    return Evidence(words=tuple(words), begin=0, end=0) if words else None


def impossible_entropy(history: History) -> Evidence | None:
    """Find an entropy that no distribution over legal moves has."""
    series, most = history.series["entropy"], math.log(MOST_LEGAL_MOVES)
    rows = zip(series.steps, series.values, strict=True)
    bad = [(step, value) for step, value in rows if not -0.1 <= value <= 1.1 * most]
    if not bad or history.is_of_language_model:  # A vocabulary is larger than any number of moves.
        return None
    words = f"{series.column} is {max(bad, key=lambda row: abs(row[1]))[1]:.4g}, and impossible in {len(bad)} of {len(series.values)} rows"
    return Evidence(words=(f"{words}: ln {MOST_LEGAL_MOVES} is {most:.2f}",), begin=bad[0][0], end=bad[-1][0])


def no_gradient(history: History) -> Evidence | None:
    """Find a policy that no update reaches."""
    found = history.series
    moved = found.get("gradient_norm") or found.get("kl") or found.get("kl_old")
    if moved is None or len(moved.values) < 5 or max(map(abs, moved.values)) > 1e-10:
        return None
    words = f"{moved.column} is 0 in all {len(moved.values)} rows"
    if "gradient_norm" not in found:  # One update a rollout leaves a KL of 0 too, but not one entropy.
        if "entropy" not in found or max(found["entropy"].values) - min(found["entropy"].values) > 1e-6:
            return None
        words += f", and {found['entropy'].column} is constant"
    return _span(moved, words)


# --- Entropy ------------------------------------------------------------------------------------------------------------------------------


def entropy_collapse(history: History) -> Evidence | None:
    """Find an entropy that is lost, or before the first update too small to begin with."""
    entropy, normalised = history.series["entropy"], history.levels("normalised_entropy")
    if (levels := history.levels("entropy")) is None:
        return None
    early, late = levels
    if history.when == When.BEFORE:
        critical = history.limits.get("critical_entropy", 0.0)
        seen = f"{entropy.column} is {late:.2f} nats, critical below grpo.critical_entropy = {critical:g}"
        return _span(entropy, seen) if late < critical else None
    if not _is_collapsed(history, early, late, math.inf if normalised is None else normalised[1]):
        return None
    begin = entropy.first_step(below=(early + late) / 2)
    words = [entropy.way()]
    if _is_of_moves(history, early) and impossible_entropy(history) is None:
        words.append(f"from about {math.exp(entropy.values[0]):.0f} effective moves, exp(entropy), to {math.exp(entropy.values[-1]):.1f}")
    loss = history.levels("loss")
    if loss is not None and abs(loss[1]) < abs(loss[0]):
        words.append(f"{history.series['loss'].way()}: it vanishes with the entropy, because equal moves have no advantage")
    return _span(entropy, *words, begin=begin)


def _is_of_moves(history: History, early: float) -> bool:
    """Return whether an entropy is over chess moves, so that nats say something; that of tokens usually begins below 1.2."""
    return not history.is_of_language_model and (history.is_ours or early >= 1.2)


def _is_collapsed(history: History, early: float, late: float, normalised: float) -> bool:
    """Return whether so little entropy is left that it was lost; a policy that gets better may be surer."""
    if history.when == When.END and history.events.get(ENTROPY_CRITICAL, -1) > history.events.get("recovery_ended", -1):
        return True
    improves = _improves(history)
    if not _is_of_moves(history, early):
        return late < (0.08 if improves else 0.2) * early
    left, nats = (0.25, 0.8) if improves else (0.4, 1.2)
    return late < 0.15 or late < min(nats, left * early) or (normalised < 0.15 and not improves)


def kl_trap(history: History) -> Evidence | None:
    """Find a collapse in spite of an entropy coefficient that was raised."""
    coefficient, entropy, levels = history.series["entropy_coefficient"], history.series["entropy"], history.levels("entropy")
    if levels is None or (collapse := entropy_collapse(history)) is None:
        return None
    fell = entropy.first_step(below=0.8 * levels[0])  # A rise before that is a warm-up.
    rows = list(zip(coefficient.steps, coefficient.values, strict=True))
    before = [value for step, value in rows if step <= fell][-1:]
    raised = [(step, value) for step, value in rows if step > fell and before and value > before[0]]
    if not raised or not 0 < 3 * before[0] <= (most := max(value for _, value in raised)):
        return None
    words = f"{coefficient.column} was raised from {before[0]:.3g} to {most:.3g}, {most / before[0]:.0f}-fold, while entropy fell"
    return _span(coefficient, words, *collapse.words[:1], begin=raised[0][0])


# --- Terms and controllers ----------------------------------------------------------------------------------------------------------------


def cancelling_terms(history: History) -> Evidence | None:
    """Find two terms whose gradients cancel; of other trainers by their values."""
    for one, other in TERM_PAIRS:
        rows = history.together(f"logit_cosine/{one}_{other}", f"logit_gradient/{one}", f"logit_gradient/{other}")
        hit = [step for step, cosine, norm_1, norm_2 in rows if cosine < -0.95 and 0 < norm_1 <= 2 * norm_2 <= 4 * norm_1]
        if len(hit) >= max(3, len(rows) / 2):
            words = f"the gradients of {one} and {other} are opposite and alike in size in {len(hit)} of {len(rows)} steps"
            return Evidence(words=(words,), begin=hit[0], end=hit[-1])
    # Exact terms do not cancel, whatever their values: a KL before any update shows that these are sampled estimates.
    found = _raised_penalty(history)
    pairs = history.together("kl_penalty", "entropy_bonus")
    is_opposite = sum(penalty * bonus < 0 for _, penalty, bonus in pairs) >= 0.8 * len(pairs)
    return found if is_opposite and _kl_at_start(history) else None


def _raised_penalty(history: History) -> Evidence | None:
    """Return evidence of an adaptive KL coefficient at its bound, by a penalty that rose and stayed while the bonus stood still."""
    penalty, bonus = history.series.get("kl_penalty"), history.series.get("entropy_bonus")
    if penalty is None or bonus is None or len(penalty.values) < 4 or not _is_still(bonus) or _improves(history):
        return None
    first, *rest = penalty.values
    if not (first > _PENALTY_AT_START and min(rest) >= 3 * first and max(rest) <= 2 * min(rest)):
        return None
    words = f"{penalty.way()}, while {bonus.column} stayed within {min(bonus.values):.3g} and {max(bonus.values):.3g}"
    return _span(penalty, f"{words}: the policy hardly moved, so that it is the KL coefficient that rose and stands at its bound")


def loss_budget(history: History) -> Evidence | None:
    """Find a regulariser that is nearly all of the loss."""
    for term in ("entropy", "reference_kl"):
        if found := _beyond(history, f"logit_share/{term}", above=0.9):
            return found
    for name in ("entropy_bonus", "kl_penalty"):
        rows = history.together(name, "policy_loss")
        shares = sorted(abs(value) / (abs(value) + abs(policy)) for _, value, policy in rows if value)
        # A surrogate's value is near 0 whatever its gradient, so that it says something only where nothing is learnt.
        if shares and statistics.median(shares) > 0.9 and not _improves(history):
            column = history.series[name].column
            return _span(history.series[name], f"{column} is {shares[0]:.1%} to {shares[-1]:.1%} of itself and the policy term")
    return None


def saturated_controller(history: History) -> Evidence | None:
    """Find a controller that stands at its bound."""
    for name in ("entropy_saturated", "kl_saturated"):
        if (share := history.series.get(name)) is not None and share.steps[-1] - share.steps[0] >= 19 and share.values[-1] > 0.9:
            return _span(share, f"{share.column} is {share.values[-1]:.2f} at the end")
    return _raised_penalty(history)


def dead_monitor(history: History) -> Evidence | None:
    """Find an entropy bonus that nothing has moved in a long run."""
    bonus = history.series["entropy_bonus"]
    if bonus.steps[-1] - bonus.steps[0] < 1_000 or not _is_still(bonus) or loss_budget(history) is None:
        return None
    return _span(bonus, f"{bonus.way()}, nearly all of the loss: whatever watches entropy has not moved it once")


# --- Rewards, groups and answers ----------------------------------------------------------------------------------------------------------


def diverging(history: History) -> Evidence | None:
    """Find a policy that is far from its reference and no better."""
    levels = history.levels("kl")
    limit = _FAR_FOR_ANSWERS if history.series["kl"].column == "language/kl_reference" else _FAR
    is_far = levels is not None and levels[1] > max(limit, 4 * levels[0])
    return _beyond(history, "kl", above=limit) if is_far and not _improves(history) else None


def falling_reward(history: History) -> Evidence | None:
    """Find a reward that falls, or that has lost half of its gain."""
    reward = _reward(history)
    if reward is None or _improves(history) or not _has_fallen(history, trend := _trend(reward)):
        return None
    blocks = history.blocks(reward)
    middle = (max(trend.best, trend.before) + trend.after) / 2
    above = [end for _, end, level in blocks if level > middle]
    begin = next((first for first, _, _ in blocks if not above or first > above[-1]), reward.steps[-1])
    words = f"{reward.column} is {trend.before:.3g} in the first fifth of the rows, {trend.best:.3g} at its best, {trend.after:.3g} at last"
    return _span(reward, words, begin=begin)


def flat_reward(history: History) -> Evidence | None:
    """Find a reward that does not rise."""
    reward, deviation = _reward(history), _deviation(history)
    blocks = [] if reward is None else [level for _, _, level in history.blocks(reward)]
    if reward is None or deviation is None or reward.steps[-1] - reward.steps[0] < 100 or len(blocks) < 3:
        return None
    first, *rest = blocks
    if _improves(history) or falling_reward(history) or max(rest) - first > _UNNOTED * deviation:
        return None
    words = f"{reward.way()}, at its best {max(rest):.3g}, where the deviation of a single reward is {deviation:.2g}"
    return _span(reward, words)


def silent_groups(history: History) -> Evidence | None:
    """Find groups with equal rewards."""
    found = _beyond(history, "silent_groups", above=0.5)
    is_critical = _beyond(history, "silent_groups", above=0.95) is not None
    return replace(found, severity=Severity.CRITICAL) if found and is_critical else found


def unlearned_language_model(history: History) -> Evidence | None:
    """Find a language model of which no answer can be read; whether enough can be, the gate before GRPO has judged."""
    parsed = history.series["parsed"]
    if parsed.values[0]:
        return None
    words = [f"{parsed.column} is 0 at step {parsed.steps[0]:,.0f}"]
    if (truncated := history.series.get("truncated")) is not None:
        words.append(f"{truncated.column} is {truncated.values[0]:.3g}")
    return Evidence(words=tuple(words), begin=parsed.steps[0], end=parsed.steps[0])


def lost_format(history: History) -> Evidence | None:
    """Find a language model whose answers can be read less and less."""
    parsed, levels = history.series["parsed"], history.levels("parsed")
    if levels is None or levels[0] - levels[1] <= 0.2:
        return None
    return _span(parsed, parsed.way(), begin=parsed.first_step(below=(levels[0] + levels[1]) / 2))


# --- Games --------------------------------------------------------------------------------------------------------------------------------


def unbelievable_peak(history: History) -> Evidence | None:
    """Find a best evaluation of few games that chance explains, where scores do not rise as a whole."""
    looks = [each for each in history.evaluations if 1 <= each.games < 200]  # Of more, a best one that chance explains is no peak.
    if len(looks) < 2:
        return None
    best = max(looks, key=lambda each: each.score)
    others = [each for each in looks if each is not best]
    games = sum(each.games for each in others)
    rest = sum(each.score * each.games for each in others) / games
    pooled = (rest * games + best.score * best.games) / (games + best.games)
    # Draws make the true variance smaller, so that this test is conservative.
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * (1 / games + 1 / best.games))
    chance = min(1.0, len(looks) * math.erfc((best.score - rest) / error / math.sqrt(2)) / 2)
    tau, by_chance = _rank_correlation([each.step for each in looks], [each.score for each in looks])
    if best.score - rest < 0.03 or chance < 0.05 or (tau > 0 and by_chance < 0.02):
        return None
    low, high = wilson_interval(round(best.score * best.games), round(best.games))
    words = (
        f"{best.score:.3g} of {best.games:.0f} games at step {best.step:,.0f}: 95 % interval {low:.3f} to {high:.3f}",
        f"if all {len(looks)} checkpoints were equally strong, the best would stand out as far with probability {chance:.2f}",
    )
    return Evidence(words=words, begin=best.step, end=best.step)


def no_baseline(history: History) -> Evidence | None:
    """Find games whose first are of a policy that has been trained already."""
    begun = min((series.steps[0] for series in history.series.values()), default=0.0)  # A resumed run begins there.
    if not history.evaluations or (first := history.evaluations[0]).step <= max(0.0, begun):
        return None
    return Evidence(words=(f"the first games are of step {first.step:,.0f}",), begin=first.step, end=first.step)

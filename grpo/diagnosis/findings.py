"""Table of all findings of the diagnosis: name, severity, meaning, detection rule, cause and remedy; source of `docs/diagnosis.md`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class Severity(StrEnum):
    """Severity of a finding."""

    NOTE = "note"
    """Worth knowing; the run is still healthy."""
    WARNING = "warning"
    """Something does not serve its purpose."""
    CRITICAL = "critical"
    """The run's measurements or its policy are not reliable."""


DIAGNOSIS_PAGE: Final = "docs/diagnosis.md"
HEALTHY: Final = "healthy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One finding in a run's history."""

    name: str
    severity: Severity
    evidence: tuple[str, ...]
    """Evidence with numbers and steps."""
    cause: str
    remedy: str
    """The remedy, with the setting to change."""
    first_step: int | None
    """First step of the evidence; None if it has no steps."""
    last_step: int | None

    @property
    def page(self) -> str:
        """Page and anchor that explain the finding."""
        return f"{DIAGNOSIS_PAGE}#{self.name}"

    def facts(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self) | {"severity": self.severity.value, "evidence": list(self.evidence), "page": self.page}

    @property
    def line(self) -> str:
        """Return the finding as one line: name, evidence, remedy."""
        return f"{self.name}: {'; '.join(self.evidence)}. {self.remedy}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row of the table of findings."""

    severity: Severity
    meaning: str
    """One line."""
    seen: str
    """The detection rule with its thresholds."""
    cause: str
    remedy: str
    ours: str = ""
    """The cause in a run of our own trainer, where entropy and KL are exact, if it differs."""
    leads_to: tuple[str, ...] = ()
    """Findings that may follow from this one directly, because their causes name what this one finds."""


_CRITICAL, _WARNING, _NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE

ENTRIES: Final[Mapping[str, Entry]] = {
    "nan_steps": Entry(
        severity=_CRITICAL,
        meaning="Loss, gradient or reward was NaN or infinite.",
        seen="A cell of a known column, or of any loss or gradient, is inf; or is nan where it does not mean that nothing was recorded"
        " (before a column begins, or in the gaps of a column that is logged at intervals); or `skipped` counts such steps.",
        cause="An infinite log-probability (0 * -inf over masked moves or tokens), a reward that could not be computed, or weights that a"
        " too large step has already damaged. Replacing the value by 0 would hide the problem and train on nothing.",
        remedy="Skip the step and leave weights and optimiser unchanged, cut the learning rate, and stop after a few skips in a row. Find"
        " the first such cell: that is where the value arose.",
    ),
    "unlearned_language_model": Entry(
        severity=_CRITICAL,
        meaning="The language model cannot write a valid answer yet, so that GRPO has nothing to select.",
        seen="Fewer than a tenth of the first answers were parsed and fewer than half of the last, or the table says that the"
        " weights are random.",
        cause="Random or wrong weights write garbage. Every answer of a group then has the same worst reward, so that all advantages are"
        " 0, and NaN if they are divided by the group's standard deviation.",
        remedy="Load the pretrained weights and refuse to start without them; clone behaviour first; grade the reward, so that a nearly"
        " right answer is worth more than garbage.",
        leads_to=("nan_steps", "silent_groups"),
    ),
    "lost_format": Entry(
        severity=_CRITICAL,
        meaning="The language model loses the answer format: fewer and fewer of its answers can be parsed.",
        seen="The fraction of parsed answers is lower at the end than at the beginning by more than 0.2.",
        cause="The policy has left the reference, which knew the format, for something with a higher reward, or because of too large"
        " steps. If truncated answers are left out of the loss, nothing trains the model to end an answer.",
        remedy="Go back to a checkpoint from before; use a larger `grpo.kl_coefficient`, or a larger weight of structure and parsing in"
        " `[language.rewards]`.",
    ),
    "impossible_entropy": Entry(
        severity=_CRITICAL,
        meaning="The logged entropy is larger than any entropy over legal moves, or negative.",
        seen="A value more than a tenth above ln 218 = 5.38 nats (no position has more than 218 legal moves), or more than a twentieth of"
        " the rows above it, above 1.25 times the mean ln(legal moves) of their steps, or below 0. Not for language models.",
        cause="It is -mean(log p_new(sampled move)), a cross-entropy: equal to the entropy only while the policy is the one that was"
        " sampled. On a stale batch it grows without bound while the true entropy falls to 0; as a bonus, a larger coefficient"
        " causes the spikes.",
        remedy="Compute entropy exactly, -sum p ln p over the legal moves, for logging, for the bonus and for monitors.",
        ours="Our entropy is exact, so the history is damaged or mixed up, or the code has a bug.",
        leads_to=("kl_trap", "entropy_collapse"),
    ),
    "kl_trap": Entry(
        severity=_CRITICAL,
        meaning="The entropy bonus was raised repeatedly, and entropy collapsed anyway.",
        seen="Entropy collapsed while its coefficient rose at least threefold from its value when entropy began to fall.",
        cause="The bonus was the sampled -mean(log p), which on-policy has zero expected gradient and off-policy diverges; and a KL term"
        " to the old policy, estimated by mean(log old - log new), is the same vector with the opposite sign. The field notes blamed"
        " that KL term alone, but the boost multiplied a wrong estimator. After a collapse not even an exact bonus helps: its"
        " gradient vanishes with the entropy.",
        remedy="Act while entropy is normal, with the exact entropy; stop below a critical entropy; go back to a healthy checkpoint, or"
        " add KL(reference || policy) to a frozen healthy reference, whose gradient does not vanish (`grpo.recovery.kind`).",
        ours="The policy term was stronger than the largest entropy coefficient. After a collapse no multiple of the bonus helps:"
        " its gradient vanishes with the entropy.",
        leads_to=("entropy_collapse",),
    ),
    "entropy_collapse": Entry(
        severity=_CRITICAL,
        meaning="Entropy collapsed: the policy became nearly deterministic before it had learned good moves.",
        seen="Moves: entropy at the end is below 0.4 of that at the beginning and below 1.2 nats (if reward rises: 0.25 and 0.8), or below"
        " 0.15 nats; or normalised entropy is below 0.15; or our trainer stopped at critical entropy. Tokens, answers and actions, whose"
        " scale is unknown: below 0.2 of the initial entropy (0.08 if it learns), or such a stop. Not if the task is solved (see"
        " group_agreement; for a normalised entropy that low, only if reward rose or regret fell).",
        cause="The policy term was stronger than the terms that keep entropy up: the learning rate is too high, or the entropy term too"
        " weak (a sampled bonus has zero expected gradient on-policy). The moves of a group then agree, advantages vanish, and the loss"
        " rises towards 0 without any improvement.",
        remedy="Go back to a checkpoint from before, with a lower learning rate or a stronger, exact entropy term.",
        leads_to=("group_agreement", "silent_groups", "flat_reward", "falling_reward", "lost_strength"),
    ),
    "scored_otherwise": Entry(
        severity=_CRITICAL,
        meaning="Tokens are scored with other log-probabilities than they were sampled with.",
        seen="The largest difference of a token's log-probability between sampling and scoring is above 0.01 nats; or, where the sampling"
        " engine is another program, the mean difference of log-probabilities is above 0.1 nats or of probabilities above 0.02, or their"
        " mean ratio is more than 0.3 from 1; or the mean ratio of the first row is more than 0.25 from 1; or more than 0.35 of the"
        " tokens are clipped from the first row on; or an estimated KL to the reference is negative in nine rows of ten, with a median"
        " below -0.05.",
        cause="Sampling and scoring see a different model or text: left padding that counts as positions in one of them (GPT-2: 5.1 nats"
        " with 37 pads, and a logged KL of 0), another temperature, top-k or top-p in only one of them, dropout, another precision, or a"
        " tokenizer that does not round-trip. With one update per rollout every ratio is 1 anyway and shows nothing.",
        remedy="Use the same positions, mask, temperature and distribution for both, and assert it at the start of a run on prompts of"
        " mixed length, as `grpo/language` does.",
        leads_to=("kl_at_step_zero", "saturated_controller", "high_clip_fraction"),
    ),
    "temperature_mismatch": Entry(
        severity=_CRITICAL,
        meaning="Moves are sampled from one distribution and scored by another.",
        seen="Before or at the first update, with identical weights, more than 0.35 of the ratios are clipped (a fifth if KL is not 0"
        " there either), and the fraction does not grow; or the mean ratio is more than 0.25 from 1 in the first row; or KL is above 0.001"
        " there and below 0.5, or an estimated KL is negative beyond noise. For our own runs: KL(old ||"
        " policy) before a rollout's first update has a median above 0.001, or ratios are clipped with one optimiser step per"
        " rollout.",
        cause="Another temperature in the sampler than in the loss (1.3 against 1.0 clips 0.557 of the ratios and gives a KL of 0.0455"
        " with identical weights, at a harmless-looking mean ratio); or dropout, top-k, padding, precision, a mask, or rewards and"
        " moves of different groups. Clipping, KL and every controller based on them then work on an artefact.",
        remedy="Score with the same distribution that was sampled, including the temperature, from one code path, and assert at each"
        " rollout that before the first update every ratio is 1 and no move is clipped.",
        leads_to=("kl_at_step_zero", "saturated_controller", "high_clip_fraction"),
    ),
    "kl_at_step_zero": Entry(
        severity=_CRITICAL,
        meaning="KL is not 0 before the first update.",
        seen="KL is above 0.001 (0.01 where rows are 20 steps apart or less, which may be logged after the update), or the KL penalty above"
        " 0.00001, at step 0 (for our own runs: in the first rollout's row); or KL is above 0.05 in a first row at most two steps after"
        " it. KL to the policy that was sampled counts only with one optimiser step per rollout, and a count of logged rows, such as"
        " W&B's `_step`, has no such step. Not if six steps of the growth that follows explain it, as where rows are logged after their"
        " update.",
        cause="Identical weights have a KL of exactly 0. Either scoring differs from sampling (temperature, top-k, top-p, padding,"
        " precision, dropout), or the reference is not the initial policy.",
        remedy="Compare sampler's and scorer's log-probabilities of the same moves before training; they must agree to rounding.",
    ),
    "cancelling_terms": Entry(
        severity=_CRITICAL,
        meaning="Two terms of the loss cancel: their gradients are opposite and of similar size.",
        seen="A cosine below -0.95 between two terms' gradients whose norms are within a factor of two, in at least half of the steps."
        " If only loss values were logged: an entropy bonus and a KL penalty of opposite sign, whose coefficients are within a quarter"
        " of each other or whose penalty rose at least threefold while nothing else moved, if nothing is learned and a KL at step 0 or"
        " an impossible entropy shows that both are estimates.",
        cause="The sampled bonus -mean(log new) and the sampled KL mean(log old - log new) are, as loss terms, the same vector with"
        " opposite sign: the loss is policy + (entropy coefficient - KL coefficient) * mean(log new) + a constant.",
        remedy="Use the exact entropy and an exact KL to a frozen reference, with a large coefficient for only one of the two; log each"
        " term's gradient, not its value.",
        ours="Two terms of the objective have opposite gradients of similar size at nearly every step, so that they cancel.",
        leads_to=("flat_reward",),
    ),
    "loss_budget": Entry(
        severity=_WARNING,
        meaning="Nearly all of the loss is one regulariser.",
        seen="A regulariser has more than 0.9 of the sum of the terms' gradient norms or, if only loss values were logged, of their"
        " absolute values, in the median row. By values alone it is a note if the run learns.",
        cause="Its coefficient is out of proportion to the rewards. A share of values is not a share of gradients: a sampled bonus that"
        " is 95 % of the value has no expected gradient on-policy, so that the value hides what the policy is really trained by.",
        remedy="Log each term's own gradient norm; lower the coefficient until the policy term leads.",
    ),
    "saturated_controller": Entry(
        severity=_WARNING,
        meaning="A controller is at its bound, so its coefficient is constant.",
        seen="At a bound in more than 0.9 of the steps; or the measured KL is more than 1.5 times its target, except in a tenth of the"
        " rows; or a coefficient rose at least threefold, not linearly as in a warm-up, and did not change in the second half.",
        cause="The target is out of reach. No coefficient can lower a KL that is caused by a scoring mismatch (see temperature_mismatch).",
        remedy="Find out why the measured quantity does not change; only then change the target or the bound.",
    ),
    "dead_monitor": Entry(
        severity=_WARNING,
        meaning="The entropy controller or monitor has never acted.",
        seen="The entropy controller changed nothing in a hundred steps or more; or the entropy term changed by less than a seventh"
        " over a thousand steps or more while it was nearly all of the loss and nothing was learned.",
        cause="The quantity never reaches its threshold, often because it monitors another number than intended.",
        remedy="Monitor the level and the slope of the exact entropy, with a threshold that a healthy run comes near; test that it fires.",
    ),
    "high_clip_fraction": Entry(
        severity=_WARNING,
        meaning="Clipping removes a fifth of the moves or more from the gradient in most steps.",
        seen="Median clip fraction above 0.2.",
        cause="Either the policy has moved far from the one that was sampled (too many optimiser steps for one rollout, or too large"
        " ones), or it is scored by another distribution than it was sampled from (see temperature_mismatch).",
        remedy="First rule out a mismatch; then sync the sampled policy more often, with fewer inner steps or a lower learning rate.",
        leads_to=("flat_reward",),
    ),
    "stale_policy": Entry(
        severity=_WARNING,
        meaning="The rollout is stale: the trained policy has moved far from the one that was sampled.",
        seen="Effective sample size below 0.7; or a median KL of an update above 0.1 nats; or the clip fraction grows from below 0.15 to"
        " above 0.25; or above 0.2 with more than four optimiser steps per rollout.",
        cause="Too many optimiser steps, or too large ones, on one rollout: ratios spread, and a few moves make up the gradient.",
        remedy="Fewer inner epochs, a trust region that ends them (`grpo.max_kl_old`), or a lower learning rate.",
        leads_to=("high_clip_fraction",),
    ),
    "diverging": Entry(
        severity=_CRITICAL,
        meaning="The run falls apart: KL, ratios, gradient norm or loss run away.",
        seen="At the end (median of the last twentieth of the rows), one of: KL to the reference above 0.8 nats per move or token (twice"
        " that if reward rises or regret falls; four times if reward rises, less than a quarter of the regret is left, and KL was gained"
        " gradually and levels off; 0.6 of that if reward falls or the end is more than six times the median of the first"
        " half; 50 nats for a sum over an answer) after growing fourfold, or a fifth of that after growing tenfold from the first half"
        " without a better reward; KL of an update above 0.5, or above 0.1 after growing tenfold; gradient norm above 8 times the median"
        " of the first rows (30 times if reward rises and it did not grow suddenly, 100 times if most groups had equal rewards at"
        " first); largest ratio above 6 after growing fourfold; smallest ratio below 0.001; mean ratio more than 0.25 from 1; absolute"
        " loss above 100 times the largest of the first fifth, suddenly or without a better reward, or after a jump of more than a"
        " thousandfold within one row to a new level.",
        cause="Updates are too large: the learning rate is too high, too many optimiser steps reuse one rollout, or the KL term is too weak"
        " to hold the policy. Each update then makes the next rollout and its ratios worse.",
        remedy="Clip the gradient norm (1.0 is usual) and the ratios, and use fewer updates per rollout. A larger learning rate makes it"
        " worse.",
        leads_to=("nan_steps", "falling_reward", "stale_policy"),
    ),
    "falling_reward": Entry(
        severity=_CRITICAL,
        meaning="Reward falls, or loses at least half of what it had gained.",
        seen="The level of the last fifth of the rows is below that of the first by more than 3.5 standard errors and more than 0.15"
        " standard deviations of a reward (without a logged deviation: 2 deviations of the rows); or a straight line falls by more than 4"
        " standard errors (of fewer than six rows: 8) and as much (without a logged deviation: 1 deviation of the rows); or the last tenth"
        " is below the best tenth by more than 4.5 standard errors and half of a gain that is certain. Not if regret falls.",
        cause="The updates make the policy worse: the learning rate is too high, the sign of the advantages is wrong, or the policy has"
        " left the states and answers for which its reward is meaningful. A curriculum that gets harder looks the same.",
        remedy="Check the sign and the group of each reward. Do not raise the learning rate.",
        leads_to=("lost_strength",),
    ),
    "reward_hacking": Entry(
        severity=_CRITICAL,
        meaning="Reward rises while a held-out measure gets worse.",
        seen="Reward rises, and held-out regret rises by more than 15 %, or a held-out reward or accuracy falls by more than 10 %, beyond"
        " noise; also if the held-out measure has lost what it had gained.",
        cause="The policy learns what the reward measures instead of the task (reward hacking, overoptimisation: Gao et al., arXiv"
        " 2210.10760), or it memorises the training prompts or boards (overfitting).",
        remedy="Keep the checkpoint with the best held-out measure, raise the KL coefficient or stop earlier, use more varied states or"
        " prompts, and read samples with a high reward.",
    ),
    "learning_rate_schedule": Entry(
        severity=_WARNING,
        meaning="The learning rate is nearly 0 for most of the run, or grows without end.",
        seen="At most a thousandth of its largest value in more than half of the rows; or more than three times as large at the end as in"
        " the middle.",
        cause="The schedule has fewer (or far more) steps than the run, the scheduler counts micro-batches, or the rate was set to 0.",
        remedy="Set the schedule's number of steps to that of the optimiser's steps, with a short warm-up.",
        leads_to=("diverging", "flat_reward"),
    ),
    "no_gradient": Entry(
        severity=_CRITICAL,
        meaning="The gradient is 0 in most steps.",
        seen="Gradient norm 0, or below a thousandth of its early level, in more than half of the rows of a task that is not solved.",
        cause="All advantages are 0 (see silent_groups), the loss is detached from the weights, or the weights are frozen.",
        remedy="Check that rewards differ within groups and that the trained weights require gradients.",
        leads_to=("flat_reward",),
    ),
    "entropy_explosion": Entry(
        severity=_CRITICAL,
        meaning="Entropy grows towards that of a uniform policy, without a better reward.",
        seen="Moves: entropy rises by more than 0.6 nats to more than 0.9 of ln(legal moves) or, where these are unknown, to more than 3.15"
        " nats or 1.5 times its early level. Tokens: it grows 2.5-fold, to more than 1.5 nats; actions of an environment: it doubles,"
        " or the deviation of continuous actions triples. Not if reward rises or regret falls.",
        cause="The entropy bonus is stronger than the policy term, the sampling temperature is too high, or too large updates destroy what"
        " the policy knew.",
        remedy="Lower the entropy coefficient and the learning rate, and go back to a checkpoint from before.",
    ),
    "answer_length": Entry(
        severity=_WARNING,
        meaning="Answers are cut off at the limit, or their length runs away or collapses.",
        seen="More than half of the answers are truncated at the end, after a rise of more than 0.25 or without learning; or the mean"
        " length grows threefold, or falls below a quarter, without a better reward.",
        cause="Long answers are not punished, or a loss normalised by length favours them (Dr. GRPO, arXiv 2503.20783); a length that"
        " collapses is a shortcut to a cheap reward.",
        remedy="Raise the limit of tokens or penalise overlong answers; normalise the loss by a constant; read samples.",
    ),
    "wrong_gradient": Entry(
        severity=_CRITICAL,
        meaning="The estimated policy gradient does not point where the exact one does.",
        seen="The cosine between the two, which our trainer measures at each step, has a median below 0.15.",
        cause="Rewards compared across groups, groups mixed up, or values that are not those of the moves; with very small groups, plain"
        " noise.",
        remedy="Check that each reward belongs to its own move and its own group; raise the group size.",
    ),
    "exploding_advantages": Entry(
        severity=_CRITICAL,
        meaning="Advantages are far larger than any difference of rewards.",
        seen="Advantages spread more than 100 times as widely as the rewards of their groups, in the median step; or the largest advantage"
        " is above 30 times the spread of the rewards (divided by the deviation of its group of G, it is at most sqrt(G - 1)).",
        cause="Division by the standard deviation of a nearly constant group: rounding becomes signal.",
        remedy="Do not divide (`grpo.divide_by_std`), or put a floor under the deviation (`grpo.std_floor`).",
    ),
    "failed_values": Entry(
        severity=_WARNING,
        meaning="The engine failed on many states.",
        seen="More than a twentieth of the states were dropped; or over a tenth of the rewards (and not nearly all) are exactly 0 or 1.",
        cause="The engine dies, hangs or gives no answer. Dropped states are lost; counted as reward 0 they would be wrong rewards.",
        remedy="See the step's log for the engine's errors; `chess-grpo doctor` tests it.",
    ),
    "silent_groups": Entry(
        severity=_WARNING,
        meaning="Most groups have zero variance: all rewards are equal, so that all advantages are 0.",
        seen="More than half of the groups have zero variance at the end (more than 0.95: critical), or all rewards are equal: by"
        " their deviation, by the smallest and largest reward or advantage in most rows, or because the mean is the same number in all"
        " rows. A note if the task is solved.",
        cause="The policy samples the same move again and again (see group_agreement), or the reward does not distinguish moves.",
        remedy="If moves agree, the policy has collapsed: go back to an earlier checkpoint. If not, use other boards, larger groups, or a"
        " finer reward.",
        leads_to=("no_gradient", "flat_reward"),
    ),
    "group_agreement": Entry(
        severity=_WARNING,
        meaning="The moves of a group are nearly all the same.",
        seen="Mean agreement above 0.75 at the end. A note if the task is solved: reward above 0.9 of its largest, or risen by more than"
        " 1.2 standard deviations of a reward; or less than a quarter of the regret at the beginning is left (held-out regret, or else"
        " that of the training states).",
        cause="Entropy is nearly 0; with equal moves all advantages are 0, and only regularisers train.",
        remedy="Go back to an earlier checkpoint; keep entropy up before it collapses.",
        leads_to=("silent_groups",),
    ),
    "flat_reward": Entry(
        severity=_WARNING,
        meaning="Reward neither rises nor falls.",
        seen="Over a hundred steps or more, no regret falls, and the upper bound of the reward's rise is below 0.2 standard deviations of a"
        " reward (0.06 if the rise is certain; for windows: no later one is 0.1 above the first; without a logged deviation: below two"
        " deviations of the rows); or, in an environment, the rise is not certain while updates have a KL below 0.00001 and nothing is"
        " clipped.",
        cause="The reward does not train the policy: the learning rate is too small, clipping or cancelling terms leave no gradient,"
        " or the policy collapsed.",
        remedy="See the other findings. If KL to the reference stays near 0, the updates are too small: raise the learning rate. If KL"
        " grows and reward does not, do not raise it: compare the estimated with the exact gradient.",
    ),
    "unbelievable_peak": Entry(
        severity=_WARNING,
        meaning="The best evaluation may be luck.",
        seen="The best score is above the mean of the others, by 0.03 (of 200 games or more: by 2.2 standard errors), but not at the 5 %"
        " level, corrected for the number of evaluations. Of 200 games or more, or if the scores rise as a whole, it is a note.",
        cause="Few games: a score of 0.10 of 64 games has the 95 % interval 0.048 to 0.198, and the best of several equal checkpoints"
        " looks better than it is (the winner's curse).",
        remedy="Play fresh paired games of the chosen checkpoint against the initial policy, as many as the difference needs.",
    ),
    "no_baseline": Entry(
        severity=_WARNING,
        meaning="The initial policy's strength was not measured.",
        seen="Evaluations begin after the history does. If no strength was recorded at all, this is a note.",
        cause="Without the initial strength, later scores do not show whether training helped.",
        remedy="Measure the initial policy by the same games before the first update.",
    ),
    "lost_strength": Entry(
        severity=_CRITICAL,
        meaning="The policy plays worse than before.",
        seen="The last score is below the first at the 1 % level, and the scores fall as a whole by more than 2 standard errors; or a"
        " held-out regret rises by more than 15 %, or a held-out reward falls by more than 10 %, beyond noise, and reward does not rise (if"
        " it does: reward_hacking).",
        cause="Training led it to weaknesses that its reward does not punish, or it collapsed; or the opponent became stronger.",
        remedy="Keep the initial policy, or the best checkpoint that fresh games confirm.",
    ),
    "regret_without_strength": Entry(
        severity=_WARNING,
        meaning="Regret on held-out boards fell, but the score in games did not rise.",
        seen="Regret fell by more than a tenth and more than its error, while the last score is not above the first at the 5 % level,"
        " and a gain of 0.06 can be excluded.",
        cause="A policy that sees only positions from other games learns to value moves, not to win games: it never meets its own"
        " mistakes, and does not make progress in won positions.",
        remedy="Train on self-play states too; measure strength by games.",
    ),
    HEALTHY: Entry(
        severity=_NOTE,
        meaning="None of the checks found a problem.",
        seen="No finding of severity warning or critical.",
        cause="Checks only see recorded metrics.",
        remedy="Whether the policy is stronger is decided by games.",
    ),
}
"""In the order of reports: of equal severity, the worst first."""


def may_follow(name: str) -> frozenset[str]:
    """Return the findings that may follow from this one, directly or by others."""
    direct = ENTRIES[name].leads_to
    return frozenset(direct).union(*map(may_follow, direct))

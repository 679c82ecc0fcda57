"""What a diagnosis can find: each finding's name, how bad it is, what it means, its true cause, and what mends it.

`docs/diagnosis.md` is printed from this table.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final


class Severity(StrEnum):
    """How bad a finding is."""

    NOTE = "note"
    """Worth knowing; the run is healthy all the same."""
    WARNING = "warning"
    """Something does not do what it is there for."""
    CRITICAL = "critical"
    """What the run shows or makes is not to be relied on."""


DIAGNOSIS_PAGE: Final = "docs/diagnosis.md"
HEALTHY: Final = "healthy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that was found in a run's history."""

    name: str
    severity: Severity
    evidence: tuple[str, ...]
    """What was seen, in numbers and steps."""
    cause: str
    remedy: str
    """With the setting that it is about."""
    first_step: int | None
    """Of the rows that it rests on; None where they have none."""
    last_step: int | None

    @property
    def page(self) -> str:
        """Where it is explained."""
        return f"{DIAGNOSIS_PAGE}#{self.name}"

    def facts(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self) | {"severity": self.severity.value, "evidence": list(self.evidence), "page": self.page}

    @property
    def line(self) -> str:
        """Return it in one line: name, what was seen, what to do."""
        return f"{self.name}: {'; '.join(self.evidence)}. {self.remedy}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row of the table."""

    severity: Severity
    meaning: str
    """One line."""
    seen: str
    """By which rows a history shows it, with the threshold."""
    cause: str
    remedy: str
    ours: str = ""
    """Its cause in a run of our own trainer, where entropy and divergence are exact, if that is another."""


_CRITICAL, _WARNING, _NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE

ENTRIES: Final[Mapping[str, Entry]] = {
    "nan_steps": Entry(
        severity=_CRITICAL,
        meaning="Loss, gradient or reward was not finite.",
        seen="A cell of a column that is looked at, or of any loss or gradient, says inf; or nan, where it does not stand for"
        " nothing recorded (before a column begins, or in the gaps of one that is kept now and then); or `skipped` counts such"
        " steps.",
        cause="An infinite log-probability (0 * -inf over masked moves or tokens), a reward that nobody could compute, or weights that a"
        " step too large has already spoilt. Replaced by 0 it would have trained on nothing and said nothing.",
        remedy="Skip the step and leave weights and optimiser untouched, cut the learning rate, stop after a few in a row; and find the"
        " first cell: that is where the number was made.",
    ),
    "unlearned_language_model": Entry(
        severity=_CRITICAL,
        meaning="The language model cannot write an answer yet: GRPO has nothing to choose from.",
        seen="Fewer than a tenth of the first answers could be parsed and fewer than half of the last, or the table says that"
        " weights are random.",
        cause="Random or wrong weights write garbage; every answer of a group then has the same worst reward, so that no advantage is"
        " left, and what is divided by its spread is not a number.",
        remedy="Load the pretrained weights and refuse to start without them; clone behaviour first; grade the reward, so that a nearly"
        " right answer is worth more than garbage.",
    ),
    "lost_format": Entry(
        severity=_CRITICAL,
        meaning="The language model could write answers, and writes fewer and fewer that can be read.",
        seen="The share of answers parsed is lower at the end than at the beginning by more than 0.2.",
        cause="The policy has left the reference, which knew the format, for something that was rewarded more, or by steps too large for"
        " its weights; with truncated answers out of the loss, nothing teaches it to end one.",
        remedy="Go back to the checkpoint from before; a larger `grpo.kl_coefficient`, or a larger weight of structure and parsing in"
        " `[language.rewards]`.",
    ),
    "impossible_entropy": Entry(
        severity=_CRITICAL,
        meaning="What is called entropy is larger than any entropy over legal moves can be, or negative.",
        seen="A value a tenth above ln 218 = 5.38 nats (no position has more than 218 legal moves), or more than a twentieth of the"
        " rows above it, above 1.25 times the mean ln(legal moves) of their steps, or below 0. Not of a language model.",
        cause="It is -mean(log p_new(sampled move)), a cross-entropy: equal to the entropy only while the policy is the one that was"
        " sampled. Repeated on a stale batch it climbs without bound while the true entropy falls to 0; as a bonus, boosting it"
        " makes the spikes.",
        remedy="Compute entropy exactly, -sum p ln p over the legal moves, for the log, the bonus and whatever watches it.",
        ours="Our entropy is exact, so that this is a damaged or mixed-up history, or a mistake in the code.",
    ),
    "kl_trap": Entry(
        severity=_CRITICAL,
        meaning="The entropy bonus was raised again and again, and entropy collapsed all the same.",
        seen="Entropy collapsed while its coefficient rose at least threefold from where it stood when entropy began to fall.",
        cause="The bonus was the sampled -mean(log p), which on-policy has no expected gradient and off-policy diverges; and a KL term"
        " to the policy's own old self, estimated by mean(log old - log new), is the same vector with the opposite sign. The field"
        " notes blamed that anchor alone; it was the estimator that the boost multiplied. After a collapse not even an exact bonus"
        " helps: its gradient is gone with the entropy.",
        remedy="Act while entropy is normal, with the exact entropy; stop below a critical entropy; go back to a healthy checkpoint, or"
        " add KL(reference || policy) to a frozen healthy reference, which alone still pulls (`grpo.recovery.kind`).",
        ours="The policy term pushed harder than the largest entropy coefficient could hold. After a collapse no multiple of the"
        " bonus helps: its gradient is gone with the entropy.",
    ),
    "entropy_collapse": Entry(
        severity=_CRITICAL,
        meaning="The policy became certain of its moves long before it could know them.",
        seen="Entropy at the end is below 0.4 of that at the beginning and below 1.2 nats, or below 0.15 nats; or normalised entropy"
        " is below 0.15; or our trainer stopped at critical entropy. Of a language model: below a tenth of the beginning's, with"
        " nothing learnt, or such a stop.",
        cause="The policy term pushed harder than anything kept entropy up: the learning rate is too high, or the entropy term too weak"
        " (a sampled bonus has no expected gradient at all on-policy). Groups then agree, advantages vanish, and the loss rises"
        " towards 0 without anything having got better.",
        remedy="Go back to a checkpoint from before, with a lower learning rate or a stronger, exact entropy term.",
    ),
    "scored_otherwise": Entry(
        severity=_CRITICAL,
        meaning="Tokens are scored with other log-probabilities than they were sampled with.",
        seen="The largest difference of a token's log-probability between sampling and scoring is above 0.01 nats.",
        cause="The two see another model or another text: left padding whose pads count as positions in one of them (GPT-2: 5.1 nats with"
        " 37 pads, and a logged KL of 0), another temperature, top-k or top-p in one alone, dropout, a precision, a tokenizer that"
        " writes back other tokens than it read. With one update a rollout every ratio is 1 all the same, and shows nothing.",
        remedy="Give both the same positions, mask, temperature and distribution, and assert it at the start of a run on prompts of mixed"
        " length, as `grpo/language` does.",
    ),
    "temperature_mismatch": Entry(
        severity=_CRITICAL,
        meaning="Moves are sampled from one distribution and scored by another.",
        seen="Before or at the first update, with identical weights, more than 0.35 of the ratios are clipped (a fifth, where KL is"
        " not 0 there either), and it does not grow; or KL is above 0.001 there and below 0.5. Of our own runs: KL(old ||"
        " policy) before a rollout's first update has a median above 0.001, or ratios are clipped with one optimiser step a"
        " rollout.",
        cause="Another temperature in the sampler than in the loss (1.3 against 1.0 clips 0.557 of the ratios and shows a KL of 0.0455"
        " with identical weights, at a harmless-looking mean ratio); or dropout, top-k, padding, precision, a mask, or rewards and"
        " moves of different groups. Clipping, KL and every controller on top of them then work on an artefact.",
        remedy="Score with the very distribution that was sampled, temperature included, from one code path, and assert at each rollout"
        " that before the first update every ratio is 1 and no move clipped.",
    ),
    "kl_at_step_zero": Entry(
        severity=_CRITICAL,
        meaning="KL is not 0 before the first update.",
        seen="KL is above 0.001, or the KL penalty above 0.00001, at step 0 (of our own runs: in the first rollout's row). KL to the"
        " policy that was sampled counts only with one optimiser step a rollout, and a count of logged rows, as W&B's `_step`,"
        " has no such step.",
        cause="Identical weights have a KL of exactly 0. What is seen is scoring that differs from sampling (temperature, top-k, top-p,"
        " padding, precision, dropout), or a reference that is another model than the one that begins.",
        remedy="Compare sampler's and scorer's log-probabilities of the same moves before training; they must agree to rounding.",
    ),
    "cancelling_terms": Entry(
        severity=_CRITICAL,
        meaning="Two terms of the loss pull in opposite directions with like strength: together they do nothing.",
        seen="A cosine below -0.95 between two terms' gradients whose norms are within a factor of two, in half of the steps or"
        " more. Where only loss values were kept: an entropy bonus and a KL penalty of opposite sign, whose coefficients are"
        " within a quarter of each other or whose penalty rose at least threefold while nothing else moved, where nothing is"
        " learnt and a KL at step 0 or an impossible entropy shows that both are estimates.",
        cause="The sampled bonus -mean(log new) and the sampled KL mean(log old - log new) are, as loss terms, the same vector with"
        " opposite sign: the loss is policy + (entropy coefficient - KL coefficient) * mean(log new) + a constant.",
        remedy="Use the exact entropy and an exact KL to a frozen reference, and keep only one of the two strong; log each term's"
        " gradient, not its value.",
        ours="Two of the objective's terms want opposite things with like force, at nearly every step: what one does the other undoes.",
    ),
    "loss_budget": Entry(
        severity=_WARNING,
        meaning="Nearly all of the loss is one regulariser.",
        seen="A regulariser has more than 0.9 of the sum of the terms' gradient norms or, where only loss values were kept, of their"
        " absolute values, in the median row. By values alone it is a note where the run learns.",
        cause="Its coefficient is out of proportion to the rewards. A share of values is not a share of gradients: a sampled bonus that"
        " is 95 % of the value has no expected gradient on-policy, so that the value hides what the policy is really trained by.",
        remedy="Log each term's own gradient norm; lower the coefficient until the policy term leads.",
    ),
    "saturated_controller": Entry(
        severity=_WARNING,
        meaning="A controller stands at its bound: it is a constant.",
        seen="At a bound in more than 0.9 of the steps; or the measured KL is (but for a tenth of the rows) more than 1.5 times its"
        " target; or a coefficient rose at least threefold, not in a straight line as a warm-up does, and stood still in the"
        " second half.",
        cause="The target is out of reach. A KL that scoring mismatches hold up (see temperature_mismatch) no coefficient can lower.",
        remedy="Find what holds the measured quantity where it is; only then change the target or the bound.",
    ),
    "dead_monitor": Entry(
        severity=_WARNING,
        meaning="What watches entropy has never acted, and never could.",
        seen="The entropy controller changed nothing in all of a hundred steps or more; or the entropy term moved by less than a"
        " seventh of itself over a thousand steps or more while it was nearly all of the loss and nothing was learnt.",
        cause="Its threshold lies where the quantity never comes, often because another number is watched than the one that is meant.",
        remedy="Watch the exact entropy, by its level and its slope, with a threshold that a healthy run comes near; test that it fires.",
    ),
    "high_clip_fraction": Entry(
        severity=_WARNING,
        meaning="A fifth of the moves or more are clipped out of the gradient, in most steps.",
        seen="Median clip fraction above 0.2.",
        cause="Either the policy has moved far from the one that was sampled (too many optimiser steps for one rollout, or too large"
        " ones), or it is scored by another distribution than it was sampled from (see temperature_mismatch).",
        remedy="First rule out a mismatch; then sync the sampled policy more often, with fewer inner steps or a lower learning rate.",
    ),
    "stale_policy": Entry(
        severity=_WARNING,
        meaning="The policy that is trained has left the one that was sampled.",
        seen="Effective sample size below 0.7; or the clip fraction grows from below 0.15 to above 0.25; or above 0.2 with more than"
        " four optimiser steps a rollout.",
        cause="Too many optimiser steps, or too large ones, on one rollout: ratios spread, and a few moves make up the gradient.",
        remedy="Fewer inner epochs, a trust region that ends them (`grpo.max_kl_old`), or a lower learning rate.",
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
        seen="Advantages spread more than 100 times as widely as the rewards of their groups, in the median step.",
        cause="Division by the standard deviation of a nearly constant group: rounding becomes signal.",
        remedy="Do not divide (`grpo.divide_by_std`), or put a floor under the deviation (`grpo.std_floor`).",
    ),
    "failed_values": Entry(
        severity=_WARNING,
        meaning="The engine failed on many states.",
        seen="More than a twentieth of the states were dropped; or over a tenth of the rewards (and not nearly all) are exactly 0 or 1.",
        cause="An engine that dies, hangs or answers nothing. Dropped states teach nothing; taken as reward 0 they would teach nonsense.",
        remedy="Look into the step's log for the engine's errors; `chess-grpo doctor` tries it.",
    ),
    "silent_groups": Entry(
        severity=_WARNING,
        meaning="In most groups all rewards are equal: they teach nothing.",
        seen="More than half of the groups are silent at the end (more than 0.95: critical), or rewards have no spread at all.",
        cause="The policy samples the same move again and again (see group_agreement), or the reward does not tell moves apart.",
        remedy="If moves agree, the policy has collapsed: go back. If not: other boards, larger groups, or a finer reward.",
    ),
    "group_agreement": Entry(
        severity=_WARNING,
        meaning="The moves of a group are nearly all the same.",
        seen="Mean agreement above 0.75 at the end.",
        cause="Entropy is nearly gone; with equal moves advantages are 0, and only regularisers train.",
        remedy="Go back to a checkpoint from before; keep entropy up while it is there.",
    ),
    "flat_reward": Entry(
        severity=_WARNING,
        meaning="Reward does not rise.",
        seen="Over a hundred steps or more, no regret falls, and the rise that the rows leave possible is below 0.15 standard"
        " deviations of a reward (windows: no later one is 0.1 above the first; where no deviation was kept: below two of the"
        " rows').",
        cause="The policy is not trained by its reward: the learning rate is too small, clipping or cancelling terms leave no gradient,"
        " or the policy collapsed.",
        remedy="Look at what else is named here; where nothing is, raise the learning rate, or compare the estimated with the exact"
        " gradient.",
    ),
    "unbelievable_peak": Entry(
        severity=_WARNING,
        meaning="The best evaluation may be luck.",
        seen="The best score is not above the mean of the others at the 5 % level, the choice among so many looks taken into"
        " account. Where the scores rise as a whole it is a note.",
        cause="Few games: a score of 0.10 of 64 games has the 95 % interval 0.048 to 0.198, and the best of several equal checkpoints"
        " looks better than it is (the winner's curse).",
        remedy="Play fresh games of the chosen checkpoint against the initial policy, in pairs of openings, as many as the difference"
        " needs.",
    ),
    "no_baseline": Entry(
        severity=_WARNING,
        meaning="Nobody knows how strong the policy was before.",
        seen="Evaluations begin after the history does. Where no strength was recorded at all, this is a note.",
        cause="Without the start's strength no later number says whether training helped.",
        remedy="Measure the initial policy by the same games before the first update.",
    ),
    "lost_strength": Entry(
        severity=_CRITICAL,
        meaning="The policy plays worse than before.",
        seen="The last score is below the first at the 5 % level.",
        cause="Training pushed it somewhere that its reward does not punish, or it collapsed; or the opponent became stronger.",
        remedy="Keep the initial policy, or the best checkpoint that fresh games confirm.",
    ),
    "regret_without_strength": Entry(
        severity=_WARNING,
        meaning="Regret on given boards fell, and games are not won more often.",
        seen="Regret fell by more than a tenth, beyond its error, while the last score is not above the first at the 5 % level, and"
        " a gain of 0.06 can be excluded.",
        cause="A policy that sees only positions of others learns to value moves, not to win games: it never meets its own mistakes, and"
        " goes round in won positions.",
        remedy="Train on states of the policy's own games too; judge by games.",
    ),
    HEALTHY: Entry(
        severity=_NOTE,
        meaning="Nothing of all this was found.",
        seen="No finding of severity warning or critical.",
        cause="What was recorded shows no failure that is known here; what was not recorded cannot.",
        remedy="Nothing to mend. Whether the policy is better, games say.",
    ),
}
"""In the order in which they are told, the worst of equal severity first."""

FINDING_MEANINGS: Final[Mapping[str, str]] = {name: entry.meaning for name, entry in ENTRIES.items()}
"""Every name -> one line of meaning."""

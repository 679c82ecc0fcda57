"""Table of all findings of the diagnosis: name, severity, meaning, cause and remedy; source of `docs/diagnosis.md`."""

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
    cause: str
    remedy: str
    ours: str = ""
    """The cause in a run of our own trainer, where entropy and KL are exact, if it differs."""


_CRITICAL, _WARNING, _NOTE = Severity.CRITICAL, Severity.WARNING, Severity.NOTE

ENTRIES: Final[Mapping[str, Entry]] = {
    "nan_steps": Entry(
        severity=_CRITICAL,
        meaning="Loss, gradient or reward was NaN or infinite.",
        cause="An infinite log-probability (0 * -inf over masked moves or tokens), a reward that could not be computed, or weights that a"
        " too large step has already damaged. Replacing the value by 0 would hide the problem and train on nothing.",
        remedy="Skip the step and leave weights and optimiser unchanged, cut the learning rate, and stop after a few skips in a row. Find"
        " the first such cell: that is where the value arose.",
    ),
    "unlearned_language_model": Entry(
        severity=_CRITICAL,
        meaning="The language model cannot write a valid answer yet, so that GRPO has nothing to select.",
        cause="Random or wrong weights write garbage. Every answer of a group then has the same worst reward, so that all advantages are"
        " 0, and NaN if they are divided by the group's standard deviation.",
        remedy="Load the pretrained weights and refuse to start without them; clone behaviour first; grade the reward, so that a nearly"
        " right answer is worth more than garbage.",
    ),
    "lost_format": Entry(
        severity=_CRITICAL,
        meaning="The language model loses the answer format: fewer and fewer of its answers can be parsed.",
        cause="The policy has left the reference, which knew the format, for something with a higher reward, or because of too large"
        " steps. If truncated answers are left out of the loss, nothing trains the model to end an answer.",
        remedy="Go back to a checkpoint from before; use a larger `grpo.kl_coefficient`.",
    ),
    "impossible_entropy": Entry(
        severity=_CRITICAL,
        meaning="The logged entropy is larger than any entropy over legal moves, or negative.",
        cause="It is -mean(log p_new(sampled move)), a cross-entropy: equal to the entropy only while the policy is the one that was"
        " sampled. On a stale batch it grows without bound while the true entropy falls to 0; as a bonus, a larger coefficient"
        " causes the spikes.",
        remedy="Compute entropy exactly, -sum p ln p over the legal moves, for logging, for the bonus and for monitors.",
        ours="Our entropy is exact, so the history is damaged or mixed up, or the code has a bug.",
    ),
    "kl_trap": Entry(
        severity=_CRITICAL,
        meaning="The entropy bonus was raised repeatedly, and entropy collapsed anyway.",
        cause="The bonus was the sampled -mean(log p), which on-policy has zero expected gradient and off-policy diverges; and a KL term"
        " to the old policy, estimated by mean(log old - log new), is the same vector with the opposite sign. The field notes blamed"
        " that KL term alone, but the boost multiplied a wrong estimator. After a collapse not even an exact bonus helps: its"
        " gradient vanishes with the entropy.",
        remedy="Act while entropy is normal, with the exact entropy; stop below a critical entropy; go back to a healthy checkpoint, or"
        " add KL(reference || policy) to a frozen healthy reference, whose gradient does not vanish (`grpo.recovery.kind`).",
        ours="The policy term was stronger than the largest entropy coefficient. After a collapse no multiple of the bonus helps:"
        " its gradient vanishes with the entropy.",
    ),
    "entropy_collapse": Entry(
        severity=_CRITICAL,
        meaning="Entropy collapsed: the policy became nearly deterministic before it had learned good moves.",
        cause="The policy term was stronger than the terms that keep entropy up: the learning rate is too high, or the entropy term too"
        " weak (a sampled bonus has zero expected gradient on-policy). The moves of a group then agree, advantages vanish, and the loss"
        " rises towards 0 without any improvement.",
        remedy="Go back to a checkpoint from before, with a lower learning rate or a stronger, exact entropy term.",
    ),
    "scored_otherwise": Entry(
        severity=_CRITICAL,
        meaning="Tokens are scored with other log-probabilities than they were sampled with.",
        cause="Sampling and scoring see a different model or text: left padding that counts as positions in one of them (GPT-2: 5.1 nats"
        " with 37 pads, and a logged KL of 0), another temperature, top-k or top-p in only one of them, dropout, another precision, or a"
        " tokenizer that does not round-trip. With one update per rollout every ratio is 1 anyway and shows nothing.",
        remedy="Use the same positions, mask, temperature and distribution for both, and assert it at the start of a run on prompts of"
        " mixed length, as `grpo/language` does.",
    ),
    "temperature_mismatch": Entry(
        severity=_CRITICAL,
        meaning="Moves are sampled from one distribution and scored by another.",
        cause="Another temperature in the sampler than in the loss (1.3 against 1.0 clips 0.557 of the ratios and gives a KL of 0.0455"
        " with identical weights, at a harmless-looking mean ratio); or dropout, top-k, padding, precision, a mask, or rewards and"
        " moves of different groups. Clipping, KL and every controller based on them then work on an artefact.",
        remedy="Score with the same distribution that was sampled, including the temperature, from one code path, and assert at each"
        " rollout that before the first update every ratio is 1 and no move is clipped.",
    ),
    "kl_at_step_zero": Entry(
        severity=_CRITICAL,
        meaning="KL is not 0 before the first update.",
        cause="Identical weights have a KL of exactly 0. Either scoring differs from sampling (temperature, top-k, top-p, padding,"
        " precision, dropout), or the reference is not the initial policy.",
        remedy="Compare sampler's and scorer's log-probabilities of the same moves before training; they must agree to rounding.",
    ),
    "cancelling_terms": Entry(
        severity=_CRITICAL,
        meaning="Two terms of the loss cancel: their gradients are opposite and of similar size.",
        cause="The sampled bonus -mean(log new) and the sampled KL mean(log old - log new) are, as loss terms, the same vector with"
        " opposite sign: the loss is policy + (entropy coefficient - KL coefficient) * mean(log new) + a constant.",
        remedy="Use the exact entropy and an exact KL to a frozen reference, with a large coefficient for only one of the two; log each"
        " term's gradient, not its value.",
        ours="Two terms of the objective have opposite gradients of similar size at nearly every step, so that they cancel.",
    ),
    "loss_budget": Entry(
        severity=_WARNING,
        meaning="Nearly all of the loss is one regulariser.",
        cause="Its coefficient is out of proportion to the rewards. A share of values is not a share of gradients: a sampled bonus that"
        " is 95 % of the value has no expected gradient on-policy, so that the value hides what the policy is really trained by.",
        remedy="Log each term's own gradient norm; lower the coefficient until the policy term leads.",
    ),
    "saturated_controller": Entry(
        severity=_WARNING,
        meaning="A controller is at its bound, so its coefficient is constant.",
        cause="The target is out of reach. No coefficient can lower a KL that is caused by a scoring mismatch (see temperature_mismatch).",
        remedy="Find out why the measured quantity does not change; only then change the target or the bound.",
    ),
    "dead_monitor": Entry(
        severity=_WARNING,
        meaning="The entropy controller or monitor has never acted.",
        cause="The quantity never reaches its threshold, often because it monitors another number than intended.",
        remedy="Monitor the level and the slope of the exact entropy, with a threshold that a healthy run comes near; test that it fires.",
    ),
    "high_clip_fraction": Entry(
        severity=_WARNING,
        meaning="Clipping removes a fifth of the moves or more from the gradient in most steps.",
        cause="Either the policy has moved far from the one that was sampled (too many optimiser steps for one rollout, or too large"
        " ones), or it is scored by another distribution than it was sampled from (see temperature_mismatch).",
        remedy="First rule out a mismatch; then sync the sampled policy more often, with fewer inner steps or a lower learning rate.",
    ),
    "stale_policy": Entry(
        severity=_WARNING,
        meaning="The rollout is stale: the trained policy has moved far from the one that was sampled.",
        cause="Too many optimiser steps, or too large ones, on one rollout: ratios spread, and a few moves make up the gradient.",
        remedy="Fewer inner epochs, a trust region that ends them (`grpo.max_kl_old`), or a lower learning rate.",
    ),
    "diverging": Entry(
        severity=_CRITICAL,
        meaning="The run falls apart: KL, ratios, gradient norm or loss run away.",
        cause="Updates are too large: the learning rate is too high, too many optimiser steps reuse one rollout, or the KL term is too weak"
        " to hold the policy. Each update then makes the next rollout and its ratios worse.",
        remedy="Clip the gradient norm (1.0 is usual) and the ratios, and use fewer updates per rollout. A larger learning rate makes it"
        " worse.",
    ),
    "falling_reward": Entry(
        severity=_CRITICAL,
        meaning="Reward falls, or loses at least half of what it had gained.",
        cause="The updates make the policy worse: the learning rate is too high, the sign of the advantages is wrong, or the policy has"
        " left the states and answers for which its reward is meaningful. A curriculum that gets harder looks the same.",
        remedy="Check the sign and the group of each reward. Do not raise the learning rate.",
    ),
    "reward_hacking": Entry(
        severity=_CRITICAL,
        meaning="Reward rises while a held-out measure gets worse.",
        cause="The policy learns what the reward measures instead of the task (reward hacking, overoptimisation: Gao et al., arXiv"
        " 2210.10760), or it memorises the training prompts or boards (overfitting).",
        remedy="Keep the checkpoint with the best held-out measure, raise the KL coefficient or stop earlier, use more varied states or"
        " prompts, and read samples with a high reward.",
    ),
    "entropy_explosion": Entry(
        severity=_CRITICAL,
        meaning="Entropy grows towards that of a uniform policy, without a better reward.",
        cause="The entropy bonus is stronger than the policy term, the sampling temperature is too high, or too large updates destroy what"
        " the policy knew.",
        remedy="Lower the entropy coefficient and the learning rate, and go back to a checkpoint from before.",
    ),
    "wrong_gradient": Entry(
        severity=_CRITICAL,
        meaning="The estimated policy gradient does not point where the exact one does.",
        cause="Rewards compared across groups, groups mixed up, or values that are not those of the moves; with very small groups, plain"
        " noise.",
        remedy="Check that each reward belongs to its own move and its own group; raise the group size.",
    ),
    "failed_values": Entry(
        severity=_WARNING,
        meaning="The engine failed on many states.",
        cause="The engine dies, hangs or gives no answer. Dropped states are lost; counted as reward 0 they would be wrong rewards.",
        remedy="See the step's log for the engine's errors; `chess-grpo doctor` tests it.",
    ),
    "silent_groups": Entry(
        severity=_WARNING,
        meaning="Most groups have zero variance: all rewards are equal, so that all advantages are 0.",
        cause="The policy samples the same move again and again (see group_agreement), or the reward does not distinguish moves.",
        remedy="If moves agree, the policy has collapsed: go back to an earlier checkpoint. If not, use other boards, larger groups, or a"
        " finer reward.",
    ),
    "group_agreement": Entry(
        severity=_WARNING,
        meaning="The moves of a group are nearly all the same.",
        cause="Entropy is nearly 0; with equal moves all advantages are 0, and only regularisers train.",
        remedy="Go back to an earlier checkpoint; keep entropy up before it collapses.",
    ),
    "flat_reward": Entry(
        severity=_WARNING,
        meaning="Reward neither rises nor falls.",
        cause="The reward does not train the policy: the learning rate is too small, clipping or cancelling terms leave no gradient,"
        " or the policy collapsed.",
        remedy="See the other findings. If KL to the reference stays near 0, the updates are too small: raise the learning rate. If KL"
        " grows and reward does not, do not raise it: compare the estimated with the exact gradient.",
    ),
    "unbelievable_peak": Entry(
        severity=_WARNING,
        meaning="The best evaluation may be luck.",
        cause="Few games: a score of 0.10 of 64 games has the 95 % interval 0.048 to 0.198, and the best of several equal checkpoints"
        " looks better than it is (the winner's curse).",
        remedy="Play fresh paired games of the chosen checkpoint against the initial policy, as many as the difference needs.",
    ),
    "no_baseline": Entry(
        severity=_WARNING,
        meaning="The initial policy's strength was not measured.",
        cause="Without the initial strength, later scores do not show whether training helped.",
        remedy="Measure the initial policy by the same games before the first update.",
    ),
    "lost_strength": Entry(
        severity=_CRITICAL,
        meaning="The policy plays worse than before.",
        cause="Training led it to weaknesses that its reward does not punish, or it collapsed; or the opponent became stronger.",
        remedy="Keep the initial policy, or the best checkpoint that fresh games confirm.",
    ),
    "regret_without_strength": Entry(
        severity=_WARNING,
        meaning="Regret on held-out boards fell, but the score in games did not rise.",
        cause="A policy that sees only positions from other games learns to value moves, not to win games: it never meets its own"
        " mistakes, and does not make progress in won positions.",
        remedy="Train on self-play states too; measure strength by games.",
    ),
    HEALTHY: Entry(
        severity=_NOTE,
        meaning="None of the checks found a problem.",
        cause="Checks only see recorded metrics.",
        remedy="Whether the policy is stronger is decided by games.",
    ),
}
"""In the order of reports: of equal severity, the worst first."""

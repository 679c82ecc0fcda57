"""The table of checks: when each is asked, by what it finds something, what a reader is told; printed in `docs/troubleshooting.md`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from grpo.diagnosis import finds
from grpo.diagnosis.finds import Evidence, Severity, level
from grpo.diagnosis.history import History, When


@dataclass(frozen=True, slots=True)
class Check:
    """A row of the table."""

    name: str
    when: When
    needs: tuple[str, ...]
    """Quantities that must have been recorded; empty where one of several is enough."""
    finds: Callable[[History], Evidence | None]
    consequence: Severity
    means: str
    """What is wrong, and why."""
    advice: str


_BEFORE, _DURING, _END = When.BEFORE, When.DURING, When.END
_WARNING, _CRITICAL = Severity.WARNING, Severity.CRITICAL

CHECKS: Final = (
    Check(
        "nan_steps",
        _DURING | _END,
        (),
        finds.nan_steps,
        _CRITICAL,
        "Loss, gradient or reward was NaN or infinite: a log-probability of a masked move, a reward that could not be computed, or weights"
        " that a too large step has damaged.",
        "Find the first such cell: there it arose. Skip such steps, lower `grpo.learning_rate`, stop after a few in a row; a 0 in its place"
        " hides the fault.",
    ),
    Check(
        "unlearned_language_model",
        _BEFORE | _DURING | _END,
        ("parsed",),
        finds.unlearned_language_model,
        _CRITICAL,
        "The language model writes too little that can be read, as with random or wrong weights: all answers of a group have one reward,"
        " so that advantages are 0, and NaN when divided by their deviation.",
        "Load pretrained weights or clone first (pretrain.num_steps); grade the reward, so that a nearly right answer is worth"
        " more than garbage.",
    ),
    Check(
        "no_gradient",
        _END,
        (),
        finds.no_gradient,
        _CRITICAL,
        "No update reaches the policy: its gradient, or its distance from itself, is 0 in all rows.",
        "Look for a detached or masked loss, frozen weights, an optimiser over other weights, or a loss scale that underflows.",
    ),
    Check(
        "scored_otherwise",
        _DURING | _END,
        ("sampler_gap",),
        level("sampler_gap", above=0.05),
        _CRITICAL,
        "Sampler and trainer give the same tokens other probabilities: padding that counts as positions (GPT-2: 5.1 nats with 37 pads),"
        " temperature, top-k, dropout, precision, kernels, or stale weights. With one update a rollout every ratio is 1 and shows nothing.",
        "Give both the same positions, mask, temperature, precision and weights, and assert it before the first update on prompts of mixed"
        " length; correct the rest by importance weights.",
    ),
    Check(
        "temperature_mismatch",
        _END,
        (),
        finds.temperature_mismatch,
        _CRITICAL,
        "Moves are sampled from one distribution and scored by another, such as temperature 1.3 in the sampler and 1.0 in the loss, which"
        " clips 0.557 of the ratios and gives a KL of 0.0455 with identical weights. Clipping and KL then work on an artefact.",
        "Score with the distribution that was sampled, from one code path, and assert in each rollout that before the first update every"
        " ratio is 1 and nothing is clipped.",
    ),
    Check(
        "kl_at_step_zero",
        _BEFORE | _DURING | _END,
        (),
        finds.kl_at_step_zero,
        _CRITICAL,
        "KL is not 0 before the first update: the reference is not the initial policy, or scoring differs from sampling.",
        "Load the same weights for both, and compare their log-probabilities of the same moves; they must agree to rounding.",
    ),
    Check(
        "kl_trap",
        _END,
        ("entropy_coefficient", "entropy"),
        finds.kl_trap,
        _CRITICAL,
        "The entropy bonus was raised again and again, and entropy collapsed anyway: a sampled bonus, -mean(log p), has no expected"
        " gradient on-policy, a KL to the old policy is its opposite, and after a collapse even an exact bonus has no gradient left.",
        "Act while entropy is normal, with the exact entropy; go back to a healthy checkpoint, or add KL(reference || policy), whose"
        " gradient does not vanish (`grpo.recovery`); lower `grpo.learning_rate`.",
    ),
    Check(
        "entropy_collapse",
        _BEFORE | _DURING | _END,
        ("entropy",),
        finds.entropy_collapse,
        _CRITICAL,
        "The policy became nearly deterministic before it had learnt good moves: moves of a group agree, and advantages vanish.",
        "Go back to a checkpoint from before, or start from a policy that has a choice left; lower `grpo.learning_rate`, or raise"
        " `grpo.entropy_coefficient` with the exact entropy.",
    ),
    Check(
        "impossible_entropy",
        _END,
        ("entropy",),
        finds.impossible_entropy,
        _CRITICAL,
        "The logged entropy is larger than any over legal moves, or negative: it is -mean(log p_new(sampled move)), which grows without"
        " bound on a stale batch while the true entropy falls to 0.",
        "Compute entropy exactly, -sum p ln p over the legal moves, for logging, for the bonus and for monitors.",
    ),
    Check(
        "cancelling_terms",
        _DURING | _END,
        (),
        finds.cancelling_terms,
        _CRITICAL,
        "Two terms of the loss cancel: their gradients are opposite and of similar size, as of a sampled entropy bonus and a sampled KL.",
        "Use the exact entropy and an exact KL to a frozen reference, one of the two with a small coefficient; log gradients, not values.",
    ),
    Check(
        "diverging",
        _END,
        ("kl",),
        finds.diverging,
        _CRITICAL,
        "The policy runs away from its reference while reward does not rise: updates are too large or too many, or nothing holds it.",
        "Go back to a checkpoint from before; lower `grpo.learning_rate`, raise `grpo.kl_coefficient`, clip the gradient norm.",
    ),
    Check(
        "falling_reward",
        _END,
        (),
        finds.falling_reward,
        _CRITICAL,
        "Reward falls, or loses half of what it had gained: updates make the policy worse, or the sign of the advantages is wrong.",
        "Check the sign and the group of each reward. Lower `grpo.learning_rate`, or raise `grpo.kl_coefficient`.",
    ),
    Check(
        "lost_format",
        _DURING | _END,
        ("parsed",),
        finds.lost_format,
        _CRITICAL,
        "The language model forgets the format of its answers: steps are too large, or nothing trains it to end them.",
        "Go back to a checkpoint from before; lower `grpo.learning_rate` or raise `grpo.kl_coefficient`.",
    ),
    Check(
        "silent_groups",
        _BEFORE | _DURING | _END,
        (),
        finds.silent_groups,
        _WARNING,
        "Most groups have equal rewards, so that they teach nothing: the policy always does the same, or the reward tells nothing apart.",
        "If moves agree, go back to a checkpoint from before or raise `grpo.temperature`; else use other boards or a finer reward.",
    ),
    Check(
        "group_agreement",
        _DURING | _END,
        ("agreement",),
        level("agreement", above=0.75),
        _WARNING,
        "The moves of a group are nearly all the same, so that only regularisers train.",
        "Go back to a checkpoint from before; keep entropy up before it collapses.",
    ),
    Check(
        "loss_budget",
        _DURING | _END,
        (),
        finds.loss_budget,
        _WARNING,
        "Nearly all of the loss is one regulariser.",
        "Log each term's own gradient norm; lower `grpo.entropy_coefficient` or `grpo.kl_coefficient` until the policy term leads.",
    ),
    Check(
        "saturated_controller",
        _END,
        (),
        finds.saturated_controller,
        _WARNING,
        "A controller stood at its bound nearly all the time, so that its coefficient is a constant.",
        "Find out why what it measures does not change; only then change its target or bound.",
    ),
    Check(
        "dead_monitor",
        _END,
        ("entropy_bonus",),
        finds.dead_monitor,
        _WARNING,
        "What watches entropy has never acted.",
        "Watch level and slope of the exact entropy, with a threshold that a healthy run comes near; test that it fires.",
    ),
    Check(
        "high_clip_fraction",
        _DURING | _END,
        ("clip_fraction",),
        level("clip_fraction", above=0.2),
        _WARNING,
        "Clipping takes a fifth of the moves or more out of the gradient.",
        "First rule out a mismatch; then sync the sampled policy more often: fewer inner steps, a lower `grpo.learning_rate`.",
    ),
    Check(
        "flat_reward",
        _END,
        (),
        finds.flat_reward,
        _WARNING,
        "Reward neither rises nor falls: updates are too small, terms cancel, everything is clipped, or the policy collapsed.",
        "See the other findings. If KL to the reference stays near 0, raise `grpo.learning_rate`; if it grows, compare the estimated"
        " gradient with the exact one.",
    ),
    Check(
        "unbelievable_peak",
        _END,
        (),
        finds.unbelievable_peak,
        _WARNING,
        "The best evaluation may be luck: 0.10 of 64 games has the 95 % interval 0.048 to 0.198, and the best of several equal checkpoints"
        " looks better than it is.",
        "Play fresh paired games of that checkpoint against the initial policy, as many as the difference needs.",
    ),
    Check(
        "no_baseline",
        _END,
        (),
        finds.no_baseline,
        _WARNING,
        "The initial policy's strength was not measured, so that later scores do not show whether training helped.",
        "Measure it by the same games before the first update.",
    ),
)
"""Of equal severity and equal first step, findings are told in this order."""

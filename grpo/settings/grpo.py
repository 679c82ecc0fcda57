"""Settings of GRPO. Coefficients are win probability per nat; entropies and divergences are exact and in nats."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from grpo.settings.types import Count, NotNegative, Positive, Probability, Role, Section

# Part of the objective: Adam's moments of one objective do not fit another, see `steps.pipeline.resume_changes`.
_OBJECTIVE: Final = Role(may_change_on_resume=False)


class DepthConfig(Section):
    """Length of a trajectory from its initial state. Each state in which the policy is to move is a group."""

    num_own_moves: Annotated[int, Field(ge=1, le=64)] = 1
    """States of a trajectory in which the policy is to move; 1 needs no opponent."""
    opponent: Literal["self", "engine"] = "self"
    """Who replies: the policy itself, sampled at its temperature, or Stockfish at a fixed number of nodes. Replies are not trained on."""
    opponent_nodes: Count = 1
    """Nodes per move of Stockfish, as the opponent and as the teacher below."""
    teacher_probability: Probability = 0.0
    """Probability that Stockfish, not the opponent, chooses a reply."""
    teacher_plies: Annotated[int, Field(ge=0)] = 4
    """The teacher replies only in this many first plies of a trajectory."""


class SelfPlayConfig(Section):
    """Self-play: states from games of the policy against itself, mixed with boards of the dataset."""

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.66
    """Fraction of the states of a step; 0 turns self-play off. Without it the policy does not learn to finish its own games."""
    states_per_round: Count = 6_000
    """Distinct positions taken from the games of one round; the engine computes the move values of each once."""
    steps_per_round: Count = 100
    """Steps that train on the states of one round, before the current policy plays the next round."""
    temperature: Positive = 0.25
    """Sampling temperature of both sides. Far below 1, so that the games resemble evaluation games with best moves: at 0.7, a tenth of
    the games end by repetition, with best moves half."""
    opening_plies: Annotated[int, Field(ge=0, le=40)] = 6
    """Each game starts with up to this many random legal plies from the initial position."""
    max_plies: Count = 160
    """Games are truncated after this many plies."""
    opponent_fraction: Probability = 0.0
    """Fraction of the games that are played against Stockfish instead; their states are those in which the policy is to move."""
    opponent_random_fractions: Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(strict=False, min_length=1)] = (
        0.3,
        0.15,
        0.07,
        0.0,
    )
    """Fractions of random moves of that opponent, which falls: the first round meets the first. The next round meets the next one if the
    policy scored more than 0.6, and the one before if less than 0.4."""
    opponent_nodes: Count = 1
    """Nodes per move of that opponent."""
    repetition: Annotated[Literal["draw", "ignored"], _OBJECTIVE] = "draw"
    """Reward of a move that repeats a position of its game. `ignored` uses the engine's score, which knows no history: the policy can then
    repeat moves in a won position without loss."""


class CoefficientBounds(Section):
    """Bounds within which a controller adjusts a coefficient."""

    min_coefficient: Positive
    """Lower bound of the coefficient; above 0, so that it can rise again."""
    max_coefficient: Positive
    """Upper bound of the coefficient."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.min_coefficient > self.max_coefficient:
            raise ValueError(f"min_coefficient ({self.min_coefficient}) cannot exceed max_coefficient ({self.max_coefficient})")
        return self


class EntropyTarget(CoefficientBounds):
    """The default controller: adjusts the entropy coefficient so that entropy stays near a fraction of ln(number of legal moves)."""

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Target entropy at T = 1, as a fraction of the mean ln(number of legal moves)."""
    rate: Positive = 0.1
    """Each step changes the log of the coefficient by rate * (target - entropy in nats)."""
    dead_band: NotNegative = 0.1
    """Distance from the target, in nats, within which the coefficient does not change."""
    min_coefficient: Positive = 0.005
    """Lower bound of the coefficient; above 0, so that it can rise again."""
    max_coefficient: Positive = 0.05
    """Upper bound of the coefficient. The integral is clamped too (anti-windup)."""


class KlTarget(CoefficientBounds):
    """The proportional controller of the coefficient of the reference KL (Ziegler et al., arXiv 1909.08593)."""

    nats: Positive = 0.3
    """Target of the reference KL."""
    horizon: Positive = 20.0
    """In steps: each step multiplies the coefficient by 1 + clip(KL / target - 1, -0.2, 0.2) / horizon."""
    min_coefficient: Positive = 1e-4
    """Lower bound of the coefficient; above 0, so that it can rise again."""
    max_coefficient: Positive = 0.1
    """Upper bound of the coefficient."""


class FieldNotesRecovery(Section):
    """The recovery controller of the field notes, unchanged. It has no defaults: its numbers fit only the rewards of preset `clean`."""

    entropy_floor: Positive
    """Entropy, in nats at T = 1, below which steps are counted."""
    entropy_critical: Positive
    """Entropy, in nats at T = 1, below which training saves and stops immediately."""
    steps_threshold: Count
    """Number of consecutive steps below the floor after which it acts; the count then restarts."""
    entropy_boost_factor: Annotated[float, Field(ge=1)]
    """Factor of the entropy coefficient."""
    max_entropy_coefficient: Positive
    """Upper bound of the entropy coefficient."""
    kl_reduction_factor: Annotated[float, Field(gt=0, le=1)]
    """Factor of the KL coefficient."""
    min_kl_coefficient: NotNegative
    """Lower bound of the KL coefficient."""
    temperature_boost: NotNegative
    """Increase of the temperature."""
    max_temperature: Positive
    """Upper bound of the temperature."""


class RecoveryConfig(Section):
    """What happens when entropy is critical. An entropy bonus does not help then: its gradient vanishes with the entropy."""

    kind: Literal["stop", "forward_kl", "rollback"] = "forward_kl"
    """`stop` saves and stops. `forward_kl` adds KL(reference || policy), whose gradient does not vanish, until entropy is healthy.
    `rollback` returns to the last healthy checkpoint and lowers the learning rate."""
    coefficient: Positive = 0.3
    """`forward_kl`: coefficient of KL(reference || policy) during recovery."""
    healthy_entropy: Positive = 1.0
    """Entropy, in nats at T = 1, above which a checkpoint is healthy and `forward_kl` ends."""
    learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """`rollback`: factor of the learning rate at each rollback."""
    max_times: Count = 3
    """Maximum number of recoveries; the next critical entropy stops the run."""


class AlarmConfig(Section):
    """Warnings about a run, in its history and on the terminal."""

    window: Annotated[int, Field(ge=2)] = 20
    """Steps over which quantities are averaged, or for which a condition must hold."""
    entropy_share: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """Warn if the mean normalised entropy is below this."""
    steps_to_critical: Count = 30
    """Warn if, by the trend in the window, entropy becomes critical within this many steps."""
    cancelling_cosine: Annotated[float, Field(gt=-1, lt=0)] = -0.95
    """Two terms cancel if the cosine of their gradients is below this and their norms differ by less than a factor of two."""
    dominating_share: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    """A regulariser dominates if it has more than this fraction of the sum of gradient norms."""
    silent_share: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Warn if more than this fraction of groups has zero variance, and so zero advantage. See `max_silent_windows`."""
    max_silent_windows: Count = 3
    """Training stops after this many consecutive windows of such warnings."""
    saturated_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """Warn if a controller is at a bound for more than this fraction of a window."""


class GrpoConfig(Section):
    """Group relative policy optimisation (GRPO)."""

    num_steps: Annotated[Count, Role(is_main=True)] = 300
    """Number of rollouts, each followed by its optimiser steps. A resumed run does this many more."""
    states_per_step: Annotated[Count, Role(is_main=True)] = 512
    """Initial states of a rollout."""
    num_minibatches: Count = 2
    """Optimiser steps per inner epoch; each uses an equal part of the rollout."""
    num_inner_epochs: Count = 1
    """Maximum number of passes over one rollout."""
    mirrors_boards: bool = True
    """Whether a random half of the states without castling rights is mirrored left-right: twice the boards for the cost of one search."""
    max_states_per_forward: Annotated[Count, Role(is_compared=False)] = 512
    """Micro-batch size (gradient accumulation): affects memory, not the result."""

    estimator: Annotated[Literal["sampled", "exact", "trajectory"], Role(may_change_on_resume=False, is_main=True)] = "sampled"
    """Estimator of the policy gradient. `sampled` is GRPO with groups of moves from one state. `exact` sums over all legal moves.
    `trajectory` compares `group_size` trajectories from one board with each other, ply by ply."""
    baseline: Annotated[Literal["mean", "leave_one_out"], _OBJECTIVE] = "mean"
    """Baseline of the advantage: the mean of the group, or the mean of its other members, which removes the factor 1 - 1/G."""
    divide_by_std: Annotated[bool, _OBJECTIVE] = False
    """Whether advantages are divided by the standard deviation of their group. This biases the gradient and weights states unequally."""
    std_floor: Annotated[Positive, _OBJECTIVE] = 0.02
    """Lower bound of that standard deviation, in win probability."""
    group_size: Annotated[int, Field(ge=2, le=4_096), Role(is_main=True)] = 16
    """Moves sampled from one state, compared only with each other."""
    depth: Annotated[DepthConfig, _OBJECTIVE] = DepthConfig()
    self_play: SelfPlayConfig = SelfPlayConfig()

    temperature: Annotated[Positive, Role(is_main=True)] = 1.0
    """Temperature of the policy, the same for sampling and for the loss."""
    learning_rate: Annotated[Positive, Role(is_main=True)] = 1e-3
    """Learning rate of Adam."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of the learning rate warm-up."""
    learning_rate_decay: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate schedule from the end of the warm-up to `num_steps`."""
    final_learning_rate_fraction: Probability = 0.05
    """Learning rate at the end of the decay, as a fraction of `learning_rate`."""
    weight_averaging: Annotated[float, Field(ge=0, lt=1)] = 0.97
    """Decay of the exponential moving average (EMA) of the weights. The EMA policy is evaluated, saved and played; training updates the
    raw weights. 0 turns the EMA off."""
    max_gradient_norm: Positive = 1.0
    """Gradient clipping: maximum Euclidean norm of the gradient."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below at `1 - clip_low`."""
    clip_high: Positive = 0.28
    """The probability ratio is clipped above at `1 + clip_high`. Wider than `clip_low`, so that rare moves can gain probability."""
    max_kl_old: NotNegative = 0.1
    """Trust region: the steps of a rollout stop when the exact KL(old || new) of a minibatch exceeds 1.5 times this. 0 is no limit."""

    entropy_coefficient: Annotated[NotNegative, Role(is_main=True)] = 0.015
    """Coefficient of the exact entropy bonus; the initial value of its schedule."""
    entropy_schedule: Annotated[Literal["constant", "annealed", "target", "field_notes"], Role(is_main=True)] = "target"
    """`annealed` changes linearly to `final_entropy_coefficient`. `target` is the controller of `entropy_target`. `field_notes` is that
    of `[grpo.field_notes]`, which also adjusts the KL coefficient and the temperature."""
    final_entropy_coefficient: NotNegative = 0.0
    """`annealed`: the coefficient after `num_steps`."""
    entropy_target: EntropyTarget = EntropyTarget()
    field_notes: FieldNotesRecovery | None = None
    """The numbers of `entropy_schedule = "field_notes"`."""
    kl_coefficient: Annotated[NotNegative, Role(is_main=True)] = 0.03
    """Coefficient of the KL divergence from the reference. Without it the policy unlearns how to win won positions: there most moves keep
    the value, so that values cannot tell progress from shuffling, and only the imitated moves do (docs/results.md)."""
    kl_direction: Annotated[Literal["policy_to_reference", "reference_to_policy"], _OBJECTIVE] = "policy_to_reference"
    """KL(policy || reference) or KL(reference || policy). Only the second has a useful gradient after an entropy collapse."""
    kl_schedule: Literal["constant", "target"] = "constant"
    """`target` is the controller of `kl_target`."""
    kl_target: KlTarget = KlTarget()
    steps_per_reference_refresh: Annotated[int, Field(ge=0), _OBJECTIVE] = 0
    """Every this many steps the reference becomes a copy of the policy if its entropy is healthy. 0 keeps the pretrained policy."""

    critical_entropy: NotNegative = 0.2
    """Entropy is critical when its mean over `critical_window` steps is below this; 0 turns the check off."""
    critical_measure: Literal["entropy", "normalised_entropy"] = "entropy"
    """Entropy in nats, or as a fraction of ln(number of legal moves); both at T = 1."""
    critical_window: Count = 10
    """Number of steps of that mean."""
    recovery: RecoveryConfig = RecoveryConfig()
    alarms: Annotated[AlarmConfig, Role(is_compared=False)] = AlarmConfig()

    steps_per_gradient_budget: Annotated[Count, Role(is_compared=False)] = 25
    """Steps between two measurements of each loss term's gradient in the parameters. Gradients in the logits are measured every step."""
    steps_per_checkpoint: Count = 100
    """Steps between two checkpoints; each is evaluated on the held-out boards."""
    num_checkpoints_kept: Annotated[int, Field(ge=3), Role(is_compared=False)] = 12
    """Maximum number of checkpoints. The best by held-out regret, the last healthy and the newest are never deleted."""
    max_skipped_steps: Count = 3
    """Number of consecutive steps with NaN or infinity after which training stops with an error."""
    skipped_learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Factor of the learning rate after each step with NaN or infinity."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision inside the network. Logits, probabilities and loss are always float32 or better."""
    is_compiled: Annotated[bool, Role(is_compared=False)] = False
    """Whether to use `torch.compile`: worth it for long runs on a GPU."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.states_per_step % self.num_minibatches:
            raise ValueError(f"states_per_step ({self.states_per_step}) must be a multiple of num_minibatches ({self.num_minibatches})")
        if self.entropy_schedule == "field_notes" and self.field_notes is None:
            raise ValueError(
                'entropy_schedule = "field_notes" needs [grpo.field_notes], which has no defaults: its numbers depend on the reward'
            )
        num_own = round(self.self_play.fraction * self.states_per_step)
        if num_own > self.self_play.states_per_round:
            raise ValueError(
                f"self_play.states_per_round ({self.self_play.states_per_round}) must be at least the number of states that a step uses:"
                f" self_play.fraction of states_per_step, {num_own}"
            )
        if self.estimator == "exact" and self.baseline != "mean":
            raise ValueError('baseline = "leave_one_out" needs sampled groups; with estimator = "exact" use "mean"')
        if self.depth.num_own_moves == 1 and (self.depth.opponent == "engine" or self.depth.teacher_probability > 0):
            raise ValueError(
                "depth.opponent and depth.teacher_probability need depth.num_own_moves of 2 or more: with 1 there are no replies"
            )
        if self.estimator == "trajectory" and self.depth.num_own_moves == 1:
            raise ValueError('estimator = "trajectory" needs depth.num_own_moves of 2 or more: with 1 use "sampled"')
        if self.kl_schedule == "target":
            low, high = self.kl_target.min_coefficient, self.kl_target.max_coefficient
            if not low <= self.kl_coefficient <= high:
                raise ValueError(f"kl_coefficient ({self.kl_coefficient}) must lie within kl_target's bounds, {low} to {high}")
            if self.entropy_schedule == "field_notes":
                raise ValueError('entropy_schedule = "field_notes" adjusts the KL coefficient too, so kl_schedule must be "constant"')
        low, high = self.entropy_target.min_coefficient, self.entropy_target.max_coefficient
        if self.entropy_schedule == "target" and not low <= self.entropy_coefficient <= high:
            raise ValueError(f"entropy_coefficient ({self.entropy_coefficient}) must lie within entropy_target's bounds, {low} to {high}")
        if self.critical_measure == "normalised_entropy" and self.critical_entropy >= 1:
            raise ValueError(f"critical_entropy ({self.critical_entropy}) must be below 1 when critical_measure is normalised_entropy")
        return self

"""GRPO's part of the settings. Coefficients are win probability per nat, entropies and divergences are exact and in nats."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from grpo.settings.types import Count, NotNegative, Positive, Probability, Role, Section

# Part of what is maximised: Adam's moments are of the gradients of one objective, see `steps.pipeline.resume_changes`.
_OBJECTIVE: Final = Role(may_change_on_resume=False)


class DepthConfig(Section):
    """How far a trajectory goes on from its first state; every own-move state that it reaches is a group of its own."""

    num_own_moves: Annotated[int, Field(ge=1, le=64)] = 1
    """States of a trajectory in which the policy is to move; with 1 no rival is needed."""
    rival: Literal["self", "engine"] = "self"
    """Who replies: the policy itself, sampled at its temperature, or Stockfish at fixed nodes. Replies never count."""
    rival_nodes: Count = 1
    """Of the `engine` rival, and of the teacher below."""
    teacher_probability: Probability = 0.0
    """Chance that a reply of the rival is Stockfish's instead."""
    teacher_plies: Annotated[int, Field(ge=0)] = 4
    """Only the first so many plies of a trajectory have such forced replies."""


class OwnGamesConfig(Section):
    """States from the policy's own games, mixed with boards of the dataset."""

    share: Annotated[float, Field(ge=0, lt=1)] = 0.33
    """Of the states of a step; 0 plays no games. A policy that sees only others' positions does not learn to finish its own games."""
    states_per_round: Count = 6_000
    """Distinct positions taken from the games of one round, each valued by the engine once."""
    steps_per_round: Count = 100
    """Steps that learn from one round's states, before the policy as it is then plays the next."""
    temperature: Positive = 0.25
    """At which both sides' moves are sampled; far below 1, so that the games look like those it will be judged by: at 0.7 a tenth of them
    ended by repetition, of best-move games half."""
    opening_plies: Annotated[int, Field(ge=0, le=40)] = 6
    """Each game begins with up to this many random legal plies from the start position."""
    max_plies: Count = 160
    """A game is cut here."""
    repetition: Annotated[Literal["draw", "ignored"], _OBJECTIVE] = "draw"
    """What a move is worth that leads back to a position of its game. `ignored` leaves it the engine's score, which knows no history: a
    policy that is content with any winning move then goes round in circles."""


class CoefficientBounds(Section):
    """Within which a controller moves a coefficient."""

    min_coefficient: Positive
    """The coefficient never falls below, so that it can always come back."""
    max_coefficient: Positive
    """The coefficient never rises above."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.min_coefficient > self.max_coefficient:
            raise ValueError(f"min_coefficient ({self.min_coefficient}) cannot exceed max_coefficient ({self.max_coefficient})")
        return self


class EntropyTarget(CoefficientBounds):
    """The default controller: moves the entropy coefficient so that entropy stays near a share of ln(legal moves)."""

    share: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Target, as a share of the mean ln(number of legal moves), at T = 1."""
    rate: Positive = 0.1
    """The log of the coefficient moves by rate * (target - entropy in nats) a step."""
    dead_band: NotNegative = 0.1
    """Nats around the target in which nothing moves."""
    min_coefficient: Positive = 0.005
    """The coefficient never falls below, so that it can always come back."""
    max_coefficient: Positive = 0.05
    """The coefficient never rises above; the integral is clamped with it, so that nothing winds up."""


class KlTarget(CoefficientBounds):
    """The proportional controller of the anchor's coefficient (Ziegler et al., arXiv 1909.08593)."""

    nats: Positive = 0.3
    """Where the anchor's divergence should be."""
    horizon: Positive = 20.0
    """Steps: the coefficient is multiplied by 1 + clip(KL / target - 1, -0.2, 0.2) / horizon."""
    min_coefficient: Positive = 1e-4
    """The coefficient never falls below, so that it can always come back."""
    max_coefficient: Positive = 0.1
    """The coefficient never rises above."""


class FieldNotesRecovery(Section):
    """The recovery of the field notes, exactly as noted. It has no defaults: its numbers belong to the rewards of preset `clean`."""

    entropy_floor: Positive
    """Nats at T = 1."""
    entropy_critical: Positive
    """Nats at T = 1: below, training saves and stops at once."""
    steps_threshold: Count
    """Steps in a row below the floor after which it acts; the count starts again then."""
    entropy_boost_factor: Annotated[float, Field(ge=1)]
    """The entropy coefficient is multiplied by this."""
    max_entropy_coefficient: Positive
    """Its bound."""
    kl_reduction_factor: Annotated[float, Field(gt=0, le=1)]
    """The KL coefficient is multiplied by this."""
    min_kl_coefficient: NotNegative
    """Its bound."""
    temperature_boost: NotNegative
    """The temperature rises by this."""
    max_temperature: Positive
    """Its bound."""


class RecoveryConfig(Section):
    """What happens when entropy is critical. No entropy bonus helps then, for its gradient is gone with the entropy."""

    kind: Literal["stop", "forward_kl", "rollback"] = "forward_kl"
    """`stop` saves and stops. `forward_kl` adds KL(reference || policy), which still pulls when nothing else does, until entropy is
    healthy. `rollback` goes back to the last healthy checkpoint with a smaller learning rate."""
    coefficient: Positive = 0.3
    """`forward_kl`: win probability that one nat of KL(reference || policy) costs while recovering."""
    healthy_entropy: Positive = 1.0
    """Nats at T = 1: above, a checkpoint counts as healthy, and `forward_kl` ends."""
    learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """`rollback`: of the learning rate, at each rollback."""
    max_times: Count = 3
    """After so many recoveries the next critical entropy stops the run."""


class AlarmConfig(Section):
    """When a run is warned about, in its history and on the terminal."""

    window: Annotated[int, Field(ge=2)] = 20
    """Steps over which things are averaged or must last."""
    entropy_share: Annotated[float, Field(ge=0, lt=1)] = 0.15
    """Level: mean normalised entropy below this."""
    steps_to_critical: Count = 30
    """Slope: at the window's trend, critical entropy is at most so many steps away."""
    cancelling_cosine: Annotated[float, Field(gt=-1, lt=0)] = -0.95
    """Two terms whose gradients' cosine is below, and whose norms are within a factor of two, cancel."""
    dominating_share: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    """A regulariser with more than this share of the gradients' norms dominates."""
    silent_share: Annotated[float, Field(gt=0, le=1)] = 0.95
    """More silent groups than this teach nothing: a warning, and the end after `max_silent_windows`."""
    max_silent_windows: Count = 3
    """Windows of silence after which training stops."""
    saturated_share: Annotated[float, Field(gt=0, le=1)] = 0.9
    """A controller at a bound for more than this share of a window is a constant."""


class GrpoConfig(Section):
    """Group relative policy optimisation."""

    num_steps: Annotated[Count, Role(is_on_card=True)] = 300
    """Rollouts, each followed by its optimiser steps. A resumed run does as many again."""
    states_per_step: Annotated[Count, Role(is_on_card=True)] = 512
    """First states of a rollout."""
    num_minibatches: Count = 2
    """Optimiser steps an inner epoch; each takes an equal part of the rollout."""
    num_inner_epochs: Count = 1
    """Passes over one rollout, at most."""
    reflects: bool = True
    """Whether a random half of the states without castling rights is shown as left-right mirror images: twice the boards for one search."""
    max_states_per_forward: Annotated[Count, Role(is_compared=False)] = 512
    """A minibatch is cut into pieces no larger than this, whose gradients are added; changes memory, not the result."""

    estimator: Annotated[Literal["sampled", "exact", "trajectory"], Role(may_change_on_resume=False, is_on_card=True)] = "sampled"
    """How the policy gradient is estimated. `sampled` is GRPO: groups of moves from one state. `exact` sums over all legal moves.
    `trajectory` is the older kind: `group_size` trajectories from one board, compared with each other ply by ply."""
    baseline: Annotated[Literal["mean", "leave_one_out"], _OBJECTIVE] = "mean"
    """What a reward is compared with: the group's mean, or the mean of the others, which removes the factor 1 - 1/G."""
    divide_by_std: Annotated[bool, _OBJECTIVE] = False
    """Whether advantages are divided by their group's standard deviation, which bends the gradient and weighs states unequally."""
    std_floor: Annotated[Positive, _OBJECTIVE] = 0.02
    """The standard deviation is taken as no smaller than this (win probability)."""
    group_size: Annotated[int, Field(ge=2, le=4_096), Role(is_on_card=True)] = 16
    """Moves sampled from one state; they are compared with each other only."""
    depth: Annotated[DepthConfig, _OBJECTIVE] = DepthConfig()
    own_games: OwnGamesConfig = OwnGamesConfig()

    temperature: Annotated[Positive, Role(is_on_card=True)] = 1.0
    """Of the policy that is sampled and trained; one number for both, by construction."""
    learning_rate: Annotated[Positive, Role(is_on_card=True)] = 1e-3
    """Adam's."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps in which the learning rate rises to its value."""
    learning_rate_decay: Literal["constant", "linear", "cosine"] = "cosine"
    """Its way from the end of the warm-up to `num_steps`."""
    final_learning_rate_share: Probability = 0.05
    """Of the learning rate, at the end of the decay."""
    weight_averaging: Annotated[float, Field(ge=0, lt=1)] = 0.97
    """Share that an average of the weights over steps keeps at each step. The average is what is measured, saved as the policy and
    played; training goes on from the weights themselves. 0 is no average."""
    max_gradient_norm: Positive = 1.0
    """The gradient is scaled down to this Euclidean norm."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is held above `1 - clip_low`."""
    clip_high: Positive = 0.28
    """The probability ratio is held below `1 + clip_high`; wider than `clip_low` keeps rare moves alive."""
    max_kl_old: NotNegative = 0.1
    """Trust region: a rollout's optimiser steps end when the exact KL(old || new) of a minibatch passes 1.5 times this; 0 is no end."""

    entropy_coefficient: Annotated[NotNegative, Role(is_on_card=True)] = 0.015
    """Win probability that one nat of exact entropy is worth; where the schedule begins."""
    entropy_schedule: Annotated[Literal["constant", "annealed", "target", "field_notes"], Role(is_on_card=True)] = "target"
    """`annealed` goes in a line to `final_entropy_coefficient`; `target` is the controller of `entropy_target`; `field_notes` is that of
    the field notes, which moves KL coefficient and temperature too."""
    final_entropy_coefficient: NotNegative = 0.0
    """Of `annealed`, after `num_steps`."""
    entropy_target: EntropyTarget = EntropyTarget()
    field_notes: FieldNotesRecovery | None = None
    """The numbers of `entropy_schedule = "field_notes"`."""
    kl_coefficient: Annotated[NotNegative, Role(is_on_card=True)] = 0.0
    """Win probability that one nat of divergence from the reference costs."""
    kl_direction: Annotated[Literal["policy_to_reference", "reference_to_policy"], _OBJECTIVE] = "policy_to_reference"
    """KL(policy || reference) or KL(reference || policy); only the second still pulls after a collapse."""
    kl_schedule: Literal["constant", "target"] = "constant"
    """`target` is the controller of `kl_target`."""
    kl_target: KlTarget = KlTarget()
    steps_per_reference_refresh: Annotated[int, Field(ge=0), _OBJECTIVE] = 0
    """The reference becomes a copy of the policy each so many steps, if its entropy is healthy; 0 keeps the pretrained one."""

    critical_entropy: NotNegative = 0.2
    """Entropy is critical when its mean over `critical_window` steps falls below; 0 is never."""
    critical_measure: Literal["entropy", "normalised_entropy"] = "entropy"
    """Nats at T = 1, or the share of ln(legal moves) at T = 1."""
    critical_window: Count = 10
    """Steps of that mean."""
    recovery: RecoveryConfig = RecoveryConfig()
    alarms: Annotated[AlarmConfig, Role(is_compared=False)] = AlarmConfig()

    steps_per_gradient_budget: Annotated[Count, Role(is_compared=False)] = 25
    """Steps between two looks at each term's gradient in the network's parameters; those in logits are known at every step."""
    steps_per_checkpoint: Count = 50
    """Steps between two checkpoints, each measured on the held-out boards."""
    num_checkpoints_kept: Annotated[int, Field(ge=3), Role(is_compared=False)] = 12
    """The best by held-out regret, the last healthy and the newest are never deleted, whatever the number."""
    max_skipped_steps: Count = 3
    """Non-finite steps in a row after which training stops with an error."""
    skipped_learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Of the learning rate, at each non-finite step."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the network's inside; logits, probabilities and loss are float32 or better in any case."""
    is_compiled: Annotated[bool, Role(is_compared=False)] = False
    """Whether the network is compiled by torch: pays on a GPU, in long runs."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.states_per_step % self.num_minibatches:
            raise ValueError(f"states_per_step ({self.states_per_step}) must be a multiple of num_minibatches ({self.num_minibatches})")
        if self.entropy_schedule == "field_notes" and self.field_notes is None:
            raise ValueError('entropy_schedule = "field_notes" needs the numbers of [grpo.field_notes], which belong to one kind of reward')
        num_own = round(self.own_games.share * self.states_per_step)
        if num_own > self.own_games.states_per_round:
            raise ValueError(
                f"own_games.states_per_round ({self.own_games.states_per_round}) must be at least what a step takes of it:"
                f" own_games.share of states_per_step, {num_own}"
            )
        if self.estimator == "exact" and self.baseline != "mean":
            raise ValueError('baseline = "leave_one_out" is for sampled groups: estimator = "exact" has no one to leave out')
        if self.depth.num_own_moves == 1 and (self.depth.rival == "engine" or self.depth.teacher_probability > 0):
            raise ValueError(
                "depth.rival and depth.teacher_probability need depth.num_own_moves of 2 or more: nobody replies to the only move"
            )
        if self.estimator == "trajectory" and self.depth.num_own_moves == 1:
            raise ValueError('estimator = "trajectory" needs depth.num_own_moves of 2 or more: with 1 it is "sampled"')
        if self.kl_schedule == "target":
            low, high = self.kl_target.min_coefficient, self.kl_target.max_coefficient
            if not low <= self.kl_coefficient <= high:
                raise ValueError(f"kl_coefficient ({self.kl_coefficient}) must lie within kl_target's bounds, {low} to {high}")
            if self.entropy_schedule == "field_notes":
                raise ValueError('entropy_schedule = "field_notes" moves the KL coefficient too, so that kl_schedule must be "constant"')
        low, high = self.entropy_target.min_coefficient, self.entropy_target.max_coefficient
        if self.entropy_schedule == "target" and not low <= self.entropy_coefficient <= high:
            raise ValueError(f"entropy_coefficient ({self.entropy_coefficient}) must lie within entropy_target's bounds, {low} to {high}")
        if self.critical_measure == "normalised_entropy" and self.critical_entropy >= 1:
            raise ValueError(f"critical_entropy ({self.critical_entropy}) is a share below 1 when critical_measure is normalised_entropy")
        return self

"""Settings of GRPO (group relative policy optimization). Coefficients are in reward per nat.

- State: a board whose legal moves all have a value, 0 to 1, from the engine's scores.
- Rollout: the states of one trainer step, their sampled moves and rewards.
- Reference: the frozen pretrained policy, which the KL compares with.
- Field notes (tests/field_notes): records of five failed chess GRPO runs.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo.metrics.shared import ENTROPY_BOUNDS, KL_BOUNDS
from grpo.settings.types import Count, NotNegative, Positive, Section


class FieldNotesRecovery(Section):
    """Numbers of `grpo.train.control.FieldNotesController`, which raises the entropy coefficient."""

    entropy_floor: Positive
    """Steps with a lower entropy, in nats at T = 1, are counted."""
    entropy_critical: Positive
    """One step with a lower entropy, in nats at T = 1, stops training."""
    steps_threshold: Count
    """Steps in a row below the floor before the entropy coefficient is raised."""
    max_entropy_coefficient: Positive
    """Upper bound of the entropy coefficient."""


class GrpoConfig(Section):
    num_steps: Count = 400
    """Number of rollouts. A run with `--resume-from` does this many more."""
    states_per_step: Count = 512
    """Boards (or prompts) per rollout."""
    num_minibatches: Count = 2
    """Parts of a rollout's states; each gives at most one optimizer step."""

    group_size: Annotated[int, Field(ge=2, le=4_096)] = 16
    """Moves sampled from one state, compared only with each other."""
    num_own_moves: Annotated[int, Field(ge=1, le=64)] = 1
    """Own moves of a trajectory, a line of play. Above 1, the n-th own moves of `group_size` trajectories from one board are compared, as
    in the field notes."""
    self_play_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.66
    """Fraction of a step's states from self-play; at 0 the policy does not learn to finish games."""
    self_play_states: Count = 3_000
    """Distinct positions of one self-play round, a set of games."""
    self_play_steps: Count = 50
    """Steps that use one self-play round."""

    temperature: Positive = 1.0
    """Temperature of sampling and of the loss."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    learning_rate_decay: Literal["constant", "cosine"] = "cosine"
    """Schedule of the learning rate; `cosine` falls to 5 % over `num_steps`."""
    weight_averaging: Annotated[float, Field(ge=0, lt=1)] = 0.97
    """Decay of the weights' moving average, which is evaluated, saved and played; 0 turns it off."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Probability ratios (new policy / sampling policy) are clipped below `1 - clip_low`."""
    clip_high: Positive = 0.28
    """Probability ratios are clipped above `1 + clip_high`."""

    entropy_coefficient: NotNegative = 0.015
    """Initial coefficient of the entropy bonus."""
    entropy_schedule: Literal["constant", "target", "field_notes"] = "target"
    """`target` keeps entropy near `target_entropy`; `field_notes` also changes KL coefficient and temperature."""
    target_entropy: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Target entropy at T = 1, as a fraction of mean ln(legal moves)."""
    field_notes: FieldNotesRecovery | None = None
    """Numbers of `entropy_schedule = "field_notes"`."""
    kl_coefficient: NotNegative = 0.03
    """Coefficient of KL(policy || reference). At 0, the policy unlearns to win won positions (docs/results.md)."""
    kl_target: Positive | None = None
    """Target of the KL in nats, to which the KL coefficient adapts; if unset, the coefficient stays."""

    critical_entropy: NotNegative = 0.2
    """Entropy is critical if its mean over ten steps, in nats at T = 1, is lower; 0 turns the check off."""
    recovery: Literal["stop", "forward_kl"] = "forward_kl"
    """Response to critical entropy: `stop` stops; `forward_kl` adds KL(reference || policy) to the loss until mean entropy is 1 nat."""

    steps_per_checkpoint: Count = 100
    """Steps between checkpoints."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision inside the network; probabilities and loss are float32 or better."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if self.states_per_step % self.num_minibatches:
            raise ValueError(
                f"states_per_step ({self.states_per_step}) must be a multiple of num_minibatches ({self.num_minibatches});"
                " num_minibatches = 1 allows any number"
            )
        if self.entropy_schedule == "field_notes" and self.field_notes is None:
            raise ValueError(
                'entropy_schedule = "field_notes" needs [grpo.field_notes]; its numbers depend on the reward, so they have no defaults'
            )
        num_own = round(self.self_play_fraction * self.states_per_step)
        if num_own > self.self_play_states:
            raise ValueError(
                f"self_play_states ({self.self_play_states}) must be at least {num_own}, the states that a step uses:"
                " self_play_fraction of states_per_step"
            )
        if self.entropy_schedule == "field_notes" and self.kl_target is not None:
            raise ValueError('entropy_schedule = "field_notes" also changes the KL coefficient: leave kl_target out')
        low, high = ENTROPY_BOUNDS
        if self.entropy_schedule == "target" and not low <= self.entropy_coefficient <= high:
            raise ValueError(
                f"entropy_coefficient ({self.entropy_coefficient}) must be {low} to {high}, the bounds of its controller;"
                ' entropy_schedule = "constant" allows any coefficient'
            )
        low, high = KL_BOUNDS
        if self.kl_target is not None and not low <= self.kl_coefficient <= high:
            raise ValueError(
                f"kl_coefficient ({self.kl_coefficient}) must be {low} to {high}, the bounds of its controller; without kl_target any"
                " coefficient is allowed"
            )
        return self

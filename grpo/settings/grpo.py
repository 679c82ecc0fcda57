"""Settings of GRPO. Coefficients are win probability per nat; entropies and divergences are exact and in nats."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo.metrics.shared import ENTROPY_BOUNDS
from grpo.settings.types import Count, NotNegative, Positive, Section


class FieldNotesRecovery(Section):
    """The recovery controller of the field notes. These numbers of it have no defaults: they depend on the reward."""

    entropy_floor: Positive
    """Entropy, in nats at T = 1, below which steps are counted."""
    entropy_critical: Positive
    """Entropy, in nats at T = 1, below which training saves and stops immediately."""
    steps_threshold: Count
    """Number of consecutive steps below the floor after which it acts; the count then restarts."""
    max_entropy_coefficient: Positive
    """Upper bound of the entropy coefficient."""


class GrpoConfig(Section):
    """Group relative policy optimization (GRPO)."""

    num_steps: Count = 400
    """Number of rollouts, each followed by its optimizer steps. A resumed run does this many more."""
    states_per_step: Count = 512
    """Initial states of a rollout."""
    num_minibatches: Count = 2
    """Optimizer steps of a rollout; each uses an equal part of it."""

    group_size: Annotated[int, Field(ge=2, le=4_096)] = 16
    """Moves sampled from one state, compared only with each other."""
    num_own_moves: Annotated[int, Field(ge=1, le=64)] = 1
    """Own moves of a trajectory. Above 1, `group_size` trajectories from one board are compared with each other, ply by ply, as those of
    the field notes; the policy itself replies, and its replies are not trained on."""
    self_play_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.66
    """Fraction of the states of a step from games of the policy against itself; 0 turns self-play off. Without it the policy does not learn
    to finish its own games."""
    self_play_states: Count = 3_000
    """Distinct positions taken from the games of one round of self-play; the engine computes the move values of each once."""
    self_play_steps: Count = 50
    """Steps that train on the states of one round, before the current policy plays the next round."""

    temperature: Positive = 1.0
    """Temperature of the policy, the same for sampling and for the loss."""
    learning_rate: Positive = 1e-3
    """Learning rate of Adam."""
    learning_rate_decay: Literal["constant", "cosine"] = "cosine"
    """Learning rate schedule up to `num_steps`."""
    weight_averaging: Annotated[float, Field(ge=0, lt=1)] = 0.97
    """Decay of the exponential moving average (EMA) of the weights. The EMA policy is evaluated, saved and played; training updates the
    raw weights. 0 turns the EMA off."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The probability ratio is clipped below at `1 - clip_low`."""
    clip_high: Positive = 0.28
    """The probability ratio is clipped above at `1 + clip_high`. Wider than `clip_low`, so that rare moves can gain probability."""

    entropy_coefficient: NotNegative = 0.015
    """Coefficient of the exact entropy bonus; the initial value of its schedule."""
    entropy_schedule: Literal["constant", "target", "field_notes"] = "target"
    """`target` keeps entropy near `target_entropy`. `field_notes` is the controller of `[grpo.field_notes]`, which also adjusts the KL
    coefficient and the temperature."""
    target_entropy: Annotated[float, Field(gt=0, lt=1)] = 0.6
    """Target entropy at T = 1, as a fraction of the mean ln(number of legal moves)."""
    field_notes: FieldNotesRecovery | None = None
    """The numbers of `entropy_schedule = "field_notes"`."""
    kl_coefficient: NotNegative = 0.03
    """Coefficient of the KL divergence from the reference. Without it the policy unlearns how to win won positions: there most moves keep
    the value, so that values cannot tell progress from shuffling, and only the imitated moves do (docs/results.md)."""
    kl_target: Positive | None = None
    """In nats: the KL coefficient then follows the reference KL to this target (Ziegler et al., arXiv 1909.08593). None keeps it."""

    critical_entropy: NotNegative = 0.2
    """Entropy is critical when its mean over ten steps, in nats at T = 1, is below this; 0 turns the check off."""
    recovery: Literal["stop", "forward_kl"] = "forward_kl"
    """What happens then: `stop` saves and stops. `forward_kl` adds KL(reference || policy) until entropy is healthy: its gradient does not
    vanish with the entropy, as that of an entropy bonus does."""

    steps_per_checkpoint: Count = 100
    """Steps between two checkpoints; each is evaluated on the held-out boards."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision inside the network. Logits, probabilities and loss are always float32 or better."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.states_per_step % self.num_minibatches:
            raise ValueError(
                f"states_per_step ({self.states_per_step}) must be a multiple of num_minibatches ({self.num_minibatches});"
                " num_minibatches = 1 allows any number"
            )
        if self.entropy_schedule == "field_notes" and self.field_notes is None:
            raise ValueError(
                'entropy_schedule = "field_notes" needs [grpo.field_notes], which has no defaults: its numbers depend on the reward'
            )
        num_own = round(self.self_play_fraction * self.states_per_step)
        if num_own > self.self_play_states:
            raise ValueError(
                f"self_play_states ({self.self_play_states}) must be at least the number of states that a step uses:"
                f" self_play_fraction of states_per_step, {num_own}"
            )
        if self.entropy_schedule == "field_notes" and self.kl_target is not None:
            raise ValueError('entropy_schedule = "field_notes" adjusts the KL coefficient too: leave kl_target out')
        low, high = ENTROPY_BOUNDS
        if self.entropy_schedule == "target" and not low <= self.entropy_coefficient <= high:
            raise ValueError(
                f"entropy_coefficient ({self.entropy_coefficient}) must be {low} to {high}, the bounds of the entropy controller;"
                ' entropy_schedule = "constant" allows any coefficient'
            )
        return self

"""Conditions shared by alarms, stop rules, the learnability check before the first update, and the diagnosis.

Their thresholds are the settings `grpo.alarms`: a run's own settings for its alarms and stops, the defaults for the diagnosis.
"""

from grpo.settings.grpo import AlarmConfig


def cancels(cosine: float, norm: float, other_norm: float, alarms: AlarmConfig) -> bool:
    """Return whether two gradients are opposite and within a factor of two in size."""
    return cosine < alarms.cancelling_cosine and norm > 0 and other_norm > 0 and other_norm / 2 <= norm <= 2 * other_norm


def dominates(norm_fraction: float, alarms: AlarmConfig) -> bool:
    """Return whether a term has too large a fraction of the sum of the gradient norms."""
    return norm_fraction > alarms.dominating_share


def is_certain(normalised_entropy: float, alarms: AlarmConfig) -> bool:
    """Return whether a policy with this fraction of ln(legal moves) is nearly deterministic."""
    return normalised_entropy < alarms.entropy_share


def is_constant(saturated_fraction: float, alarms: AlarmConfig) -> bool:
    """Return whether a controller that is at a bound in this fraction of the steps is effectively constant."""
    return saturated_fraction > alarms.saturated_share


def have_zero_advantage(zero_variance_fraction: float, alarms: AlarmConfig) -> bool:
    """Return whether so many groups have zero variance (equal rewards) that there is nothing to learn; if it lasts, training stops."""
    return zero_variance_fraction > alarms.silent_share

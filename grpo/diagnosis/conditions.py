"""The conditions that alarms, stop rules, the look before the first update and the diagnosis share: each is said once.

Their thresholds are in the settings `grpo.alarms`: a run's own for its alarms and stops, the defaults for a history, whoever made it.
"""

from grpo.settings.grpo import AlarmConfig


def cancels(cosine: float, norm: float, other_norm: float, alarms: AlarmConfig) -> bool:
    """Return whether two gradients are opposite and within a factor of two in size."""
    return cosine < alarms.cancelling_cosine and norm > 0 and other_norm > 0 and other_norm / 2 <= norm <= 2 * other_norm


def dominates(share: float, alarms: AlarmConfig) -> bool:
    """Return whether a term with this share of the sum of the gradients' norms leaves the others next to nothing."""
    return share > alarms.dominating_share


def is_certain(normalised_entropy: float, alarms: AlarmConfig) -> bool:
    """Return whether a policy with this share of ln(legal moves) has nearly made up its mind."""
    return normalised_entropy < alarms.entropy_share


def is_constant(share: float, alarms: AlarmConfig) -> bool:
    """Return whether a controller that stands at a bound in this share of the steps is a constant."""
    return share > alarms.saturated_share


def teach_nothing(silent_share: float, alarms: AlarmConfig) -> bool:
    """Return whether groups of which this share have equal rewards leave nothing to learn; lasting, it is a reason to stop."""
    return silent_share > alarms.silent_share

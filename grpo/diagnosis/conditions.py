"""Conditions shared by the stop rule of training, the learnability check before the first update, and the diagnosis."""

from typing import Final

_CANCELLING_COSINE: Final = -0.95
_DOMINATING_FRACTION: Final = 0.9
_CERTAIN_ENTROPY: Final = 0.15
_SATURATED_FRACTION: Final = 0.9
_SILENT_FRACTION: Final = 0.95


def cancels(cosine: float, norm: float, other_norm: float) -> bool:
    """Return whether two gradients are opposite and within a factor of two in size."""
    return cosine < _CANCELLING_COSINE and norm > 0 and other_norm > 0 and other_norm / 2 <= norm <= 2 * other_norm


def dominates(norm_fraction: float) -> bool:
    """Return whether a term has too large a fraction of the sum of the gradient norms."""
    return norm_fraction > _DOMINATING_FRACTION


def is_certain(normalised_entropy: float) -> bool:
    """Return whether a policy with this fraction of ln(legal moves) is nearly deterministic."""
    return normalised_entropy < _CERTAIN_ENTROPY


def is_constant(saturated_fraction: float) -> bool:
    """Return whether a controller that is at a bound in this fraction of the steps is effectively constant."""
    return saturated_fraction > _SATURATED_FRACTION


def have_zero_advantage(zero_variance_fraction: float) -> bool:
    """Return whether so many groups have zero variance (equal rewards) that there is nothing to learn; if it lasts, training stops."""
    return zero_variance_fraction > _SILENT_FRACTION

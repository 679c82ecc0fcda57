"""The conditions that alarms, stop rules and diagnosis share: each is said once."""


def cancels(cosine: float, norm: float, other_norm: float, *, below: float) -> bool:
    """Return whether two gradients are opposite, their cosine `below` this, and within a factor of two in size."""
    return cosine < below and norm > 0 and other_norm > 0 and other_norm / 2 <= norm <= 2 * other_norm

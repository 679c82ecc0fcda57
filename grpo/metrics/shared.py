"""Names and bounds that settings, metrics and computations share."""

from itertools import combinations
from typing import Final

ENTROPY_BOUNDS: Final = (0.005, 0.05)
"""Bounds of the entropy coefficient (reward per nat) if `entropy_schedule = "target"`. The controller multiplies, so 0 could not rise."""
KL_BOUNDS: Final = (1e-4, 0.1)
"""Bounds of the KL coefficient if `kl_target` is set."""

TERMS: Final = ("policy", "entropy", "reference_kl", "recovery_kl")
"""Terms of the objective: clipped surrogate, entropy, KL(policy || reference), KL(reference || policy).

The reference is the frozen pretrained policy. The last term counts only while the policy recovers from too low entropy.
"""
TERM_PAIRS: Final = tuple(combinations(TERMS, 2))
TERM_PRODUCTS: Final = (*((term, term) for term in TERMS), *TERM_PAIRS)
"""Pairs of terms whose gradients' inner products are measured."""

PRETRAINED_STEP: Final = 0

MOVE_QUALITY: Final = ("heldout/acpl", "heldout/accuracy", "heldout/blunders")
"""Metrics that `grpo.match.accuracy` computes."""

BUDGET_SPENT, ENTROPY_CRITICAL = "budget_spent", "entropy_critical"
"""Reasons why training ended."""


def interval_names(name: str) -> tuple[str, str, str]:
    return name, f"{name}_low", f"{name}_high"

"""Names and bounds that settings, the table of metrics and the code that computes share; they are code in a step's version."""

from itertools import combinations
from typing import Final

ENTROPY_BOUNDS: Final = (0.005, 0.05)
"""Of the entropy coefficient under `entropy_schedule = "target"`. The lower is above 0, so that the coefficient can rise again."""

TERMS: Final = ("policy", "entropy", "reference_kl", "recovery_kl")
"""Terms of the objective: clipped surrogate, entropy, KL to the reference, and KL(reference || policy) while recovering."""
TERM_PAIRS: Final = tuple(combinations(TERMS, 2))
TERM_PRODUCTS: Final = (*((term, term) for term in TERMS), *TERM_PAIRS)
"""Pairs whose inner products are measured for the gradient budget: each term with itself (for its norm) and with each other."""

PRETRAINED_STEP: Final = 0
"""Step of the pretrained policy, with which a run begins."""

BUDGET_SPENT, ENTROPY_CRITICAL = "budget_spent", "entropy_critical"
"""Why training ended, in the report of `finetune`."""


def interval_names(name: str) -> tuple[str, str, str]:
    """Return the names of a metric and of the lower and the upper end of its 95 % interval."""
    return name, f"{name}_low", f"{name}_high"

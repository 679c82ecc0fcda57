"""Quantities that the diagnosis reads: their names in our table of metrics, in TRL, in verl, and in the field notes' runs."""

from collections.abc import Mapping
from typing import Final

from grpo.settings.metrics import METRICS, TERM_PAIRS, TERMS

_LARGEST: Final = 1e100
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("grpo/loss", "language/loss", "loss", "total_loss"),
    "policy_loss": ("ppo_loss", "policy_loss", "pg_loss"),
    "kl_penalty": ("language/kl_term", "kl_penalty"),
    "entropy_bonus": ("entropy_bonus",),
    "entropy": ("grpo/entropy", "language/entropy", "entropy"),
    "normalised_entropy": ("grpo/normalised_entropy", "language/normalised_entropy"),
    "log_num_legal": ("grpo/log_num_legal",),
    "kl": ("grpo/kl_reference", "language/kl_reference", "kl", "kl_loss", "kl_divergence"),
    "kl_ratio": ("kl_ratio",),
    "kl_old": ("grpo/kl_old", "approx_kl", "ppo_kl"),
    "kl_old_first": ("grpo/kl_old_first",),
    "clip_fraction": ("grpo/clip_fraction", "language/clip_fraction", "clip_fraction", "clip_ratio/region_mean", "pg_clipfrac"),
    "ratio_min": ("grpo/ratio_min", "language/ratio_min"),
    "ratio_max": ("grpo/ratio_max", "language/ratio_max"),
    "effective_sample_size": ("grpo/effective_sample_size", "ess"),
    "optimiser_steps": ("grpo/optimiser_steps", "language/optimiser_steps"),
    "reward": ("grpo/reward_mean", "language/reward_mean", "reward", "avg_reward", "mean_reward", "critic/score/mean"),
    "reward_std": ("grpo/reward_std", "language/reward_std", "reward_std", "step_reward_std"),
    "reward_p90": ("grpo/reward_p90", "reward_p90"),
    "reward_best": ("reward_best", "critic/score/max"),
    "reward_at_end": ("grpo/reward_at_end",),
    "silent_groups": ("grpo/zero_variance_groups", "language/zero_variance_groups", "frac_reward_zero_std"),
    "agreement": ("grpo/agreement", "language/agreement", "action_agreement", "action_agreement_mean"),
    "agreement_max": ("action_agreement_max",),
    "group_std": ("grpo/group_std_mean",),
    "training_regret": ("grpo/regret",),
    "exact_cosine": ("grpo/exact_cosine",),
    "gradient_norm": ("grpo/gradient_norm", "language/gradient_norm", "grad_norm"),
    "skipped": ("grpo/skipped", "language/skipped"),
    "states": ("grpo/states",),
    "states_dropped": ("grpo/states_dropped",),
    "parsed": ("language/parse_rate", "parsed_fraction"),
    "truncated": ("language/truncated", "truncated_fraction", "completions/clipped_ratio", "response_length/clip_ratio"),
    "sampled_scored_gap": ("language/sampled_scored_gap",),
    "entropy_coefficient": ("control/entropy_coefficient", "entropy_coef"),
    "kl_coefficient": ("control/kl_coefficient", "kl_coef"),
    "learning_rate": ("control/learning_rate", "learning_rate", "lr"),
    "entropy_saturated": ("control/entropy_saturated",),
    "kl_saturated": ("control/kl_saturated",),
    "regret": ("heldout/regret_sampled", "regret"),
    "regret_best": ("heldout/regret_best",),
    "regret_best_stderr": ("heldout/regret_best_stderr",),
    **{f"logit_share/{term}": (f"grpo/logit_share/{term}",) for term in TERMS},
    **{f"logit_gradient/{term}": (f"grpo/logit_gradient/{term}",) for term in TERMS},
    **{f"logit_cosine/{one}_{other}": (f"grpo/logit_cosine/{one}_{other}",) for one, other in TERM_PAIRS},
}
_BY_NAME: Final = {name: quantity for quantity, names in _NAMES.items() for name in names}
_SECTIONS: Final = ("train/", "actor/")
"""Prefixes of TRL's and verl's columns; evaluations, which have others, are not measured in training."""
_OF_LANGUAGE_MODELS: Final = ("language/", "completion", "response_length", "parsed", "truncated")


def quantity_of(column: str) -> str | None:
    """Return the quantity of a column; None if no rule reads it."""
    if column in METRICS:
        return _BY_NAME.get(column)
    name = column.strip().lower()
    for section in _SECTIONS:
        name = name.removeprefix(section)
    return _BY_NAME.get(name)


def is_language_model_column(column: str) -> bool:
    """Return whether only language model trainers log this column."""
    return any(word in column.lower() for word in _OF_LANGUAGE_MODELS)


def is_finite(value: float) -> bool:
    """Return whether a number can be one that was measured: the squares of larger ones overflow, and their run has fallen apart."""
    return abs(value) <= _LARGEST

"""Quantities that the diagnosis reads, and their names in our metric table and in other trainers.

The names in other trainers come from TRL, verl, OpenRLHF and the field notes' runs.
"""

import re
from collections.abc import Mapping
from typing import Final

from grpo.metrics.table import METRICS, TERM_PAIRS, TERMS

_LARGEST: Final = 1e150
STEP_NAMES: Final = (
    "global_step",
    "step",
    "steps",
    "update",
    "updates",
    "iteration",
    "iterations",
    "num_timesteps",
    "total_timesteps",
    "timesteps",
    "epoch",
)
"""Names of the step column, in any section, the most likely first."""
LOGGED_NAMES: Final = ("_step",)
"""Names of columns that count logged rows, as in W&B; their 0 is after the first update."""
FROM_NAMES: Final = ("step_from", "from_step", "step_start")
TO_NAMES: Final = ("step_to", "to_step", "step_end")

_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("grpo/loss", "language/loss"),
    "entropy": ("grpo/entropy", "language/entropy"),
    "normalised_entropy": ("grpo/normalised_entropy", "language/normalised_entropy"),
    "log_num_legal": ("grpo/log_num_legal",),
    "kl": ("grpo/kl_reference", "language/kl_reference"),
    "kl_old": ("grpo/kl_old",),
    "kl_old_first": ("grpo/kl_old_first",),
    "clip_fraction": ("grpo/clip_fraction", "language/clip_fraction"),
    "ratio_min": ("grpo/ratio_min", "language/ratio_min"),
    "ratio_max": ("grpo/ratio_max", "language/ratio_max"),
    "effective_sample_size": ("grpo/effective_sample_size",),
    "optimiser_steps": ("grpo/optimiser_steps", "language/optimiser_steps"),
    "reward": ("grpo/reward_mean", "language/reward_mean"),
    "reward_std": ("grpo/reward_std", "language/reward_std"),
    "reward_p90": ("grpo/reward_p90",),
    "reward_at_end": ("grpo/reward_at_end",),
    "advantage_std": ("grpo/advantage_std",),
    "silent_groups": ("grpo/zero_variance_groups", "language/zero_variance_groups"),
    "agreement": ("grpo/agreement", "language/agreement"),
    "group_std": ("grpo/group_std_mean",),
    "training_regret": ("grpo/regret",),
    "exact_cosine": ("grpo/exact_cosine",),
    "gradient_norm": ("grpo/gradient_norm", "language/gradient_norm"),
    "skipped": ("grpo/skipped", "language/skipped"),
    "states": ("grpo/states",),
    "states_dropped": ("grpo/states_dropped",),
    "kl_penalty": ("language/kl_term",),
    "parsed": ("language/parse_rate",),
    "truncated": ("language/truncated",),
    "sampled_scored_gap": ("language/sampled_scored_gap",),
    "entropy_coefficient": ("control/entropy_coefficient",),
    "kl_coefficient": ("control/kl_coefficient",),
    "temperature": ("control/temperature",),
    "learning_rate": ("control/learning_rate",),
    "entropy_saturated": ("control/entropy_saturated",),
    "entropy_idle": ("control/entropy_idle",),
    "kl_saturated": ("control/kl_saturated",),
    "kl_idle": ("control/kl_idle",),
    "regret": ("heldout/regret_sampled",),
    "regret_best": ("heldout/regret_best",),
    "regret_best_stderr": ("heldout/regret_best_stderr",),
    **{f"logit_share/{term}": (f"grpo/logit_share/{term}",) for term in TERMS},
    **{f"logit_gradient/{term}": (f"grpo/logit_gradient/{term}",) for term in TERMS},
    **{f"logit_cosine/{one}_{other}": (f"grpo/logit_cosine/{one}_{other}",) for one, other in TERM_PAIRS},
}

_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("loss", "total_loss", "policy_total_loss"),
    "policy_loss": ("ppo_loss", "policy_loss", "pg_loss", "grpo_loss", "surrogate_loss", "actor_loss"),
    "kl_penalty": ("kl_penalty", "kl_term", "weighted_kl"),
    "entropy_bonus": ("entropy_bonus", "entropy_term", "weighted_entropy"),
    "entropy": ("entropy", "policy_entropy", "mean_entropy", "entropy_mean", "avg_entropy"),
    "kl": ("kl", "kl_divergence", "kl_div", "mean_kl", "kl_mean", "kl_loss", "kl_to_reference"),
    "kl_ratio": ("kl_ratio",),
    "kl_old": ("approx_kl", "ppo_kl", "kl_old"),
    "clip_fraction": ("clip_fraction", "clip_frac", "clipfrac", "pg_clipfrac", "clip_ratio", "clip_ratio_region_mean", "clipped_fraction"),
    "ratio_mean": ("ratio_mean", "mean_ratio", "ratio"),
    "ratio_max": ("ratio_max", "max_ratio"),
    "ratio_min": ("ratio_min", "min_ratio"),
    "effective_sample_size": ("effective_sample_size", "ess"),
    "optimiser_steps": ("optimizer_steps", "optimiser_steps", "inner_steps"),
    "reward": ("reward", "avg_reward", "mean_reward", "reward_mean", "rewards_mean", "average_reward"),
    "reward_std": ("reward_std", "step_reward_std", "rewards_std", "std_reward"),
    "reward_p90": ("reward_p90",),
    "reward_best": ("reward_best", "rewards_max", "reward_max"),
    "group_std": ("group_std", "group_reward_std", "reward_std_within", "reward_std_within_mean"),
    "group_std_min": ("reward_std_within_min", "group_std_min"),
    "silent_groups": ("silent_groups", "silent_group_fraction", "frac_reward_zero_std", "zero_std_fraction", "zero_variance_groups"),
    "agreement": ("action_agreement", "agreement", "action_agreement_mean", "agreement_mean"),
    "agreement_max": ("action_agreement_max", "agreement_max"),
    "entropy_coefficient": ("entropy_coef", "ent_coef", "entropy_coeff", "entropy_coefficient"),
    "kl_coefficient": ("kl_coef", "kl_coeff", "kl_coefficient", "kl_beta"),
    "temperature": ("temperature", "rollout_temperature"),
    "learning_rate": ("learning_rate", "lr"),
    "gradient_norm": ("gradient_norm", "grad_norm"),
    "skipped": ("skipped", "skipped_steps", "nan_steps", "num_nan"),
    "regret": ("regret", "heldout_regret", "eval_regret", "regret_sampled"),
    "regret_best": ("regret_best",),
    "parsed": (
        "parsed_fraction",
        "parse_rate",
        "parsed",
        "valid_fraction",
        "valid_structure_fraction",
        "format_rate",
        "format_reward",
        "rewards_format_reward",
        "rewards_format_reward_mean",
        "rewards_format_reward_func_mean",
    ),
    "truncated": ("truncated_fraction", "truncated", "completions_clipped_ratio", "truncation_rate"),
    "sampled_scored_gap": ("sampled_scored_gap", "sampled_scored_gap_max"),
    "log_num_legal": ("log_num_legal",),
    "normalised_entropy": ("normalised_entropy", "normalized_entropy"),
}

SCORE_NAMES: Final = ("score", "eval_score", "win_rate", "eval_win_rate", "winrate")
FRACTIONS: Final = frozenset({"clip_fraction", "silent_groups", "agreement", "agreement_max", "truncated"})
"""Quantities between 0 and 1."""
GAMES_NAMES: Final = ("games", "num_games", "n_games", "eval_games")

_FORMER_TERM: Final = "anchor_kl"
"""What histories of 2026-11-22 and before call the term `reference_kl`; they are diagnosed too."""
_BY_OUR_NAME: Final = {name: quantity for quantity, names in _OURS.items() for name in names}
assert _BY_OUR_NAME.keys() <= METRICS.keys(), "a quantity names a metric that is not declared"
_BY_OTHER_NAME: Final = {name: quantity for quantity, names in _OTHERS.items() for name in names}

_SECTIONS: Final = (
    r"(?:train|training|trainer|actor|critic|grpo|loss|losses|policy|objective|metrics|rollout|control|stats|charts|time|ppo|rl)"
)
"""Prefixes of column names to ignore. `eval`, `val` and `heldout` are not ignored, because they are not measured in training."""
_LANGUAGE_MODEL: Final = re.compile(r"^language/|completion|response_len|num_tokens|answer_len|prompt_len")


def quantity_of(column: str) -> str | None:
    """Return the quantity of a column by our name or another trainer's, in any section; None if no rule reads it."""
    column = column.replace(_FORMER_TERM, "reference_kl")
    if column in _BY_OUR_NAME:
        return _BY_OUR_NAME[column]
    if column in METRICS:
        return None  # Another metric of ours, such as the entropy of one phase.
    return _BY_OTHER_NAME.get(plain_name(column))


def plain_name(column: str) -> str:
    """Return a column's name in lower case without its sections: `actor/pg_clipfrac` becomes `pg_clipfrac`."""
    words = column.strip().lower()
    while (shorter := re.sub(rf"^{_SECTIONS}[/.:]", "", words)) != words:
        words = shorter
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")


def names_of() -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return each quantity with our metrics and its names in other trainers."""
    return [(quantity, _OURS.get(quantity, ()), _OTHERS.get(quantity, ())) for quantity in sorted(_OURS.keys() | _OTHERS.keys())]


def is_language_model_column(column: str) -> bool:
    """Return whether only language model trainers log this column."""
    return quantity_of(column) in ("parsed", "truncated") or _LANGUAGE_MODEL.search(column.lower()) is not None


def is_finite(value: float) -> bool:
    """Return whether a number can be one that was measured: the squares of larger ones overflow, and their run has fallen apart."""
    return abs(value) <= _LARGEST

"""Quantities that the diagnosis reads, and their names in our metric table and in other trainers.

The names in other trainers are those of TRL (GRPO, RLOO, PPO), verl, OpenRLHF and Stable-Baselines3, read in their sources of 2026-01 to
2026-08, and those of the field notes' runs. A quantity without a rule is not in the tables.
"""

import re
from collections.abc import Mapping
from typing import Final

from grpo.metrics.table import METRICS, TERM_PAIRS, TERMS

_LARGEST: Final = 1e100
STEP_NAMES: Final = (
    "global_step",
    "step",
    "steps",
    "num_timesteps",
    "total_timesteps",
    "timesteps",
    "update",
    "updates",
    "iteration",
    "iterations",
    "episode",
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
    "learning_rate": ("control/learning_rate",),
    "entropy_saturated": ("control/entropy_saturated",),
    "entropy_idle": ("control/entropy_idle",),
    "kl_saturated": ("control/kl_saturated",),
    "regret": ("heldout/regret_sampled",),
    "regret_best": ("heldout/regret_best",),
    "regret_best_stderr": ("heldout/regret_best_stderr",),
    **{f"logit_share/{term}": (f"grpo/logit_share/{term}",) for term in TERMS},
    **{f"logit_gradient/{term}": (f"grpo/logit_gradient/{term}",) for term in TERMS},
    **{f"logit_cosine/{one}_{other}": (f"grpo/logit_cosine/{one}_{other}",) for one, other in TERM_PAIRS},
}

_OTHERS: Final[Mapping[str, tuple[str, ...]]] = {
    "loss": ("loss", "total_loss", "policy_total_loss"),
    "policy_loss": (
        "ppo_loss",
        "policy_loss",
        "pg_loss",
        "grpo_loss",
        "surrogate_loss",
        "actor_loss",
        "policy_gradient_loss",
        "policy_avg",
    ),
    "kl_penalty": ("kl_penalty", "kl_term", "weighted_kl"),
    "entropy_bonus": ("entropy_bonus", "entropy_term", "weighted_entropy"),
    "entropy": ("entropy_avg", "entropy", "policy_entropy", "mean_entropy", "entropy_mean", "avg_entropy", "entropy_loss", "ent_loss"),
    "kl": (
        "kl",
        "kl_divergence",
        "kl_div",
        "mean_kl",
        "kl_mean",
        "avg_kl",
        "kl_loss",
        "kl_to_reference",
        "kl_reference",
        "kl_ref",
        "ref_kl",
        "reward_kl_penalty",
    ),
    "kl_ratio": ("kl_ratio",),
    "kl_old": ("approx_kl", "ppo_kl", "kl_old", "old_kl", "approxkl_avg", "approxkl"),
    "clip_fraction": (
        "clip_fraction",
        "clip_frac",
        "clipfrac",
        "pg_clipfrac",
        "clipfrac_avg",
        "clip_ratio_region_mean",
        "clip_ratio",
        "ppo_clip_ratio",
        "clipped_fraction",
    ),
    "ratio_mean": ("ratio_mean", "mean_ratio", "ratio", "avg_ratio", "val_ratio"),
    "ratio_max": ("ratio_max", "max_ratio"),
    "ratio_min": ("ratio_min", "min_ratio"),
    "effective_sample_size": ("effective_sample_size", "ess"),
    "optimiser_steps": ("optimizer_steps", "optimiser_steps", "inner_steps"),
    "reward": (
        "score_mean",
        "scores",
        "reward",
        "avg_reward",
        "mean_reward",
        "reward_mean",
        "rewards_mean",
        "average_reward",
        "ep_rew_mean",
        "episode_reward",
        "episode_reward_mean",
        "rlhf_reward",
    ),
    "reward_std": ("reward_std", "step_reward_std", "rewards_std", "std_reward"),
    "reward_p90": ("reward_p90",),
    "reward_best": ("score_max", "reward_best", "rewards_max", "reward_max"),
    "reward_worst": ("score_min", "rewards_min", "reward_min"),
    "group_std": ("group_std", "group_reward_std", "reward_std_within", "reward_std_within_mean"),
    "advantage_std": ("advantage_std", "advantages_std"),
    "advantage_max": ("advantages_max", "advantage_max"),
    "advantage_min": ("advantages_min", "advantage_min"),
    "silent_groups": ("silent_groups", "silent_group_fraction", "frac_reward_zero_std", "zero_std_fraction", "zero_variance_groups"),
    "agreement": ("action_agreement", "agreement", "action_agreement_mean", "agreement_mean"),
    "agreement_max": ("action_agreement_max", "agreement_max"),
    "entropy_coefficient": ("entropy_coef", "ent_coef", "entropy_coeff", "entropy_coefficient"),
    "kl_coefficient": ("kl_coef", "kl_coeff", "kl_coefficient", "kl_beta", "reward_kl_penalty_coeff"),
    "learning_rate": ("learning_rate", "lr", "actor_lr", "act_lr"),
    "gradient_norm": ("gradient_norm", "grad_norm", "actor_grad_norm"),
    "skipped": ("skipped", "skipped_steps", "nan_steps", "num_nan"),
    "regret": (
        "regret",
        "heldout_regret",
        "eval_regret",
        "val_regret",
        "validation_regret",
        "test_regret",
        "holdout_regret",
        "regret_sampled",
        "heldout_regret_sampled",
    ),
    "regret_best": ("regret_best", "heldout_regret_best", "eval_regret_best"),
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
    "truncated": (
        "truncated_fraction",
        "truncated",
        "completions_clipped_ratio",
        "response_length_clip_ratio",
        "response_clip_ratio",
        "truncated_rate",
        "truncation_rate",
    ),
    "answer_length": (
        "completions_mean_length",
        "completion_length",
        "response_length_mean",
        "response_length",
        "answer_length",
        "gen_len",
    ),
    "sampled_scored_gap": ("sampled_scored_gap", "sampled_scored_gap_max"),
    "sampler_log_prob_gap": ("sampling_logp_difference_mean", "vllm_kl"),
    "sampler_prob_gap": ("rollout_probs_diff_mean",),
    "sampler_ratio": ("importance_sampling_ratio_mean", "rollout_corr_rollout_is_mean", "rollout_is_mean"),
    "action_std": ("std",),
    "log_num_legal": ("log_num_legal",),
    "normalised_entropy": ("normalised_entropy", "normalized_entropy"),
}
"""By quantity: the preferred name first, for tables that have several."""

_HELDOUT_REWARD: Final = re.compile(
    r"^(?:eval|evaluation|val|val-core|validation|test|heldout|held_out|holdout)[/_.]"
    r"(?!.*(?:std|_len|length|/max|/min|_max|_min|truncated|best@|maj@|num_|clip|game|win_?rate|eval[/_]score$|time|loss|fps|runtime))"
    r".*(?:reward|acc|accuracy|score|pass_?\d*|success_rate|return)(?:s|_mean|/mean(?:@\d+)?|/.*mean@\d+)?$"
)
"""A mean reward or accuracy of evaluations, such as SB3's `eval/mean_reward` and verl's `val-core/gsm8k/acc/mean@1`."""

SCORE_NAMES: Final = ("score", "eval_score", "win_rate", "eval_win_rate", "winrate")
FRACTIONS: Final = frozenset({"clip_fraction", "silent_groups", "agreement", "agreement_max", "truncated"})
"""Quantities between 0 and 1."""
GAMES_NAMES: Final = ("games", "num_games", "n_games", "eval_games")

_FORMER_TERM: Final = "anchor_kl"
"""What histories of 2026-11-22 and before call the term `reference_kl`; they are diagnosed too."""
_BY_OUR_NAME: Final = {name: quantity for quantity, names in _OURS.items() for name in names}
assert _BY_OUR_NAME.keys() <= METRICS.keys(), "a quantity names a metric that is not declared"
_BY_OTHER_NAME: Final = {name: quantity for quantity, names in _OTHERS.items() for name in names}
_NOT_OF_A_CRITIC: Final = ("learning_rate", "gradient_norm", "loss", "clip_fraction")
"""Quantities that verl and OpenRLHF log of the value function too, under `critic/`."""

_SECTIONS: Final = (
    r"(?:train|training|trainer|actor|critic|grpo|loss|losses|policy|objective|metrics|rollout|control|stats|charts|time|ppo|rl|sampling)"
)
"""Prefixes of column names to ignore. `eval`, `val` and `heldout` are not ignored, because they are not measured in training."""
_LANGUAGE_MODEL: Final = re.compile(
    r"^language/|completion|response|num_tokens|answer_len|prompt_len|total_length|gen_len|logp_difference|importance_sampling|rollout_probs"
    r"|rollout_corr|rollout_is_|val-core|(?:^|[ /])actor/|clip_ratio/|objective/|actor_lr|ppo_clip_ratio|logprobs_diff|num_eos|throughput"
)
_ENVIRONMENT: Final = re.compile(r"ep_rew_mean|ep_len_mean|explained_variance|clip_range|time/fps|total_timesteps|num_timesteps")


def quantity_of(column: str) -> str | None:
    """Return the quantity of a column by our name or another trainer's, in any section; None if no rule reads it."""
    column = column.replace(_FORMER_TERM, "reference_kl")
    if column in _BY_OUR_NAME:
        return _BY_OUR_NAME[column]
    if column in METRICS:
        return None  # Another metric of ours, such as the entropy of one phase.
    found = _BY_OTHER_NAME.get(plain_name(column))
    if found is None and _HELDOUT_REWARD.search(column.strip().lower()):
        return "heldout_reward"
    return None if found in _NOT_OF_A_CRITIC and re.search(r"(?:^|/)critic/", column.lower()) else found


def preference(column: str) -> int:
    """Return the rank of a column among the names of its quantity, 0 for the preferred; a table may have several of them."""
    quantity = quantity_of(column)
    names = _OTHERS.get(quantity, ()) if quantity is not None else ()
    return names.index(plain_name(column)) if plain_name(column) in names else 0


def is_negative_entropy(column: str, first_value: float, *, is_of_environment: bool) -> bool:
    """Return whether a column is the negative entropy: SB3's `entropy_loss` is, those of verl and OpenRLHF are not."""
    return (first_value < 0 or is_of_environment) and plain_name(column).endswith(("entropy_loss", "ent_loss"))


def is_per_answer(column: str) -> bool:
    """Return whether a KL is summed along an answer, not per token: TRL's PPO and RLOO (`objective/kl`) and our language models."""
    return column == "language/kl_reference" or re.search(r"objective[/_.]kl$", column.lower()) is not None


def plain_name(column: str) -> str:
    """Return a column's name in lower case without its sections: `actor/pg_clipfrac` becomes `pg_clipfrac`."""
    words = column.strip().lower()
    while (shorter := re.sub(rf"^{_SECTIONS}[/.:]", "", words)) != words:
        words = shorter
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")


def is_language_model_column(column: str) -> bool:
    """Return whether only language model trainers log this column."""
    return quantity_of(column) in ("parsed", "truncated", "answer_length") or _LANGUAGE_MODEL.search(column.lower()) is not None


def is_environment_column(column: str) -> bool:
    """Return whether trainers of Gym environments (SB3) log this column: the number of actions, and so any entropy, is unknown."""
    return _ENVIRONMENT.search(column.lower()) is not None


def names_weights(column: str) -> bool:
    """Return whether a column of text may say which weights a model began with."""
    return "weight" in column.lower()


def is_finite(value: float) -> bool:
    """Return whether a number can be one that was measured: the squares of larger ones overflow, and their run has fallen apart."""
    return abs(value) <= _LARGEST

"""What MLflow's charts are called: it sorts them by name, so that the first row says whether a policy gets better."""

from collections.abc import Mapping
from typing import Final

from grpo.settings.metrics import METRICS

MAIN_CURVES: Final[Mapping[str, str]] = {
    "grpo/reward_gain": "1 reward gain",
    "language/reward_mean": "1 reward mean",
    "heldout/regret_best": "2 held-out regret",
    "heldout/parse_rate": "3 parse rate",
    "grpo/entropy": "4 entropy",
    "language/entropy": "4 token entropy",
    "grpo/kl_reference": "5 KL",
    "language/kl_reference": "5 token KL",
    "control/learning_rate": "6 learning rate",
}
"""Whether a fine-tuning learns, on the pages of `finetune` and of the whole run: metric -> title of its chart. MLflow sorts charts by
title, so that the first row says whether the policy gets better. A network has six of them; a language model has its own."""
_SECONDARY: Final = frozenset(
    (
        *(
            "grpo/reward_mean",
            "grpo/regret",
            "grpo/normalised_entropy",
            "grpo/zero_variance_groups",
            "grpo/clip_fraction",
            "grpo/gradient_norm",
            "grpo/kl_old",
        ),
        *("heldout/regret_sampled", "heldout/expected_value", "heldout/blunder_mass", "heldout/reward"),
        *("language/parse_rate", "language/truncated", "language/answer_tokens", "language/clip_fraction"),
        *("language/zero_variance_groups", "language/clone_loss", "language/clone_validation_loss", "language/gradient_norm"),
    )
)
"""The second screen of `finetune`. All other metrics of its groups are details, many of them constant in a healthy run."""
_CROWDED: Final = frozenset(("control", "grpo", "heldout", "language", "self_play", "strength", "time"))
"""Groups of which only the metrics above are shown outside of the details."""


def tracked_name(name: str) -> str:
    """Return the name of a metric in MLflow, which sorts charts by it: main curves first, details last.

    >>> tracked_name("grpo/entropy"), tracked_name("grpo/regret"), tracked_name("grpo/raw/policy"), tracked_name("ladder/rating")
    ('curves/4 entropy', 'grpo/regret', 'zz_detail/grpo/raw/policy', 'ladder/rating by rung')
    """
    group = name.partition("/")[0]
    if name in MAIN_CURVES:
        return f"curves/{MAIN_CURVES[name]}"
    if group == "ladder":
        return f"{name} by rung"  # The MLflow step of these is the rung's number.
    return f"zz_detail/{name}" if group in _CROWDED and name not in _SECONDARY else name


assert len(set(map(tracked_name, METRICS))) == len(METRICS), "two metrics have one name in MLflow"
assert METRICS.keys() >= {*MAIN_CURVES, *_SECONDARY}, "a metric that is shown is not declared"

"""Settings of a language model as the policy, and the defaults of GRPO that differ with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from grpo.settings.grpo import GrpoConfig
from grpo.settings.types import Count, Probability, Section

SMALL: Final = "small"
"""Name of the model that is created locally, without a hub."""

_PATH_STARTS: Final = (".", "/", "~")
_MAX_RATE_OF_PRETRAINED: Final = 1e-3

LANGUAGE_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "pretrain": {"batch_size": 16, "learning_rate": 4e-3, "steps_per_validation": 1_000, "num_steps": 5_000},
    "grpo": {
        "num_steps": 200,
        "states_per_step": 8,
        "group_size": 8,
        "num_minibatches": 1,
        "self_play_fraction": 0.0,
        "learning_rate": 1e-6,
        "learning_rate_decay": "constant",
        "weight_averaging": 0.0,
        "clip_low": 0.1,
        "clip_high": 0.1,
        "entropy_coefficient": 0.0,
        "entropy_schedule": "constant",
        "kl_coefficient": 1e-3,
        "critical_entropy": 0.05,
        "recovery": "stop",
    },
}
"""Section -> defaults that differ with a language model: those of GRPO for learning rate, clipping and KL are the field notes'."""


class LanguageConfig(Section):
    """A causal language model as the policy; needs `policy.kind = "language"`."""

    model: str = SMALL
    """`small` is created locally. Otherwise a model name on the Hugging Face hub, such as `jrahn/RookWorld-LM-124M`, or a folder."""
    revision: str = ""
    """Commit or tag of a model on the hub. Empty is the newest. The commit that it stands for is in the step's version and report."""
    small_width: Annotated[int, Field(ge=16, le=2_048, multiple_of=8)] = 128
    """Embedding dimension of the small GPT-2 of `model = "small"`. It is initialized at random, plays badly, and needs no hub."""
    small_num_layers: Annotated[int, Field(ge=1, le=48)] = 3
    """Number of its transformer blocks."""

    environment_share: Probability = 0.25
    """Fraction of the examples and of the prompts of a step that are the environment task; the others are the policy task."""
    num_history_moves: Annotated[int, Field(ge=0, le=40)] = 10
    """Maximum number of past moves in an environment prompt, including the last."""
    max_answer_tokens: Annotated[int, Field(ge=16, le=2_048)] = 144
    """Maximum answer length. A longer answer is truncated; loss and group means leave it out."""
    answers_per_forward: Count = 64
    """Batch size for generating and scoring answers: affects memory and time, and the result only by rounding."""

    min_parse_rate: Probability = 0.8
    """The gate before GRPO: minimum fraction of answers, sampled at T = 1, that can be parsed, for each task that is trained."""
    kl_warmup_steps: Annotated[int, Field(ge=0)] = 500
    """Steps of the linear warm-up of the KL coefficient; it is above 0 from the first step."""
    reward_warmup_steps: Annotated[int, Field(ge=0)] = 200
    """Steps of the linear warm-up of the chess parts of the reward; `structure` and `parsing` count in full from the first step."""

    max_questions: Annotated[int, Field(ge=1, le=20)] = 3
    """Maximum number of answers per move in a game. After an answer without a legal best move the next is sampled at T = 1; after the last,
    the game is lost."""
    num_heldout_boards: Count = 150
    """Number of held-out boards on which regret is measured, equally many of each phase. An answer takes about 50 forward passes."""


def model_folder(model: str) -> Path | None:
    """Return the folder that `language.model` names, whether it exists or not; None for `small` and for a model name on the hub.

    >>> model_folder("jrahn/RookWorld-LM-124M") is model_folder("small") is None
    True
    """
    folder = Path(model).expanduser()
    return folder if model != SMALL and (model.startswith(_PATH_STARTS) or folder.is_dir()) else None


def refuse_for_language(language: LanguageConfig, grpo: GrpoConfig, imitation_rate: float | None) -> None:
    """Raise ValueError naming settings of `[grpo]` that are only for networks, or an imitation rate that would destroy a pretrained model.

    Args:
        language: names the model.
        grpo: the settings of GRPO.
        imitation_rate: learning rate of imitation; None without imitation.
    """
    wrong = {
        "num_own_moves must be 1": grpo.num_own_moves != 1,
        "self_play_fraction must be 0": grpo.self_play_fraction > 0,
        "weight_averaging must be 0": grpo.weight_averaging > 0,
        'entropy_schedule must be "constant"': grpo.entropy_schedule != "constant",
        'recovery must be "stop"': grpo.recovery != "stop",
    }
    if reasons := [reason for reason, holds in wrong.items() if holds]:
        raise ValueError(f'with policy.kind = "language", in [grpo]: {"; ".join(reasons)}')
    if language.model != SMALL and imitation_rate is not None and imitation_rate > _MAX_RATE_OF_PRETRAINED:
        raise ValueError(
            f"pretrain.learning_rate ({imitation_rate:g}) is too high for the pretrained model {language.model}: use at most"
            f" {_MAX_RATE_OF_PRETRAINED:g}, such as 2e-5, or pretrain.num_steps = 0 to use the model as it is"
        )

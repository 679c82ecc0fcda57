"""Settings of a language model as the policy. RookWorld is a published model (docs/language.md)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from grpo.settings.grpo import GrpoConfig
from grpo.settings.types import Count, Probability, Section

SMALL: Final = "small"
"""Value of `language.model` for a new model."""

_PATH_STARTS: Final = (".", "/", "~")
_MAX_RATE_OF_PRETRAINED: Final = 1e-3  # A higher rate destroys a pretrained model.

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
"""Section -> defaults. GRPO's learning rate, clipping and KL are from tests/field_notes, where a run with larger values exploded."""


class LanguageConfig(Section):
    """The model has two tasks: to name moves in a position (move task), and to write the position after a move (environment task)."""

    model: str = SMALL
    """`small` (created locally), a model name on the Hugging Face hub, such as `jrahn/RookWorld-LM-124M`, or a folder."""
    revision: str = ""
    """Commit or tag on the hub; empty is the newest."""
    small_width: Annotated[int, Field(ge=16, le=2_048, multiple_of=8)] = 128
    """Embedding dimension of `model = "small"`, a GPT-2 with random weights that plays badly."""
    small_num_layers: Annotated[int, Field(ge=1, le=48)] = 3
    """Transformer blocks of `model = "small"`."""

    lists_moves: bool = True
    """Whether an answer lists five moves with evaluations before the best move, as RookWorld's do, or has the best move alone."""
    legal_moves: bool = True
    """Whether moves are decoded under a mask of legal moves, in training and in games; false allows all tokens, as RookWorld does."""
    environment_share: Probability = 0.25
    """Fraction of examples and prompts with the environment task."""
    num_history_moves: Annotated[int, Field(ge=0, le=40)] = 10
    """Maximum number of past moves in an environment prompt."""
    max_answer_tokens: Annotated[int, Field(ge=16, le=2_048)] = 144
    """Maximum tokens of an answer; longer answers are truncated and not trained on."""
    answers_per_forward: Count = 64
    """Answers per forward pass; changes memory, time and rounding only."""

    min_parse_rate: Probability = 0.8
    """GRPO begins only if this fraction of each task's answers, sampled at T = 1, can be parsed."""
    kl_warmup_steps: Annotated[int, Field(ge=0)] = 500
    """Steps of the KL coefficient's linear warm-up."""
    reward_warmup_steps: Annotated[int, Field(ge=0)] = 200
    """Steps over which the reward's chess parts rise linearly to full weight; parts for form (`structure`, `parsing`) have it at once."""

    max_questions: Annotated[int, Field(ge=1, le=20)] = 3
    """Maximum answers per move in a game. After an answer without a legal best move, the next is sampled at T = 1; after the last, the
    game is lost."""
    num_heldout_boards: Count = 150
    """Held-out boards for regret, equally many per phase. Each board takes several answers of about 50 forward passes."""


def model_folder(model: str) -> Path | None:
    """Return the folder (perhaps missing) that `language.model` names; None for `small` and for a name on the hub.

    >>> model_folder("jrahn/RookWorld-LM-124M") is model_folder("small") is None
    True
    """
    folder = Path(model).expanduser()
    return folder if model != SMALL and (model.startswith(_PATH_STARTS) or folder.is_dir()) else None


def refuse_for_language(language: LanguageConfig, grpo: GrpoConfig, imitation_rate: float | None) -> None:
    """Raise ValueError for settings of `[grpo]` that only networks have, and for an imitation rate that destroys a pretrained model."""
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

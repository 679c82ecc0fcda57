"""Settings of a language model as the policy, and the defaults of GRPO that differ with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from grpo.settings.grpo import GrpoConfig
from grpo.settings.types import Count, Names, NotNegative, Positive, Probability, Role, Section

_MAX_RATE_OF_PRETRAINED: Final = 1e-3
SMALL: Final = "small"
"""Name of the model that is created locally, without a hub."""

# Cloning reads neither the loss of GRPO and its schedules nor the settings of games and evaluations.
_GRPO: Final = Role(read_by=("finetune",))
_GRPO_PACE: Final = Role(read_by=("finetune",), may_change_on_resume=True)
_MEASURED: Final = Role(read_by=("baseline", "finetune", "select"), may_change_on_resume=True)

_PATH_STARTS: Final = (".", "/", "~")

KIND_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "network": {},
    "language": {
        "num_steps": 200,
        "states_per_step": 8,
        "group_size": 8,
        "num_minibatches": 1,
        "mirrors_boards": False,
        "self_play": {"fraction": 0.0},
        "learning_rate": 1e-6,
        "learning_rate_decay": "constant",
        "weight_averaging": 0.0,
        "clip_low": 0.1,
        "clip_high": 0.1,
        "entropy_coefficient": 0.0,
        "entropy_schedule": "constant",
        "kl_coefficient": 1e-3,
        "critical_entropy": 0.05,
        "recovery": {"kind": "stop", "healthy_entropy": 0.2},
        "max_skipped_steps": 5,
        "skipped_learning_rate_factor": 0.1,
    },
}
"""`policy.kind` -> defaults of `[grpo]` that differ: learning rate, clipping, KL and the reaction to NaN are those of the field notes."""


class SmallModelConfig(Section):
    """The small GPT-2 of `model = "small"`, initialised at random: it plays badly, and needs no hub."""

    width: Annotated[int, Field(ge=16, le=2_048, multiple_of=8)] = 128
    """Embedding dimension."""
    num_layers: Annotated[int, Field(ge=1, le=48)] = 3
    """Number of transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Attention heads per block."""
    max_tokens: Annotated[int, Field(ge=192, le=4_096)] = 256
    """Context length in tokens: prompt and answer together."""


class CloningConfig(Section):
    """Behaviour cloning before GRPO: next-token prediction of answers generated from the move values."""

    num_steps: Annotated[int, Field(ge=0)] = 5_000
    """Optimiser steps; 0 uses the model without cloning."""
    batch_size: Count = 16
    """Examples per step."""
    learning_rate: Positive = 4e-3
    """Learning rate of AdamW: warm-up for a twentieth of the steps, then linear decay to 0. For a pretrained model use 1e-5 to 5e-5."""
    weight_decay: NotNegative = 0.01
    """Weight decay of AdamW."""
    steps_per_validation: Count = 1_000
    """Steps between two measurements of the loss on validation boards."""


class RewardWeights(Section):
    """Weights of the parts of the graded reward. Each part lies in [0, 1]. A malformed answer gets only `malformed`."""

    structure: tuple[float, float] = Field(default=(0.2, 1.0), strict=False)
    """Reward for the sections that an answer has: the first number for the minimum, the second for all sections."""
    parsing: tuple[float, float] = Field(default=(0.1, 0.8), strict=False)
    """Reward for the fields that can be parsed (moves, numbers, positions, flags): the first number for one field, the second for all."""
    malformed: Annotated[float, Field(ge=-100, le=0)] = -0.3
    """Reward of an answer in which no section can be found."""
    move_quality: NotNegative = 1.0
    """Policy task: values of the listed moves relative to the best five, each (value - worst) / (best - worst); illegal moves count 0."""
    evaluation: NotNegative = 0.5
    """Policy task: accuracy of the listed evaluations, as win probabilities. One that is 0.25 off, or of an illegal move, counts 0."""
    best_move: NotNegative = 2.0
    """Policy task: (value of the named best move - worst) / (best - worst); an illegal move counts 0."""
    similarity: NotNegative = 2.0
    """Environment task: fraction of what the move changes (squares, side to move, castling, en passant, clocks) that is correct."""
    outcome: NotNegative = 0.5
    """Environment task: fraction of reward, `terminated` and `truncated` that is correct."""


class LoraConfig(Section):
    """Low-rank adapters (LoRA, arXiv 2106.09685): with a rank above 0, GRPO trains these and freezes the model's weights.

    There is no dropout: with it, answers would be sampled from another policy than the one that is scored.
    """

    rank: Annotated[int, Field(ge=0, le=1_024)] = 0
    """Rank of each layer's adapter; 0 trains all weights. At most the smaller side of each layer's matrix."""
    alpha: Positive = 32.0
    """An adapter's change is multiplied by alpha / rank."""
    target_modules: Names = ()
    """Linear layers that get an adapter, by name or end of a name, such as `attn.c_attn` of a GPT-2. Empty: all but the output head."""


class LanguageConfig(Section):
    """A causal language model as the policy; needs `policy.kind = "language"`."""

    model: Annotated[str, Role(is_main=True)] = SMALL
    """`small` is created locally. Otherwise a model name on the Hugging Face hub, such as `jrahn/RookWorld-LM-124M`, or a folder."""
    revision: str = ""
    """Commit or tag of a model on the hub. Empty is the newest. The commit that it stands for is in the step's version and report."""
    small: SmallModelConfig = SmallModelConfig()
    cloning: CloningConfig = CloningConfig()
    rewards: Annotated[RewardWeights, _GRPO] = RewardWeights()
    lora: Annotated[LoraConfig, _GRPO] = LoraConfig()
    environment_share: Probability = 0.25
    """Fraction of the examples and of the prompts of a step that are the environment task; the others are the policy task."""
    num_history_moves: Annotated[int, Field(ge=0, le=40)] = 10
    """Maximum number of past moves in an environment prompt, including the last."""
    illegal_move_share: Probability = 0.05
    """Fraction of environment examples with an illegal move, so that the model learns the flag for it."""
    max_answer_tokens: Annotated[int, Field(ge=16, le=2_048)] = 144
    """Maximum answer length. A longer answer is truncated; loss and group means leave it out."""
    think_tokens: Annotated[int, Field(ge=0, le=2_048)] = 0
    """Policy task: maximum number of tokens that the model writes freely before its answer; they are trained, and not graded. 0 is none."""
    answers_per_forward: Annotated[Count, Role(may_change_on_resume=True)] = 64
    """Batch size for generating and scoring answers: affects memory and time, and the result only by rounding."""
    gradient_checkpointing: Annotated[bool, Role(read_by=("finetune",), may_change_on_resume=True)] = False
    """Whether an update keeps only each block's input and computes the rest again: less memory, a forward pass more, the same gradient up
    to rounding."""
    loss: Annotated[Literal["grpo", "dr_grpo", "dapo"], _GRPO] = "dapo"
    """How a minibatch's loss weighs tokens: `dapo` all alike, `grpo` all answers alike, `dr_grpo` all alike, by the maximum length."""

    min_parse_rate: Annotated[Probability, Role(may_change_on_resume=True)] = 0.8
    """The gate before GRPO: minimum fraction of answers, sampled at T = 1, that can be parsed, for each task that is trained."""
    num_gate_prompts: Annotated[Count, Role(may_change_on_resume=True)] = 64
    """Prompts per task for the gate."""
    kl_warmup_steps: Annotated[int, Field(ge=0), _GRPO_PACE] = 500
    """Steps of the linear warm-up of the KL coefficient; it is above 0 from the first step."""
    reward_warmup_steps: Annotated[int, Field(ge=0), _GRPO_PACE] = 200
    """Steps of the linear warm-up of the chess parts of the reward; `structure` and `parsing` count in full from the first step."""
    max_collection_kl: Annotated[NotNegative, _GRPO_PACE] = 0.0
    """In nats: the loss leaves out an answer whose KL to the reference, when sampled, is above this, and counts it. 0 is no limit."""

    max_questions: Annotated[
        int, Field(ge=1, le=20), Role(read_by=("baseline", "finetune", "select"), may_change_on_resume=True, is_main=True)
    ] = 3
    """Maximum number of answers per move in a game. After an answer without a legal best move the next is sampled at T = 1; after the last,
    the game is lost."""
    num_heldout_boards: Annotated[Count, _MEASURED] = 150
    """Number of held-out boards on which regret is measured, equally many of each phase. An answer takes about 50 forward passes."""
    num_sampled_answers: Annotated[Count, _MEASURED] = 2
    """Answers sampled at T = 1 for each of these boards, in addition to the greedy answer."""


def model_folder(model: str) -> Path | None:
    """Return the folder that `language.model` names, whether it exists or not; None for `small` and for a model name on the hub.

    >>> model_folder("jrahn/RookWorld-LM-124M") is model_folder("small") is None
    True
    """
    folder = Path(model).expanduser()
    return folder if model != SMALL and (model.startswith(_PATH_STARTS) or folder.is_dir()) else None


def refuse_for_language(grpo: GrpoConfig, language: LanguageConfig) -> None:
    """Raise ValueError naming settings of `[grpo]` that are only for networks, or of cloning that are only for the small model."""
    wrong = {
        'estimator must be "sampled"': grpo.estimator != "sampled",
        "depth.num_own_moves must be 1": grpo.depth.num_own_moves != 1,
        "self_play.fraction must be 0": grpo.self_play.fraction > 0,
        "mirrors_boards must be false": grpo.mirrors_boards,
        "weight_averaging must be 0": grpo.weight_averaging > 0,
        'entropy_schedule must be "constant" or "annealed"': grpo.entropy_schedule not in ("constant", "annealed"),
        "is_compiled must be false": grpo.is_compiled,
    }
    if reasons := [reason for reason, holds in wrong.items() if holds]:
        raise ValueError(f'with policy.kind = "language", in [grpo]: {"; ".join(reasons)}')
    if not language.lora.rank and language.lora != LoraConfig():
        raise ValueError("language.lora.alpha and language.lora.target_modules need language.lora.rank above 0, such as 16")
    rate = language.cloning.learning_rate
    if language.model != SMALL and language.cloning.num_steps and rate > _MAX_RATE_OF_PRETRAINED:
        raise ValueError(
            f"language.cloning.learning_rate ({rate:g}) is too high for the pretrained model {language.model}: use at most"
            f" {_MAX_RATE_OF_PRETRAINED:g}, such as 2e-5, or language.cloning.num_steps = 0 for no cloning"
        )

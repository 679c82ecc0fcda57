"""Settings of a language model as the policy, and what else its kind changes in the defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from grpo.settings.grpo import GrpoConfig
from grpo.settings.types import Count, NotNegative, Positive, Probability, Role, Section

_MAX_RATE_OF_PRETRAINED: Final = 1e-3
SMALL: Final = "small"
"""Name of the model that is made here, without a hub."""

# Cloning reads neither the loss of GRPO and its schedules, nor how games and measurements ask for answers.
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
        "reflects": False,
        "own_games": {"share": 0.0},
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
"""`policy.kind` -> what of `[grpo]` has another default with it: lr, clip, KL and the answer to NaN as the field notes have them."""


class SmallModelConfig(Section):
    """The GPT-2 that is made here when `model = "small"`: it plays badly, and shows the whole way without a hub."""

    width: Annotated[int, Field(ge=16, le=2_048, multiple_of=8)] = 128
    """Of the embedding."""
    num_layers: Annotated[int, Field(ge=1, le=48)] = 3
    """Transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Attention heads of a block."""
    max_tokens: Annotated[int, Field(ge=192, le=4_096)] = 256
    """Positions it knows: prompt and answer together."""


class CloningConfig(Section):
    """Behaviour cloning before GRPO: next-token prediction of the answers that the value tables give."""

    num_steps: Annotated[int, Field(ge=0)] = 5_000
    """Optimiser steps; 0 takes the model as it comes."""
    batch_size: Count = 16
    """Examples a step."""
    learning_rate: Positive = 4e-3
    """AdamW's, after a warm-up of a twentieth of the steps, then falling in a line to nothing. For a model of a hub, 1e-5 to 5e-5."""
    weight_decay: NotNegative = 0.01
    """AdamW's."""
    steps_per_validation: Count = 1_000
    """Steps between two looks at the loss on validation boards."""


class RewardWeights(Section):
    """What each part of a graded reward counts. Parts lie in [0, 1]; a malformed answer gets `malformed`, and nothing else."""

    structure: tuple[float, float] = Field(default=(0.2, 1.0), strict=False)
    """Reward of the sections that are there: the first number for the least that counts, the second for all of them."""
    parsing: tuple[float, float] = Field(default=(0.1, 0.8), strict=False)
    """Reward of fields that can be read, each a move, a number, a position or a flag: for the first, and for all."""
    malformed: Annotated[float, Field(ge=-100, le=0)] = -0.3
    """Of an answer in which no section can be found."""
    move_quality: NotNegative = 1.0
    """Policy task: what the listed moves are worth, of what the best five are: (value - worst) / (best - worst) each, illegal ones 0."""
    evaluation: NotNegative = 0.5
    """Policy task: how near the listed moves' evaluations are, as win probabilities; one that is 0.25 off, or of no legal move, has 0."""
    best_move: NotNegative = 2.0
    """Policy task: (value of the named best move - worst) / (best - worst); an illegal one is 0."""
    similarity: NotNegative = 2.0
    """Environment task: how much of what the move changes (squares, side to move, castling, en passant, clocks) is changed rightly."""
    outcome: NotNegative = 0.5
    """Environment task: share of reward, `terminated` and `truncated` that is right."""


class LanguageConfig(Section):
    """A causal language model as the policy; read only with `policy.kind = "language"`."""

    model: Annotated[str, Role(is_on_card=True)] = SMALL
    """`small` is made here; else a hub's name, such as `jrahn/RookWorld-LM-124M`, or a folder, as transformers takes them."""
    revision: str = ""
    """Commit or tag of a hub's model; empty is its newest, whose commit is then part of the step's report."""
    small: SmallModelConfig = SmallModelConfig()
    cloning: CloningConfig = CloningConfig()
    rewards: Annotated[RewardWeights, _GRPO] = RewardWeights()
    environment_share: Probability = 0.25
    """Of examples and of a step's prompts that are of the environment task; the others are of the policy task."""
    num_history_moves: Annotated[int, Field(ge=0, le=40)] = 10
    """Moves that an environment prompt tells, the last one included, at most."""
    illegal_move_share: Probability = 0.05
    """Of environment examples whose move is illegal, so that the flag for it is learnt."""
    max_answer_tokens: Annotated[int, Field(ge=16, le=2_048)] = 144
    """An answer is cut here: it counts as truncated, and the loss leaves it out."""
    answers_per_forward: Annotated[Count, Role(may_change_on_resume=True)] = 64
    """Answers written or scored at once; changes memory and time, not the result beyond rounding."""
    loss: Annotated[Literal["grpo", "bnpo", "dr_grpo", "dapo"], _GRPO] = "dapo"
    """How TRL averages over tokens: `grpo` by answer, `bnpo` and `dapo` over all tokens, `dr_grpo` by the greatest length."""

    min_parse_rate: Annotated[Probability, Role(may_change_on_resume=True)] = 0.8
    """The gate before GRPO: share of answers, drawn at T = 1, that must be readable, in each task that is trained."""
    num_gate_prompts: Annotated[Count, Role(may_change_on_resume=True)] = 64
    """Prompts of each task that the gate asks."""
    kl_warmup_steps: Annotated[int, Field(ge=0), _GRPO_PACE] = 500
    """Steps in which the KL coefficient rises to its value in a line; it is above 0 from the first."""
    reward_warmup_steps: Annotated[int, Field(ge=0), _GRPO_PACE] = 200
    """Steps in which the parts that ask for chess rise to their weights in a line; structure and parsing count in full from the first."""
    max_collection_kl: Annotated[NotNegative, _GRPO_PACE] = 0.0
    """Nats: an answer whose KL to the reference is above this when it is written is left out of the loss, and counted; 0 is no bound."""

    max_questions: Annotated[
        int, Field(ge=1, le=20), Role(read_by=("baseline", "finetune", "select"), may_change_on_resume=True, is_on_card=True)
    ] = 3
    """In games: an answer without a legal best move is asked for again, drawn at T = 1, until so many were given; then the game is lost."""
    num_judged_boards: Annotated[Count, _MEASURED] = 150
    """Held-out boards, the first of each phase in equal parts, that regret is measured on: an answer takes some 50 forward passes."""
    num_sampled_answers: Annotated[Count, _MEASURED] = 2
    """Answers drawn at T = 1 for each of them, beside the greedy one."""


def model_folder(model: str) -> Path | None:
    """Return the folder that `language.model` names, whether it is there or not; None for `small` and for a hub's name.

    >>> model_folder("jrahn/RookWorld-LM-124M") is model_folder("small") is None
    True
    """
    folder = Path(model).expanduser()
    return folder if model != SMALL and (model.startswith(_PATH_STARTS) or folder.is_dir()) else None


def refuse_for_language(grpo: GrpoConfig, language: LanguageConfig) -> None:
    """Raise ValueError naming the settings of `[grpo]` that are for networks only, or of cloning that are for the small model only."""
    wrong = {
        'estimator must be "sampled"': grpo.estimator != "sampled",
        'baseline must be "mean"': grpo.baseline != "mean",
        "depth.num_own_moves must be 1": grpo.depth.num_own_moves != 1,
        "own_games.share must be 0": grpo.own_games.share > 0,
        "reflects must be false": grpo.reflects,
        "weight_averaging must be 0": grpo.weight_averaging > 0,
        'entropy_schedule must be "constant" or "annealed"': grpo.entropy_schedule not in ("constant", "annealed"),
        'kl_direction must be "policy_to_reference"': grpo.kl_direction != "policy_to_reference",
        "kl_coefficient must be above 0: without it there is no reference to watch": grpo.kl_coefficient == 0,
        'recovery.kind must be "stop" or "rollback"': grpo.recovery.kind == "forward_kl",
        "is_compiled must be false": grpo.is_compiled,
    }
    if reasons := [reason for reason, holds in wrong.items() if holds]:
        raise ValueError(f'with policy.kind = "language", in [grpo]: {"; ".join(reasons)}')
    rate = language.cloning.learning_rate
    if language.model != SMALL and language.cloning.num_steps and rate > _MAX_RATE_OF_PRETRAINED:
        raise ValueError(
            f"language.cloning.learning_rate ({rate:g}) would undo what {language.model} knows: with another model than {SMALL!r} give at"
            f" most {_MAX_RATE_OF_PRETRAINED:g}, such as 2e-5, or language.cloning.num_steps = 0 to take it as it comes"
        )

"""The charts of `pretrain` (behavior cloning) and `finetune` (GRPO and its controllers), of both kinds of policies."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from grpo.board.phases import PHASES
from grpo.metrics.shared import TERMS
from grpo.metrics.table import REWARD_PARTS, TASKS
from grpo.policy.files import LANGUAGE, NETWORK
from grpo.train.control import HEALTHY_ENTROPY
from steps.cards.charts import ALARM, Figure
from steps.cards.page import CardPart, Seen, page_part
from steps.names import ANSWERS

_NO_GAIN: Final = "no gain"
_HEALTHY: Final = "healthy (floor)"
_CRITICAL: Final = "critical"


def charts(seen: Seen, figures: Mapping[str, Sequence[Figure]]) -> list[CardPart]:
    """Return the charts of `PRETRAINING` or `TRAINING`, and of a language model some prompts with their answers and graded rewards."""
    records, critical = seen.history(), float(seen.settings["grpo"]["critical_entropy"])
    levels = {_NO_GAIN: (0.0, "#7d8794"), _HEALTHY: (HEALTHY_ENTROPY, "#2f9e6e")} | ({_CRITICAL: (critical, ALARM)} if critical else {})
    found = [part for figure in figures[seen.kind] for part in figure.parts(records, levels)]
    return found if seen.kind != LANGUAGE else [*found, page_part("answers", prompts=seen.read(ANSWERS), tasks=TASKS)]


def _by(name: str, parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}/{part}" for part in parts)


def _with_parts(name: str, parts: Iterable[str]) -> tuple[str, ...]:
    return name, *_by(name, parts)


_REGRET: Final = Figure(
    "held-out regret, stronger search",
    ("heldout/regret_best", "heldout/regret_sampled"),
    "Lower is better. Games are played with best moves; an answer without a legal move has the largest regret.",
)
PRETRAINING: Final = {
    NETWORK: (
        Figure("loss", ("imitation/train_loss", "imitation/validation_loss"), "The weights with the lowest validation loss are kept."),
        Figure("accuracy on validation boards", ("imitation/top1", "imitation/top5")),
        Figure("entropy at T = 1", ("imitation/entropy",), "GRPO starts from this entropy."),
    ),
    LANGUAGE: (
        Figure(
            "loss per answer token",
            ("language/clone_loss", *_with_parts("language/clone_validation_loss", TASKS)),
            "The weights with the best validation loss are saved.",
        ),
    ),
}
TRAINING: Final = {
    NETWORK: (
        Figure(
            "reward gain over the reference",
            ("grpo/reward_gain",),
            "Mean reward less the reference's on the same training states: without lower held-out regret it is not strength.",
            (_NO_GAIN,),
        ),
        _REGRET,
        Figure(
            "entropy by phase at T = 1",
            (*_with_parts("grpo/entropy", PHASES), "grpo/log_num_legal"),
            "If entropy stays below the red line, GRPO recovers or stops. It cannot exceed the logarithm of the number of legal moves.",
            (_HEALTHY, _CRITICAL),
        ),
        Figure(
            "KL to the reference",
            ("grpo/kl_reference", "grpo/kl_from_reference"),
            "Begins at 0. If it levels off while the reward is flat, see kl_trap in the diagnosis.",
        ),
        Figure(
            "clipped moves",
            ("grpo/clip_fraction", "grpo/clip_low_fraction", "grpo/clip_high_fraction"),
            "A large fraction means that steps are too large for their rollout.",
        ),
        Figure(
            "gradient budget (fractions of the logit gradient)",
            _by("grpo/logit_share", TERMS),
            "If the reward's fraction (policy) is tiny, training follows the regularisers.",
        ),
        Figure("zero-variance groups", ("grpo/zero_variance_groups",), "Groups in which all moves have equal rewards; they teach nothing."),
        Figure(
            "entropy and KL coefficients",
            ("control/entropy_coefficient", "control/kl_coefficient", "control/recovery_coefficient"),
        ),
    ),
    LANGUAGE: (
        Figure(
            "reward of an answer",
            (*_with_parts("language/reward_mean", TASKS), "language/reward_trained"),
            "Prompts differ from step to step: a rise without lower held-out regret is not strength.",
        ),
        Figure("reward by part", _by("language/reward", REWARD_PARTS), "Structure and parsing reward the format only, not chess."),
        Figure(
            "parse rate",
            _with_parts("language/parse_rate", TASKS),
            "It must not fall: if the model forgets the format, stop the run or raise the KL coefficient.",
        ),
        Figure(
            "entropy of an answer at T = 1",
            _with_parts("language/entropy", TASKS),
            "Sum over an answer's tokens. If it stays below the red line, GRPO recovers or stops.",
            (_CRITICAL,),
        ),
        Figure(
            "KL to the reference, per answer",
            (*_with_parts("language/kl_reference", TASKS), "language/kl_max"),
            "0 at the first step, before any update; otherwise sampling and scoring differ.",
        ),
        _REGRET,
    ),
}

"""Charts of a network's cards (HTML pages of steps)."""

from collections.abc import Mapping, Sequence
from typing import Final

from grpo.board.phases import PHASES
from grpo.metrics.shared import TERMS
from steps.cards.charts import Figure
from steps.cards.page import CardPart, Seen
from steps.cards.training import CRITICAL, HEALTHY, HELDOUT_REGRET, NO_GAIN, by, with_parts


def more_parts(seen: Seen) -> list[CardPart]:  # noqa: ARG001
    return []


FIGURES: Final[Mapping[str, Sequence[Figure]]] = {
    "pretrain": (
        Figure("loss", ("imitation/train_loss", "imitation/validation_loss"), "The weights with the lowest validation loss are kept."),
        Figure("accuracy on validation boards", ("imitation/top1", "imitation/top5")),
        Figure("entropy at T = 1", ("imitation/entropy",), "GRPO starts from this entropy."),
    ),
    "finetune": (
        Figure(
            "reward gain over the reference",
            ("grpo/reward_gain",),
            "Expected reward minus the reference's, on the same training states. Only lower held-out regret shows better play.",
            (NO_GAIN,),
        ),
        HELDOUT_REGRET,
        Figure(
            "entropy by phase at T = 1",
            (*with_parts("grpo/entropy", PHASES), "grpo/log_num_legal"),
            "If entropy stays below the red line, GRPO raises it or stops. Entropy cannot exceed ln(number of legal moves).",
            (HEALTHY, CRITICAL),
        ),
        Figure(
            "KL to the reference",
            ("grpo/kl_reference", "grpo/kl_from_reference"),
            "Begins at 0 in a new training. If the KL levels off while the reward is flat, see kl_trap in the diagnosis.",
        ),
        Figure(
            "clipped moves",
            ("grpo/clip_fraction", "grpo/clip_low_fraction", "grpo/clip_high_fraction"),
            "Above 0.2, take fewer optimizer steps per rollout, or lower the learning rate.",
        ),
        Figure(
            "gradient budget (fractions of the logit gradient)",
            by("grpo/logit_share", TERMS),
            "If the reward's fraction (curve `policy`) is below 0.1, the regularizers train the policy.",
        ),
        Figure(
            "zero-variance groups", ("grpo/zero_variance_groups",), "A group (a board's sampled moves) with equal rewards teaches nothing."
        ),
        Figure(
            "entropy and KL coefficients",
            ("control/entropy_coefficient", "control/kl_coefficient", "control/recovery_coefficient"),
        ),
    ),
}

"""Charts of a language model's cards (HTML pages of steps), and sample answers with rewards."""

from collections.abc import Mapping, Sequence
from typing import Final

from grpo.metrics.table import REWARD_PARTS, TASKS
from steps.cards.charts import Figure
from steps.cards.page import CardPart, Seen, page_part
from steps.cards.training import CRITICAL, HELDOUT_REGRET, by, with_parts
from steps.names import ANSWERS


def more_parts(seen: Seen) -> list[CardPart]:
    return [page_part("answers", prompts=seen.read(ANSWERS), tasks=TASKS)]


FIGURES: Final[Mapping[str, Sequence[Figure]]] = {
    "pretrain": (
        Figure(
            "loss per answer token",
            ("language/imitation_loss", *with_parts("language/imitation_validation_loss", TASKS)),
            "The weights with the best validation loss are saved.",
        ),
    ),
    "finetune": (
        Figure(
            "reward of an answer",
            (*with_parts("language/reward_mean", TASKS), "language/reward_trained"),
            "Prompts differ from step to step, and so do rewards. Only lower held-out regret shows better play.",
        ),
        Figure("reward by part", by("language/reward", REWARD_PARTS), "Structure and parsing reward the format only, not chess."),
        Figure(
            "parse rate",
            with_parts("language/parse_rate", TASKS),
            "If the rate falls, the model forgets the format: stop the run or raise the KL coefficient.",
        ),
        Figure(
            "best answers with a legal move",
            ("heldout/legal_rate", "heldout/legal_rate_unmasked"),
            "With `language.legal_moves`, training and games mask illegal moves. So GRPO does not raise the rate without the mask.",
        ),
        Figure(
            "entropy of an answer at T = 1",
            with_parts("language/entropy", TASKS),
            "Sum over an answer's tokens. Training stops if the mean over ten steps is below the red line.",
            (CRITICAL,),
        ),
        Figure(
            "KL to the reference, per answer",
            (*with_parts("language/kl_reference", TASKS), "language/kl_max"),
            "Begins at 0 in a new training.",
        ),
        HELDOUT_REGRET,
    ),
}

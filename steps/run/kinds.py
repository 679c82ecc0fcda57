"""Names of the pipeline's modules for each kind of policy, `network` or `language`.

Importing the modules would load torch, which takes seconds. Each kind KIND also has the templates `steps/pages/kinds/KIND.md.j2` (text on
pages) and `steps/cards/kinds/KIND.html.j2` (card of `pretrain`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from grpo.settings.kinds import LANGUAGE, NETWORK
from grpo.settings.names import unknown_settings
from steps import STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A step for one kind of policy.

    The `repr` enters the step's version (a hash). The `repr` leaves out settings, whose values the version has, and metrics, which change
    no output.
    """

    module: str  # Dotted name. The module's `body` computes the output.
    reads: tuple[str, ...] = field(default=(), repr=False)  # Settings, besides `Step.reads`.
    shows: tuple[str, ...] = field(default=(), repr=False)  # Metrics, besides `Step.shows`.
    headlines: tuple[str, ...] = field(default=(), repr=False)  # Metrics, besides `Step.headlines`.

    def __post_init__(self) -> None:
        if unknown := unknown_settings(self.reads):
            raise ValueError(f"{self.module} reads {', '.join(unknown)}: no setting is called so")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    competitor: str  # Module whose `open_competitor(folder, device, settings)` returns a `steps.common.policies.competitor.Competitor`.
    figures: str = field(repr=False)
    """Module of the cards: `FIGURES` (step -> charts) and the function `more_parts` (parts below the charts)."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Step -> variant. A step NAME without a variant uses the module `steps.NAME`."""

    def __post_init__(self) -> None:
        if unknown := self.variants.keys() - set(STEPS):
            raise ValueError(f"variants of {', '.join(sorted(unknown))}: no step is called so")


PARTS: Final[dict[str, Parts]] = {
    NETWORK: Parts(competitor="steps.common.policies.network", figures="steps.cards.network"),
    LANGUAGE: Parts(
        competitor="steps.common.policies.language",
        figures="steps.cards.language",
        variants={
            "pretrain": Variant(
                module="steps.language.pretrain",
                reads=(
                    *("language.model", "language.revision", "language.small_width", "language.small_num_layers"),
                    *("language.environment_share", "language.num_history_moves", "language.max_answer_tokens"),
                    *("language.lists_moves", "language.legal_moves"),
                    *("language.answers_per_forward", "language.min_parse_rate"),
                ),
                shows=("language/imitation_loss", "language/imitation_validation_loss", "language/parse_rate"),
                headlines=("language/imitation_validation_loss",),
            ),
            "finetune": Variant(
                module="steps.language.finetune",
                shows=("language/reward_mean", "language/parse_rate", "heldout/parse_rate", "heldout/legal_rate_unmasked"),
            ),
        },
    ),
}

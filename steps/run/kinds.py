"""The parts of the pipeline that differ by kind of policy, one row each kind; `grpo.settings.kinds` has the library's row of the same kind.

A row names modules, which are imported when a run needs them: torch and transformers take seconds to import. A kind also has
two templates of its name: `steps/pages/kinds/NAME.md.j2`, the words about the kind on pages, and `steps/cards/kinds/NAME.html.j2`, the card
of `pretrain`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from grpo.settings.kinds import LANGUAGE, NETWORK
from grpo.settings.names import unknown_settings
from steps import STEPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A step for one kind of policy: the module of the body, and what the kind adds to the step's declaration.

    `repr` shows the module alone: the settings are in a step's version by value, and metrics that are shown change no output.
    """

    module: str
    """Dotted name of the module whose `body` computes the output."""
    reads: tuple[str, ...] = field(default=(), repr=False)
    """Settings that the body reads besides the settings of `Step.reads`."""
    shows: tuple[str, ...] = field(default=(), repr=False)
    """Metrics that the terminal prints besides the metrics of `Step.shows`."""
    headlines: tuple[str, ...] = field(default=(), repr=False)
    """Metrics that the whole run has in MLflow besides the metrics of `Step.headlines`."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that do not exist."""
        if unknown := unknown_settings(self.reads):
            raise ValueError(f"{self.module} reads {', '.join(unknown)}: no setting is called so")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """The modules of one kind of policy. `repr` shows what an output can depend on: a step's version has it (`steps.run.code`)."""

    competitor: str
    """Dotted name of a module whose `open_competitor(folder, device, settings)` returns a `steps.common.policies.competitor.Competitor`."""
    figures: str = field(repr=False)
    """Dotted name of a module with `FIGURES` (step -> charts of the card) and `more_parts(seen)` (further parts of the card)."""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """Step -> variant of the step; other steps have the body of the step's own file."""

    def __post_init__(self) -> None:
        """Raise ValueError for steps that do not exist."""
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
                    *("language.answers_per_forward", "language.min_parse_rate"),
                ),
                shows=("language/imitation_loss", "language/imitation_validation_loss", "language/parse_rate"),
                headlines=("language/imitation_validation_loss",),
            ),
            "finetune": Variant(
                module="steps.language.finetune",
                shows=("language/reward_mean", "language/parse_rate", "heldout/parse_rate"),
            ),
        },
    ),
}
"""Kind of policy (a key of `grpo.settings.kinds.KINDS`) -> its parts."""

"""Charts of `pretrain` and `finetune`."""

from collections.abc import Iterable
from importlib import import_module
from typing import Final

from grpo.train.control import HEALTHY_ENTROPY
from steps.cards.charts import ALARM, Figure
from steps.cards.page import CardPart, Seen
from steps.run.kinds import PARTS

# Labels of horizontal lines in charts.
NO_GAIN: Final = "no gain"
HEALTHY: Final = "healthy (floor)"
CRITICAL: Final = "critical"


def charts(seen: Seen, step: str) -> list[CardPart]:
    records, critical = seen.history(), float(seen.settings["grpo"]["critical_entropy"])
    levels = {NO_GAIN: (0.0, "#7d8794"), HEALTHY: (HEALTHY_ENTROPY, "#2f9e6e")} | ({CRITICAL: (critical, ALARM)} if critical else {})
    figures = import_module(PARTS[seen.kind].figures)
    return [*(part for figure in figures.FIGURES[step] for part in figure.parts(records, levels)), *figures.more_parts(seen)]


def by(name: str, parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{name}/{part}" for part in parts)


def with_parts(name: str, parts: Iterable[str]) -> tuple[str, ...]:
    return name, *by(name, parts)


HELDOUT_REGRET: Final = Figure(
    "held-out regret, stronger search",
    ("heldout/regret_best", "heldout/regret_sampled"),
    "Lower is better. Games are played with best moves; an answer without a legal move has the largest regret.",
)

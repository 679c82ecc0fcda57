"""Prints `docs/metrics.md` from the table of metrics: groups of metrics, with units explained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from grpo.base.markdown import filled
from grpo.metrics.table import EVENTS, MAIN_CURVES, METRICS, MetricSpec


@dataclass(frozen=True, slots=True)
class Group:
    """A group of metrics on the page: the table's rows from `first` to the first of the next group."""

    first: str
    title: str
    sentence: str


METRIC_GROUPS: Final = (
    Group("boards/games", "Boards", "What the dataset contains, and what was rejected; logged by `build_boards` and `join_boards`."),
    Group("cache/hits", "Engine cache", "How many engine searches were cached already. These differ between equal runs."),
    Group("checks/failed", "Checks", "The gate between the dataset and training; training needs 0."),
    Group(
        "imitation/train_loss",
        "Imitation",
        "The `pretrain` step. A validation loss that still falls at the end means a weak start for GRPO.",
    ),
    Group(
        "grpo/loss",
        "GRPO: terms of the objective",
        "The four terms of [the objective](objective.md), each alone. The level of the loss says little; the fractions of the gradient"
        " norms show which term trains the policy.",
    ),
    Group(
        "grpo/entropy",
        "GRPO: entropy",
        "The exact entropy of the policy at T = 1. [Control](control.md) describes what happens when it falls.",
    ),
    Group(
        "grpo/kl_reference",
        "GRPO: distance from the reference and from the rollout",
        "How far the policy is from the reference, and from the policy that was sampled. Ratios are 1 before a rollout's first update.",
    ),
    Group("grpo/reward_mean", "GRPO: rewards", "Rewards of the sampled moves, by the reward's own search."),
    Group(
        "grpo/advantage_mean",
        "GRPO: groups and advantages",
        "The input of the policy term. A group whose rewards are all equal (zero variance) has zero advantage.",
    ),
    Group(
        "grpo/gradient_norm",
        "GRPO: optimiser and states",
        "The gradient norm of a step, and the states and optimiser steps that it used or skipped.",
    ),
    Group(
        "language/clone_loss",
        "Language model",
        'These replace the `grpo/` metrics with `policy.kind = "language"`: see [language models](language.md).',
    ),
    Group("self_play/games", "Self-play", "Each round of self-play games, which provide further states."),
    Group(
        "control/temperature", "Control", "The values that the [controllers](control.md) set, and how often they were at a bound or idle."
    ),
    Group(
        "heldout/expected_value",
        "Held-out boards",
        "Boards that were not trained on, valued by a stronger search than the reward's. Measured at each checkpoint; decides nothing.",
    ),
    Group("time/states", "Time", "Wall time of a GRPO step by part."),
    Group("ladder/rating", "Ladder", "Ratings of the opponents against which all runs on a machine are measured."),
    Group("baseline/score_random", "Baseline", "Games of the pretrained policy before GRPO."),
    Group(
        "selection/score_best",
        "Selection",
        "Games of the candidate that were played after it was chosen ([evaluation](evaluation.md)). The verdict depends on these.",
    ),
    Group("run/regret_before", "Runs", "Metrics of a whole run, for comparing runs."),
    Group(
        "sweep/runs",
        "Sweeps",
        "A sweep's run in MLflow: the mean over seeds for each combination of settings ([evaluation](evaluation.md#sweeps-over-seeds))."
        " The step is the combination's number.",
    ),
    Group("work/items_per_second", "Work", "Speed and duration of any step."),
)
"""Groups in the order of the table."""

UNITS: Final[Mapping[str, str]] = {
    "nats": "unit of entropy, KL divergence and cross-entropy; 1 nat is 1.44 bits, and exp(nats) is a number of equally likely moves.",
    "win probability": "0 to 1, for the player to move, by [the engine's values](values.md); also for differences and gradients of it.",
    "win probability/nat": "the weight of one nat in the objective.",
    "nats/token": "nats per token of text.",
    "points": "unit of a language model's graded reward; `[language.rewards]` has the weights of its parts.",
    "score": "0 to 1 per game: a win is 1, a draw 0.5; a score of 0.5 means equal strength.",
    "Elo": "400 log10(s / (1 - s)) of an expected score s: +100 is 0.64, +200 is 0.76. Ratings are relative to a random mover.",
    "probability": "0 to 1.",
    "factor": "a dimensionless number: a ratio, a cosine, a rate.",
    "fraction": "0 to 1; `fraction of ...` names the whole.",
    "seconds": "of wall time.",
}
"""Units that need an explanation; all other units are counts."""


def metrics_page() -> str:
    """Return `docs/metrics.md`."""
    units = "\n".join(f"- **{unit}**: {meaning}" for unit, meaning in UNITS.items())
    events = "\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in EVENTS.items())
    groups = "\n\n".join(
        f"## {group.title}\n\n{group.sentence}\n\n| name | unit | better | meaning |\n| --- | --- | --- | --- |\n"
        + "\n".join(f"| `{s.name}` | {s.unit} | {s.better} | {_cell(s.meaning)} |" for s in specs)
        for group, specs in grouped()
    )
    return filled(
        "# Metrics\n\nPrinted from `grpo/metrics/table.py` by `python -m grpo.metrics.page > docs/metrics.md`; a test compares them.\n\n"
        "*Better* is the direction of improvement; `neither` means that a metric is only to be watched. Names that end in a phase"
        " (`/opening`, `/middlegame`, `/endgame`) are the same metric on boards of that phase. Names that end in a term or a pair of terms"
        " are the same metric of these terms.\n\n"
        "MLflow sorts charts by name. So it has the main curves under `curves/`, on the page of the run and of `finetune`:"
        f" {', '.join(f'`{name}` ({title})' for name, title in MAIN_CURVES.items())}. Diagnostic metrics are under `zz_detail/`, at the"
        " end. The history (`history.jsonl`), the cards and the commands have the names below.\n\n"
        f"Units:\n\n{units}\n\n{groups}\n\n"
        "## Events\n\nEvents of a run are logged with a message that has the step, the evidence and the setting that fixes the problem."
        f"\n\n| name | meaning |\n| --- | --- |\n{events}\n"
    )


def grouped() -> Iterator[tuple[Group, list[MetricSpec]]]:
    """Yield each group with its rows of the table, in order."""
    names = list(METRICS)
    starts = [names.index(group.first) for group in METRIC_GROUPS]
    for group, start, end in zip(METRIC_GROUPS, starts, [*starts[1:], len(names)], strict=True):
        yield group, [METRICS[name] for name in names[start:end]]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")  # An unescaped bar would end the cell.


if __name__ == "__main__":
    print(metrics_page(), end="")

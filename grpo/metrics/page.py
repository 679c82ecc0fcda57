"""The table of metrics as a page for people: in groups that say what each is for, with its units explained."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from grpo.metrics.table import EVENTS, METRICS, MetricSpec


@dataclass(frozen=True, slots=True)
class Group:
    """Metrics that are read together: those of the table from `first` to the next group's."""

    first: str
    title: str
    sentence: str


METRIC_GROUPS: Final = (
    Group("boards/games", "Boards", "What the dataset was made of, and what was left out. Of `build_boards` and `join_boards`."),
    Group("cache/hits", "Engine answers on disk", "How much of the engine's work was there already. They differ between equal runs."),
    Group("checks/failed", "Checks", "The gate between the dataset and training; 0, or there was no training."),
    Group(
        "imitation/train_loss", "Imitation", "How `pretrain` went. A validation loss that still falls at the end is a weak start for GRPO."
    ),
    Group(
        "grpo/loss",
        "GRPO: terms of the objective",
        "The four terms of [the objective](objective.md), each alone. The level of the loss says little; who trains the policy is in the"
        " shares of the gradients.",
    ),
    Group(
        "grpo/entropy",
        "GRPO: entropy",
        "How certain the policy is, exactly, at T = 1. What is done when it falls is in [control](control.md).",
    ),
    Group(
        "grpo/kl_reference",
        "GRPO: distance from the reference and from the rollout",
        "How far the policy is from where it began, and from the one that was sampled. Ratios are 1 before a rollout's first update.",
    ),
    Group("grpo/reward_mean", "GRPO: rewards", "What the moves are worth that were sampled, by the reward's own search."),
    Group(
        "grpo/advantage_mean",
        "GRPO: groups and advantages",
        "What the policy term learns from. A group whose rewards are equal teaches nothing.",
    ),
    Group("grpo/gradient_norm", "GRPO: optimiser and states", "What a step took, and what it had to leave out."),
    Group(
        "language/clone_loss",
        "Language model",
        'In place of the `grpo/` metrics with `policy.kind = "language"`: [what is measured of text](language.md).',
    ),
    Group("own_games/games", "Own games", "Each round of games that the policy plays against itself for further states."),
    Group("control/temperature", "Control", "What the [controllers](control.md) set, and how often they stood at a bound or still."),
    Group(
        "heldout/expected_value",
        "Held-out boards",
        "Boards that nothing was learnt from, under a stronger search than the reward's. At each checkpoint; cheap, and decides nothing.",
    ),
    Group("time/states", "Time", "Where the seconds of a GRPO step go."),
    Group("ladder/rating", "Ladder", "The opponents that all runs of a machine are measured by."),
    Group("baseline/score_random", "Baseline", "The pretrained policy before GRPO, by games."),
    Group(
        "selection/score_best",
        "Selection",
        "The candidate by games that were played after it was chosen ([evaluation](evaluation.md)). These carry the verdict.",
    ),
    Group("run/regret_before", "Runs", "Of a whole run, beside its steps' own, so that runs can be compared."),
    Group("work/items_per_second", "Work", "Of any step."),
)
"""In the order of the table."""

UNITS: Final[Mapping[str, str]] = {
    "nats": "of entropy, divergence and cross-entropy; 1 nat is 1.44 bits, and exp(nats) a number of equally likely moves.",
    "win probability": "0 to 1, of the player to move, by [the engine's values](values.md); differences and gradients of it too.",
    "win probability/nat": "what one nat is worth, or costs, in the objective.",
    "nats/token": "the same, a token of text.",
    "points": "of a language model's graded reward: the weights of its parts are in `[language.rewards]`.",
    "score": "0 to 1 a game: a win is 1, a draw 0.5; one half is as strong.",
    "Elo": "400 log10(s / (1 - s)) of an expected score s: +100 is 0.64, +200 is 0.76. Ratings count from a random mover.",
    "probability": "0 to 1.",
    "1": "a pure number: a ratio, a cosine, a rate.",
    "fraction": "0 to 1; `fraction of ...` says of what.",
    "see meaning": "it differs from term to term.",
    "s": "seconds of wall time; `1/s` is so many a second.",
}
"""What needs a word of its own; all other units are things that are counted."""


def metrics_page() -> str:
    """Return `docs/metrics.md`."""
    units = "\n".join(f"- **{unit}**: {meaning}" for unit, meaning in UNITS.items())
    events = "\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in EVENTS.items())
    groups = "\n\n".join(
        f"## {group.title}\n\n{group.sentence}\n\n| name | unit | better | meaning |\n| --- | --- | --- | --- |\n"
        + "\n".join(f"| `{s.name}` | {s.unit} | {s.better} | {_cell(s.meaning)} |" for s in specs)
        for group, specs in grouped()
    )
    return (
        "# Metrics\n\nPrinted from `grpo/metrics/table.py` by `python -m grpo.metrics.page > docs/metrics.md`; a test compares them.\n\n"
        "*Better* says which way a metric should go; `neither` means that its level is to be watched, and not to be moved for its own"
        " sake. Names that end in a phase (`/opening`, `/middlegame`, `/endgame`) are the same of the boards of that phase; those that"
        " end in a term or a pair of terms, the same of these terms.\n\n"
        f"Units:\n\n{units}\n\n{groups}\n\n"
        "## Events\n\nWhat happened in a run, beside the numbers, with a message that names the step, what was seen and the setting that"
        f" mends it.\n\n| name | meaning |\n| --- | --- |\n{events}\n"
    )


def grouped() -> Iterator[tuple[Group, list[MetricSpec]]]:
    """Yield each group with its rows of the table, in order."""
    names = list(METRICS)
    starts = [names.index(group.first) for group in METRIC_GROUPS]
    for group, start, end in zip(METRIC_GROUPS, starts, [*starts[1:], len(names)], strict=True):
        yield group, [METRICS[name] for name in names[start:end]]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")  # A bar would end the cell.


if __name__ == "__main__":
    print(metrics_page(), end="")

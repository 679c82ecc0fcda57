"""The steps as chapters of a run's story: their order and names, what each does, and the numbers it is remembered by."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.files import read_json
from grpo.board.phases import PHASES
from grpo.metrics.table import METRICS, TASKS, Better, Record
from steps.step_io.names import FINDINGS
from steps.step_io.work import read_history


@dataclass(frozen=True, kw_only=True, slots=True)
class Chapter:
    """A step, for people."""

    text: str
    """What it does, and why."""
    of_language: str = ""
    """The same of a language model, where that is another thing."""
    numbers: tuple[str, ...] = ()
    """Metrics that its page shows, where they were measured: a network has others than a language model."""
    headlines: tuple[str, ...] = ()
    """Metrics whose last value the parent run has too, so that runs can be compared by them."""


def _with_interval(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("", "_low", "_high"))


_BOARDS: Final = ("boards/rows", *(f"boards/kept/{phase}" for phase in PHASES))
_IMITATION: Final = ("imitation/validation_loss", "imitation/top1")
_READ: Final = tuple(f"language/parse_rate{task}" for task in ("", *(f"/{task}" for task in TASKS)))
_BASELINE: Final = _with_interval("baseline/score_random", "baseline/score_engine", "baseline/rating")
_SELECTION: Final = _with_interval("selection/score_best", "selection/score_adjudicated", "selection/score_sampled", "selection/rating")

CHAPTERS: Final[Mapping[str, Chapter]] = {
    "build_boards": Chapter(
        text="Finds positions in games, and asks Stockfish for the value of every legal move of each: one task's share of the dataset.",
        numbers=("boards/games", "boards/rejected_games", "boards/dropped", "cache/hits", "cache/misses", "work/items_per_second"),
    ),
    "join_boards": Chapter(
        text="Joins the tasks' boards into one dataset with exactly as many of each phase and split as were asked for, none of them"
        " twice; all boards of one game are in one split.",
        numbers=(*_BOARDS, *(f"boards/natural/{phase}" for phase in PHASES), "boards/duplicates", "boards/missing"),
        headlines=_BOARDS,
    ),
    "check_boards": Chapter(
        text="Holds the dataset against what is expected of it, board by board and as a whole, and lets no other through.",
        numbers=("checks/failed",),
    ),
    "pretrain": Chapter(
        text="Teaches the network to imitate the moves played, until its loss on boards of other games stops falling. This is the"
        " policy that GRPO begins with, and the one it has to beat.",
        of_language="Lets the language model clone the value tables' answers to both tasks, unless it is to be taken as it comes, and lets"
        " no model through whose answers cannot be read. This is the policy that GRPO begins with, and the one it has to beat.",
        numbers=(
            *_IMITATION,
            "imitation/top5",
            "imitation/entropy",
            "imitation/perplexity",
            "language/clone_loss",
            "language/clone_validation_loss",
            *_READ,
            "language/legal_rate",
        ),
        headlines=(*_IMITATION, "language/clone_validation_loss"),
    ),
    "calibrate": Chapter(
        text="Lets opponents of rising strength play each other, from a random mover up to Stockfish, for a ladder in Elo on which"
        " policies are placed. It depends on no dataset: later runs use the same ladder.",
        numbers=_with_interval("ladder/rating"),
    ),
    "baseline": Chapter(
        text="Measures the pretrained policy before GRPO touches it: by games against a random mover and Stockfish, by its place on"
        " the ladder, and by how much win probability it gives away on held-out boards.",
        numbers=(
            *_BASELINE,
            "heldout/regret_best",
            "heldout/regret_sampled",
            "heldout/entropy",
            "heldout/parse_rate",
            "heldout/legal_rate",
        ),
        headlines=_BASELINE,
    ),
    "finetune": Chapter(
        text="GRPO: several moves are drawn for each position, and those that the engine values above their group's mean become"
        " likelier. Entropy and divergence from the pretrained policy are watched at every step; checkpoints are measured on"
        " held-out boards.",
        of_language="GRPO: several answers are written for each prompt, and those whose graded reward is above their group's mean become"
        " likelier. What can be read, entropy and divergence from the pretrained model are watched at every step; checkpoints are"
        " measured on held-out boards.",
        numbers=(
            "grpo/reward_mean",
            "grpo/entropy",
            "grpo/normalised_entropy",
            "grpo/kl_reference",
            "grpo/clip_fraction",
            "grpo/silent_groups",
            "language/reward_mean",
            *_READ,
            "language/legal_rate",
            "language/truncated",
            "language/entropy",
            "language/kl_reference",
            "language/silent_groups",
            "heldout/regret_best",
            "heldout/regret_sampled",
            "control/entropy_saturated",
            "control/recoveries",
            "time/transitions_per_second",
        ),
        headlines=(
            "grpo/entropy",
            "grpo/kl_reference",
            "language/reward_mean",
            "language/parse_rate",
            "language/entropy",
            "language/kl_reference",
        ),
    ),
    "screen": Chapter(
        text="Lets a few checkpoints play against the pretrained policy, in rounds from which the weaker half leaves, for one"
        " candidate. These games choose, and are never reported as its strength.",
    ),
    "confirm": Chapter(
        text="Plays one task's share of the games that judge the candidate: fresh ones, in pairs with both colours, from openings"
        " that served nothing else.",
    ),
    "select": Chapter(
        text="Decides by the fresh games whether the candidate is shown to be better than the pretrained policy, and than the"
        " champion before it. Registers two policies: `champion`, to play, and `peak`, to go on from.",
        numbers=_SELECTION,
        headlines=_SELECTION,
    ),
    "report": Chapter(text="Writes the run's story: verdict, comparison, curves, and a card for the champion."),
}
"""Step -> chapter, in the order in which steps begin."""


def run_name(step: str) -> str:
    """Return a child run's name, by which the UI sorts them in order.

    >>> run_name("finetune")
    '07 finetune'
    """
    return f"{list(CHAPTERS).index(step) + 1:02d} {step}" if step in CHAPTERS else step


def headlines(step: str, folder: Path) -> dict[str, float]:
    """Return what the parent run has of a step's output: declared metrics with one number each."""
    if step not in CHAPTERS:
        return {}
    records = read_history(folder)
    found = {name: numbers[-1] for name in CHAPTERS[step].headlines if (numbers := _numbers(records, name))}
    if step == "finetune" and (regrets := _numbers(records, "heldout/regret_best")):
        found |= {"run/regret_before": regrets[0], "run/regret_after": regrets[-1]}
    if (folder / FINDINGS).is_file():
        found["run/findings"] = float(len(_ills(read_json(folder / FINDINGS))))
    return found


def chapter_note(step: str, folder: Path | None = None) -> str:
    """Return what a child run's page says: what the step does and, given the folder of its output, what came out."""
    if step not in CHAPTERS:
        return ""
    from steps.step_io.names import SUMMARY

    chapter = CHAPTERS[step]
    parts = [chapter.text]
    if folder is not None:
        records = read_history(folder)
        if chapter.of_language and any(name.startswith("language/") for record in records for name in record.metrics):
            parts = [chapter.of_language]
        rows = [_row(name, numbers) for name in chapter.numbers if (numbers := _numbers(records, name))]
        if rows:
            parts.append("\n".join(["| metric | first | last | unit | better | meaning |", "| --- | --- | --- | --- | --- | --- |", *rows]))
        if (folder / FINDINGS).is_file():
            parts.append(findings_text(read_json(folder / FINDINGS)))
        if (folder / SUMMARY).is_file():
            parts.append((folder / SUMMARY).read_text(encoding="utf-8"))
    return "\n\n".join(parts)


def findings_text(found: Mapping[str, Any]) -> str:
    """Return in Markdown what `findings.json` holds."""
    ills = _ills(found)
    if not ills:
        return "Diagnosis: **healthy**."
    lines = [f"- **{each['name']}** ({each['severity']}): {each['cause']} Remedy: {each['remedy']}" for each in ills]
    return "\n".join(["Diagnosis:\n", *lines])


def _ills(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the findings that are one: of a healthy history the only one is that it is."""
    ills: Sequence[Mapping[str, Any]] = [] if found["verdict"] == "healthy" else found["findings"]
    return ills


def readable_number(value: float) -> str:
    """Return a number as people read it.

    >>> [readable_number(each) for each in (330.0, 72000.0, 0.0847874, 3e-05, 259.07)]
    ['330', '72,000', '0.0848', '3e-05', '259']
    """
    if math.isfinite(value) and value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _numbers(records: Sequence[Record], name: str) -> list[float]:
    return [float(record.metrics[name]) for record in records if name in record.metrics]


def _row(name: str, numbers: list[float]) -> str:
    spec = METRICS[name]
    first = readable_number(numbers[0]) if len(numbers) > 1 else ""
    better = "" if spec.better is Better.NEITHER else str(spec.better)
    return f"| `{name}` | {first} | {readable_number(numbers[-1])} | {spec.unit} | {better} | {spec.meaning} |"

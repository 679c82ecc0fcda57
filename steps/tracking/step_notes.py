"""Step notes: the order and names of the steps, and for each its description, its metrics and its headlines in MLflow."""

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
class StepNote:
    """The description and metrics of a step on its MLflow page."""

    text: str
    """What it does, and why."""
    of_language: str = ""
    """The same for a language model, if different."""
    numbers: tuple[str, ...] = ()
    """Metrics that its page shows, if measured: a network has others than a language model."""
    headlines: tuple[str, ...] = ()
    """Metrics whose last value is also logged on the parent run, so that runs can be compared by them."""


def _with_interval(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}{end}" for name in names for end in ("", "_low", "_high"))


_BOARDS: Final = ("boards/rows", *(f"boards/kept/{phase}" for phase in PHASES))
_IMITATION: Final = ("imitation/validation_loss", "imitation/top1")
_READ: Final = tuple(f"language/parse_rate{task}" for task in ("", *(f"/{task}" for task in TASKS)))
_BASELINE: Final = _with_interval("baseline/score_random", "baseline/score_engine", "baseline/rating")
_SELECTION: Final = _with_interval(
    "selection/score_best",
    "selection/score_adjudicated",
    "selection/ladder_gain",
    "selection/ladder_gain_adjudicated",
    "selection/score_sampled",
    "selection/rating",
)

STEP_NOTES: Final[Mapping[str, StepNote]] = {
    "build_boards": StepNote(
        text="Finds positions in games and has Stockfish evaluate every legal move of each: one task's part of the dataset.",
        numbers=("boards/games", "boards/rejected_games", "boards/dropped", "cache/hits", "cache/misses", "work/items_per_second"),
    ),
    "join_boards": StepNote(
        text="Joins the tasks' boards into one dataset without duplicates, with the configured number for each phase and split; all"
        " boards of one game are in one split.",
        numbers=(*_BOARDS, *(f"boards/natural/{phase}" for phase in PHASES), "boards/duplicates", "boards/missing"),
        headlines=_BOARDS,
    ),
    "check_boards": StepNote(
        text="Validates the dataset, board by board and as a whole; the run stops if a check fails.",
        numbers=("checks/failed",),
    ),
    "pretrain": StepNote(
        text="Trains the network to imitate the moves played (behaviour cloning) until its loss on boards of other games stops falling."
        " GRPO starts from this policy and has to beat it.",
        of_language="Trains the language model on answers made from the value tables of both tasks (behaviour cloning), unless cloning is"
        " off. The run stops if the model's answers cannot be parsed. GRPO starts from this policy and has to beat it.",
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
    "calibrate": StepNote(
        text="Plays games between opponents of rising strength, from a random mover up to Stockfish, to fit an Elo ladder on which"
        " policies are rated. It depends on no dataset, so later runs reuse the same ladder.",
        numbers=_with_interval("ladder/rating"),
    ),
    "baseline": StepNote(
        text="Measures the pretrained policy before GRPO: games against a random mover and Stockfish, its rating on the ladder, and its"
        " regret (win probability lost per move) on held-out boards.",
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
    "finetune": StepNote(
        text="GRPO: samples several moves per position; moves with an engine value above their group's mean become likelier."
        " Entropy and KL divergence from the pretrained policy are logged at every step; checkpoints are evaluated on"
        " held-out boards.",
        of_language="GRPO: samples several answers per prompt; answers with a reward above their group's mean become likelier."
        " Parse rate, entropy and KL divergence from the pretrained model are logged at every step; checkpoints are evaluated on"
        " held-out boards.",
        numbers=(
            "grpo/reward_mean",
            "grpo/entropy",
            "grpo/normalised_entropy",
            "grpo/kl_reference",
            "grpo/clip_fraction",
            "grpo/zero_variance_groups",
            "language/reward_mean",
            *_READ,
            "language/legal_rate",
            "language/truncated",
            "language/entropy",
            "language/kl_reference",
            "language/zero_variance_groups",
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
    "screen": StepNote(
        text="Selects one candidate among a few checkpoints by games against the pretrained policy; after each round the weaker half"
        " drops out (successive halving). These games are never reported as its strength.",
    ),
    "confirm": StepNote(
        text="Plays one task's part of the games that decide on the candidate: fresh games, in pairs with both colours, from openings"
        " that were not used before.",
    ),
    "select": StepNote(
        text="Decides by the fresh games whether the candidate is significantly better than the pretrained policy and than the"
        " previous champion. Registers two policies: `champion`, to play, and `peak`, to resume from.",
        numbers=_SELECTION,
        headlines=_SELECTION,
    ),
    "report": StepNote(text="Writes the results of the run as one document, the report as a page, and a model card of the champion."),
}
"""Step -> note, in the order of the steps."""


def run_name(step: str) -> str:
    """Return a child run's name, by which the UI sorts them in order.

    >>> run_name("finetune")
    '07 finetune'
    """
    return f"{list(STEP_NOTES).index(step) + 1:02d} {step}" if step in STEP_NOTES else step


def headlines(step: str, folder: Path) -> dict[str, float]:
    """Return the headline metrics of a step's output for the parent run, one value each."""
    if step not in STEP_NOTES:
        return {}
    records = read_history(folder)
    found = {name: numbers[-1] for name in STEP_NOTES[step].headlines if (numbers := _numbers(records, name))}
    if step == "finetune" and (regrets := _numbers(records, "heldout/regret_best")):
        found |= {"run/regret_before": regrets[0], "run/regret_after": regrets[-1]}
    if (folder / FINDINGS).is_file():
        found["run/findings"] = float(len(_problems(read_json(folder / FINDINGS))))
    return found


def step_note(step: str, folder: Path | None = None) -> str:
    """Return a child run's description: what the step does and, given the folder of its output, the results."""
    if step not in STEP_NOTES:
        return ""
    from steps.step_io.names import SUMMARY

    note = STEP_NOTES[step]
    parts = [note.text]
    if folder is not None:
        records = read_history(folder)
        if note.of_language and any(name.startswith("language/") for record in records for name in record.metrics):
            parts = [note.of_language]
        rows = [_row(name, numbers) for name in note.numbers if (numbers := _numbers(records, name))]
        if rows:
            parts.append("\n".join(["| metric | first | last | unit | better | meaning |", "| --- | --- | --- | --- | --- | --- |", *rows]))
        if (folder / FINDINGS).is_file():
            parts.append(findings_text(read_json(folder / FINDINGS)))
        if (folder / SUMMARY).is_file():
            parts.append((folder / SUMMARY).read_text(encoding="utf-8"))
    return "\n\n".join(parts)


def findings_text(found: Mapping[str, Any]) -> str:
    """Return the content of `findings.json` in Markdown."""
    problems = _problems(found)
    if not problems:
        return "Diagnosis: **healthy**."
    lines = [f"- **{each['name']}** ({each['severity']}): {each['cause']} Remedy: {each['remedy']}" for each in problems]
    return "\n".join(["Diagnosis:\n", *lines])


def _problems(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the findings that are problems; the only finding of a healthy history is that it is healthy."""
    problems: Sequence[Mapping[str, Any]] = [] if found["verdict"] == "healthy" else found["findings"]
    return problems


def readable_number(value: float) -> str:
    """Format a number with three significant digits, or as a whole number.

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

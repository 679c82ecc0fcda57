"""Step notes: the order and names of the steps, and for each its description and its headlines in MLflow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpo.base.files import read_json
from grpo.metrics.table import Record
from steps.step_io.names import FINDINGS, SUMMARY
from steps.step_io.results_text import finding_lines
from steps.step_io.work import read_history


@dataclass(frozen=True, kw_only=True, slots=True)
class StepNote:
    """The description and headlines of a step on its MLflow page."""

    text: str
    """What it does, and why."""
    of_language: str = ""
    """The same for a language model, if different."""
    headlines: tuple[str, ...] = ()
    """Metrics whose last value is also logged on the parent run: the few by which its table is sorted. The score that decided has its
    interval, others have theirs in the report."""


STEP_NOTES: Final[Mapping[str, StepNote]] = {
    "build_boards": StepNote(
        text="Finds positions in games and has Stockfish evaluate every legal move of each: one task's part of the dataset.",
    ),
    "join_boards": StepNote(
        text="Joins the tasks' boards into one dataset without duplicates, with the configured number for each phase and split; all"
        " boards of one game are in one split.",
    ),
    "check_boards": StepNote(
        text="Validates the dataset, board by board and as a whole; the run stops if a check fails.",
    ),
    "pretrain": StepNote(
        text="Trains the network to imitate the moves played (behavior cloning) until its loss on boards of other games stops falling."
        " GRPO starts from this policy and has to beat it.",
        of_language="Trains the language model on answers made from the value tables of both tasks (behavior cloning), unless cloning is"
        " off. The run stops if the model's answers cannot be parsed. GRPO starts from this policy and has to beat it.",
        headlines=("imitation/validation_loss", "imitation/top1", "language/clone_validation_loss"),
    ),
    "calibrate": StepNote(
        text="Plays games between opponents of rising strength, from a random mover up to Stockfish, to fit an Elo ladder on which"
        " policies are rated. It depends on no dataset, so later runs reuse the same ladder.",
    ),
    "baseline": StepNote(
        text="Measures the pretrained policy before GRPO: games against a random mover and Stockfish, its rating on the ladder, and its"
        " regret (win probability lost per move) on held-out boards.",
    ),
    "finetune": StepNote(
        text="GRPO: samples several moves per position; moves with an engine value above their group's mean become likelier."
        " Entropy and KL divergence from the pretrained policy are logged at every step; checkpoints are evaluated on"
        " held-out boards.",
        of_language="GRPO: samples several answers per prompt; answers with a reward above their group's mean become likelier."
        " Parse rate, entropy and KL divergence from the pretrained model are logged at every step; checkpoints are evaluated on"
        " held-out boards.",
    ),
    "screen": StepNote(
        text="Selects one candidate among a few checkpoints by games against the pretrained policy; after each round the weaker half"
        " drops out (successive halving). These games are never reported as its strength.",
    ),
    "confirm": StepNote(
        text="Plays one task's part of the games that decide on the candidate: fresh games, in pairs with both colors, from openings"
        " that were not used before.",
    ),
    "select": StepNote(
        text="Decides by the fresh games whether the candidate is significantly better than the pretrained policy and than the"
        " previous champion. Registers two policies: `champion`, to play, and `peak`, to resume from.",
        headlines=(
            *(f"selection/{name}{end}" for name in ("verdict_elo", "score_best") for end in ("", "_low", "_high")),
            "selection/ladder_gain",
            "selection/heldout_regret",
            "selection/rating",
            "selection/rating_pretrained",
        ),
    ),
    "report": StepNote(text="Writes the results of the run as one document, the report as a page, and a model card of the champion."),
}
"""Step -> note, in the order of the steps."""


def run_name(step: str, part: str = "") -> str:
    """Return a child run's name, by which the UI sorts them in order; parallel tasks of a step are told apart by their part.

    >>> run_name("finetune"), run_name("confirm", "2 of 2")
    ('07 finetune', '09 confirm 2 of 2')
    """
    name = f"{list(STEP_NOTES).index(step) + 1:02d} {step}" if step in STEP_NOTES else step
    return f"{name} {part}".rstrip()


def headlines(step: str, folder: Path) -> dict[str, float]:
    """Return the headline metrics of a step's output for the parent run, one value each, rounded to what a column shows."""
    if step not in STEP_NOTES:
        return {}
    records = read_history(folder)
    found = {name: numbers[-1] for name in STEP_NOTES[step].headlines if (numbers := _numbers(records, name))}
    if step == "finetune" and (regrets := _numbers(records, "heldout/regret_best")):
        found["run/regret_before"] = regrets[0]
    if (folder / FINDINGS).is_file():
        found["run/findings"] = float(len(_problems(read_json(folder / FINDINGS))))
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def step_note(step: str, folder: Path | None = None) -> str:
    """Return a child run's description: what the step does and, given the folder of its output, what was found."""
    if step not in STEP_NOTES:
        return ""
    note = STEP_NOTES[step]
    parts = [note.text]
    if folder is not None:
        records = read_history(folder)
        if note.of_language and any(name.startswith("language/") for record in records for name in record.metrics):
            parts = [note.of_language]
        if (folder / FINDINGS).is_file():
            parts.append(findings_text(read_json(folder / FINDINGS)))
        if (folder / SUMMARY).is_file():
            parts.append((folder / SUMMARY).read_text(encoding="utf-8"))
    return "\n\n".join(parts)


def findings_text(found: Mapping[str, Any]) -> str:
    """Return the content of `findings.json` in Markdown."""
    problems = _problems(found)
    return "\n".join(["Diagnosis:\n", *map("- {}".format, finding_lines(problems))]) if problems else "Diagnosis: **healthy**."


def _problems(found: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the findings that are problems; the only finding of a healthy history is that it is healthy."""
    problems: Sequence[Mapping[str, Any]] = [] if found["verdict"] == "healthy" else found["findings"]
    return problems


def _numbers(records: Sequence[Record], name: str) -> list[float]:
    return [float(record.metrics[name]) for record in records if name in record.metrics]

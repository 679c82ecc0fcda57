"""Metaflow cards of a language model's training: behaviour cloning and GRPO; for a network see `network_pages`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.settings.metrics import REWARD_PARTS, TASKS
from steps.cards.html import CardPart, Html, TableCell, block, details, heading, html_table, listing, number_text, paragraph
from steps.cards.metric_tables import critical_level, metric_figure
from steps.cards.state import KindPages, Seen
from steps.run.names import ANSWERS

_PARTS: Final[Mapping[str, str]] = {part: part.replace("_", " ") for part in REWARD_PARTS}


def _pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: the loss of behaviour cloning, and the parse rate of the model's answers."""
    report, records = seen.report(), seen.records
    tasks = {f"language/clone_validation_loss/{task}": f"validation, {words} task" for task, words in TASKS.items()}
    losses = {"language/clone_loss": "training", "language/clone_validation_loss": "validation", **tasks}
    return [
        block(heading("Behaviour cloning of answers made from value tables", 1), seen.state(), _cloned(report)),
        *metric_figure("loss per answer token", records, losses, note="The weights with the best validation loss are saved."),
        block(heading("Parse rates"), _gate(report)),
        _answers(seen),
    ]


def _cloned(report: Mapping[str, Any]) -> str:
    if not report:
        return ""
    commit = f" at commit {report['commit'][:12]}" if report["commit"] else ""
    size = f"Model {report['model']}{commit}: {report['num_parameters']:,} parameters, a vocabulary of {report['num_tokens']:,} tokens."
    if not report["num_steps"]:
        return paragraph(f"{size} Used without cloning: language.cloning.num_steps is 0.")
    loss = number_text(report["clone_validation_loss"])
    return paragraph(f"{size} {report['num_steps']:,} steps; best validation loss at step {report['best_step']:,}: {loss} nats per token.")


def _gate(report: Mapping[str, Any]) -> str:
    if not report:
        return paragraph("Measured when cloning is done.", "soft")
    rows: list[list[TableCell]] = [
        [TASKS[task], rate["rate"], rate["low"], rate["high"], rate["num"], rate["legal_rate"], rate["truncated"]]
        for task, rate in _by_task(report["parse_rates"])
    ]
    headers = ["task", "parse rate at T = 1", "95 % from", "to", "answers", "legal best move", "truncated"]
    return html_table(headers, rows, caption="The gate before GRPO: below language.min_parse_rate the run stops here")


def _training_figures(seen: Seen, marks: Sequence[float]) -> list[CardPart]:
    """Return charts and tables of GRPO on a language model: reward by part, parse rate, entropy and KL per answer.

    Args:
        seen: the step so far.
        marks: steps with events.
    """
    config, records = seen.settings["grpo"], seen.records
    by_task = {task: f"{words} task" for task, words in TASKS.items()}
    return [
        *metric_figure(
            "reward of an answer",
            records,
            {
                "language/reward_mean": "all parts at full weight",
                "language/reward_trained": "as trained, with warm-up",
                **{f"language/reward_mean/{task}": words for task, words in by_task.items()},
            },
            marks=marks,
            note="Prompts differ from step to step: a rise without lower held-out regret is not strength.",
        ),
        *metric_figure(
            "reward by part",
            records,
            {f"language/reward/{part}": words for part, words in _PARTS.items()},
            note="Structure and parsing reward the format only, not chess.",
        ),
        *metric_figure(
            "parse rate",
            records,
            {"language/parse_rate": "all answers", **{f"language/parse_rate/{task}": words for task, words in by_task.items()}},
            note="It must not fall: if the model forgets the format, stop the run or raise the KL coefficient.",
        ),
        *metric_figure(
            "entropy of an answer at T = 1",
            records,
            {"language/entropy": "all answers", **{f"language/entropy/{task}": words for task, words in by_task.items()}},
            levels=critical_level(config),
            marks=marks,
            note="Sum over an answer's tokens. Below the critical line for a while GRPO recovers or stops.",
        ),
        *metric_figure(
            "KL to the reference, per answer",
            records,
            {
                "language/kl_reference": "mean",
                **{f"language/kl_reference/{task}": words for task, words in by_task.items()},
                "language/kl_max": "maximum",
            },
            note="0 at the first step, before any update; otherwise sampling and scoring differ.",
        ),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best answers", "heldout/regret_sampled": "sampled at T = 1"},
            note="Lower is better; an answer without a legal move has the largest regret.",
        ),
        _answers(seen),
    ]


def _answers(seen: Seen) -> Html:
    """Return some prompts with their answers and graded rewards."""
    found = seen.listed(ANSWERS)
    title = heading("Example answers")
    if not found:
        return block(title, paragraph("Available when the step is done.", "soft"))
    prompts = [_prompt(row, is_open=index == 0) for index, row in enumerate(found)]
    return block(title, paragraph("Greedy answers to held-out boards; rewards with all parts at full weight.", "soft"), *prompts)


def _prompt(row: Mapping[str, Any], *, is_open: bool) -> str:
    rows: list[list[TableCell]] = [["target", row["target"], None]]
    graded = []
    for answer in row["answers"]:
        cut = " (truncated)" if answer["is_truncated"] else ""
        rows.append([f"{answer['whose']}{cut}", answer["text"], answer["reward"]])
        if answer["parts"]:
            parts = ", ".join(f"{_PARTS[part]} {number_text(value)}" for part, value in answer["parts"].items())
            graded.append(f"{answer['whose']}: {parts}")
    prompt = f"{TASKS[row['task']]} task: {row['prompt']}"
    return details(prompt, html_table(["", "answer", "reward"], rows, wide=[1]) + listing(graded), is_open=is_open)


def _by_task(rates: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(task, rates[task]) for task in TASKS if task in rates]  # The JSON file has them in alphabetical order.


LANGUAGE_PAGES: Final = KindPages(pretrain=_pretrain_page, training_figures=_training_figures)

"""Cards of a language model's two trainings: cloning, and GRPO; for a network see `network_pages`."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.metrics.table import REWARD_PARTS, TASKS, Record
from steps.cards.charts import ALARM
from steps.cards.html import CardPart, Html, TableCell, badge, block, details, heading, html_table, listing, number_text, paragraph, text
from steps.cards.metric_tables import metric_figure
from steps.cards.state import KindPages, Seen
from steps.step_io.names import ANSWERS

_LATEST: Final[Mapping[str, str]] = {
    "language/reward_mean": "mean reward",
    "language/parse_rate": "parsed",
    "language/truncated": "cut at the greatest length",
    "language/legal_rate": "legal best moves named",
    "language/entropy": "entropy of an answer at T = 1",
    "language/kl_reference": "KL to the reference, an answer",
    "language/sampled_scored_gap": "sampled against scored",
    "language/silent_groups": "silent groups",
    "heldout/regret_best": "held-out regret, best answers",
    "heldout/regret_sampled": "held-out regret, sampled",
    "control/kl_coefficient": "KL coefficient",
    "control/learning_rate": "learning rate",
}

_PARTS: Final[Mapping[str, str]] = {part: part.replace("_", " ") for part in REWARD_PARTS}


def _pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: the cloning's loss, and how much of what the model then writes can be read."""
    report, records = seen.report(), seen.records
    tasks = {f"language/clone_validation_loss/{task}": f"validation, {words} task" for task, words in TASKS.items()}
    losses = {"language/clone_loss": "training", "language/clone_validation_loss": "validation", **tasks}
    return [
        block(heading("A language model clones the value tables' answers", 1), seen.state(), _outcome(report), _cloned(report)),
        *metric_figure("loss of an answer's token", records, losses, note="The weights of the best look are kept."),
        block(heading("Can it be read?"), _gate(report)),
        _answers(seen),
    ]


def _cloned(report: Mapping[str, Any]) -> str:
    if not report:
        return ""
    commit = f" at commit {report['commit'][:12]}" if report["commit"] else ""
    size = f"Model {report['model']}{commit}: {report['num_parameters']:,} parameters, {report['num_tokens']:,} kinds of tokens."
    if not report["num_steps"]:
        return paragraph(f"{size} It was taken as it came: language.cloning.num_steps is 0.")
    loss = number_text(report["clone_validation_loss"])
    return paragraph(
        f"{size} {report['num_steps']:,} steps; best look at step {report['best_step']:,}: validation loss {loss} nats a token."
    )


def _gate(report: Mapping[str, Any]) -> str:
    if not report:
        return paragraph("Asked when cloning is done.", "soft")
    rows: list[list[TableCell]] = [
        [TASKS[task], rate["rate"], rate["low"], rate["high"], rate["num"], rate["legal_rate"], rate["truncated"]]
        for task, rate in _by_task(report["parse_rates"])
    ]
    headers = ["task", "parse rate at T = 1", "95 % from", "to", "answers", "legal best move", "cut"]
    return html_table(headers, rows, caption="The gate before GRPO: below language.min_parse_rate the run ends here")


def _training_figures(seen: Seen, marks: Sequence[float]) -> list[CardPart]:
    """Return the charts of GRPO on a language model, each with its numbers: rewards by part, what can be read, entropy and KL an answer.

    Args:
        seen: the step as far as it has come.
        marks: steps at which something happened.
    """
    config, records = seen.settings["grpo"], seen.records
    levels = {"critical": (float(config["critical_entropy"]), ALARM)} if config["critical_measure"] == "entropy" else {}
    by_task = {task: f"{words} task" for task, words in TASKS.items()}
    return [
        *metric_figure(
            "reward of an answer",
            records,
            {
                "language/reward_mean": "all parts in full",
                "language/reward_trained": "as trained, warm-up included",
                **{f"language/reward_mean/{task}": words for task, words in by_task.items()},
            },
            marks=marks,
            note="Prompts differ from step to step: a rise without less held-out regret is no strength.",
        ),
        *metric_figure(
            "reward by part",
            records,
            {f"language/reward/{part}": words for part, words in _PARTS.items()},
            note="Structure and parsing are form; what rises there alone is no chess.",
        ),
        *metric_figure(
            "parse rate",
            records,
            {"language/parse_rate": "all answers", **{f"language/parse_rate/{task}": words for task, words in by_task.items()}},
            note="It must not fall: a model that forgets the format is stopped by hand, or by a larger KL coefficient.",
        ),
        *metric_figure(
            "cut at the greatest length",
            records,
            {"language/truncated": "all answers", **{f"language/truncated/{task}": words for task, words in by_task.items()}},
            note="The loss leaves these out.",
        ),
        *metric_figure(
            "malformed and illegal",
            records,
            {
                "language/malformed": "no section found",
                "language/structure_rate": "all sections",
                "language/legal_rate": "legal best move named",
            },
        ),
        *metric_figure(
            "entropy of an answer at T = 1",
            records,
            {"language/entropy": "all answers", **{f"language/entropy/{task}": words for task, words in by_task.items()}},
            levels=levels,
            marks=marks,
            note="Sum over an answer's tokens. Below the critical line for a while it recovers or stops; thin upright lines are events.",
        ),
        *metric_figure(
            "KL to the reference, an answer",
            records,
            {
                "language/kl_reference": "mean",
                **{f"language/kl_reference/{task}": words for task, words in by_task.items()},
                "language/kl_max": "the largest",
            },
            note="0 at the first step, before any update; else sampling and scoring differ.",
        ),
        *metric_figure(
            "sampled against scored log-probability of a token",
            records,
            {"language/sampled_scored_gap": "largest difference"},
            note="Rounding is below 0.0001. More is another model that is trained than the one that wrote.",
        ),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best answers", "heldout/regret_sampled": "sampled at T = 1"},
            note="Lower is better; an answer without a legal move gives all away.",
        ),
        *metric_figure(
            "held-out answers",
            records,
            {"heldout/parse_rate": "whole", "heldout/legal_rate": "with a legal best move"},
        ),
        *metric_figure("silent groups", records, {"language/silent_groups": "all rewards of a group equal"}, note="They teach nothing."),
        *metric_figure("agreement within groups", records, {"language/agreement": "share of the commonest answer"}),
        *metric_figure("clipped tokens", records, {"language/clip_fraction": "either clip"}),
        *metric_figure("tokens of an answer", records, {"language/answer_tokens": "mean length"}),
        *metric_figure(
            "KL and entropy coefficients",
            records,
            {"control/kl_coefficient": "KL, warm-up included", "control/entropy_coefficient": "entropy"},
        ),
        *metric_figure(
            "seconds of a step",
            records,
            {f"time/{part}": part for part in ("states", "rollout", "update", "other")},
            note="While it trains: times are no part of the stored history.",
        ),
        _answers(seen),
    ]


def _answers(seen: Seen) -> Html:
    """Return some prompts with what was answered, each answer with its grades."""
    found = seen.listed(ANSWERS)
    title = heading("Some answers")
    if not found:
        return block(title, paragraph("Kept when the step is done.", "soft"))
    shown = [_prompt(row, is_open=place == 0) for place, row in enumerate(found)]
    return block(title, paragraph("Greedy answers to boards of no training; rewards with all parts at full weight.", "soft"), *shown)


def _prompt(row: Mapping[str, Any], *, is_open: bool) -> str:
    rows: list[list[TableCell]] = [["wanted", row["target"], None]]
    graded = []
    for answer in row["answers"]:
        cut = " (cut)" if answer["is_truncated"] else ""
        rows.append([f"{answer['whose']}{cut}", answer["text"], answer["reward"]])
        if answer["parts"]:
            parts = ", ".join(f"{_PARTS[part]} {number_text(value)}" for part, value in answer["parts"].items())
            graded.append(f"{answer['whose']}: {parts}")
    asked = f"{TASKS[row['task']]} task: {row['prompt']}"
    return details(asked, html_table(["", "answer", "reward"], rows, wide=[1]) + listing(graded), is_open=is_open)


def _outcome(report: Mapping[str, Any]) -> str:
    if not report:
        return ""
    rates = ", ".join(f"{TASKS[task]} task {rate['rate']:.2f}" for task, rate in _by_task(report["parse_rates"]))
    return f"<p>{badge('can be read', 'good')} {text(rates)}</p>"


def _by_task(rates: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(task, rates[task]) for task in TASKS if task in rates]  # A file's order is that of the alphabet.


def _report_figures(records: Sequence[Record]) -> list[CardPart]:
    return [
        *metric_figure("reward of an answer", records, {"language/reward_mean": "mean, all parts in full"}),
        *metric_figure("reward by part", records, {f"language/reward/{part}": words for part, words in _PARTS.items()}),
        *metric_figure("what can be read", records, {"language/parse_rate": "parsed", "language/truncated": "cut at the greatest length"}),
        *metric_figure("entropy of an answer at T = 1", records, {"language/entropy": "all answers"}),
        *metric_figure("KL to the reference, an answer", records, {"language/kl_reference": "KL(policy || reference)"}),
    ]


LANGUAGE_PAGES: Final = KindPages(
    pretrain=_pretrain_page, training_figures=_training_figures, latest=_LATEST, report_figures=_report_figures
)

"""Metaflow cards of `pretrain` (behaviour cloning) and `finetune` (GRPO with its controllers and diagnosis)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.board.phases import PHASES
from grpo.metrics.table import METRICS, TERMS
from steps.cards import language_pages
from steps.cards.charts import ALARM, COLOURS, share_chart
from steps.cards.html import (
    CardPart,
    Html,
    TableCell,
    badge,
    block,
    details,
    heading,
    html_table,
    listing,
    number_text,
    paragraph,
    terms,
    text,
)
from steps.cards.metric_tables import metric_figure, metric_lines, numbers
from steps.cards.state import Seen
from steps.step_io.names import FINDINGS, LEARNABILITY

_HEALTHY: Final = "#2f9e6e"
_MAX_EVENTS: Final = 40
_MOODS: Final = {"note": "plain", "fine": "good", "warning": "warning", "critical": "bad", "refusal": "bad"}
_TERM_NAMES: Final = {
    "policy": "policy (reward)",
    "entropy": "entropy bonus",
    "anchor_kl": "KL to the reference",
    "recovery_kl": "recovery KL",
}
_LATEST: Final = {
    "grpo/reward_mean": "mean reward",
    "grpo/entropy": "entropy at T = 1",
    "grpo/log_num_legal": "ln(legal moves)",
    "grpo/kl_reference": "KL to the reference",
    "grpo/clip_fraction": "clipped",
    "grpo/silent_groups": "zero-variance groups",
    "heldout/regret_best": "held-out regret, best moves",
    "heldout/regret_sampled": "held-out regret, sampled",
    "control/entropy_coefficient": "entropy coefficient",
    "control/temperature": "temperature",
    "control/learning_rate": "learning rate",
    "time/transitions_per_second": "speed",
}


def pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: losses, accuracy and convergence of behaviour cloning."""
    if seen.is_of_language:
        return language_pages.cloning_parts(seen)
    report = seen.report()
    ended = ""
    if report:
        best = f"best validation loss at step {report['best_step']:,}: {number_text(report['validation_loss'])} nats"
        if report["has_converged"]:
            ended = f"<p>{badge('converged', 'good')} after {report['num_steps']:,} steps; {best}.</p>"
        else:
            ended = f"<p>{badge('NOT converged', 'warning')} stopped by pretrain.max_steps at {report['num_steps']:,}; {best}.</p>"
    losses = {"imitation/train_loss": "training", "imitation/validation_loss": "validation"}
    accuracy = {"imitation/top1": "played move is the likeliest", "imitation/top5": "among the five likeliest"}
    return [
        block(heading("Behaviour cloning of the moves played", 1), seen.state(), ended),
        *metric_figure("loss", seen.records, losses, note="Training ends when the validation loss stops falling."),
        *metric_figure("accuracy on validation boards", seen.records, accuracy),
        *metric_figure("entropy at T = 1", seen.records, {"imitation/entropy": "mean entropy"}, note="GRPO starts from this entropy."),
        *metric_figure("perplexity", seen.records, {"imitation/perplexity": "effective number of moves"}),
    ]


def finetune_page(seen: Seen) -> list[CardPart]:
    """Return the card of `finetune`, live while it trains or from the stored history."""
    records, report = seen.records, seen.report()
    marks = [record.step for record in records if record.events]
    ended = ""
    if report:
        why = ": ".join(filter(None, (report["reason"], report["message"])))
        ended = paragraph(f"Steps {report['first_step']:,} to {report['last_step']:,}; reason of the end: {why}.")
    figures = language_pages.training_figures(seen, marks) if seen.is_of_language else _figures(seen, marks)
    return [
        block(heading("GRPO", 1), seen.state(), ended, _latest(seen)),
        draw_findings(seen.report(FINDINGS).get("findings", seen.findings)),
        _learnability(seen.learnability or seen.report(LEARNABILITY) or None),
        *figures,
        _events(seen),
    ]


def _figures(seen: Seen, marks: Sequence[float]) -> list[CardPart]:
    config, records = seen.settings["grpo"], seen.records
    phases = {f"grpo/entropy/{phase}": phase.value for phase in PHASES}
    levels = {"healthy (floor)": (float(config["recovery"]["healthy_entropy"]), _HEALTHY)}
    if config["critical_measure"] == "entropy" and config["critical_entropy"]:
        levels["critical"] = (float(config["critical_entropy"]), ALARM)
    normalised_levels = (
        {"critical": (float(config["critical_entropy"]), ALARM)} if config["critical_measure"] == "normalised_entropy" else {}
    )
    fractions = metric_lines(records, {f"grpo/logit_share/{term}": _TERM_NAMES[term] for term in TERMS})
    return [
        *metric_figure(
            "entropy by phase at T = 1",
            records,
            {"grpo/entropy": "all phases", **phases, "grpo/log_num_legal": "ln(legal moves): the maximum"},
            levels=levels,
            dashed=["grpo/log_num_legal"],
            marks=marks,
            note="Below the critical line for a while it recovers or stops; thin vertical lines are events. Above ln(legal) is impossible.",
        ),
        *metric_figure(
            "normalised entropy",
            records,
            {"grpo/normalised_entropy": "entropy / ln(legal moves)"},
            levels=normalised_levels,
            note="Comparable between phases; 1 is the uniform policy.",
        ),
        *metric_figure(
            "mean reward",
            records,
            {"grpo/reward_mean": "sampled moves, training states"},
            note="Levels differ between states: a rise without lower held-out regret is not strength.",
        ),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
            note="Lower is better. Games are played with best moves.",
        ),
        *metric_figure(
            "KL to the reference",
            records,
            {"grpo/kl_reference": "KL(policy || reference)", "grpo/kl_from_reference": "KL(reference || policy)"},
            note="0 at the first step; a plateau with flat reward is the KL trap.",
        ),
        *metric_figure(
            "clipped moves",
            records,
            {"grpo/clip_fraction": "either clip", "grpo/clip_low_fraction": "lower clip", "grpo/clip_high_fraction": "upper clip"},
            note="A large fraction means that steps are too large for their rollout.",
        ),
        share_chart("gradient budget (fractions of the logit gradient)", fractions),
        numbers(fractions, unit="fraction", note="If the reward's fraction is tiny, training follows the regularisers."),
        *metric_figure(
            "zero-variance groups",
            records,
            {"grpo/silent_groups": "all rewards of a group equal"},
            note="Their advantage is zero.",
        ),
        *metric_figure(
            "entropy and KL coefficients",
            records,
            {
                "control/entropy_coefficient": "entropy",
                "control/kl_coefficient": "KL to the reference",
                "control/recovery_coefficient": "recovery KL",
            },
        ),
        *metric_figure(
            "controllers: saturated or idle so far",
            records,
            {
                "control/entropy_saturated": "entropy, at a bound",
                "control/entropy_idle": "entropy, changing nothing",
                "control/kl_saturated": "KL, at a bound",
                "control/kl_idle": "KL, changing nothing",
            },
            note="A controller at its bound is a constant; one that changes nothing has no effect.",
        ),
        *metric_figure(
            "seconds per step",
            records,
            {f"time/{part}": part for part in ("states", "rollout", "update", "other")},
            note="Only while it trains: the stored history has no times.",
        ),
    ]


def draw_findings(found: Sequence[Mapping[str, Any]]) -> Html:
    """Return the findings of the diagnosis (plain data), worst first."""
    if not found:
        return block(heading("Diagnosis"), paragraph("No findings so far.", "soft"))
    return block(heading("Diagnosis"), *map(_finding, found))


def _finding(finding: Mapping[str, Any]) -> str:
    title = (
        f"<h3>{badge(finding['severity'], _MOODS.get(finding['severity'], 'plain'))} {text(finding['name'])} {text(_span(finding))}</h3>"
    )
    facts = {"cause": finding["cause"], "remedy": finding["remedy"], "explained in": finding["page"]}
    return f"<article>{title}{listing(finding['evidence'])}{terms(facts)}</article>"


def _span(finding: Mapping[str, Any]) -> str:
    first, last = finding.get("first_step"), finding.get("last_step")
    if first is None:
        return ""
    return f"(step {first:,})" if last in (None, first) else f"(steps {first:,} to {last:,})"


def _latest(seen: Seen) -> str:
    rows: list[list[TableCell]] = [
        [label, seen.last(name), METRICS[name].unit, METRICS[name].meaning]
        for name, label in (language_pages.LATEST if seen.is_of_language else _LATEST).items()
        if seen.last(name) is not None
    ]
    if not rows:
        return paragraph("No step is done yet.", "soft")
    step = max(record.step for record in seen.records)
    return details(
        f"Latest values, step {step:,}",
        f'<div class="latest">{html_table(["", "now", "unit", "meaning"], rows, wide=[3])}</div>',
        is_open=True,
    )


def _learnability(facts: Mapping[str, Any] | None) -> Html:
    title = heading("Learnability check before the first update")
    if facts is None:
        return block(title, paragraph("Not checked yet.", "soft"))
    word, verdict = {
        "fine": ("fine", "GRPO can learn here."),
        "warning": ("warning", "GRPO continues, with warnings."),
        "refusal": ("refused", "GRPO is refused."),
    }[facts["severity"]]
    rows = [
        [Html(badge(one["severity"], _MOODS.get(one["severity"], "plain"))), one["name"], one["seen"], one["advice"]]
        for one in facts["findings"]
    ]
    table = html_table(["", "check", "observed", "meaning"], rows, wide=[2, 3])
    mood = _MOODS[facts["severity"]]
    return block(title, f"<p>{badge(word, mood)} {verdict}</p>", details("Checks", table, is_open=facts["severity"] != "fine"))


def _events(seen: Seen) -> Html:
    events = [(record.step, event) for record in seen.records for event in record.events]
    if not events:
        return block(heading("Events"), paragraph("None.", "soft"))
    rows: list[list[TableCell]] = [[step, event.name, event.message] for step, event in reversed(events[-_MAX_EVENTS:])]
    caption = f"Latest first; {len(events):,} in all" + (f", the latest {_MAX_EVENTS} shown" if len(events) > _MAX_EVENTS else "")
    return block(heading("Events"), html_table(["step", "event", "what happened"], rows, caption=caption, wide=[2]))


assert len(_TERM_NAMES) == len(TERMS) <= len(COLOURS), "each term of the objective has a name and a colour of its own"

"""Cards of the two trainings: imitation, and GRPO with all that steers and stops it."""

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
    "grpo/silent_groups": "silent groups",
    "heldout/regret_best": "held-out regret, best moves",
    "heldout/regret_sampled": "held-out regret, sampled",
    "control/entropy_coefficient": "entropy coefficient",
    "control/temperature": "temperature",
    "control/learning_rate": "learning rate",
    "time/transitions_per_second": "speed",
}


def pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`: losses, hits, and whether imitation ended because it had converged; or a language model's."""
    if seen.is_of_language:
        return language_pages.cloning_parts(seen)
    report = seen.report()
    ended = ""
    if report:
        best = f"best look at step {report['best_step']:,}: validation loss {number_text(report['validation_loss'])} nats"
        if report["has_converged"]:
            ended = f"<p>{badge('converged', 'good')} after {report['num_steps']:,} steps; {best}.</p>"
        else:
            ended = f"<p>{badge('NOT converged', 'warning')} pretrain.max_steps ended it at {report['num_steps']:,}; {best}.</p>"
    losses = {"imitation/train_loss": "training", "imitation/validation_loss": "validation"}
    hits = {"imitation/top1": "likeliest move is the one played", "imitation/top5": "among the five likeliest"}
    return [
        block(heading("Imitation of the moves played", 1), seen.state(), ended),
        *metric_figure("loss", seen.records, losses, note="It ends when the validation loss has stopped falling."),
        *metric_figure("hits on validation boards", seen.records, hits),
        *metric_figure("entropy at T = 1", seen.records, {"imitation/entropy": "mean entropy"}, note="What GRPO will have to spend."),
        *metric_figure("perplexity", seen.records, {"imitation/perplexity": "equal moves it seems to guess among"}),
    ]


def finetune_page(seen: Seen) -> list[CardPart]:
    """Return the card of `finetune`: live while it trains, and the same from the stored history."""
    records, report = seen.records, seen.report()
    marks = [record.step for record in records if record.events]
    ended = ""
    if report:
        why = ": ".join(filter(None, (report["reason"], report["message"])))
        ended = paragraph(f"Step {report['first_step']:,} to {report['last_step']:,}; it ended by {why}.")
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
    shares = metric_lines(records, {f"grpo/logit_share/{term}": _TERM_NAMES[term] for term in TERMS})
    return [
        *metric_figure(
            "entropy by phase at T = 1",
            records,
            {"grpo/entropy": "all phases", **phases, "grpo/log_num_legal": "ln(legal moves): the most there can be"},
            levels=levels,
            dashed=["grpo/log_num_legal"],
            marks=marks,
            note="Below the critical line for a while it recovers or stops; thin upright lines are events. Above ln(legal) is impossible.",
        ),
        *metric_figure(
            "normalised entropy",
            records,
            {"grpo/normalised_entropy": "entropy / ln(legal moves)"},
            levels=normalised_levels,
            note="Comparable between phases; 1 is a policy that guesses.",
        ),
        *metric_figure(
            "mean reward",
            records,
            {"grpo/reward_mean": "sampled moves, training states"},
            note="Levels differ between states: a rise without less held-out regret is no strength.",
        ),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
            note="Lower is better. Best moves is what games are played with.",
        ),
        *metric_figure(
            "KL to the reference",
            records,
            {"grpo/kl_reference": "KL(policy || reference)", "grpo/kl_from_reference": "KL(reference || policy)"},
            note="0 at the first step; a plateau while reward is flat too is the KL trap.",
        ),
        *metric_figure(
            "clipped moves",
            records,
            {"grpo/clip_fraction": "either clip", "grpo/clip_low_fraction": "lower clip", "grpo/clip_high_fraction": "upper clip"},
            note="Much of it clipped: steps too large for the rollout they rest on.",
        ),
        share_chart("gradient budget (shares of the logit gradient)", shares),
        numbers(shares, unit="share", note="Where reward has hardly a share, regularisers are what is being learnt."),
        *metric_figure(
            "silent groups",
            records,
            {"grpo/silent_groups": "all rewards of a group equal"},
            note="They teach nothing.",
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
            note="A controller at its bound is a constant; one that changes nothing is a dead monitor.",
        ),
        *metric_figure(
            "seconds of a step",
            records,
            {f"time/{part}": part for part in ("states", "rollout", "update", "other")},
            note="While it trains: times are no part of the stored history.",
        ),
    ]


def draw_findings(found: Sequence[Mapping[str, Any]]) -> Html:
    """Return the diagnosis's findings one under the other, worst first as they come; `found` are facts of `Finding`s."""
    if not found:
        return block(heading("Diagnosis"), paragraph("Nothing found so far.", "soft"))
    return block(heading("Diagnosis"), *map(_finding, found))


def _finding(finding: Mapping[str, Any]) -> str:
    title = (
        f"<h3>{badge(finding['severity'], _MOODS.get(finding['severity'], 'plain'))} {text(finding['name'])} {text(_span(finding))}</h3>"
    )
    told = {"cause": finding["cause"], "remedy": finding["remedy"], "explained in": finding["page"]}
    return f"<article>{title}{listing(finding['evidence'])}{terms(told)}</article>"


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
        f"Latest numbers, step {step:,}",
        f'<div class="latest">{html_table(["", "now", "unit", "meaning"], rows, wide=[3])}</div>',
        is_open=True,
    )


def _learnability(facts: Mapping[str, Any] | None) -> Html:
    title = heading("Before the first update")
    if facts is None:
        return block(title, paragraph("Not looked at yet.", "soft"))
    word, verdict = {
        "fine": ("fine", "GRPO can learn here."),
        "warning": ("warning", "GRPO may go on, with warnings."),
        "refusal": ("refused", "GRPO is refused."),
    }[facts["severity"]]
    rows = [
        [Html(badge(one["severity"], _MOODS.get(one["severity"], "plain"))), one["name"], one["seen"], one["advice"]]
        for one in facts["findings"]
    ]
    looked = html_table(["", "what", "seen", "what it means"], rows, wide=[2, 3])
    mood = _MOODS[facts["severity"]]
    return block(title, f"<p>{badge(word, mood)} {verdict}</p>", details("What was looked at", looked, is_open=facts["severity"] != "fine"))


def _events(seen: Seen) -> Html:
    events = [(record.step, event) for record in seen.records for event in record.events]
    if not events:
        return block(heading("Events"), paragraph("None.", "soft"))
    rows: list[list[TableCell]] = [[step, event.name, event.message] for step, event in reversed(events[-_MAX_EVENTS:])]
    caption = f"Latest first; {len(events):,} in all" + (f", the latest {_MAX_EVENTS} shown" if len(events) > _MAX_EVENTS else "")
    return block(heading("Events"), html_table(["step", "event", "what happened"], rows, caption=caption, wide=[2]))


assert len(_TERM_NAMES) == len(TERMS) <= len(COLOURS), "each term of the objective has a name and a colour of its own"

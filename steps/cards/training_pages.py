"""Metaflow cards of `pretrain` (behaviour cloning) and `finetune` (GRPO with its controllers and diagnosis)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpo.policy.files import LANGUAGE, NETWORK
from steps.cards.html import (
    CardPart,
    Html,
    TableCell,
    badge,
    block,
    contents,
    heading,
    html_table,
    listing,
    paragraph,
    terms,
    text,
)
from steps.cards.language_pages import LANGUAGE_PAGES
from steps.cards.network_pages import NETWORK_PAGES
from steps.cards.state import KindPages, Seen
from steps.pages.results import Training
from steps.pages.templates import training_end
from steps.run.names import FINDINGS

_MAX_EVENTS: Final = 40
_MOODS: Final = {"warning": "warning", "critical": "bad"}


KIND_PAGES: Final[Mapping[str, KindPages]] = {NETWORK: NETWORK_PAGES, LANGUAGE: LANGUAGE_PAGES}


def pretrain_page(seen: Seen) -> list[CardPart]:
    """Return the card of `pretrain`."""
    return KIND_PAGES[seen.kind].pretrain(seen)


def finetune_page(seen: Seen) -> list[CardPart]:
    """Return the card of `finetune`, live while it trains or from the stored history."""
    records, report = seen.records, seen.report()
    marks = [record.step for record in records if record.events]
    ended = ""
    if report:
        ended = paragraph(training_end(Training.of(report)))
    parts: list[CardPart] = [
        draw_findings(seen.report(FINDINGS).get("findings", seen.findings)),
        block(heading("Curves")),
        *KIND_PAGES[seen.kind].training_figures(seen, marks),
        _events(seen),
    ]
    return [block(heading("GRPO", 1), seen.state(), ended), contents(parts), *parts]


def draw_findings(found: Sequence[Mapping[str, Any]]) -> Html:
    """Return the findings of the diagnosis (plain data), worst first."""
    if not found:
        return block(heading("Diagnosis"), paragraph("No findings so far.", "soft"))
    return block(heading("Diagnosis"), *map(_finding, found))


def _finding(finding: Mapping[str, Any]) -> str:
    title = (
        f"<h3>{badge(finding['severity'], _MOODS.get(finding['severity'], 'plain'))} {text(finding['name'])} {text(_span(finding))}</h3>"
    )
    facts = {"means": finding["means"], "advice": finding["advice"], "explained in": finding["page"]}
    return f"<article>{title}{listing(finding['evidence'])}{terms(facts)}</article>"


def _span(finding: Mapping[str, Any]) -> str:
    first, last = finding.get("first_step"), finding.get("last_step")
    if first is None:
        return ""
    return f"(step {first:,})" if last in (None, first) else f"(steps {first:,} to {last:,})"


def _events(seen: Seen) -> Html:
    events = [(record.step, event) for record in seen.records for event in record.events]
    if not events:
        return block(heading("Events"), paragraph("None.", "soft"))
    rows: list[list[TableCell]] = [[step, event.name, event.message] for step, event in reversed(events[-_MAX_EVENTS:])]
    caption = f"Latest first; {len(events):,} in all" + (f", the latest {_MAX_EVENTS} shown" if len(events) > _MAX_EVENTS else "")
    return block(heading("Events"), html_table(["step", "event", "what happened"], rows, caption=caption, wide=[2]))

"""The Metaflow cards of `report` and `end`: the results of the whole run, in full and at a glance."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

from steps.cards.charts import span_bar
from steps.cards.games_pages import ladder_figure, verdict_parts
from steps.cards.html import CardPart, Html, TableCell, badge, block, contents, heading, html_table, listing, paragraph, terms
from steps.cards.state import Seen
from steps.step_io.names import RESULTS
from steps.step_io.results import Results
from steps.step_io.results_text import headline_table, measurement_table, placed_together, regret_table, training_lines
from steps.step_io.spec import StepSpan

_MOODS: Final = {"finished": "good", "reused": "plain", "failed": "bad"}


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, measurements, ladder and training; checkpoints and boards are on the card of `select`."""
    found = seen.report(RESULTS)
    if not found:
        return [block(heading("Report", 1), seen.state())]
    results = cast(Results, found)
    decision = results["decision"]
    parts: list[CardPart] = [
        block(heading("Measurements"), html_table(*measurement_table(results["measurements"]), wide=[0, 1])),
        *ladder_figure(results["ladder"], placed_together(decision)),
        block(heading("Training"), listing(training_lines(results))),
        block(html_table(*regret_table(results), caption="Held-out regret of best moves by phase")),
    ]
    return [*verdict_parts(decision), contents(parts), *parts]


def end_page(results: Results, spans: Sequence[StepSpan], places: Mapping[str, str]) -> list[CardPart]:
    """Return the card of `end`: the verdict, six numbers, the flow with state and time of each step, and where all is.

    Args:
        results: the run's.
        spans: the steps in their order; empty where they are not known.
        places: what -> where it is.
    """
    parts: list[CardPart] = [
        block(heading("Main measurements"), html_table(*headline_table(results["measurements"]), wide=[0, 1])),
        block(heading("Flow"), _flow(spans)),
        block(heading("Where"), terms(places)),
    ]
    return [*verdict_parts(results["decision"]), contents(parts), *parts]


def _flow(spans: Sequence[StepSpan]) -> str:
    if not spans:
        return paragraph("The tracking store did not answer, so that times are not known.", "soft")
    total = max(span.end for span in spans) or 1.0
    rows: list[list[TableCell | Html]] = [
        [
            f"{span.name}{f' ({span.num_tasks:,} tasks)' if span.num_tasks > 1 else ''}",
            Html(badge(span.state, _MOODS.get(span.state, "warning"))),
            f"{span.end - span.begin:,.0f} s",
            Html(span_bar(span.begin / total, span.end / total)),
        ]
        for span in spans
    ]
    caption = f"Each step waits for the one above it. Bars: from the beginning of the run to its end, {total:,.0f} s."
    return f'<div class="flow">{html_table(["step", "state", "time", ""], rows, caption=caption)}</div>'

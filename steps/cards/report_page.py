"""The Metaflow cards of `report` and `end`: the results of the whole run, in full and at a glance."""

from collections.abc import Mapping
from typing import Final

from steps.cards.charts import span_bar
from steps.cards.games_pages import ladder_figure, verdict_parts
from steps.cards.html import CardPart, Html, TableCell, badge, block, contents, heading, html_table, paragraph, terms
from steps.cards.state import Seen
from steps.pages.results import Results
from steps.pages.templates import measurement_table, origin_text, placed_together, regret_table, training_lines
from steps.run.names import RESULTS
from steps.run.records import Attempt, Run

_MOODS: Final = {"finished": "good", "reused": "plain", "failed": "bad"}


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, measurements, ladder and training; checkpoints and boards are on the card of `select`."""
    found = seen.report(RESULTS)
    if not found:
        return [block(heading("Report", 1), seen.state())]
    results = Results.of(found)
    training = "".join(f"<li>{line}</li>" for line in training_lines(results))  # They are escaped.
    parts: list[CardPart] = [
        block(heading("Measurements"), html_table(*measurement_table(results.measurements), wide=[0, 1])),
        *ladder_figure(results.ladder, placed_together(results.decision)),
        block(heading("Training"), f"<ul>{training}</ul>"),
        block(html_table(*regret_table(results), caption="Held-out regret of best moves by phase")),
    ]
    return [*verdict_parts(results.decision, origin_text(results)), contents(parts), *parts]


def end_page(results: Results, run: Run, places: Mapping[str, str]) -> list[CardPart]:
    """Return the card of `end`: the verdict, the flow with state and time of each step, and where all is.

    Args:
        results: the run's.
        run: its records.
        places: what -> where it is.
    """
    parts: list[CardPart] = [block(heading("Flow"), _flow(run)), block(heading("Where"), terms(places))]
    return [*verdict_parts(results.decision, origin_text(results)), contents(parts), *parts]


def _flow(run: Run) -> str:
    """Return a row for each step and state, the tasks of one as one; of a step that was tried again, the attempts that failed too."""
    grouped: dict[tuple[str, str], list[Attempt]] = {}
    for attempt in run.attempts:
        state: str = "reused" if attempt.output is not None and attempt.output["reused"] else attempt.status
        grouped.setdefault((attempt.step, state), []).append(attempt)
    total = max((_end(attempt) - run.started for attempt in run.attempts), default=0.0) or 1.0
    rows: list[list[TableCell | Html]] = []
    for (step, how), tasks in grouped.items():
        begin, end = (min(task.started for task in tasks) - run.started, max(map(_end, tasks)) - run.started)
        name = f"{step} ({len(tasks):,} tasks)" if len(tasks) > 1 else step
        bar = Html(span_bar(begin / total, end / total))
        rows.append([name, Html(badge(how, _MOODS.get(how, "warning"))), f"{end - begin:,.0f} s", bar])
    if not rows:
        return paragraph("No step has begun.", "soft")
    caption = f"Each step waits for the one above it. Bars: from the beginning of the run to its end, {total:,.0f} s."
    return f'<div class="flow">{html_table(["step", "state", "time", ""], rows, caption=caption)}</div>'


def _end(attempt: Attempt) -> float:
    return attempt.started if attempt.ended is None else attempt.ended

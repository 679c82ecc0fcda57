"""The Metaflow card of `report`: the results of the whole run."""

from typing import cast

from steps.cards.boards import decision_boards
from steps.cards.data_pages import phase_chart
from steps.cards.games_pages import checkpoint_figures, ladder_figure, verdict_parts
from steps.cards.html import CardPart, block, contents, heading, html_table, listing, paragraph
from steps.cards.state import Seen
from steps.step_io.names import RESULTS
from steps.step_io.results import Results
from steps.step_io.results_text import measurement_table, placed_together, regret_table, training_lines


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, measurements, checkpoints, ladder, phases and boards; curves are on the card `train`."""
    found = seen.report(RESULTS)
    if not found:
        return [block(heading("Report", 1), seen.state())]
    results = cast(Results, found)
    decision = results["decision"]
    boards = [decision_boards(results["decisions"], whose=f"step {decision['candidate_step']:,}")] if results["decisions"] else []
    parts: list[CardPart] = [
        block(heading("Measurements"), html_table(*measurement_table(results["measurements"]), wide=[0, 1])),
        block(heading("Checkpoints")),
        *checkpoint_figures(decision),
        *ladder_figure(results["ladder"], placed_together(decision)),
        *boards,
        block(heading("Training"), listing(training_lines(results)), paragraph("Its curves are on the card of finetune.", "soft")),
        block(html_table(*regret_table(results), caption="Held-out regret of best moves by phase")),
        block(heading("Dataset")),
        *phase_chart(results["boards"]),
    ]
    return [*verdict_parts(decision), contents(parts), *parts]

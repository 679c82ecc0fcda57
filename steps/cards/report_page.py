"""The Metaflow card of `report`: the results of the whole run."""

from collections.abc import Mapping

from grpo.metrics.table import Record
from steps.bodies.report import comparison_rows, placed_together, reported_kind
from steps.cards.boards import decision_boards
from steps.cards.data_pages import phase_chart
from steps.cards.games_pages import checkpoint_figures, ladder_figure, verdict_block
from steps.cards.html import CardPart, block, heading, html_table
from steps.cards.metric_tables import metric_figure
from steps.cards.state import Seen
from steps.cards.training_pages import KIND_PAGES


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, comparison, checkpoints, ladder, curves, phases and boards."""
    report = seen.report()
    if not report:
        return [block(heading("Report", 1), seen.state())]
    steps = report["steps"]
    decision, records = steps["select"], [_record(row) for row in report["curve"]]
    return [
        verdict_block(decision),
        block(heading("Comparison"), html_table(["match", "score, 95 % interval"], comparison_rows(steps), wide=[0, 1])),
        *checkpoint_figures(decision),
        *ladder_figure(steps["calibrate"], placed_together(decision)),
        block(heading("Training")),
        *KIND_PAGES[reported_kind(steps)].report_figures(records),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
        ),
        block(heading("Boards")),
        *phase_chart(steps["join_boards"]),
        *([decision_boards(report["decisions"], whose=f"step {decision['candidate_step']:,}")] if report["decisions"] else []),
    ]


def _record(row: Mapping[str, float]) -> Record:
    return Record(int(row["step"]), {name: value for name, value in row.items() if name != "step"})

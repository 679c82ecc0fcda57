"""The Metaflow card of `report`: the results of the whole run."""

from collections.abc import Mapping, Sequence

from grpo.board.phases import PHASES
from grpo.metrics.table import REWARD_PARTS, Record
from steps.bodies.report import comparison_rows, is_of_language
from steps.cards.boards import decision_boards
from steps.cards.data_pages import phase_chart
from steps.cards.games_pages import checkpoint_figures, ladder_figure, verdict_block
from steps.cards.html import CardPart, block, heading, html_table
from steps.cards.metric_tables import metric_figure
from steps.cards.state import Seen


def report_page(seen: Seen) -> list[CardPart]:
    """Return the card of `report`: verdict, comparison, checkpoints, ladder, curves, phases and boards."""
    report = seen.report()
    if not report:
        return [block(heading("Report", 1), seen.state())]
    steps = report["steps"]
    decision, records = steps["select"], [_record(row) for row in report["curve"]]
    placed = {"pretrained": steps["baseline"]["ladder"], f"step {decision['candidate_step']:,}": decision["ladder"]}
    return [
        verdict_block(decision),
        block(heading("Comparison"), html_table(["match", "score, 95 % interval"], comparison_rows(steps), wide=[0, 1])),
        *checkpoint_figures(decision),
        *ladder_figure(steps["calibrate"], placed),
        block(heading("Training")),
        *(_answers_figures(records) if is_of_language(steps) else _moves_figures(records)),
        *metric_figure(
            "held-out regret, stronger search",
            records,
            {"heldout/regret_best": "best moves", "heldout/regret_sampled": "sampled at T = 1"},
        ),
        block(heading("Boards")),
        *phase_chart(steps["join_boards"]),
        *([decision_boards(report["decisions"], whose=f"step {decision['candidate_step']:,}")] if report["decisions"] else []),
    ]


def _moves_figures(records: Sequence[Record]) -> list[CardPart]:
    return [
        *metric_figure(
            "entropy at T = 1",
            records,
            {
                "grpo/entropy": "all phases",
                **{f"grpo/entropy/{phase}": phase.value for phase in PHASES},
                "grpo/log_num_legal": "ln(legal moves)",
            },
            dashed=["grpo/log_num_legal"],
        ),
        *metric_figure("mean reward", records, {"grpo/reward_mean": "sampled moves, training states"}),
        *metric_figure("KL to the reference", records, {"grpo/kl_reference": "KL(policy || reference)"}),
    ]


def _answers_figures(records: Sequence[Record]) -> list[CardPart]:
    parts = {f"language/reward/{part}": part.replace("_", " ") for part in REWARD_PARTS}
    return [
        *metric_figure("reward of an answer", records, {"language/reward_mean": "mean, all parts in full"}),
        *metric_figure("reward by part", records, parts),
        *metric_figure("what can be read", records, {"language/parse_rate": "parsed", "language/truncated": "cut at the greatest length"}),
        *metric_figure("entropy of an answer at T = 1", records, {"language/entropy": "all answers"}),
        *metric_figure("KL to the reference, an answer", records, {"language/kl_reference": "KL(policy || reference)"}),
    ]


def _record(row: Mapping[str, float]) -> Record:
    return Record(int(row["step"]), {name: value for name, value in row.items() if name != "step"})

"""Plots of a run's metrics as SVG artifacts in MLflow; deterministic: the same numbers give the same bytes.

Text stays text, so that the files are small and searchable. The background is white, which is readable on a dark page too.
"""

import io
from collections.abc import Mapping, Sequence
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from grpo.board.phases import PHASES
from grpo.metrics.table import METRICS, REWARD_PARTS, TASKS, TERMS, Record
from grpo.settings.tree import Settings
from steps.tracking.step_notes import readable_number

_STYLE: Final[dict[Any, Any]] = {
    # A fixed salt: otherwise element ids would be random.
    "svg.hashsalt": "chess-grpo",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
_COLOURS: Final = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#000000",
)  # Okabe-Ito palette, safe for the colour-blind.
_LINE: Final = "#555555"


def network_plots(records: Sequence[Record], settings: Settings) -> dict[str, bytes]:
    """Return the plots of GRPO by name: entropy, reward, KL divergence, gradient budget and held-out regret.

    Args:
        records: the history of `finetune`.
        settings: settings of the run, for the entropy thresholds.
    """
    return {
        "entropy": _entropy(records, settings),
        "reward": _curves(records, ["grpo/reward_mean", "grpo/reward_p90"], "Reward of the sampled moves"),
        "kl": _curves(records, ["grpo/kl_reference", "grpo/kl_from_reference"], "Divergence from the pretrained policy"),
        "clip": _curves(records, ["grpo/clip_low_fraction", "grpo/clip_high_fraction", "grpo/clip_fraction"], "Moves held by the clip"),
        "gradient_budget": _budget(records),
        "regret": _regret(records),
    }


def language_plots(records: Sequence[Record], settings: Settings) -> dict[str, bytes]:
    """Return the same for a language model, with the parse rate instead of the gradient budget."""
    read = ["language/parse_rate", "language/structure_rate", "language/legal_rate", "language/truncated"]
    pictures = {
        "reward": (["language/reward_mean", "language/reward_trained"], "Graded reward of an answer"),
        "reward_parts": ([f"language/reward/{part}" for part in REWARD_PARTS], "Parts of the reward, times their weights"),
        "kl": (["language/kl_reference", "language/kl_max"], "Divergence of an answer from the pretrained model"),
        "clip": (["language/clip_fraction"], "Tokens held by the clip"),
        "reading": (read, "What can be read"),
    }
    drawn = {name: _curves(records, names, title) for name, (names, title) in pictures.items()}
    return {"entropy": _answer_entropy(records, settings), **drawn, "regret": _regret(records)}


def _answer_entropy(records: Sequence[Record], settings: Settings) -> bytes:
    figure, axes = _figure()
    _draw(axes, records, ["language/entropy", *(f"language/entropy/{task}" for task in TASKS)])
    if settings.grpo.critical_measure == "entropy":
        critical = settings.grpo.critical_entropy
        axes.axhline(critical, linestyle=":", color=_LINE, linewidth=1.2, label=f"critical: {critical:g} nats")
    _finish(figure, axes, "Entropy of an answer at T = 1", "nats")
    return _svg(figure)


def _regret(records: Sequence[Record]) -> bytes:
    return _curves(records, ["heldout/regret_best", "heldout/regret_sampled"], "Regret on held-out boards, stronger search")


def selection_plot(decision: Mapping[str, Any]) -> bytes:
    """Return the plot of the report of `select`: each score against the pretrained policy with its 95 % interval."""
    confirmed, sampled = decision["confirmation_best_moves"], decision["confirmation_sampled_moves"]
    rows = [
        (f"round {entry['round'] + 1}, step {entry['candidate']:,}{'' if entry['kept'] else ' (leaves)'}", entry["so_far"], _COLOURS[0])
        for entry in decision["screening"]
    ]
    step = f"step {decision['candidate_step']:,}"
    rows += [(f"confirmation of {step}, as played", confirmed, _COLOURS[1])]
    if "adjudicated" in confirmed:
        rows += [("the same, adjudicated", confirmed["adjudicated"], _COLOURS[1])]
    rows += [(f"{step}, sampled at T = 1", sampled, _COLOURS[2])]
    if decision["previous_champion"] is not None:
        rows += [(f"{step} against the previous champion", decision["previous_champion"], _COLOURS[3])]
    figure, axes = _figure(height=1.4 + 0.4 * len(rows))
    for place, (_, found, colour) in enumerate(rows):
        axes.plot([found["low"], found["high"]], [place, place], color=colour, linewidth=2)
        axes.plot([found["score"]], [place], "o", color=colour)
        axes.annotate(f"{found['score']:.3f} [{found['low']:.3f}, {found['high']:.3f}]", (1.02, place), va="center", fontsize=9)
    axes.axvline(0.5, color=_LINE, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.32)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_xlabel("score against the pretrained policy (a win is 1), 95 % interval")
    axes.set_title(f"Verdict: {decision['verdict']}", loc="left")
    return _svg(figure)


def phases_plot(boards: Mapping[str, Any]) -> bytes:
    """Return the plot of the dataset's phases: their fractions before and after balancing."""
    figure, axes = _figure(height=3)
    for offset, (what, name) in enumerate({"met in the source": "natural_phases", "kept": "phases"}.items()):
        counts = [int(boards[name][phase]) for phase in PHASES]
        bars = axes.bar([x + 0.4 * offset for x in range(len(counts))], _fractions(counts), 0.38, color=_COLOURS[offset], label=what)
        axes.bar_label(bars, [readable_number(count) for count in counts], fontsize=9)
    axes.set_xticks([place + 0.2 for place in range(len(PHASES))], [str(phase) for phase in PHASES])
    axes.set_ylabel("share of boards")
    axes.set_title("Boards by phase, before and after balancing", loc="left")
    axes.legend()
    return _svg(figure)


def _entropy(records: Sequence[Record], settings: Settings) -> bytes:
    names = ["grpo/entropy", *(f"grpo/entropy/{phase}" for phase in PHASES)]
    figure, axes = _figure()
    _draw(axes, records, names)
    steps, most = _points(records, "grpo/log_num_legal")
    share, critical = settings.grpo.alarms.entropy_share, settings.grpo.critical_entropy
    of_most = settings.grpo.critical_measure == "normalised_entropy"
    for what, values, style in (
        ("ln(legal moves): the most there can be", most, "-"),
        (f"alarm: {share:g} of that", [share * value for value in most], "--"),
        (f"critical: {critical:g}{' of that' if of_most else ' nats'}", [critical * (value if of_most else 1) for value in most], ":"),
    ):
        axes.plot(steps, values, style, color=_LINE, linewidth=1.2, label=what)
    _finish(figure, axes, "Entropy at T = 1", "nats")
    return _svg(figure)


def _budget(records: Sequence[Record]) -> bytes:
    figure, axes = _figure()
    names = [f"grpo/logit_share/{term}" for term in TERMS]
    steps, _ = _points(records, names[0])
    axes.stackplot(steps, *(_points(records, name)[1] for name in names), labels=names, colors=_COLOURS[: len(names)])
    _finish(figure, axes, "Whose gradient it is: share of each term, in logits", METRICS[names[0]].unit)
    return _svg(figure)


def _curves(records: Sequence[Record], names: Sequence[str], title: str) -> bytes:
    figure, axes = _figure()
    _draw(axes, records, names)
    _finish(figure, axes, title, METRICS[names[0]].unit)
    return _svg(figure)


def _draw(axes: Axes, records: Sequence[Record], names: Sequence[str]) -> None:
    for name, colour in zip(names, _COLOURS, strict=False):
        steps, values = _points(records, name)
        if steps:
            axes.plot(
                steps, values, "." if len(steps) == 1 else "-", color=colour, label=f"{name}: {readable_number(values[-1])} at the end"
            )


def _points(records: Sequence[Record], name: str) -> tuple[list[int], list[float]]:
    found = [(record.step, float(record.metrics[name])) for record in records if name in record.metrics]
    return [step for step, _ in found], [value for _, value in found]


def _fractions(counts: Sequence[int]) -> list[float]:
    return [count / max(1, sum(counts)) for count in counts]


def _figure(height: float = 4.0) -> tuple[Figure, Axes]:
    with rc_context(_STYLE):
        figure = Figure(figsize=(9.0, height))
        FigureCanvasSVG(figure)
        return figure, figure.add_subplot()


def _finish(figure: Figure, axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower left", ncols=2, fontsize=9)


def _svg(figure: Figure) -> bytes:
    written = io.BytesIO()
    with rc_context(_STYLE):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return written.getvalue()

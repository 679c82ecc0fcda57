"""Live cards: the only module of this room that knows Metaflow.

Cards are for people who watch: whatever goes wrong in drawing one is told in one line of the log, and costs the step nothing.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, ParamSpec

from metaflow import current
from metaflow.cards import Markdown, ProgressBar, Table, VegaChart

from grpo.content import read_json
from grpo.metrics import TERMS, Record
from steps.checking import REPORT as CHECKS
from steps.checking import SUMMARY
from steps.machine import Machine
from steps.reporting import FACTS, PAGE, comparison_rows, decision_rows, phase_rows
from steps.selecting import REPORT as DECISION
from steps.store import StepOutput, Store

_SECONDS_BETWEEN_REFRESHES: Final = 2.0
_MAX_POINTS: Final = 400
_Drawn = ParamSpec("_Drawn")


def _is_drawn(what: str, draw: Callable[[], None]) -> bool:
    """Draw, and return whether that went well."""
    try:
        draw()
    except Exception as error:  # noqa: BLE001  No error of a drawing, Metaflow's own among them, is worth the work that it shows.
        print(f"card {what}: WARNING: {type(error).__name__}: {error}; the step goes on without the rest of this card", flush=True)
        return False
    return True


def _harmless(card: str) -> Callable[[Callable[_Drawn, None]], Callable[_Drawn, None]]:
    """Let a drawing on this card fail without its step."""

    def decorate(draw: Callable[_Drawn, None]) -> Callable[_Drawn, None]:
        @functools.wraps(draw)
        def wrapped(*arguments: _Drawn.args, **named: _Drawn.kwargs) -> None:
            _is_drawn(card, lambda: draw(*arguments, **named))

        return wrapped

    return decorate


class CardSink:
    """Draws a step's records on its card while it works; the first drawing that fails is the last."""

    def __init__(self, card_id: str, curves: Mapping[str, Sequence[str]]) -> None:
        """Draw one chart for each title, with the metrics named under it."""
        self._card_id = card_id
        self._curves = curves
        self._points: list[dict[str, Any]] = []
        self._last = 0.0
        self._is_broken = False
        self._draw(self._begin)

    def take(self, record: Record) -> None:
        """Keep a record's points and redraw now and then."""
        shown = {name for names in self._curves.values() for name in names}
        self._points += [{"step": record.step, "metric": name, "value": value} for name, value in record.metrics.items() if name in shown]
        if time.monotonic() - self._last > _SECONDS_BETWEEN_REFRESHES:
            self._draw(self._refresh)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Move the bar."""
        self._draw(lambda: self._move(done, total, unit))

    def _draw(self, draw: Callable[[], None]) -> None:
        if not self._is_broken:
            self._is_broken = not _is_drawn(self._card_id, draw)

    def _begin(self) -> None:
        self._card = current.card[self._card_id]
        self._bar = ProgressBar(max=1, label="steps")
        self._charts = {title: VegaChart(_line_chart(title, [])) for title in self._curves}
        for component in (self._bar, *self._charts.values()):
            self._card.append(component)

    def _move(self, done: int, total: int, unit: str) -> None:
        self._bar.label, self._bar.max = unit, total
        self._bar.update(done)
        if done == total:
            self._refresh()

    def _refresh(self) -> None:
        self._last = time.monotonic()
        for title, names in self._curves.items():
            points = [point for point in self._points if point["metric"] in names]
            stride = max(1, len(points) // (_MAX_POINTS * len(names)))
            self._charts[title].update(_line_chart(title, points[::stride]))
        self._card.refresh()


def finetune_sink() -> CardSink:
    """Return the sink that draws GRPO on the card `train`."""
    phases = [f"grpo/entropy/{phase}" for phase in ("opening", "middlegame", "endgame")]
    return CardSink(
        "train",
        {
            "entropy at T = 1, nats": ["grpo/entropy", *phases],
            "mean reward, win probability": ["grpo/reward_mean"],
            "held-out regret, stronger search": ["heldout/regret_best", "heldout/regret_sampled"],
            "KL to the pretrained policy, nats": ["grpo/kl_reference"],
            "clipped share of moves": ["grpo/clip_fraction"],
            "share of each term in the logit gradient": [f"grpo/logit_share/{term}" for term in TERMS],
            "entropy coefficient, win probability per nat": ["control/entropy_coefficient"],
        },
    )


@_harmless("learnability")
def draw_learnability(facts: Mapping[str, Any]) -> None:
    """Draw what the look before the first update found; at once, so that a refused run has it too."""
    card = current.card["learnability"]
    verdict = {"fine": "GRPO can learn here.", "warning": "GRPO may go on, with warnings.", "refusal": "GRPO is refused."}[
        facts["severity"]
    ]
    card.append(Markdown(f"# Before the first update\n\n{verdict}"))
    rows = [[finding["severity"], finding["name"], finding["seen"], finding["advice"]] for finding in facts["findings"]]
    card.append(Table(rows, headers=["", "what", "seen", "what it means"]))
    card.refresh()


@_harmless("decision")
def draw_decision(output: StepOutput) -> None:
    """Draw who was called better than whom, with the whole trace."""
    decision = read_json(Store.of(Machine.here()).open(output) / DECISION)
    card = current.card["decision"]
    card.append(Markdown(f"# Verdict: {decision['verdict']}\n\n" + "\n".join(f"- {reason}" for reason in decision["reasons"])))
    card.append(Table([list(row) for row in decision_rows(decision)], headers=["step of the decision", "found"]))
    ends = decision["confirmation_best_moves"]["ends"]
    card.append(Table([[end, f"{count:,}"] for end, count in ends.items()], headers=["confirmation games ended by", "games"]))
    card.append(Markdown(f"Place on the ladder: {decision['ladder']['text']}"))


@_harmless("report")
def draw_report(output: StepOutput) -> None:
    """Draw the final card from the report's facts."""
    folder = Store.of(Machine.here()).open(output)
    facts = read_json(folder / FACTS)
    card = current.card["report"]
    card.append(Markdown((folder / PAGE).read_text(encoding="utf-8").partition("\n| match")[0]))
    card.append(Table([list(row) for row in comparison_rows(facts["steps"])], headers=["match", "score, 95 % interval"]))
    rows = phase_rows(facts["steps"])
    card.append(VegaChart(_bar_chart("boards by phase", rows)))
    card.append(Table([[phase, f"{met:,}", f"{kept:,}"] for phase, met, kept in rows], headers=["phase", "met in the source", "kept"]))
    for title, names in {
        "entropy at T = 1, nats": [name for name in facts["curve"][-1] if name.startswith("grpo/entropy")],
        "held-out regret, stronger search": ["heldout/regret_best", "heldout/regret_sampled"],
        "mean reward, win probability": ["grpo/reward_mean"],
    }.items():
        points = [{"step": row["step"], "metric": name, "value": row[name]} for row in facts["curve"] for name in names if name in row]
        card.append(VegaChart(_line_chart(title, points)))


@_harmless("boards")
def draw_checks(output: StepOutput) -> None:
    """Draw what the dataset is, and the outcome of its checks, from the stored output, whoever made it."""
    folder = Store.of(Machine.here()).open(output)
    report = read_json(folder / CHECKS)
    card = current.card["boards"]
    card.append(Markdown(f"# Dataset\n\n{(folder / SUMMARY).read_text(encoding='utf-8')}"))
    card.append(VegaChart(_bar_chart("boards by phase", phase_rows({"join_boards": report["dataset"]}))))
    for suite in report["suites"]:
        card.append(Markdown(f"## {suite['name']}"))
        rows = [
            ["met" if result["is_met"] else "FAILED", result["name"], f"{result['num_checked']:,}", result["meaning"]]
            for result in suite["results"]
        ]
        card.append(Table(rows, headers=["", "check", "checked", "what must hold"]))


def _line_chart(title: str, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "width": "container",
        "data": {"values": list(points)},
        "mark": {"type": "line", "point": len(points) < 60},
        "encoding": {
            "x": {"field": "step", "type": "quantitative"},
            "y": {"field": "value", "type": "quantitative", "scale": {"zero": False}, "title": None},
            "color": {"field": "metric", "type": "nominal", "legend": {"orient": "bottom", "title": None}},
        },
    }


def _bar_chart(title: str, rows: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    sources = {"met in the source": 1, "kept": 2}
    totals = {what: max(1, sum(int(row[index]) for row in rows)) for what, index in sources.items()}
    bars = [{"phase": row[0], "what": what, "share": int(row[index]) / totals[what]} for row in rows for what, index in sources.items()]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": title,
        "width": "container",
        "data": {"values": bars},
        "mark": "bar",
        "encoding": {
            "x": {"field": "phase", "type": "nominal", "sort": None, "axis": {"labelAngle": 0}},
            "y": {"field": "share", "type": "quantitative", "axis": {"format": "%"}},
            "xOffset": {"field": "what"},
            "color": {"field": "what", "type": "nominal", "legend": {"orient": "bottom", "title": None}},
        },
    }

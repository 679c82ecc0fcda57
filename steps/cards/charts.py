"""Altair charts for Metaflow cards (HTML pages of steps): lines over steps, histograms, and estimates with intervals."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import numpy as np
import pandas as pd
from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from data_checks.report import Histogram
from grpo.metrics.records import Record
from grpo.metrics.table import METRICS
from grpo.statistics.intervals import Estimate, Unit
from steps.cards.page import CardPart, page_part

MAX_POINTS: Final = 240  # Maximum per line, because each refresh sends the complete card.
COLORS: Final = ("#3b82c4", "#d9822b", "#2f9e6e", "#9a6fd1", "#c2569b", "#7d8794", "#b09a2f")
"""The contrast of each color is at least 3 on the white and on the dark background."""
ALARM: Final = "#d9483b"
_INK: Final = "#7d8794"
_FEW: Final = 40  # A line with fewer points has no exponential moving average (EMA).
_NUM_MARKS: Final = 50  # Most vertical lines; later events get none.
_STEPS: Final = alt.X("x:Q", title="step", axis=alt.Axis(tickMinStep=1, format=",d"))
_LINES: Final = {"grid": True, "gridColor": _INK, "gridOpacity": 0.25, "domainColor": _INK, "tickColor": _INK}
_LOOK: Final = {
    "width": "container",
    "autosize": {"type": "fit-x", "contains": "padding"},
    "background": "transparent",
    "usermeta": {"embedOptions": {"renderer": "svg"}},  # The style sheet applies to text in SVG.
    "config": {
        "font": "system-ui, sans-serif",
        "view": {"stroke": None},
        "axis": {**_LINES, "titleFontWeight": 400, "tickCount": 5, "labelLimit": 260, "labelPadding": 6},
    },
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    label: str
    values: "pd.Series[float]"  # Indexed by step.
    color: str
    is_dashed: bool = False
    meaning: str = ""

    def summary(self) -> list[float | None]:
        """Return first and last value, and lowest and highest finite value; four None if no value is finite."""
        finite = self.values[np.isfinite(self.values)]
        return [None] * 4 if finite.empty else [self.values.iloc[0], self.values.iloc[-1], finite.min(), finite.max()]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart over steps; all metrics have the same unit."""

    title: str
    names: Sequence[str]  # Metrics. Beside `grpo/entropy/opening`, `grpo/entropy` gets the label "all".
    note: str = ""
    levels: Sequence[str] = ()  # Labels of dashed horizontal lines.

    def parts(self, records: Sequence[Record], levels: Mapping[str, tuple[float, str]]) -> list[CardPart]:
        """Return the chart, and a legend that unfolds to a table. `levels` is label -> (value, color of the line)."""
        [unit] = {METRICS[name][0] for name in self.names}  # Fails for metrics with different units.
        lines = [
            Line(
                label=self._label(name),
                values=pd.Series({record.step: record.metrics[name] for record in records if name in record.metrics}, dtype=float),
                color=COLORS[number % len(COLORS)],
                meaning=METRICS[name][1],
            )
            for number, name in enumerate(self.names)
        ]
        steps = sorted({step for line in lines for step in line.values.index})
        for value, color, label in ((*levels[label], label) for label in self.levels if label in levels):
            lines.append(Line(label=label, values=pd.Series(value, index=steps[:1] + steps[-1:]), color=color, is_dashed=True))
        chart = line_chart(self.title, unit, lines, marks=[record.step for record in records if record.events])
        return [chart, page_part("numbers", lines=lines, unit=unit, note=self.note)]

    def _label(self, name: str) -> str:
        has_parts = any(part.startswith(f"{name}/") for part in self.names)
        return "all" if has_parts else name.rpartition("/")[2].replace("_", " ")


@debug_mode(False)  # Altair's check of each point takes seconds; tests check complete charts.
def line_chart(title: str, unit: str, lines: Sequence[Line], *, marks: Sequence[int] = ()) -> dict[str, Any]:
    """`marks`: steps with events, shown as vertical lines."""
    finite = {line.label: line.values[np.isfinite(line.values)] for line in lines}
    long = {label: values for label, values in finite.items() if len(values) >= _FEW}
    half_life = max([5, *(round(len(values) / 50) for values in long.values())])  # In points.
    bold = finite | {label: values.ewm(halflife=half_life).mean() for label, values in long.items()}
    dashes = [[5, 4] if line.is_dashed else [1, 0] for line in lines]
    encoding = {
        "x": _STEPS,
        "y": alt.Y("y:Q", title=unit, scale=alt.Scale(zero=False)),
        "color": alt.Color("of:N", legend=None, scale=alt.Scale(domain=list(finite), range=[line.color for line in lines])),
        "strokeDash": alt.StrokeDash("of:N", legend=None, scale=alt.Scale(domain=list(finite), range=dashes)),
    }
    chart = alt.layer(
        alt.Chart(_data(long)).mark_line(strokeWidth=1, opacity=0.25).encode(**encoding),
        alt.Chart(_data(bold)).mark_line(strokeWidth=2, point=False if long else {"size": 18}).encode(**encoding),
        alt.Chart(alt.Data(values=[{"x": x} for x in marks[:_NUM_MARKS]])).mark_rule(color=ALARM, opacity=0.45).encode(x="x:Q"),
    )
    key = [f"bold: EMA, half-life {half_life} points; faint: each point"] if long else []
    return _spec(chart.properties(height=190), title, "; ".join([*key, *(["vertical: events"] if marks else [])]))


def thinned(values: "pd.Series[float]") -> "pd.Series[float]":
    """Return at most `MAX_POINTS` points: the ends, and the extremes of bins of successive points."""
    if len(values) <= MAX_POINTS:
        return values
    bins = values.groupby(np.arange(len(values)) * (MAX_POINTS // 2 - 1) // len(values))
    kept = {values.index[0], values.index[-1], *bins.idxmin(), *bins.idxmax()}
    return values[values.index.isin(list(kept))]


def _data(lines: "Mapping[str, pd.Series[float]]") -> alt.Data:
    points = [(label, x, y) for label, values in lines.items() for x, y in thinned(values).items()]
    return alt.Data(values=[{"of": label, "x": x, "y": float(f"{y:.5g}")} for label, x, y in points])


@debug_mode(False)
def histogram(title: str, x: str, y: str, counted: Histogram) -> dict[str, Any]:
    """`x`, `y`: titles of the axes."""
    names = counted.classes
    rows = [
        {"of": names[rank], "rank": rank, "x": round(low, 9), "end": round(low + counted.width, 9), "y": count}
        for rank, counts in enumerate(counted.counts)
        for low, count in zip(counted.low + counted.width * np.arange(len(counts)), counts, strict=True)
        if count
    ]
    scale = alt.Scale(domain=names, range=COLORS[: len(names)])
    color = alt.Color("of:N", legend=alt.Legend(orient="bottom", title=None), scale=scale)
    axes = {"x": alt.X("x:Q", bin="binned", title=x), "x2": "end:Q", "y": alt.Y("y:Q", title=y)}
    bars = alt.Chart(alt.Data(values=rows)).mark_bar(binSpacing=1).encode(**axes, color=color, order="rank:O")
    return _spec(bars.properties(height=150), title, "")


@dataclass(frozen=True, slots=True)
class Interval:
    label: str
    estimate: Estimate
    kind: str  # Kind of measurement; sets the color.
    is_ringed: bool = False  # A ring marks the peak, the checkpoint to resume from.


@debug_mode(False)
def interval_parts(title: str, unit: Unit, intervals: Sequence[Interval], *, zero: str = "", note: str = "") -> list[CardPart]:
    """Return a chart of 95 % intervals, with `note` below. `zero` says what 0 means; a dashed line then marks 0."""
    if not intervals:
        return []
    rows = [
        {"row": row, **{end: getattr(interval.estimate, end) for end in ("low", "value", "high")}, "kind": interval.kind}
        for row, interval in enumerate(intervals)
    ]
    texts = [f"{interval.estimate.text(unit)}{' (peak)' if interval.is_ringed else ''}" for interval in intervals]
    kinds = list(dict.fromkeys(interval.kind for interval in intervals))
    legend = alt.Legend(orient="bottom", title=None) if len(kinds) > 1 else None
    color = alt.Color("kind:N", legend=legend, scale=alt.Scale(domain=kinds, range=COLORS[: len(kinds)]))
    scale = alt.Scale(zero=bool(zero), nice=True)
    bars = alt.Chart(alt.Data(values=rows)).encode(y=alt.Y("row:O", axis=None), color=color)
    ends = [bars.mark_tick(thickness=2, size=10).encode(x=alt.X(f"{end}:Q", title=None, scale=scale)) for end in ("low", "high")]
    ringed = [row for row, interval in zip(rows, intervals, strict=True) if interval.is_ringed]
    chart = alt.layer(
        alt.Chart(alt.Data(values=[{"x": 0}] if zero else [])).mark_rule(color=_INK, strokeDash=[4, 3]).encode(x="x:Q"),
        bars.mark_rule(strokeWidth=3).encode(x="low:Q", x2="high:Q", y=_labels([interval.label for interval in intervals], "left")),
        *ends,
        bars.mark_circle(size=75, opacity=1).encode(x="value:Q", y=_labels(texts, "right")),
        alt.Chart(alt.Data(values=ringed)).mark_point(color=ALARM, size=220).encode(x="value:Q", y=alt.Y("row:O", axis=None)),
    ).resolve_axis(y="independent")
    dashed = f"; dashed: {zero}" if zero else ""
    spec = _spec(chart.properties(height=30 * len(rows)), title, f"{unit.value}, 95 % interval{dashed}")
    return [spec, Markup('<div class="numbers"><p class="soft">{}</p></div>').format(note)]


def _labels(texts: Sequence[str], side: Any) -> alt.Y:
    axis = alt.Axis(orient=side, labelExpr=f"{json.dumps(texts)}[datum.value]", domain=False, ticks=False, grid=False)
    return alt.Y("row:O", title=None, axis=axis)


def _spec(chart: Any, title: str, subtitle: str) -> dict[str, Any]:
    head = alt.Title(title, anchor="start", fontSize=13, subtitle=subtitle, subtitleFontSize=11)
    return dict(chart.properties(title=head, description=title).to_dict(validate=False)) | _LOOK

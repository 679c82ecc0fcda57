"""Figures of cards: line charts by altair, each with a legend that unfolds to a table, and bars of intervals as SVG."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import pandas as pd
from markupsafe import Markup

from grpo.match.intervals import Estimate, Unit
from grpo.settings.metrics import METRICS, Record
from steps.cards.page import CardPart, number_text, page_part

MAX_POINTS: Final = 240
"""Most points of a line; the whole card is sent again at each refresh."""
COLOURS: Final = ("#3b82c4", "#d9822b", "#2f9e6e", "#9a6fd1", "#c2569b", "#7d8794", "#b09a2f")
"""Colours of lines, in order; each has a contrast of at least 3 on white and on the dark background."""
ALARM: Final = "#d9483b"
_INK: Final = "#7d8794"
_FEW: Final = 40
"""Points of a line that are drawn as they are; of a longer line the EMA is drawn, and its points faint behind it."""
_MAX_DIGITS: Final = 24
"""Characters that a scale has room for: its bar is 200 pixels wide at the least."""
_NUM_MARKS: Final = 50
_STEPS: Final = alt.X("x:Q", title="step", axis=alt.Axis(tickMinStep=1, format=",d"))

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartLine:
    """A named line."""

    label: str
    points: Sequence[Point]
    colour: str
    is_dashed: bool = False
    meaning: str = ""

    def summary(self) -> list[float | None]:
        """Return its first, last, lowest and highest value; None where there is none."""
        values = [y for _, y in self.points]
        finite = [value for value in values if math.isfinite(value)]
        ends: list[float | None] = [values[0], values[-1]] if values else [None, None]
        return [*ends, *((min(finite), max(finite)) if finite else (None, None))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart of metrics with the same unit."""

    title: str
    names: Mapping[str, str]
    """Metric -> label."""
    note: str = ""
    """A sentence on how to read it."""
    levels: Mapping[str, tuple[float, str]] | None = None
    """Label -> value and colour of a dashed line across the chart."""
    dashed: Sequence[str] = ()
    """Metrics that are bounds rather than measurements."""
    has_marks: bool = False
    """Whether thin vertical lines show the steps with events."""
    is_share: bool = False
    """Whether the lines are fractions of a whole, drawn as stacked areas."""

    def parts(self, records: Sequence[Record], marks: Sequence[float] = ()) -> list[CardPart]:
        """Return the chart of a step's history, and what stands below it; `marks` are steps with events."""
        [unit] = {METRICS[name][0] for name in self.names}  # A chart has one y axis.
        lines = [
            ChartLine(
                label=label,
                points=[(record.step, record.metrics[name]) for record in records if name in record.metrics],
                colour=COLOURS[number % len(COLOURS)],
                is_dashed=name in self.dashed,
                meaning=METRICS[name][1],
            )
            for number, (name, label) in enumerate(self.names.items())
        ]
        steps = sorted({x for line in lines for x, _ in line.points})
        for label, (value, colour) in (self.levels or {}).items():
            points = [(step, value) for step in {*steps[:1], *steps[-1:]}]
            lines.append(ChartLine(label=label, points=points, colour=colour, is_dashed=True))
        chart = (
            share_chart(self.title, lines) if self.is_share else line_chart(self.title, unit, lines, marks=marks if self.has_marks else ())
        )
        return [chart, page_part("numbers", lines=lines, unit=unit, note=self.note)]


def line_chart(title: str, unit: str, lines: Sequence[ChartLine], *, marks: Sequence[float] = ()) -> dict[str, Any]:
    """Return a chart of lines over steps: of a line with many points the EMA, and its values faint behind it.

    Args:
        title: title of the chart.
        unit: unit of the y axis.
        lines: those to draw.
        marks: steps with events, at which a thin vertical line stands.
    """
    long = [line for line in lines if len(line.points) >= _FEW]
    steps = [x for line in lines for x, _ in line.points]
    half_life = max(5, round((max(steps) - min(steps)) / 50)) if steps else 5
    bold = {line.label: _averaged(line.points, half_life) if line in long else thinned(line.points) for line in lines}
    faint = {line.label: thinned(line.points) for line in long}
    encoding = {
        "x": _STEPS,
        "y": alt.Y("y:Q", title=unit, scale=alt.Scale(zero=False)),
        "color": _colours(lines),
        "strokeDash": alt.StrokeDash("dashed:N", legend=None, scale=alt.Scale(domain=[False, True], range=[[1, 0], [5, 4]])),
    }
    dashed = {line.label for line in lines if line.is_dashed}
    chart = alt.layer(
        alt.Chart(_data(faint, dashed)).mark_line(strokeWidth=1, opacity=0.25).encode(**encoding),
        alt.Chart(_data(bold, dashed)).mark_line(strokeWidth=2, point=False if long else {"size": 18}).encode(**encoding),
        alt.Chart(alt.Data(values=[{"x": x} for x in marks[:_NUM_MARKS]])).mark_rule(color=ALARM, opacity=0.45).encode(x="x:Q"),
    )
    words = "; ".join(f"{label} ends at {number_text(points[-1][1])}" for label, points in bold.items() if points) or "nothing yet"
    key = [f"bold: EMA, half-life {half_life} steps; faint: each step"] if long else []
    return _spec(chart, title, f"{title}, {unit}: {words}", "; ".join([*key, *(["vertical: events"] if marks else [])]))


def share_chart(title: str, lines: Sequence[ChartLine]) -> dict[str, Any]:
    """Return a stacked area chart of fractions over steps."""
    chart = (
        alt.Chart(_data({line.label: _every(line.points) for line in lines}, set()))
        .mark_area(opacity=0.85)
        .encode(x=_STEPS, y=alt.Y("y:Q", stack="normalize", title=None, axis=alt.Axis(format="%")), color=_colours(lines))
    )
    words = "; ".join(f"{line.label} {line.points[-1][1]:.0%}" for line in lines if line.points) or "nothing yet"
    return _spec(chart, title, f"{title}, at the end: {words}", "")


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Downsample to at most `limit` points: first and last, and the minimum and maximum of each of equal bins between.

    Points with a NaN or infinite value are left out, because JSON cannot hold them.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= limit:
        return finite
    num_bins = (limit - 2) // 2
    inner = range(1, len(finite) - 1)
    selected = {0, len(finite) - 1}
    for number in range(num_bins):
        part = inner[number * len(inner) // num_bins : (number + 1) * len(inner) // num_bins]
        selected |= {min(part, key=lambda index: finite[index][1]), max(part, key=lambda index: finite[index][1])}
    return [finite[index] for index in sorted(selected)]


def _averaged(points: Sequence[Point], half_life: float) -> list[Point]:
    finite = [point for point in points if math.isfinite(point[1])]
    average = pd.Series([y for _, y in finite]).ewm(halflife=half_life).mean()
    return _every([(x, float(y)) for (x, _), y in zip(finite, average, strict=True)])


def _every(points: Sequence[Point]) -> list[Point]:
    """Return every n-th point: stacked lines need points at the same x values."""
    return list(points[:: math.ceil(len(points) / MAX_POINTS) or 1])


def _data(lines: Mapping[str, Iterable[Point]], dashed: set[str]) -> alt.Data:
    return alt.Data(
        values=[{"x": x, "y": _short(y), "of": label, "dashed": label in dashed} for label, points in lines.items() for x, y in points]
    )


def _colours(lines: Sequence[ChartLine]) -> alt.Color:
    scale = alt.Scale(domain=[line.label for line in lines], range=[line.colour for line in lines])
    return alt.Color("of:N", legend=None, scale=scale)


def _spec(chart: alt.Chart | alt.LayerChart | alt.FacetChart, title: str, description: str, subtitle: str) -> dict[str, Any]:
    styled = chart.properties(
        title=alt.Title(title, anchor="start", fontSize=13, subtitle=subtitle, subtitleFontSize=11),
        description=description,
        width="container",
        height=190,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        background="transparent",
        usermeta={"embedOptions": {"renderer": "svg"}},  # SVG scales, and the style sheet applies to its text.
    )
    axis = {"gridColor": _INK, "gridOpacity": 0.25, "domainColor": _INK, "tickColor": _INK, "titleFontWeight": 400, "tickCount": 5}
    return dict(styled.configure(font="system-ui, sans-serif").configure_view(stroke=None).configure_axis(grid=True, **axis).to_dict())


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with its confidence interval."""

    label: str
    estimate: Estimate
    kind: str
    """How it was measured; each kind has a colour of its own."""
    is_ringed: bool = False


def interval_figure(title: str, unit: Unit, intervals: Sequence[Interval], *, zero: str = "", note: str = "") -> Markup:
    """Return estimates with their 95 % intervals as bars on one scale, one below the other; those with `is_ringed` get a ring.

    Args:
        title: title of the figure.
        unit: unit of the scale.
        intervals: estimates in their order.
        zero: meaning of 0, which is drawn as a dashed line; empty for no line.
        note: how to read it.
    """
    ends = [end for each in intervals for end in (each.estimate.low, each.estimate.high)] + ([0.0] if zero else [])
    ticks = _ticks(min(ends), max(ends)) if ends else [0.0, 1.0]

    def at(value: float) -> str:
        return f"{4 + 92 * (value - ticks[0]) / (ticks[-1] - ticks[0]):.2f}%"

    kinds = {kind: COLOURS[number] for number, kind in enumerate(dict.fromkeys(each.kind for each in intervals))}
    bars = [
        {
            "label": each.label,
            "low": at(each.estimate.low),
            "middle": at(each.estimate.value),
            "high": at(each.estimate.high),
            "colour": kinds[each.kind],
            "text": each.estimate.text(unit),
            "is_ringed": each.is_ringed,
        }
        for each in intervals
    ]
    # Numbers of many digits would run into each other: then every other line has its number.
    stride = 2 if sum(len(number_text(tick)) for tick in ticks) > _MAX_DIGITS else 1
    marks = [
        (at(tick), "zero" if zero and tick == 0 else "tick", "" if number % stride else number_text(tick))
        for number, tick in enumerate(ticks)
    ]
    return page_part(
        "intervals", title=title, unit=unit.value, zero=zero, note=note, bars=bars, ticks=marks, kinds=list(kinds.items()), ring=ALARM
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return 3 to 7 round numbers at equal distances, of which the outer ones hold `low` and `high` between them."""
    width = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(width / 2))
    distance = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0, 20.0) if width / (factor * power) <= 4)
    first, last = math.floor(low / distance), math.ceil(high / distance)
    return [_short(number * distance) for number in range(first, max(last, first + 1) + 1)]


def _short(value: float) -> float:
    return float(f"{value:.5g}")

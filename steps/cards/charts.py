"""Charts as Vega-Lite specifications: legible in light and dark mode, of bounded size, with a text description for screen readers.

A line chart has no legend of its own: the table beside it names the lines with their colours (`numbers`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from steps.cards.html import Chart, number_text
from steps.cards.style import FONT

MAX_POINTS: Final = 240
"""Most points of a line; the whole card is sent again at each refresh."""
COLOURS: Final = ("#3b82c4", "#d9822b", "#2f9e6e", "#9a6fd1", "#c2569b", "#7d8794", "#b09a2f")
"""Colours of lines, in order; each has a contrast of at least 3 on white and on the dark background."""
ALARM: Final = "#d9483b"
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"  # An identifier; it is never fetched.
_INK: Final = "#7d8794"

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartLine:
    """A named line."""

    label: str
    points: Sequence[Point]
    colour: str
    is_dashed: bool = False
    meaning: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with its confidence interval."""

    label: str
    middle: float
    low: float
    high: float
    kind: str
    """How it was measured; each kind has a colour of its own."""
    is_ringed: bool = False


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


def line_chart(title: str, unit: str, lines: Sequence[ChartLine], *, marks: Sequence[float] = (), x_title: str = "step") -> Chart:
    """Return a chart of lines over steps, with a thin vertical line at each of `marks` (events)."""
    drawn = {line.label: thinned(line.points) for line in lines}
    data = [{"x": x, "y": _short(y), "of": label} for label, points in drawn.items() for x, y in points]
    colour = {
        "field": "of",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": [line.label for line in lines], "range": [line.colour for line in lines]},
    }
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": x_title, "axis": {"tickMinStep": 1, "format": ",d"}},
        "y": {"field": "y", "type": "quantitative", "title": unit, "scale": {"zero": False}},
        "color": colour,
    }
    dashes = {line.label for line in lines if line.is_dashed}
    few = max((len(points) for points in drawn.values()), default=0) < 40
    layers: list[dict[str, Any]] = [
        {
            "transform": [{"filter": {"field": "of", "oneOf": [line.label for line in lines if line.label not in dashes]}}],
            "mark": {"type": "line", "point": {"size": 18} if few else False, "strokeWidth": 1.8},
            "encoding": encoding,
        },
        {
            "transform": [{"filter": {"field": "of", "oneOf": sorted(dashes)}}],
            "mark": {"type": "line", "strokeDash": [5, 4], "strokeWidth": 1.5},
            "encoding": encoding,
        },
        {
            "data": {"values": [{"x": x} for x in list(marks)[:50]]},
            "mark": {"type": "rule", "color": ALARM, "opacity": 0.45},
            "encoding": {"x": {"field": "x", "type": "quantitative"}},
        },
    ]
    words = "; ".join(f"{label} ends at {number_text(points[-1][1])}" for label, points in drawn.items() if points) or "nothing yet"
    return _chart(title, f"{title}, {unit}: {words}", {"data": {"values": data}, "layer": layers})


def share_chart(title: str, lines: Sequence[ChartLine]) -> Chart:
    """Return a stacked area chart of fractions over steps."""
    data = [{"x": x, "y": _short(y), "of": line.label} for line in lines for x, y in _every(line.points)]
    words = "; ".join(f"{line.label} {line.points[-1][1]:.0%}" for line in lines if line.points) or "nothing yet"
    return _chart(
        title,
        f"{title}, at the end: {words}",
        {
            "data": {"values": data},
            "mark": {"type": "area", "opacity": 0.85},
            "encoding": {
                "x": {"field": "x", "type": "quantitative", "title": "step", "axis": {"tickMinStep": 1, "format": ",d"}},
                "y": {"field": "y", "type": "quantitative", "stack": "normalize", "title": None, "axis": {"format": "%"}},
                "color": {
                    "field": "of",
                    "type": "nominal",
                    "legend": None,
                    "scale": {"domain": [line.label for line in lines], "range": [line.colour for line in lines]},
                },
            },
        },
    )


def interval_chart(title: str, unit: str, intervals: Sequence[Interval], *, zero: str = "") -> Chart:
    """Return estimates with error bars, one below the other; those with `is_ringed` get a ring.

    Args:
        title: title of the chart.
        unit: unit of the x axis.
        intervals: estimates in their order.
        zero: meaning of 0, which is drawn as a dashed line; empty for no line.
    """
    rows: list[dict[str, Any]] = [
        {
            "name": found.label,
            "y": _short(found.middle),
            "low": _short(found.low),
            "high": _short(found.high),
            "kind": found.kind,
            "ringed": found.is_ringed,
        }
        for found in intervals
    ]
    kinds = list(dict.fromkeys(found.kind for found in intervals))
    names = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 170}}
    colour = {
        "field": "kind",
        "type": "nominal",
        "scale": {"domain": kinds, "range": list(COLOURS[: len(kinds)])},
        "legend": {"orient": "bottom", "title": None, "columns": 2, "labelLimit": 160} if len(kinds) > 1 else None,
    }
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {
                "y": names,
                "x": {"field": "low", "type": "quantitative", "title": unit, "scale": {"zero": False}},
                "x2": {"field": "high"},
                "color": colour,
            },
        },
        {
            "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
            "encoding": {"y": names, "x": {"field": "y", "type": "quantitative"}, "color": colour},
        },
        {
            "transform": [{"filter": "datum.ringed"}],
            "mark": {"type": "point", "filled": False, "size": 320, "strokeWidth": 2.5, "color": ALARM, "opacity": 1},
            "encoding": {"y": names, "x": {"field": "y", "type": "quantitative"}},
        },
    ]
    if zero:
        layers.append({"mark": {"type": "rule", "strokeDash": [5, 4], "color": _INK}, "encoding": {"x": {"datum": 0}}})
    words = "; ".join(
        f"{found.label} {number_text(found.middle)} [{number_text(found.low)}, {number_text(found.high)}]"
        f"{', ringed' if found.is_ringed else ''}"
        for found in intervals
    )
    return _chart(title, f"{title}, {unit}: {words}", {"data": {"values": rows}, "layer": layers, "height": {"step": 28}})


def before_and_after_chart(title: str, rows: Sequence[tuple[str, int, int]], names: tuple[str, str]) -> Chart:
    """Return two histograms side by side, as fractions, from rows of: name, count before, count after."""
    totals = (max(1, sum(before for _, before, _ in rows)), max(1, sum(after for _, _, after in rows)))
    bars: list[dict[str, Any]] = [
        {"what": what, "share": _short(count / total), "of": name}
        for what, before, after in rows
        for count, total, name in zip((before, after), totals, names, strict=True)
    ]
    words = "; ".join(f"{bar['what']} {bar['of']} {bar['share']:.0%}" for bar in bars)
    return _chart(
        title,
        f"{title}: {words}",
        {
            "data": {"values": bars},
            "mark": "bar",
            "encoding": {
                "x": {"field": "what", "type": "nominal", "sort": None, "title": None, "axis": {"labelAngle": 0}},
                "y": {"field": "share", "type": "quantitative", "title": None, "axis": {"format": "%"}},
                "xOffset": {"field": "of", "sort": None},
                "color": {
                    "field": "of",
                    "type": "nominal",
                    "scale": {"domain": list(names), "range": list(COLOURS[:2])},
                    "legend": {"orient": "bottom", "title": None},
                },
            },
        },
    )


def _chart(title: str, description: str, body: Mapping[str, Any]) -> Chart:
    return Chart(
        {
            "$schema": _SCHEMA,
            "title": {"text": title, "anchor": "start", "fontSize": 13},
            "description": description,
            "width": "container",
            "height": 190,
            "autosize": {"type": "fit-x", "contains": "padding"},
            "background": None,
            "usermeta": {"embedOptions": {"renderer": "svg"}},  # SVG scales, and the style sheet applies to its text.
            "config": {
                "font": FONT,
                "view": {"stroke": None},
                "axis": {
                    "grid": True,
                    "gridColor": _INK,
                    "gridOpacity": 0.25,
                    "domainColor": _INK,
                    "tickColor": _INK,
                    "titleFontWeight": 400,
                },
                "axisY": {"tickCount": 5},
                "axisX": {"tickCount": 5},
            },
            **body,
        }
    )


def _every(points: Sequence[Point]) -> Iterable[Point]:
    """Return every n-th point: stacked lines need points at the same x values."""
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    return points[::stride]


def _short(value: float) -> float:
    return float(f"{value:.5g}")

"""Charts as Vega-Lite specifications: plain dicts, legible on light and dark ground, of bounded size, with a text for who cannot see them.

A chart of lines has no legend of its own: the table of numbers beside it names them, with their colours (`numbers`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from steps.cards.html import Chart, number_text
from steps.cards.style import FONT

MAX_POINTS: Final = 240
"""Of a line: what a card holds is sent again at each refresh."""
COLOURS: Final = ("#3b82c4", "#d9822b", "#2f9e6e", "#9a6fd1", "#c2569b", "#7d8794", "#b09a2f")
"""Of lines, in their order; each has a contrast of at least 3 on white and on the dark ground."""
ALARM: Final = "#d9483b"
_SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"  # A name, which nothing fetches.
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
    """A measured number with its interval."""

    label: str
    middle: float
    low: float
    high: float
    kind: str
    """What it was measured by: has a colour of its own."""
    is_ringed: bool = False


def thinned(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` of the points: first and last, and the lowest and highest of each of equal stretches between.

    Points whose value is no finite number are left out: a chart cannot hold them.
    """
    finite = [point for point in points if math.isfinite(point[1])]
    if len(finite) <= limit:
        return finite
    num_stretches = (limit - 2) // 2
    inner = range(1, len(finite) - 1)
    kept = {0, len(finite) - 1}
    for stretch in range(num_stretches):
        part = inner[stretch * len(inner) // num_stretches : (stretch + 1) * len(inner) // num_stretches]
        kept |= {min(part, key=lambda index: finite[index][1]), max(part, key=lambda index: finite[index][1])}
    return [finite[index] for index in sorted(kept)]


def line_chart(title: str, unit: str, lines: Sequence[ChartLine], *, marks: Sequence[float] = (), x_title: str = "step") -> Chart:
    """Return lines over steps, with a thin upright line at each of `marks`, where something happened."""
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
    """Return shares of a whole, stacked, over steps."""
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
    """Return numbers with their error bars, one under the other in the given order; ringed ones are ringed.

    Args:
        title: of the chart.
        unit: of the numbers.
        intervals: what is drawn.
        zero: what a number of 0 stands for: a dashed line; none where it is empty.
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
    """Return two histograms side by side, as shares, from rows of: what, count before, count after."""
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
            "usermeta": {"embedOptions": {"renderer": "svg"}},  # Sharp on every screen, and its text follows the style sheet.
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
    """Return some of the points at equal distances: lines that are stacked must have theirs at the same places."""
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    return points[::stride]


def _short(value: float) -> float:
    return float(f"{value:.5g}")

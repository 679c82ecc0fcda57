"""Charts as Vega-Lite specifications: legible in light and dark mode, of bounded size, with a text description for screen readers.

A line chart has no legend of its own: what stands below it names the lines with their colours (`metric_tables.numbers`).
Interval bars are HTML with SVG (`interval_figure`), which needs no script.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grpo.match.intervals import Estimate, Unit
from steps.cards.html import Chart, Html, number_text, paragraph, swatch, text
from steps.cards.style import FONT

MAX_POINTS: Final = 240
"""Most points of a line; the whole card is sent again at each refresh."""
COLOURS: Final = ("#3b82c4", "#d9822b", "#2f9e6e", "#9a6fd1", "#c2569b", "#7d8794", "#b09a2f")
"""Colours of lines, in order; each has a contrast of at least 3 on white and on the dark background."""
ALARM: Final = "#d9483b"
_FEW: Final = 40
"""Points of a line that are drawn as they are, each with a dot; of a longer line the EMA is drawn."""
_MAX_DIGITS: Final = 24
"""Characters that a scale has room for: its bar is 200 pixels wide at the least."""
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
    estimate: Estimate
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


def smoothed(points: Sequence[Point], half_life: float) -> list[Point]:
    """Return the exponential moving average (EMA) of a line: a value counts half as much after `half_life` steps.

    Weights are normalised, so that the first values are not drawn towards 0. Points with a NaN or infinite value are left out.
    """
    total = weight = 0.0
    found: list[Point] = []
    last = points[0][0] if points else 0.0
    for x, y in points:
        if math.isfinite(y):
            decay = 0.5 ** ((x - last) / half_life)
            total, weight, last = total * decay + y, weight * decay + 1, x
            found.append((x, total / weight))
    return found


def half_life_of(lines: Sequence[ChartLine]) -> float:
    """Return the half-life of a chart's EMA in steps: a fiftieth of the steps that it shows, at least 5."""
    steps = [x for line in lines for x, _ in line.points]
    return max(5.0, float(round((max(steps) - min(steps)) / 50))) if steps else 5.0


def line_chart(title: str, unit: str, lines: Sequence[ChartLine], *, marks: Sequence[float] = ()) -> Chart:
    """Return a chart of lines over steps: of a line with many points the EMA, and its values faint behind it.

    Args:
        title: title of the chart.
        unit: unit of the y axis.
        lines: those to draw.
        marks: steps with events, at which a thin vertical line stands.
    """
    drawn = {line.label: thinned(line.points) for line in lines}
    half_life = half_life_of(lines)
    averages = {line.label: smoothed(line.points, half_life) for line in lines if len(line.points) >= _FEW}
    colour = {
        "field": "of",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": [line.label for line in lines], "range": [line.colour for line in lines]},
    }
    encoding = {
        "x": {"field": "x", "type": "quantitative", "title": "step", "axis": {"tickMinStep": 1, "format": ",d"}},
        "y": {"field": "y", "type": "quantitative", "title": unit, "scale": {"zero": False}},
        "color": colour,
    }
    dashes = {line.label for line in lines if line.is_dashed}
    few = max((len(points) for points in drawn.values()), default=0) < _FEW

    data = [row for label, points in drawn.items() for row in _rows(label, points)]
    average_data = [row for label, points in averages.items() for row in _rows(label, _every(points))]

    def layer(values: Sequence[Mapping[str, Any]], labels: Iterable[str], **mark: Any) -> dict[str, Any]:
        only = {"filter": {"field": "of", "oneOf": sorted(labels)}}
        own = {} if values is data else {"data": {"values": values}}
        return {**own, "transform": [only], "mark": {"type": "line", **mark}, "encoding": encoding}

    plain = drawn.keys() - averages.keys()
    layers: list[dict[str, Any]] = [
        layer(data, plain - dashes, point={"size": 18} if few else False, strokeWidth=1.8),
        layer(data, plain & dashes, strokeDash=[5, 4], strokeWidth=1.5),
        layer(data, averages, strokeWidth=1, opacity=0.25),
        layer(average_data, averages.keys() - dashes, strokeWidth=2.2),
        layer(average_data, averages.keys() & dashes, strokeDash=[5, 4], strokeWidth=1.5),
        {
            "data": {"values": [{"x": x} for x in list(marks)[:50]]},
            "mark": {"type": "rule", "color": ALARM, "opacity": 0.45},
            "encoding": {"x": {"field": "x", "type": "quantitative"}},
        },
    ]
    words = "; ".join(f"{label} ends at {number_text(points[-1][1])}" for label, points in drawn.items() if points) or "nothing yet"
    key = [f"bold: EMA, half-life {half_life:.0f} steps; faint: each step"] if averages else []
    key += ["vertical: events"] if marks else []
    spec = {"data": {"values": data}, "layer": layers}
    return _chart(title, f"{title}, {unit}: {words}", spec, subtitle="; ".join(key))


def _rows(label: str, points: Iterable[Point]) -> Iterator[dict[str, Any]]:
    return ({"x": x, "y": _short(y), "of": label} for x, y in points)


def share_chart(title: str, lines: Sequence[ChartLine]) -> Chart:
    """Return a stacked area chart of fractions over steps."""
    data = [row for line in lines for row in _rows(line.label, _every(line.points))]
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


def interval_figure(title: str, unit: Unit, intervals: Sequence[Interval], *, zero: str = "", note: str = "") -> Html:
    """Return estimates with their 95 % intervals as bars on one scale, one below the other; those with `is_ringed` get a ring.

    Bars are SVG in percent of their column, so that one picture suits every width, and need no script.

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

    grid = "".join(_rule(at(tick), "zero" if zero and tick == 0 else "tick") for tick in ticks)
    kinds = list(dict.fromkeys(each.kind for each in intervals))
    rows = "".join(
        f'<tr><th scope="row">{text(each.label)}</th><td class="bar"><svg aria-hidden="true">{grid}{_bar(each, at, kinds)}</svg></td>'
        f'<td class="number">{each.estimate.text(unit)}{" (peak)" if each.is_ringed else ""}</td></tr>'
        for each in intervals
    )
    # Numbers of many digits would run into each other: then every other line has its number.
    numbered = ticks[:: 2 if sum(len(number_text(tick)) for tick in ticks) > _MAX_DIGITS else 1]
    numbers = "".join(f'<text x="{at(tick)}" y="12" text-anchor="middle">{number_text(tick)}</text>' for tick in numbered)
    dashed = f"dashed: {zero}" if zero else ""
    words = "; ".join(filter(None, (f"{unit}, 95 % interval", dashed)))
    legend = "".join(f"{swatch(COLOURS[number])}{text(kind)} " for number, kind in enumerate(kinds)) if len(kinds) > 1 else ""
    return Html(
        f'<figure class="intervals"><figcaption><strong>{text(title)}</strong> {text(words)}</figcaption><table><tbody>{rows}'
        f'<tr class="scale"><th></th><td class="bar"><svg aria-hidden="true">{numbers}</svg></td><td></td></tr></tbody></table>'
        f"{f'<p>{legend}</p>' if legend else ''}{paragraph(note, 'soft') if note else ''}</figure>"
    )


def _bar(interval: Interval, at: Callable[[float], str], kinds: Sequence[str]) -> str:
    colour = COLOURS[kinds.index(interval.kind)]
    low, middle, high = (at(end) for end in (interval.estimate.low, interval.estimate.value, interval.estimate.high))
    ring = f'<circle cx="{middle}" cy="50%" r="8" fill="none" stroke="{ALARM}" stroke-width="2"/>' if interval.is_ringed else ""
    return (
        f'<line x1="{low}" x2="{high}" y1="50%" y2="50%" stroke="{colour}" stroke-width="3"/>{_cap(low, colour)}{_cap(high, colour)}'
        f'<circle cx="{middle}" cy="50%" r="4.5" fill="{colour}"/>{ring}'
    )


def _cap(x: str, colour: str) -> str:
    return f'<line x1="{x}" x2="{x}" y1="32%" y2="68%" stroke="{colour}" stroke-width="2"/>'


def _rule(x: str, kind: str) -> str:
    return f'<line class="{kind}" x1="{x}" x2="{x}" y1="0" y2="100%"/>'


def span_bar(begin: float, end: float) -> str:
    """Return a bar from one fraction of the width to another; it is seen however short it is."""
    place = f'x="{begin:.2%}" y="25%" width="{max(end - begin, 0.004):.2%}" height="50%"'
    return f'<svg aria-hidden="true"><rect {place} fill="{COLOURS[0]}"/></svg>'


def _ticks(low: float, high: float) -> list[float]:
    """Return 3 to 7 round numbers at equal distances, of which the outer ones hold `low` and `high` between them."""
    width = (high - low) or abs(high) or 1.0
    power = 10.0 ** math.floor(math.log10(width / 2))
    distance = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0, 20.0) if width / (factor * power) <= 4)
    first, last = math.floor(low / distance), math.ceil(high / distance)
    return [_short(number * distance) for number in range(first, max(last, first + 1) + 1)]


def _chart(title: str, description: str, body: Mapping[str, Any], *, subtitle: str = "") -> Chart:
    return Chart(
        {
            "$schema": _SCHEMA,
            "title": {"text": title, "anchor": "start", "fontSize": 13, "subtitle": subtitle, "subtitleFontSize": 11},
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

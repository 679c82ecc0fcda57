"""Line charts of metrics, each with a legend that unfolds to a table of first, last, lowest and highest values."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo.settings.metrics import METRICS, Record
from steps.cards.charts import ALARM, COLOURS, ChartLine, line_chart
from steps.cards.html import CardPart, Html, block, html_table, paragraph, swatch, text


def metric_lines(records: Sequence[Record], names: Mapping[str, str], *, dashed: Iterable[str] = ()) -> list[ChartLine]:
    """Return one line per metric, in the order of `names` (metric -> label); meanings come from the metric table."""
    dashed = set(dashed)
    return [
        ChartLine(
            label=label,
            points=[(record.step, record.metrics[name]) for record in records if name in record.metrics],
            colour=COLOURS[index % len(COLOURS)],
            is_dashed=name in dashed,
            meaning=METRICS[name].meaning,
        )
        for index, (name, label) in enumerate(names.items())
    ]


def level(label: str, value: float, lines: Sequence[ChartLine], colour: str) -> ChartLine:
    """Return a dashed horizontal line over the range of the others."""
    steps = [x for line in lines for x, _ in line.points]
    points = [(step, value) for step in sorted({min(steps), max(steps)})] if steps else []
    return ChartLine(label=label, points=points, colour=colour, is_dashed=True)


def critical_level(config: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the line of `grpo.critical_entropy`, unless the check is off."""
    return {"critical": (float(config["critical_entropy"]), ALARM)} if config["critical_entropy"] else {}


def metric_figure(
    title: str,
    records: Sequence[Record],
    names: Mapping[str, str],
    *,
    levels: Mapping[str, tuple[float, str]] | None = None,
    dashed: Iterable[str] = (),
    marks: Sequence[float] = (),
    note: str = "",
) -> list[CardPart]:
    """Return the chart of some metrics with the same unit, and its table.

    Args:
        title: title of the chart.
        records: a step's history.
        names: metric -> label.
        levels: label -> value and colour of dashed lines across the chart.
        dashed: metrics that are bounds rather than measurements.
        marks: steps with events.
        note: a sentence on how to read it.
    """
    [unit] = {METRICS[name].unit for name in names}  # A chart has one y axis.
    lines = metric_lines(records, names, dashed=dashed)
    lines += [level(label, value, lines, colour) for label, (value, colour) in (levels or {}).items()]
    return [line_chart(title, unit, lines, marks=marks), numbers(lines, unit=unit, note=note)]


def numbers(lines: Sequence[ChartLine], *, unit: str, note: str = "") -> Html:
    """Return what stands below a line chart: the legend, which unfolds to a table, and a note."""
    rows = [[_name(line), *_summary([y for _, y in line.points])] for line in lines]
    table = html_table([unit, "first", "last", "lowest", "highest"], rows)
    legend = " ".join(_name(line).markup for line in lines)
    written = paragraph(note, "soft") if note else ""
    return block(f"<details><summary>{legend}</summary>{table}</details>", written, kind="numbers")


def _name(line: ChartLine) -> Html:
    ground = f"repeating-linear-gradient(90deg, {line.colour} 0 4px, #0000 4px 7px)" if line.is_dashed else line.colour
    return Html(f'<span class="line" title="{text(line.meaning)}">{swatch(ground)}{text(line.label)}</span>')


def _summary(values: Sequence[float]) -> list[float | None]:
    finite = [value for value in values if math.isfinite(value)]
    found: list[float | None] = [values[0], values[-1]] if values else [None, None]
    found += [min(finite), max(finite)] if finite else [None, None]
    return found

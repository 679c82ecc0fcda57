"""What cards are made of: charts as plain dicts, and HTML in which whatever was given is text. Nothing here knows Metaflow."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TableCell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Html:
    """One HTML element. Only the functions of this package write one; text from elsewhere goes through `text`."""

    markup: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A Vega-Lite specification."""

    spec: dict[str, Any]


CardPart = Html | Chart

NO_NUMBER: Final = "-"


def text(value: object) -> str:
    """Return a value as it reads, on one line, with no markup in it, HTML's or Markdown's: an empty line would end the HTML around it."""
    return html.escape(" ".join(str(value).split())).replace("](", "]&#40;")


def number_text(value: TableCell) -> str:
    """Return four digits of a number, all of an integer; a dash where there is none."""
    if value is None or isinstance(value, str):
        return value or NO_NUMBER
    if isinstance(value, bool) or not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1_000 else f"{value:.4g}"


def block(*markups: str, kind: str = "wide") -> Html:
    """Return several pieces of markup as one part; `kind` is its class in the style sheet."""
    return Html(f'<div class="{kind}">{"".join(markups)}</div>')


def heading(title: str, level: int = 2) -> str:
    """Return a heading."""
    return f"<h{level}>{text(title)}</h{level}>"


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph."""
    return f'<p class="{kind}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def listing(items: Iterable[str]) -> str:
    """Return a list of points; no markup where there is none."""
    points = "".join(f"<li>{text(item)}</li>" for item in items)
    return f"<ul>{points}</ul>" if points else ""


def terms(told: Mapping[str, str]) -> str:
    """Return words, each with what is said of it."""
    return f"<dl>{''.join(f'<dt>{text(word)}</dt><dd>{text(said)}</dd>' for word, said in told.items())}</dl>"


def badge(word: str, mood: str) -> str:
    """Return a word on a coloured ground: `good`, `warning`, `bad` or `plain`. The word says what the colour says."""
    return f'<span class="badge {mood}">{text(word)}</span>'


def html_table(headers: Sequence[str], rows: Iterable[Sequence[TableCell | Html]], *, caption: str = "", wide: Sequence[int] = ()) -> str:
    """Return a table that scrolls by itself where it is too wide; numbers stand to the right, columns named in `wide` wrap.

    A cell is text, a number, or markup made here.
    """
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in headers)
    body = "".join(f"<tr>{''.join(_cell(cell, index in wide) for index, cell in enumerate(row))}</tr>" for row in rows)
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def details(summary: str, *markups: str, is_open: bool = False) -> str:
    """Return markup behind a line that unfolds it."""
    return f"<details{' open' if is_open else ''}><summary>{text(summary)}</summary>{''.join(markups)}</details>"


def progress_bar(done: int, total: int, words: str) -> str:
    """Return a bar, and in words how far the work is."""
    share = done / total if total else 0.0
    return (
        f'<div class="progress"><progress max="1" value="{share:.4f}" aria-label="{text(words)}"></progress>'
        f"<span>{share:.0%}</span> <span>{text(words)}</span></div>"
    )


def _cell(cell: TableCell | Html, is_wide: bool) -> str:
    if isinstance(cell, Html):
        return f"<td>{cell.markup}</td>"
    if isinstance(cell, int | float):
        return f'<td class="number">{number_text(cell)}</td>'
    if cell is None:
        return f'<td class="number">{NO_NUMBER}</td>'
    return f'<td class="words">{text(cell or NO_NUMBER)}</td>' if is_wide else f"<td>{text(cell or NO_NUMBER)}</td>"

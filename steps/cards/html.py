"""HTML and charts of cards; all given text is escaped. This module does not depend on Metaflow."""

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TableCell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Html:
    """One HTML element. Only functions of this package create one; all other text is escaped by `text`."""

    markup: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A Vega-Lite specification."""

    spec: dict[str, Any]


CardPart = Html | Chart

NO_NUMBER: Final = "-"
_ANCHOR: Final = re.compile(r"[^a-z0-9]+")
_HEADING: Final = re.compile(r'<h2 id="([^"]*)">(.*?)</h2>')


def text(value: object) -> str:
    """Return a value on one line with HTML and Markdown links escaped; in Markdown an empty line would end the HTML around it."""
    return html.escape(" ".join(str(value).split())).replace("](", "]&#40;")


def number_text(value: TableCell) -> str:
    """Format a number with four digits, an integer with all; a dash for None."""
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
    """Return a heading; one of level 2 is an anchor of `contents`."""
    anchor = f' id="{_ANCHOR.sub("-", title.lower()).strip("-")}"' if level == 2 else ""
    return f"<h{level}{anchor}>{text(title)}</h{level}>"


def contents(parts: Sequence[CardPart]) -> Html:
    """Return links to all headings of level 2 on a page; an element without links where there are none."""
    found = [match for part in parts if isinstance(part, Html) for match in _HEADING.finditer(part.markup)]
    links = "".join(f'<a href="#{match[1]}">{match[2]}</a>' for match in found)
    return Html(f"<nav>{links}</nav>")


def swatch(colour: str) -> str:
    """Return a short stroke of a CSS background: a legend's sample of a line."""
    return f'<span class="swatch" style="background: {colour}"></span>'


def paragraph(words: str, kind: str = "") -> str:
    """Return a paragraph."""
    return f'<p class="{kind}">{text(words)}</p>' if kind else f"<p>{text(words)}</p>"


def listing(items: Iterable[str]) -> str:
    """Return a bulleted list; no markup when there are no items."""
    points = "".join(f"<li>{text(item)}</li>" for item in items)
    return f"<ul>{points}</ul>" if points else ""


def terms(definitions: Mapping[str, str]) -> str:
    """Return a description list: term -> description; a description that begins with an address links to it."""
    return f"<dl>{''.join(f'<dt>{text(term)}</dt><dd>{_linked(meaning)}</dd>' for term, meaning in definitions.items())}</dl>"


def _linked(words: str) -> str:
    address, _, rest = words.partition(" ")
    if not address.startswith(("http://", "https://")):
        return text(words)
    return f'<a href="{text(address)}" target="_blank" rel="noreferrer">{text(address)}</a> {text(rest)}'


def badge(word: str, mood: str) -> str:
    """Return a word as a coloured badge: `good`, `warning`, `bad` or `plain`. The word must not depend on the colour."""
    return f'<span class="badge {mood}">{text(word)}</span>'


def html_table(headers: Sequence[str], rows: Iterable[Sequence[TableCell | Html]], *, caption: str = "", wide: Sequence[int] = ()) -> str:
    """Return a table that scrolls when it is too wide; numbers are right-aligned, and the columns in `wide` wrap.

    A cell is text, a number, or markup from this module.
    """
    head = "".join(f'<th scope="col">{text(header)}</th>' for header in headers)
    body = "".join(f"<tr>{''.join(_cell(cell, index in wide) for index, cell in enumerate(row))}</tr>" for row in rows)
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def details(summary: str, *markups: str, is_open: bool = False) -> str:
    """Return a collapsible section."""
    return f"<details{' open' if is_open else ''}><summary>{text(summary)}</summary>{''.join(markups)}</details>"


def embedded(page: str, title: str) -> str:
    """Return a whole HTML page as a frame of its own, which needs no other file; no markup when there is no page."""
    # Line ends as references: in Markdown an empty line would end the HTML around it.
    return f'<iframe title="{text(title)}" srcdoc="{html.escape(page).replace(chr(10), "&#10;")}"></iframe>' if page else ""


def progress_bar(done: int, total: int, words: str) -> str:
    """Return a progress bar with a text."""
    fraction = done / total if total else 0.0
    return (
        f'<div class="progress"><progress max="1" value="{fraction:.4f}" aria-label="{text(words)}"></progress>'
        f"<span>{fraction:.0%}</span> <span>{text(words)}</span></div>"
    )


def _cell(cell: TableCell | Html, is_wide: bool) -> str:
    if isinstance(cell, Html):
        return f"<td>{cell.markup}</td>"
    if isinstance(cell, int | float):
        return f'<td class="number">{number_text(cell)}</td>'
    if cell is None:
        return f'<td class="number">{NO_NUMBER}</td>'
    return f'<td class="words">{text(cell or NO_NUMBER)}</td>' if is_wide else f"<td>{text(cell or NO_NUMBER)}</td>"

"""Parts of cards: HTML from the templates beside this module, in which every value is escaped, or from Markdown; charts."""

import html
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markupsafe import Markup

_FOLDER: Final = Path(__file__).parent
_LINE_BREAKS: Final = re.compile(r"\s*\n\s*")


def page_part(template: str, **facts: Any) -> Markup:
    """Return the HTML of a template (`NAME.html.j2`) on one line: in Metaflow's Markdown an empty line would end the HTML around it."""
    return _on_one_line(_environment().get_template(f"{template}.html.j2").render(**facts))  # Escaped by `_shown`.


def markdown_part(text: str) -> Markup:
    """Return Markdown as HTML; HTML in it is shown as text, which Metaflow's own component does not."""
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    return _on_one_line(f'<div class="wide markdown">{rendered.replace("](", "]&#40;")}</div>')


def _on_one_line(escaped: str) -> Markup:
    return Markup(_LINE_BREAKS.sub(" ", escaped).strip())  # noqa: S704


@cache
def style() -> Markup:
    """Return the style sheet, the first part of every card."""
    return Markup("<style>{}</style>").format(Markup(" ".join((_FOLDER / "style.css").read_text(encoding="utf-8").split())))  # noqa: S704


def number_text(value: float | None) -> str:
    """Return a number with four digits, a large one with all before its point, a dash for None.

    >>> [number_text(value) for value in (None, 12345, 0.123456, 1234.56)]
    ['-', '12,345', '0.1235', '1,235']
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _shown(value: Any) -> Markup:
    """Escape a value, on one line: for HTML and for links of Markdown."""
    if isinstance(value, Markup):
        return value
    assert value is not None, "a template shows what was not measured"
    return Markup(html.escape(" ".join(str(value).split())).replace("](", "]&#40;"))  # noqa: S704


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["number"] = number_text
    return found

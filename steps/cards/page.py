"""Building blocks of cards (a step's pages in Metaflow)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

from jinja2 import Environment
from markdown_it import MarkdownIt
from markupsafe import Markup
from pydantic import BaseModel

from grpo.base.documents import read_document
from grpo.base.files import read_json
from grpo.metrics.records import Record
from steps.names import HISTORY, REPORT
from steps.pages.templates import environment
from steps.run.work import read_history

_FOLDER: Final = Path(__file__).parent
_LINE_BREAKS: Final = re.compile(r"\s*\n\s*")
_SECTION: Final = re.compile(r"<h2>(.*?)</h2>(.*?)(?=<h2>|\Z)", re.DOTALL)
_Form = TypeVar("_Form", bound=BaseModel)

CardPart = Markup | dict[str, Any]  # HTML, or the Vega-Lite specification of a chart.


@dataclass(slots=True)
class Seen:
    """A step's reports so far, for its card."""

    settings: Mapping[str, Any]
    records: list[Record] = field(default_factory=list)
    progress: tuple[float, str] | None = None  # Fraction done in [0, 1] and a text; None before the first progress.
    folder: Path | None = None  # Folder of the stored output; None before the end.
    failure: str = ""  # The error that ended the step, with its remedy.
    is_reused: bool = False

    @property
    def kind(self) -> str:
        return str(self.settings["policy"]["kind"])

    def history(self) -> list[Record]:
        """A reused output's records are read from its folder."""
        if self.records or self.folder is None or not (self.folder / HISTORY).exists():
            return self.records
        return read_history(self.folder)

    def document(self, form: type[_Form], name: str = REPORT) -> _Form | None:
        """Return None without the file. Raises CorruptError or DocumentError."""
        return read_document(self.folder / name, form) if self.folder is not None and (self.folder / name).exists() else None

    def read(self, name: str = REPORT) -> Any:
        """Return the JSON or text of an output's file, {} without the file."""
        if self.folder is None or not (self.folder / name).exists():
            return {}
        return read_json(self.folder / name) if name.endswith(".json") else (self.folder / name).read_text(encoding="utf-8")


def page_part(template: str, **facts: Any) -> Markup:
    """Render `{template}.html.j2` on one line, because an empty line ends HTML in Metaflow's Markdown."""
    return _on_one_line(_environment().get_template(f"{template}.html.j2").render(**facts))


def markdown_part(text: str) -> Markup:
    """Return Markdown as HTML. Its sections (`##`) unfold on a click. HTML in the text is escaped."""
    rendered = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    rendered = _SECTION.sub(r"<details><summary>\1</summary>\2</details>", rendered)
    return _on_one_line(f'<div class="wide markdown">{rendered.replace("](", "]&#40;")}</div>')


def _on_one_line(escaped: str) -> Markup:
    return Markup(_LINE_BREAKS.sub(" ", escaped).strip())  # noqa: S704


@cache
def style() -> Markup:
    return Markup("<style>{}</style>").format(Markup(" ".join((_FOLDER / "style.css").read_text(encoding="utf-8").split())))  # noqa: S704


def number_text(value: float | None) -> str:
    """Return up to four significant digits, or an integer from 1,000 on.

    >>> [number_text(value) for value in (None, 12345, 0.123456, 1234.56)]
    ['-', '12,345', '0.1235', '1,235']
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


@cache
def _environment() -> Environment:
    jinja = environment(_FOLDER, lambda text: text.replace("](", "]&#40;"))  # Metaflow's Markdown would make a link of `](`.
    jinja.filters["number"] = number_text
    return jinja

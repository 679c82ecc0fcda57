"""Prints tables of the code into the pages of `docs/`: `python -m infra.pages`."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from grpo.diagnosis.checks import CHECKS
from grpo.settings.metrics import EVENTS, METRICS
from grpo.settings.tree import Settings, TaskResources
from grpo.settings.types import section_of

DOCS: Final = Path(__file__).parents[1] / "docs"
PRINTED: Final = "Printed by `python -m infra.pages`."
_CONFIGURATION: Final = f"""# Configuration

{PRINTED} Settings are TOML and name only what differs from a preset: one of `grpo/settings/presets`
(`laptop`, the defaults below, if none is named), or another settings file (`preset = "smoke"`).
`make run CONFIG=my.toml` or `make run CONFIG=smoke SET="seed=7"` reads them. The classes in
`grpo/settings` have ranges and full meanings; a few defaults differ for [language
models](language.md). Facts of the machine are [environment variables](commands.md#variables).
"""
_METRICS: Final = f"""# Metrics

{PRINTED} A row is also of the same metric by phase, term, pair of terms or task (`grpo/entropy/endgame`),
and of the ends of its interval (`_low`, `_high`).
"""
_MESSAGES: Final = "troubleshooting.md"


def settings(section: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield dotted name, default and first sentence of each setting, in the order of the classes."""
    for name, field in section.model_fields.items():
        below = section_of(field.annotation)
        if below is not None and below is not TaskResources:
            yield from settings(below, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _value(field.default), _sentence(field.description or "")


def family(metric: str) -> str:
    """Return the name under which the page has a metric: one for all phases, terms, tasks and ends of an interval."""
    return "/".join(metric.split("/")[:2]).removesuffix("_low").removesuffix("_high")


def pages() -> dict[str, str]:
    """Return name -> text of each page."""
    families: dict[str, tuple[str, str]] = {}
    for name, (unit, meaning) in METRICS.items():
        families.setdefault(family(name), (unit, re.split(r"[;:] ", _sentence(meaning))[0]))
    messages = (DOCS / _MESSAGES).read_text(encoding="utf-8")
    start = messages.index("finding | means | advice")  # The table ends the page; what is before it is written by hand.
    findings = ((f'<a id="{check.name}"></a>{check.name}', check.means, check.advice) for check in CHECKS)
    return {
        "configuration.md": f"{_CONFIGURATION}\n{_table('setting default meaning', settings())}",
        "metrics.md": f"{_METRICS}\n{_table('metric unit meaning', ((name, *row) for name, row in families.items()))}\n"
        f"{_table('event meaning', EVENTS.items())}",
        _MESSAGES: f"{messages[:start]}{_table('finding means advice', findings)}",
    }


def _table(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [tuple(header.split()), ("---",) * len(header.split()), *rows]
    return "".join(f"{' | '.join(cell.replace('|', chr(92) + '|') for cell in line)}\n" for line in lines)


def _sentence(text: str) -> str:
    return re.split(r"(?<=\.) ", " ".join(text.split()))[0]


def _value(default: Any) -> str:
    if isinstance(default, TaskResources):
        return ", ".join(map(str, default.model_dump().values()))
    return "required" if default is PydanticUndefined else str(list(default) if isinstance(default, tuple) else default)


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")

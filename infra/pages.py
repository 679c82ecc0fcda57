"""Prints tables of settings, metrics, events, findings and costs into the pages of `docs/`: `python -m infra.pages`."""

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from grpo.diagnosis.checks import CHECKS
from grpo.metrics.table import EVENTS, METRICS
from grpo.settings.tree import Settings, TaskResources
from grpo.settings.types import section_of

DOCS: Final = Path(__file__).parents[1] / "docs"
PRINTED: Final = "Printed by `python -m infra.pages`."
_CONFIGURATION: Final = f"""# Configuration

{PRINTED} A settings file is TOML and names only what differs from its
preset. The key `preset` names a file of `grpo/settings/presets` (`preset = "smoke"`) or the path of
another settings file. Without the key, the defaults below (preset `laptop`) hold.
`make run CONFIG=my.toml` runs with a file, `make run CONFIG=smoke SET="seed=7"` with a preset and
one change. The classes in `grpo/settings` have ranges and full meanings.
[Language models](language.md#defaults) have other defaults. What depends on the machine is set by
[environment variables](commands.md#variables).
"""
_METRICS: Final = f"""# Metrics

{PRINTED} A row also covers variants of the metric: by game phase,
loss term, pair of terms or task (`grpo/entropy/endgame`), and interval ends (`_low`, `_high`).
"Deeper search": an engine's search to depth `evaluation.heldout_depth`.
"""
_MESSAGES: Final = "troubleshooting.md"
_AWS: Final = "aws.md"

# Measured on one core of an AMD EPYC at 2.6 GHz with Stockfish 15.1; a machine counts as one such core.
# `build_boards` made 2,799 boards in 27.2 s, at the default depth.
# `join_boards` joined 447,840 boards in 23.4 s, with 2,600 bytes of memory per board.
BOARDS_A_SECOND: Final = 103
JOINED_A_SECOND: Final = 19_000
_BYTES_A_JOINED: Final = 2_600
SURPLUS: Final = 1.06
"""Boards made per wanted board. Above 1, because a board that two tasks find counts once."""
MACHINE_PRICE: Final = 0.1008
"""USD per hour of an m7i.large on demand (us-east-1, Linux, list price of 2026)."""
_NUM_MACHINES: Final = (1, 16, 64, 256, 1_000)
NUM_BOARDS: Final = (1_200_000, 10_000_000, 100_000_000)
_COSTS: Final = " ".join(("machines boards/hour", *(f"{boards:,}" for boards in NUM_BOARDS), "slowest"))


def settings(section: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield each setting's dotted name, default, and first sentence of its docstring."""
    docstrings = _docstrings(section)
    for name, field in section.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None and inner is not TaskResources:
            yield from settings(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _value(field.default), _sentence(docstrings.get(name, ""))


def _docstrings(section: type[BaseModel]) -> dict[str, str]:
    """Return the text behind each field. Pydantic could do it (`use_attribute_docstrings`), but in each process: 60 ms."""
    (body,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: text.value.value
        for field, text in pairwise(body.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def family(metric: str) -> str:
    """Return the name of a metric's row, which stands for all phases, terms, tasks and interval ends."""
    return "/".join(metric.split("/")[:2]).removesuffix("_low").removesuffix("_high")


def costs() -> Iterator[tuple[str, ...]]:
    num_made = {boards: SURPLUS * boards for boards in NUM_BOARDS}
    for machines in _NUM_MACHINES:
        speed = machines * BOARDS_A_SECOND
        slowest = "`build_boards`" if speed < JOINED_A_SECOND else "`join_boards`"
        yield f"{machines:,}", f"{3_600 / SURPLUS * speed:,.0f}", *(_time(number / speed) for number in num_made.values()), slowest
    memory = [f"{_time(number / JOINED_A_SECOND)}, {number * _BYTES_A_JOINED / 2**30:,.0f} GiB" for number in num_made.values()]
    yield "`join_boards`: 1", f"{3_600 / SURPLUS * JOINED_A_SECOND:,.0f}", *memory, ""
    yield "`build_boards`, USD", "", *(f"{number / BOARDS_A_SECOND / 3_600 * MACHINE_PRICE:.2f}" for number in num_made.values()), ""


def _time(seconds: float) -> str:
    return f"{seconds / 3_600:,.1f} h" if seconds >= 3_600 else f"{seconds / 60:,.1f} min"


def pages() -> dict[str, str]:
    families: dict[str, tuple[str, str]] = {}
    for name, (unit, meaning) in METRICS.items():
        families.setdefault(family(name), (unit, _brief(meaning)))
    messages = (DOCS / _MESSAGES).read_text(encoding="utf-8")
    start = messages.index("finding | means | advice")  # The page ends with the table.
    aws = (DOCS / _AWS).read_text(encoding="utf-8")
    before, _, after = aws.partition("machines | boards/hour")
    after = after.split("\n\n", 1)[1]
    findings = ((f'<a id="{check.name}"></a>{check.name}', check.means, check.advice) for check in CHECKS)
    return {
        "configuration.md": f"{_CONFIGURATION}\n{_table('setting default meaning', settings())}",
        "metrics.md": f"{_METRICS}\n{_table('metric unit meaning', ((name, *row) for name, row in families.items()))}\n"
        f"{_table('event meaning', EVENTS.items())}",
        _AWS: f"{before}{_table(_COSTS, costs())}\n{after}",
        _MESSAGES: f"{messages[:start]}{_table('finding means advice', findings)}",
    }


def _table(header: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [tuple(header.split()), ("---",) * len(header.split()), *rows]
    return "".join(f"{' | '.join(cell.replace('|', chr(92) + '|') for cell in line)}\n" for line in lines)


def _sentence(text: str) -> str:
    return re.split(r"(?<=\.) ", " ".join(text.split()))[0]


def _brief(meaning: str) -> str:
    """Return the first clause or, if it has at most three words (`Language model: ...`), the first sentence."""
    clause, *_ = re.split(r"[;:] ", sentence := _sentence(meaning))
    return clause if len(clause.split()) > 3 else sentence


def _value(default: Any) -> str:
    if isinstance(default, TaskResources):
        return ", ".join(map(str, default.model_dump().values()))
    if default is None or default is PydanticUndefined:
        return "required" if default is PydanticUndefined else ""
    return str(default) if isinstance(default, str) else json.dumps(default)


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")

"""Trainers' names of what they log: `dialects.toml` says which column is the step and which is which quantity, its sign and its unit."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Final

from grpo.settings.shared import TERM_PAIRS, TERMS

OURS, PLAIN = "this trainer", "a plain table"
FRACTIONS: Final = frozenset({"clip_fraction", "silent_groups", "truncated", "agreement"})
_NAMES_OF_TERMS: Final = (*TERMS, *(f"{one}_{other}" for one, other in TERM_PAIRS))
_LIKE: Final = 0.6
"""Similarity from which a known name is offered for one that is not known."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a column is."""

    quantity: str
    sign: int
    unit: str
    rank: int
    """Place among the quantity's columns; 0 is preferred."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A trainer's names."""

    name: str
    first_row: str
    """What the first row is of: `start`, `rollout` or `later`."""
    entropy_of: str
    """`moves`, `tokens` or `actions`."""
    steps: tuple[str, ...]
    names: dict[str, Meaning]
    patterns: tuple[tuple[str, Meaning], ...]
    """Names with `*`."""

    def meaning(self, column: str) -> Meaning | None:
        """Return what a column of this trainer is; None if it is not known. Names are compared whole."""
        name = plain(column)
        return self.names.get(name) or next((meaning for pattern, meaning in self.patterns if fnmatchcase(name, pattern)), None)


def plain(column: str) -> str:
    """Return a column's name as it is compared.

    >>> plain("completions / Mean_Length ")
    'completions/mean_length'
    """
    return re.sub(r"\s*/\s*", "/", column.strip().lower())


@cache
def dialects() -> tuple[Dialect, ...]:
    """Return all dialects, in the order of the file."""
    table = _table()
    return tuple(_dialect(row, table["units"]) for row in table["trainer"])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files("grpo.diagnosis") / "dialects.toml").read_text(encoding="utf-8"))


def _dialect(row: dict[str, Any], units: dict[str, str]) -> Dialect:
    names: dict[str, Meaning] = {}
    patterns = []
    for quantity, columns in row["columns"].items():
        for rank, entry in enumerate(columns):
            column, _, unit = entry.partition(" | ")
            meaning = Meaning(quantity, -1 if column.startswith("-") else 1, unit or units.get(quantity, ""), rank)
            for name in [f"{prefix}{column.removeprefix('-')}" for prefix in row["prefixes"]]:
                if quantity.endswith("/*"):
                    for term in _NAMES_OF_TERMS:
                        names[name.replace("*", term)] = Meaning(quantity.replace("*", term), 1, "", rank)
                elif "*" in name:
                    patterns.append((name, meaning))
                else:
                    names.setdefault(name, meaning)
    return Dialect(row["name"], row["first_row"], row["entropy_of"], tuple(row["step"]), names, tuple(patterns))


def dialect_of(columns: Iterable[str]) -> Dialect:
    """Return the trainer that knows most of these columns; of several the first in the file, but a plain table last but for ties."""
    known = [plain(column) for column in columns]
    counts = {each.name: sum(each.meaning(name) is not None or name in each.steps for name in known) for each in dialects()}
    return max(dialects(), key=lambda each: counts[each.name])


def meaning_of(column: str, dialect: Dialect) -> Meaning | None:
    """Return what a column is: to this trainer, else to the first that knows the name; None if none does."""
    if dialect.name == OURS:
        return dialect.meaning(column)
    return dialect.meaning(column) or next((found for each in dialects() if (found := each.meaning(column)) is not None), None)


def is_ambiguous(column: str) -> bool:
    """Return whether trainers log a column of this name with different signs."""
    return len({found.sign for each in dialects() if (found := each.meaning(column)) is not None}) > 1


def step_columns(columns: Sequence[str], dialect: Dialect) -> list[str]:
    """Return which columns may be the step, the trainer's own first."""
    order = [*dialect.steps, *(name for each in dialects() if each.name != OURS for name in each.steps)]
    by_name = {plain(column): column for column in reversed(columns)}
    return list(dict.fromkeys(by_name[name] for name in order if name in by_name))


def nearest(column: str) -> str:
    """Return the known name that is most like a column's, or "".

    >>> nearest("grad_nrom")
    'grad_norm'
    """
    names = _known_names()
    found = difflib.get_close_matches(plain(column), names, 1, _LIKE) or difflib.get_close_matches(
        plain(column).rpartition("/")[2], names, 1, _LIKE
    )
    return found[0] if found else ""


@cache
def _known_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for each in dialects() if each.name != OURS for name in each.names))

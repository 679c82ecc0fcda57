"""Trainers' names of what they log: `dialects.toml` says which column is the step and which is which quantity, its sign and its unit."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Final

from grpo.metrics.shared import TERM_PAIRS, TERMS

OURS: Final = "this trainer"
_TERMS: Final = (*TERMS, *(f"{one}_{other}" for one, other in TERM_PAIRS))
_TABLE: Final[dict[str, Any]] = tomllib.loads((files("grpo.diagnosis") / "dialects.toml").read_text(encoding="utf-8"))
TABLES: Final[dict[str, frozenset[str]]] = {name: frozenset(columns) for name, columns in _TABLE["tables"].items()}
"""Names of columns of any table: `runs`, `splits`, `keys`, `times`, `no_quantity`, `of_language_models`."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Quantity, sign and unit of a column."""

    quantity: str
    sign: int
    unit: str
    rank: int  # Place among the quantity's columns; 0 is preferred.


@dataclass(frozen=True, slots=True)
class Dialect:
    """A trainer's names; `dialects.toml` explains the fields."""

    name: str
    first_row: str
    entropy_of: str
    steps: tuple[str, ...]
    names: dict[str, Meaning]
    patterns: dict[str, Meaning]

    def meaning(self, column: str) -> Meaning | None:
        """Return what a column of this trainer is; None if it is not known. Names are compared whole."""
        name = plain(column)
        return self.names.get(name) or next((found for pattern, found in self.patterns.items() if fnmatchcase(name, pattern)), None)


def plain(column: str) -> str:
    """Return a column's name as it is compared.

    >>> plain("completions / Mean_Length ")
    'completions/mean_length'
    """
    return re.sub(r"\s*/\s*", "/", column.strip().lower())


def _dialect(row: dict[str, Any]) -> Dialect:
    names: dict[str, Meaning] = {}
    for quantity, columns in row["columns"].items():
        for rank, entry in enumerate(columns):
            column, _, unit = entry.partition(" | ")
            for prefix, term in [(prefix, term) for prefix in row["prefixes"] for term in (_TERMS if quantity.endswith("/*") else "*")]:
                meaning = Meaning(quantity.replace("*", term), -1 if column.startswith("-") else 1, unit, rank)
                names.setdefault(f"{prefix}{column.removeprefix('-')}".replace("*", term), meaning)
    exact, patterns = ({name: names[name] for name in names if ("*" in name) is is_pattern} for is_pattern in (False, True))
    return Dialect(row["name"], row["first_row"], row["entropy_of"], tuple(row["step"]), exact, patterns)


DIALECTS: Final = tuple(map(_dialect, _TABLE["trainer"]))
"""All dialects in the order of the file; the first is ours."""


def dialect_of(columns: Iterable[str]) -> Dialect:
    """Return the trainer that knows most of these columns; of several the first."""
    known = [plain(column) for column in columns]
    return max(DIALECTS, key=lambda each: sum(each.meaning(name) is not None or name in each.steps for name in known))


def meaning_of(column: str, dialect: Dialect) -> Meaning | None:
    """Return what a column is: to this trainer, else to the first that knows the name; None if none does."""
    if dialect.name == OURS or (own := dialect.meaning(column)) is not None:
        return dialect.meaning(column) if dialect.name == OURS else own
    return next((found for each in DIALECTS if (found := each.meaning(column)) is not None), None)


def is_ambiguous(column: str) -> bool:
    """Return whether trainers log a column of this name with different signs."""
    return len({found.sign for each in DIALECTS if (found := each.meaning(column)) is not None}) > 1


def step_columns(columns: Iterable[str], dialect: Dialect) -> list[str]:
    """Return which columns may be the step, the trainer's own first."""
    by_name = {plain(column): column for column in columns}
    order = dict.fromkeys((*dialect.steps, *(name for each in DIALECTS[1:] for name in each.steps)))
    return [by_name[name] for name in order if name in by_name]


@cache
def nearest_column(column: str) -> str:
    """Return the known name that is most like a column's, or "".

    >>> nearest_column("grad_nrom")
    'grad_norm'
    """
    names = list(dict.fromkeys(name for each in DIALECTS[1:] for name in each.names))
    words = (plain(column), plain(column).rpartition("/")[2])
    return next((found[0] for word in words if (found := difflib.get_close_matches(word, names, 1))), "")

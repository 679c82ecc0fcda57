"""Dialects: the column names of each trainer's logs, read from `dialects.toml`, which explains all fields.

A quantity is what a column measures, under one name for all trainers, such as `entropy`.
"""

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
"""Role of a column (such as `runs`, which names the row's run) -> names in any trainer's logs."""


@dataclass(frozen=True, slots=True)
class Meaning:
    quantity: str
    sign: int  # -1 if the trainer logs minus the quantity, else 1.
    unit: str
    rank: int  # Position among the quantity's columns; the lowest is preferred.


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    first_row: str
    entropy_of: str
    steps: tuple[str, ...]
    names: dict[str, Meaning]
    patterns: dict[str, Meaning]

    def meaning(self, column: str) -> Meaning | None:
        """Return the meaning of this trainer's column, or None. Exact names are tried before patterns."""
        name = plain(column)
        return self.names.get(name) or next((meaning for pattern, meaning in self.patterns.items() if fnmatchcase(name, pattern)), None)


def plain(column: str) -> str:
    """Return the form in which names are compared.

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
"""The first is this trainer's."""


def dialect_of(columns: Iterable[str]) -> Dialect:
    """Return the first of other trainers' dialects that know the most of these columns; exact names count more than patterns."""
    known = [plain(column) for column in columns]

    def num_known(dialect: Dialect) -> tuple[int, int]:
        exact = sum(name in dialect.names or name in dialect.steps for name in known)
        return exact, sum(dialect.meaning(name) is not None for name in known)

    return max(DIALECTS[1:], key=num_known)


def meaning_of(column: str, dialect: Dialect) -> Meaning | None:
    """Return a column's meaning, or None. Other trainers' dialects also know the exact names of all dialects."""
    own = dialect.meaning(column)
    if own is not None or dialect.name == OURS:
        return own
    return next((other.names[name] for other in DIALECTS if (name := plain(column)) in other.names), None)


def is_ambiguous(column: str) -> bool:
    """Return whether trainers log this column with different signs."""
    return len({meaning.sign for dialect in DIALECTS if (meaning := dialect.meaning(column)) is not None}) > 1


def step_columns(columns: Iterable[str], dialect: Dialect) -> list[str]:
    """Return the columns that may be the step, this dialect's first."""
    by_name = {plain(column): column for column in columns}
    order = dict.fromkeys((*dialect.steps, *(name for other in DIALECTS[1:] for name in other.steps)))
    return [by_name[name] for name in order if name in by_name]


@cache
def nearest_column(column: str) -> str:
    """Return the most similar exact column name of other trainers; "" if none is similar.

    >>> nearest_column("grad_nrom")
    'grad_norm'
    """
    names = list(dict.fromkeys(name for dialect in DIALECTS[1:] for name in dialect.names))
    names_of_column = (plain(column), plain(column).rpartition("/")[2])
    return next((similar[0] for word in names_of_column if (similar := difflib.get_close_matches(word, names, 1))), "")

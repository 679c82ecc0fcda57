"""The table of checks, read from `checks.toml`, which explains the fields.

A check looks for one fault, by the function in `finds.py` with the check's name.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from grpo.diagnosis import finds
from grpo.diagnosis.assessment import Answer, Assessment
from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import History, When


@dataclass(frozen=True, slots=True)
class DiagnosisCheck:
    name: str
    when: When
    needs: tuple[tuple[str, ...], ...]  # The history must have one quantity (a column's meaning) of each group.
    finds: Callable[[Assessment], Answer]
    severity: Severity
    means: str
    advice: str
    leads_to: frozenset[str]

    def missing(self, history: History) -> str:
        known = history.series.keys() | ({"games"} if history.evaluations else set())
        return ", ".join(" or ".join(group) for group in self.needs if not known & set(group))


def _check(name: str, row: dict[str, Any]) -> DiagnosisCheck:
    when = When(0)
    for name_of_time in row["when"].split():
        when |= When[name_of_time]
    function: Callable[[Assessment], Answer] = getattr(finds, name)
    needs = tuple(tuple(group.split("|")) for group in row["needs"])
    return DiagnosisCheck(name, when, needs, function, Severity(row["severity"]), row["means"], row["advice"], frozenset(row["leads_to"]))


CHECKS: Final = tuple(
    _check(name, row) for name, row in tomllib.loads((files("grpo.diagnosis") / "checks.toml").read_text(encoding="utf-8")).items()
)

"""The table of checks, `checks.toml`: when each is asked, what it needs, what a reader is told; printed in `docs/troubleshooting.md`."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from grpo.diagnosis import finds
from grpo.diagnosis.findings import Severity
from grpo.diagnosis.history import History, When
from grpo.diagnosis.look import Answer, Look


@dataclass(frozen=True, slots=True)
class DiagnosisCheck:
    """A row of the table."""

    name: str
    when: When
    needs: tuple[tuple[str, ...], ...]  # Quantities: of each group one must have been recorded.
    finds: Callable[[Look], Answer]
    severity: Severity
    means: str  # What is wrong, and why.
    advice: str
    leads_to: frozenset[str]  # Names of findings that may be its consequences.

    def missing(self, history: History) -> str:
        """Return the quantities that the check lacks, or ""."""
        known = history.series.keys() | ({"games"} if history.evaluations else set())
        return ", ".join(" or ".join(group) for group in self.needs if not known & set(group))


def _check(name: str, row: dict[str, Any]) -> DiagnosisCheck:
    when = When(0)
    for each in row["when"].split():
        when |= When[each]
    found: Callable[[Look], Answer] = getattr(finds, name)
    needs = tuple(tuple(group.split("|")) for group in row["needs"])
    return DiagnosisCheck(name, when, needs, found, Severity(row["severity"]), row["means"], row["advice"], frozenset(row["leads_to"]))


CHECKS: Final = tuple(
    _check(name, row) for name, row in tomllib.loads((files("grpo.diagnosis") / "checks.toml").read_text(encoding="utf-8")).items()
)

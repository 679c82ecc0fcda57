"""Reports of the data checks, as text and as plain data."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_EXAMPLES: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """The result of one check of a table."""

    name: str
    meaning: str
    """The condition that must hold."""
    remedy: str
    """The usual cause of a failure, and how to fix it."""
    is_met: bool
    num_checked: int
    """Number of rows (or groups of rows) that could be checked; a row that violates an earlier rule may not be checkable."""
    num_unexpected: int
    """Number of violations."""
    examples: tuple[str, ...]
    """At most `MAX_EXAMPLES` violations, each with the offending value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckReport:
    """The results of all checks of one table, in reading order."""

    results: tuple[CheckResult, ...]

    @property
    def num_failed(self) -> int:
        """Number of failed checks."""
        return sum(not result.is_met for result in self.results)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        return {"is_met": not self.num_failed, "num_failed": self.num_failed, "results": [asdict(result) for result in self.results]}


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetReport:
    """The reports of all suites of a dataset."""

    suites: Mapping[str, CheckReport]
    """By name, in reading order."""

    @property
    def is_met(self) -> bool:
        """Whether every check of every suite is met."""
        return not self.num_failed

    @property
    def num_failed(self) -> int:
        """Number of failed checks over all suites."""
        return sum(report.num_failed for report in self.suites.values())

    @property
    def num_checks(self) -> int:
        """Number of checks over all suites."""
        return sum(len(report.results) for report in self.suites.values())

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        if self.is_met:
            return f"all {self.num_checks} checks are met"
        failed = [f"{name}: {result.name}" for name, report in self.suites.items() for result in report.results if not result.is_met]
        return f"{self.num_failed} of {self.num_checks} checks failed: {', '.join(failed)}"

    def as_text(self) -> str:
        """Return the verdict, and of each failed check what breaks it and what to do."""
        lines = [self.verdict]
        for result in (result for report in self.suites.values() for result in report.results if not result.is_met):
            lines += [
                "",
                f"{result.name}: {result.num_unexpected:,} of {result.num_checked:,} break the rule: {result.meaning}",
                *(f"  - {example}" for example in result.examples),
                f"  remedy: {result.remedy}",
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON, with the suites as a list to keep their order."""
        return {
            "is_met": self.is_met,
            "num_failed": self.num_failed,
            "num_checks": self.num_checks,
            "suites": [{"name": name} | report.to_dict() for name, report in self.suites.items()],
        }

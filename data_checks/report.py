"""Reports of the data checks, as text and as plain data."""

from collections.abc import Mapping, Sequence
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
    examples: tuple[str, ...]
    """At most `MAX_EXAMPLES` violations, each with the offending value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetReport:
    """The results of all suites of checks of a dataset."""

    suites: Mapping[str, Sequence[CheckResult]]
    """By name, in reading order."""

    @property
    def failed(self) -> list[tuple[str, CheckResult]]:
        """The checks that are not met, each with the name of its suite."""
        return [(name, result) for name, results in self.suites.items() for result in results if not result.is_met]

    @property
    def num_checks(self) -> int:
        """Number of checks over all suites."""
        return sum(map(len, self.suites.values()))

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        if not self.failed:
            return f"all {self.num_checks} checks are met"
        names = ", ".join(f"{suite}: {result.name}" for suite, result in self.failed)
        return f"{len(self.failed)} of {self.num_checks} checks failed: {names}"

    def as_text(self) -> str:
        """Return the verdict, and of each failed check what breaks it and what to do."""
        lines = [self.verdict]
        for _, result in self.failed:
            lines += [
                "",
                f"{result.name}: {result.num_unexpected:,} of {result.num_checked:,} break the rule: {result.meaning}",
                *(f"  - {example}" for example in result.examples),
                f"  remedy: {result.remedy}",
            ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data for JSON, with the suites as a list to keep their order."""
        suites = [{"name": name, "results": [asdict(result) for result in results]} for name, results in self.suites.items()]
        return {"is_met": not self.failed, "num_failed": len(self.failed), "num_checks": self.num_checks, "suites": suites}

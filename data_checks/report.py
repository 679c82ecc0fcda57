"""Report of the data checks, as text and as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

MAX_EXAMPLES: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    name: str
    meaning: str
    """The condition that must hold, as a sentence."""
    remedy: str
    """The usual cause of a failure, and the remedy."""
    is_met: bool
    num_checked: int
    """Rows or groups that could be checked; another fault of a row may prevent the check."""
    num_unexpected: int
    examples: tuple[str, ...]
    """Up to `MAX_EXAMPLES` violations, each with the row's name and value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetReport:
    suites: Mapping[str, Sequence[CheckResult]]
    """Suite -> results, in reading order."""

    @property
    def failed(self) -> list[tuple[str, CheckResult]]:
        """Suite and result of each failed check."""
        return [(name, result) for name, results in self.suites.items() for result in results if not result.is_met]

    @property
    def num_checks(self) -> int:
        return sum(map(len, self.suites.values()))

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        if not self.failed:
            return f"all {self.num_checks} checks are met"
        names = ", ".join(f"{suite}: {result.name}" for suite, result in self.failed)
        return f"{len(self.failed)} of {self.num_checks} checks failed: {names}"

    def as_text(self) -> str:
        """Return the verdict, then each failed check with examples and remedy."""
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
        suites = [{"name": name, "results": [asdict(result) for result in results]} for name, results in self.suites.items()]
        return {"is_met": not self.failed, "num_failed": len(self.failed), "num_checks": self.num_checks, "suites": suites}

"""Report of the data checks, as text and as a document for pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grpo.base.documents import Document
from grpo.dataset.reports import JoinedBoards

MAX_EXAMPLES: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    name: str
    meaning: str
    remedy: str
    is_met: bool
    num_checked: int
    """Cells that no other fault excludes, or groups of rows."""
    num_unexpected: int
    examples: tuple[str, ...]
    """Violations, each with the row's name and value."""


class SuiteResults(Document):
    name: str
    results: tuple[CheckResult, ...]


class Histogram(Document):
    low: int | float
    width: int | float
    """Width of a bin; the first begins at `low`."""
    classes: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    """Count of each bin, one row per class."""


class Distributions(Document):
    """The histograms' classes are phases, except in `ratings`."""

    cells: dict[str, dict[str, int]]
    """Phase -> split -> number of boards."""
    values: Histogram
    """Values of all legal moves, in [0, 1]."""
    legal_moves: Histogram
    plies: Histogram
    ratings: Histogram | None
    """Elo by the player's color; None if no game has ratings."""


class CheckedBoards(Document):
    """Report of the step `check_boards`."""

    is_met: bool
    num_failed: int
    num_checks: int
    suites: tuple[SuiteResults, ...]
    dataset: JoinedBoards
    distributions: Distributions


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetReport:
    suites: Mapping[str, Sequence[CheckResult]]
    """Suite -> results, in reading order."""

    @property
    def failed(self) -> list[tuple[str, CheckResult]]:
        return [(name, result) for name, results in self.suites.items() for result in results if not result.is_met]

    @property
    def num_checks(self) -> int:
        return sum(map(len, self.suites.values()))

    @property
    def verdict(self) -> str:
        if not self.failed:
            return f"all {self.num_checks} checks are met"
        names = ", ".join(f"{suite}: {result.name}" for suite, result in self.failed)
        return f"{len(self.failed)} of {self.num_checks} checks failed: {names}"

    def as_text(self) -> str:
        lines = [self.verdict]
        for _, result in self.failed:
            lines += [
                "",
                f"{result.name}: {result.num_unexpected:,} of {result.num_checked:,} break the rule: {result.meaning}",
                *(f"  - {example}" for example in result.examples),
                f"  remedy: {result.remedy}",
            ]
        return "\n".join(lines)

    def document(self, dataset: JoinedBoards, distributions: Distributions) -> CheckedBoards:
        return CheckedBoards(
            is_met=not self.failed,
            num_failed=len(self.failed),
            num_checks=self.num_checks,
            suites=tuple(SuiteResults(name=name, results=tuple(results)) for name, results in self.suites.items()),
            dataset=dataset,
            distributions=distributions,
        )

"""The card of `check_boards`: the dataset, and what was checked of it."""

from collections.abc import Mapping
from typing import Any, Final

from steps.cards.page import CardPart, page_part
from steps.cards.state import Seen
from steps.pages.results import Boards
from steps.pages.templates import phase_table

_MAX_LISTED: Final = 12


def checks_page(seen: Seen) -> list[CardPart]:
    """Return the card: verdict of the checks, sizes, phases and counts of the dataset, each check."""
    report = seen.report()
    facts = report.get("dataset", {})
    return [
        page_part(
            "data",
            seen=seen,
            suites=report.get("suites", []),
            facts=facts,
            phases=phase_table(Boards.of(facts)) if facts else None,
            counts=_counts(facts) if facts else {},
        )
    ]


def _counts(facts: Mapping[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Return title -> what and how many, the most frequent first."""
    tables = {
        "Splits": facts["splits"],
        "Sources": facts["sources"],
        "Labels from": facts["labels"],
        "Missing from the quotas": facts["missing"],
        "Games rejected": facts["rejected"],
        "Positions left out": facts["left_out"],
    }
    return {title: _ordered(found) for title, found in tables.items() if any(found.values())}


def _ordered(found: Mapping[str, int]) -> list[tuple[str, int]]:
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    rest = ordered[_MAX_LISTED:]
    return ordered[:_MAX_LISTED] + ([(f"{len(rest):,} more", sum(number for _, number in rest))] if rest else [])

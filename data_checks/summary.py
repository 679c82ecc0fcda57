"""Summary of a dataset and its checks, as escaped Markdown for the tracker and as plain text."""

import html
from collections.abc import Mapping
from typing import Any, Final

from data_checks.report import DatasetReport
from grpo.board.phases import PHASES
from grpo.dataset.table import Split

_MAX_LISTED: Final = 12
"""Most names that are listed: a dataset may have thousands of sources, a tracker's note at most 5,000 characters."""
_MAX_NAME: Final = 80
_MARKDOWN_MARKS: Final = "\\`*_{}[]()#+!|~$"
_SOURCES: Final = {"engine": "Stockfish's games"}
_LABELS: Final = {"game": "the move played", "engine": "Stockfish's best move"}


def summary_markdown(report: DatasetReport, facts: Mapping[str, Any], cells: Mapping[str, Mapping[str, int]]) -> str:
    """Return verdict and counts as Markdown, at most about 5,000 characters; `cells` is phase -> split -> number of boards."""
    lines = [
        f"**{_plain(report.verdict[:1].upper() + report.verdict[1:])}.** {_size(facts)}",
        "",
        f"| phase | found | used | {' | '.join(Split)} |",
        "| --- | ---: | ---: |" + " ---: |" * len(Split),
        *(f"| {phase} | {' | '.join(f'{count:,}' for count in _counts(facts, phase, cells))} |" for phase in PHASES),
        "",
        # The table has the splits.
        *(f"- {title}: {_plain(_listed(counts))}" for title, counts in _countings(facts)[1:] if counts),
    ]
    return "\n".join(lines) + "\n"


def summary_text(facts: Mapping[str, Any]) -> str:
    return "\n".join([_size(facts), *(f"{title}: {_listed(counts)}" for title, counts in _countings(facts) if counts)])


def _counts(facts: Mapping[str, Any], phase: str, cells: Mapping[str, Mapping[str, int]]) -> list[int]:
    return [facts["natural_phases"][phase], facts["phases"][phase], *cells[phase].values()]


def _size(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['rows']:,} boards from {facts['used_games']:,} games and listed positions, of {facts['games']:,} usable ones;"
        f" {sum(facts['rejected'].values()):,} were rejected, {facts['duplicates']:,} repeated positions were left out."
    )


def _countings(facts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return [
        ("Splits", {split.value: facts["splits"].get(split, 0) for split in Split}),
        ("Boards from", {_SOURCES.get(name, name): count for name, count in facts["sources"].items()}),
        ("Labeled with", {_LABELS.get(name, name): count for name, count in facts["labels"].items()}),
        ("Missing, of those wanted", facts["missing"]),
        ("Games rejected", facts["rejected"]),
        ("Positions left out", facts["left_out"]),
    ]


def _listed(counts: Mapping[str, int]) -> str:
    """Return the most frequent names with their counts (ties in order of name), and the number of the other names."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name if len(name) <= _MAX_NAME else f'{name[: _MAX_NAME - 1]}…'} {count:,}" for name, count in ordered[:_MAX_LISTED]]
    others = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {others:,} more" if others else "")


def _plain(text: str) -> str:
    """Return the text on one line, escaped for Markdown."""
    text = html.escape(" ".join(text.split()), quote=False)  # A quote's escape has a "#", which is a mark.
    return "".join(f"&#{ord(character)};" if character in _MARKDOWN_MARKS else character for character in text)

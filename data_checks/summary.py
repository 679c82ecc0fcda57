"""Summary of a dataset and its checks, as escaped Markdown for the tracker's note and as plain text."""

import html
from collections.abc import Mapping
from typing import Final

from data_checks.report import DatasetReport
from grpo.board.phases import PHASES
from grpo.dataset.reports import JoinedBoards
from grpo.dataset.table import Split

_MAX_LISTED: Final = 12
"""Maximum number of names in a list; a tracker's note has at most 5,000 characters."""
_MAX_NAME: Final = 80
_MARKDOWN_MARKS: Final = "\\`*_{}[]()#+!|~$"
_SOURCES: Final = {"engine": "Stockfish's games"}
_LABELS: Final = {"game": "the move played", "engine": "Stockfish's best move"}


def summary_markdown(report: DatasetReport, dataset: JoinedBoards, cells: Mapping[str, Mapping[str, int]]) -> str:
    """`cells`: phase -> split -> boards."""
    lines = [
        f"**{_escaped(report.verdict[:1].upper() + report.verdict[1:])}.** {_size(dataset)}",
        "",
        f"| phase | found | used | {' | '.join(Split)} |",
        "| --- | ---: | ---: |" + " ---: |" * len(Split),
        *(f"| {phase} | {' | '.join(f'{count:,}' for count in _phase_counts(dataset, phase, cells))} |" for phase in PHASES),
        "",
        # The table shows the first tally (splits).
        *(f"- {title}: {_escaped(_listed(counts))}" for title, counts in _tallies(dataset)[1:] if counts),
    ]
    return "\n".join(lines) + "\n"


def summary_text(dataset: JoinedBoards) -> str:
    return "\n".join([_size(dataset), *(f"{title}: {_listed(counts)}" for title, counts in _tallies(dataset) if counts)])


def _phase_counts(dataset: JoinedBoards, phase: str, cells: Mapping[str, Mapping[str, int]]) -> list[int]:
    return [dataset.natural_phases[phase], dataset.phases[phase], *(cells[phase][split] for split in Split)]


def _size(dataset: JoinedBoards) -> str:
    return (
        f"{dataset.rows:,} boards from {dataset.used_games:,} of {dataset.games:,} usable games and listed positions;"
        f" {sum(dataset.rejected.values()):,} games were rejected, {dataset.duplicates:,} repeated positions were left out."
    )


def _tallies(dataset: JoinedBoards) -> list[tuple[str, Mapping[str, int]]]:
    return [
        ("Splits", {split.value: dataset.splits.get(split, 0) for split in Split}),
        ("Boards from", {_SOURCES.get(name, name): count for name, count in dataset.sources.items()}),
        ("Labeled with", {_LABELS.get(name, name): count for name, count in dataset.labels.items()}),
        ("Wanted but missing", dataset.missing),
        ("Games rejected", dataset.rejected),
        ("Positions left out", dataset.left_out),
    ]


def _listed(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name if len(name) <= _MAX_NAME else f'{name[: _MAX_NAME - 1]}…'} {count:,}" for name, count in ordered[:_MAX_LISTED]]
    others = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {others:,} more" if others else "")


def _escaped(text: str) -> str:
    # Quotes stay, because their escape `&#x27;` has a "#", which the next line would escape again.
    text = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"&#{ord(character)};" if character in _MARKDOWN_MARKS else character for character in text)

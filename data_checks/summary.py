"""Summary of a dataset and its checks, as Markdown for the tracker and as text, in which names of files are escaped; its distributions."""

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_checks.report import DatasetReport
from grpo.board.phases import PHASES
from grpo.dataset.table import Split

_MAX_LISTED: Final = 12
"""Largest number of listed names: there may be thousands of sources, and a tracker note has at most 5,000 characters."""
_MAX_NAME: Final = 80
_MARKDOWN_MARKS: Final = "\\`*_{}[]()#+!|~$"
_SOURCES: Final = {"engine": "Stockfish's games"}
_LABELS: Final = {"game": "the move played", "engine": "Stockfish's best move"}


def distributions(boards: pa.Table, games: pa.Table) -> dict[str, Any]:
    """Return what is in the boards, as plain data.

    `cells` is phase -> split -> number of boards. `values` (of all legal moves, in [0, 1]), `legal_moves` and `plies` are histograms by
    phase, `ratings` (only if there are some) by the player's colour: `counts` has for each of the `classes` a number for each bin of
    `width` from `low` on.
    """
    phases, splits = np.array(boards["phase"].to_pylist()), boards["split"].to_pylist()
    counted = Counter(zip(phases.tolist(), splits, strict=True))
    sizes = np.array([len(moves) for moves in boards["moves"].to_pylist()])
    values = np.concatenate([np.asarray(each) for each in boards["values"].to_pylist()])
    found = {
        "cells": {phase.value: {split.value: counted[phase, split] for split in Split} for phase in PHASES},
        # The last bin has 1, too.
        "values": _histogram(np.minimum(values, 0.999), np.repeat(phases, sizes), PHASES, 0.05),
        "legal_moves": _histogram(sizes, phases, PHASES, 4),
        "plies": _histogram(boards["ply"].to_numpy(), phases, PHASES, 10),
    }
    rated = [(colour, rating) for colour in ("white", "black") for rating in games[f"{colour}_rating"].to_pylist() if rating is not None]
    if rated:
        colours, ratings = map(np.array, zip(*rated, strict=True))
        found["ratings"] = _histogram(ratings, colours, ("white", "black"), 100)
    return found


def _histogram(numbers: NDArray[Any], classes: NDArray[Any], names: Sequence[str], width: float) -> dict[str, Any]:
    bins = np.floor(numbers / width + 1e-6).astype(np.int64)
    low, size = int(bins.min()), int(np.ptp(bins)) + 1
    counts = [np.bincount(bins[classes == name] - low, minlength=size).tolist() for name in names]
    return {"low": low * width, "width": width, "classes": list(names), "counts": counts}


def summary_markdown(report: DatasetReport, facts: Mapping[str, Any], cells: Mapping[str, Mapping[str, int]]) -> str:
    """Return verdict and counts as Markdown in at most about 5,000 characters; `cells` are those of `distributions`."""
    lines = [
        f"**{_plain(report.verdict[:1].upper() + report.verdict[1:])}.** {_size(facts)}",
        "",
        f"| phase | found | used | {' | '.join(Split)} |",
        "| --- | ---: | ---: |" + " ---: |" * len(Split),
        *(_row(phase, facts["natural_phases"][phase], facts["phases"][phase], *cells[phase].values()) for phase in PHASES),
        "",
        # The table has the splits.
        *(f"- {title}: {_plain(_listed(counts))}" for title, counts in _countings(facts)[1:] if counts),
    ]
    return "\n".join(lines) + "\n"


def summary_text(facts: Mapping[str, Any]) -> str:
    """Return the counts as plain text."""
    return "\n".join([_size(facts), *(f"{title}: {_listed(counts)}" for title, counts in _countings(facts) if counts)])


def _row(name: str, *counts: int) -> str:
    return f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |"


def _size(facts: Mapping[str, Any]) -> str:
    return (
        f"{facts['rows']:,} boards from {facts['used_games']:,} games and listed positions, of {facts['games']:,} usable ones;"
        f" {sum(facts['rejected'].values()):,} were rejected, {facts['duplicates']:,} repeated positions were left out."
    )


def _countings(facts: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return [
        ("Splits", {split.value: facts["splits"].get(split, 0) for split in Split}),
        ("Boards from", {_SOURCES.get(name, name): count for name, count in facts["sources"].items()}),
        ("Labelled with", {_LABELS.get(name, name): count for name, count in facts["labels"].items()}),
        ("Missing, of those wanted", facts["missing"]),
        ("Games rejected", facts["rejected"]),
        ("Positions left out", facts["left_out"]),
    ]


def _listed(counts: Mapping[str, int]) -> str:
    """Return the most frequent names (ties by name) with counts, and the number of other names."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name if len(name) <= _MAX_NAME else f'{name[: _MAX_NAME - 1]}…'} {count:,}" for name, count in ordered[:_MAX_LISTED]]
    others = len(ordered) - len(shown)
    return ", ".join(shown) + (f" and {others:,} more" if others else "")


def _plain(text: str) -> str:
    """Return the text on one line, escaped for Markdown."""
    text = html.escape(" ".join(text.split()), quote=False)  # The number of an escaped quote would be escaped again.
    return "".join(f"&#{ord(character)};" if character in _MARKDOWN_MARKS else character for character in text)

"""Reads histories of other trainers and of the field notes: wide tables, CSV or JSON lines, and summary statistics."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError
from grpo.diagnosis.history import Evaluation, History, Sample, Series, Summary
from grpo.diagnosis.quantities import is_finite, is_language_model_column, quantity_of
from grpo.settings.metrics import METRICS

_STEPS: Final = ("step", "global_step", "train/global_step", "training/global_step")
_WINDOW: Final = ("step_from", "step_to")
_STATISTICS: Final = ("mean", "min", "max", "first", "last")

Table = list[dict[str, str]]


class HistoryError(PlainError, ValueError):
    """A file is not a history; the message says which, where and why."""


def read_run_history(paths: Sequence[Path], *, evals: Path | None = None) -> History:
    """Return the history of one run from its files.

    Args:
        paths: Tables of the same run; columns may differ, overlap and have empty cells.
        evals: A table of step, score and number of games, if there is one.

    Raises HistoryError if a file is not a table, or contains nothing to diagnose.
    """
    history = History()
    for path in paths:
        history = history.joined(_history(path))
    if evals is not None:
        history = history.joined(History(evaluations=_evaluations(evals, _table(evals))))
    if history.is_empty:
        found = ", ".join(history.unused) or "none"
        raise HistoryError(
            f"{', '.join(map(str, paths))}: no column holds anything to diagnose (found: {found}); expected are columns such as entropy,"
            " kl, clip_fraction, reward and loss"
        )
    return history


def _history(path: Path) -> History:
    table = _table(path)
    names = list(table[0])
    if "metric" in names:
        return _statistics(path, table)
    start, end = _WINDOW if _WINDOW[0] in names else [next((name for name in _STEPS if name in names), "")] * 2
    if not start:
        raise HistoryError(f"{path}: no column is the step (looked for {', '.join(_STEPS)}; found {', '.join(names)})")
    history = History(
        is_ours=any(name in METRICS for name in names),
        is_of_language_model=any(map(is_language_model_column, names)),
        evaluations=_evaluations(path, table) if "score" in names else (),
    )
    for name in names:
        quantity = quantity_of(name)
        if name == "weights":
            history.weights = tuple((_number(path, row, start), row[name]) for row in table if row[name])
        elif quantity is None:
            history.unused += () if name in (*_STEPS, *_WINDOW, "score", "games") else (name,)
        elif quantity not in history.series:
            rows = [Sample(_number(path, row, start), _number(path, row, name), _number(path, row, end)) for row in table if row[name]]
            finite = sorted((row for row in rows if is_finite(row.value)), key=lambda row: row.step)
            if finite:
                history.series[quantity] = Series(name, finite)
            if len(finite) < len(rows):
                history.not_finite[name] = tuple(row.step for row in rows if not is_finite(row.value))
    return history


def _table(path: Path) -> Table:
    """Return the rows of a file as text, each with all columns; an empty cell was not recorded."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("{"):
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
            names = list(dict.fromkeys(name for row in found for name in row))
            rows = [["" if row.get(name) is None else str(row[name]) for name in names] for row in found]
        else:
            names, *rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(text, newline="")) if row] or [[]]
    except (OSError, ValueError, AttributeError, csv.Error) as error:
        raise HistoryError(f"{path}: is neither CSV nor JSON lines of one row a step ({error})") from None
    if len(names) < 2 or len(set(names)) < len(names) or not rows or any(len(row) != len(names) for row in rows):
        raise HistoryError(f"{path}: is no table of one row a step, with a line of two or more different names and a value below each")
    return [dict(zip(names, row, strict=True)) for row in rows]


def _number(path: Path, row: dict[str, str], name: str) -> float:
    try:
        return float(row[name])
    except ValueError:
        raise HistoryError(f"{path}: column {name}: {row[name]!r} is not a number") from None


def _statistics(path: Path, table: Table) -> History:
    """Read a table of summary statistics with one row per metric."""
    history = History()
    for row in table:
        quantity = quantity_of(row["metric"])
        if quantity is None:
            history.unused += (row["metric"],)
            continue
        mean, low, high, first, last = (_number(path, row, name) if row.get(name) else None for name in _STATISTICS)
        history.summaries[quantity] = Summary(column=row["metric"], mean=mean, low=low, high=high, first=first, last=last)
    return history


def _evaluations(path: Path, table: Table) -> tuple[Evaluation, ...]:
    """Return the evaluations by games in a table of step, score and games."""
    if not {"step", "score", "games"} <= table[0].keys():
        raise HistoryError(f"{path}: evaluations need columns step, score and games; found {', '.join(table[0])}")
    looks = [
        Evaluation(step=_number(path, row, "step"), score=_number(path, row, "score"), games=_number(path, row, "games")) for row in table
    ]
    if not all(0 <= look.score <= 1 and math.isfinite(look.step) for look in looks):
        raise HistoryError(f"{path}: a score is not between 0 and 1; it is the mean over games, in which a win is 1 and a draw 0.5")
    return tuple(sorted(looks, key=lambda look: look.step))


def columns_text(history: History) -> str:
    """Return a text with the columns that were used and those that were not."""
    used = {series.column for series in history.series.values()} | {summary.column for summary in history.summaries.values()}
    used |= history.not_finite.keys()
    unused = [name for name in history.unused if name not in used]
    return f"columns used: {', '.join(sorted(used)) or 'none'}; not used: {', '.join(unused) or 'none'}"

"""Reads histories from CSV files: one row per step, windows of steps, summary statistics, or one row per value.

It reads the tables of the field notes (several per run), and the exports of W&B (`run - metric` columns, or `_step`), MLflow (`run_id, key,
value, step, timestamp`) and TensorBoard.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

from grpo.base.errors import PlainError
from grpo.diagnosis.history import Evaluation, History, Sample, Series, Summary
from grpo.diagnosis.quantities import (
    FRACTIONS,
    FROM_NAMES,
    GAMES_NAMES,
    LOGGED_NAMES,
    SCORE_NAMES,
    STEP_NAMES,
    TO_NAMES,
    is_environment_column,
    is_finite,
    is_language_model_column,
    is_negative_entropy,
    names_weights,
    plain_name,
    preference,
    quantity_of,
)
from grpo.metrics.table import METRICS

_KEY_NAMES: Final = ("key", "metric", "metric_name", "name")
_RUN_NAMES: Final = ("run_id", "run_uuid", "run", "run_name")
_STATISTICS: Final = ("mean", "min", "max", "first", "last")
_MAX_BYTES: Final = 512 * 2**20
_NON_FINITE: Final = frozenset({"nan", "+nan", "-nan", "inf", "+inf", "-inf", "infinity", "-infinity"})
_DELIMITERS: Final = (",", ";", "\t")
_DENSE: Final = 0.8
"""A column with at least this fraction of finite values between its first and last one was recorded at every row, so its NaNs count."""
_A_FEW: Final = 5
_EMPTY: Final = frozenset({"none", "null", "n/a", "na", "-"})
_WATCHED: Final = re.compile(r"loss|grad")
"""Columns without a rule in which NaN or infinity is still reported."""

Table = list[dict[str, str]]


class HistoryError(PlainError, ValueError):
    """A file is not a history; the message says which, where, why, and what is expected."""


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
        table, names = _table(evals)
        history = history.joined(History(evaluations=_evaluations(evals, table, names, is_history=False)))
        if not history.evaluations:
            raise HistoryError(f"{evals}: no row has both a step and a score (columns: {', '.join(names)})")
    if history.is_empty:
        found = ", ".join(history.unused) or "none"
        raise HistoryError(
            f"{', '.join(map(str, paths))}: no column holds anything to diagnose (found: {found}); expected are columns such as entropy,"
            " kl, clip_fraction, reward, loss and its terms (docs/diagnosis.md lists all names)"
        )
    return history


def _history(path: Path) -> History:
    table, names = _table(path)
    plain = {plain_name(name): name for name in names}
    if "metric" in plain and "step" not in plain and any(each in plain for each in _STATISTICS):
        return _statistics(path, table, plain)
    key = next((plain[name] for name in _KEY_NAMES if name in plain), None)
    if key is not None and "value" in plain:
        return _long(path, table, plain, key)
    if plain.keys() <= {"wall_time", "step", "value"} and "value" in plain:  # TensorBoard: the file's name has the quantity.
        name = path.stem.rpartition("tag-")[2]
        quantity = next((known for known in (name, name.rpartition("_")[2], name.partition("_")[2]) if quantity_of(known)), name)
        return _wide(path, [{"step": row[plain["step"]], quantity: row[plain["value"]]} for row in table], ["step", quantity])
    return _wide(path, table, names)


def _table(path: Path) -> tuple[Table, list[str]]:
    if not path.is_file():
        raise HistoryError(f"{path}: {'is a folder' if path.is_dir() else 'there is no such file'}; give a CSV file with one row a step")
    if path.stat().st_size > _MAX_BYTES:
        raise HistoryError(f"{path}: {path.stat().st_size:,} bytes are more than a history has; export fewer columns or every tenth step")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read()
        if text.lstrip().startswith(("{", "[")):
            return _logged(path, text)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(_DELIMITERS, key=text.partition("\n")[0].count))
        names = [name.strip() for name in next(reader, [])]
        rows = [[cell.strip() for cell in row] for row in reader if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise HistoryError(f"{path}: is not CSV text in UTF-8 ({error})") from None
    if len(names) < 2:
        raise HistoryError(f"{path}: its first line names {len(names)} columns; a history has a line of names, a step, and a value or more")
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise HistoryError(f"{path}: two columns are called {', '.join(twice)}; rename one")
    if len(rows) > 1 and len(rows[-1]) < len(names) and not text.endswith("\n"):
        rows.pop()  # A run that was killed, or is still writing, has torn its last row.
    rows = [row for row in rows if row != names]  # A run that was started again has written its names again.
    if not rows:
        raise HistoryError(f"{path}: has names of columns and no row below them")
    for number, row in enumerate(rows, start=2):
        if len(row) > len(names):
            raise HistoryError(f"{path}: row {number} has {len(row)} cells and the first line {len(names)} names")
    return [dict(zip(names, row + [""] * (len(names) - len(row)), strict=True)) for row in rows], names


def _logged(path: Path, text: str) -> tuple[Table, list[str]]:
    """Return the rows of `log_history` in a `trainer_state.json` of the Hugging Face Trainer, and the names of their columns."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        state = None
    rows = state.get("log_history") if isinstance(state, dict) else None
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise HistoryError(
            f"{path}: looks like JSON, and is not a `trainer_state.json` with rows in `log_history`; give that, a CSV file with one row a"
            " step, or the run's id where it is one of ours"
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: "" if row.get(name) is None else str(row[name]) for name in names} for row in rows], names


def _wide(path: Path, table: Table, names: Sequence[str]) -> History:
    by_plain = {plain_name(name): name for name in reversed(names)}
    start = next((by_plain[name] for name in FROM_NAMES if name in by_plain), None)
    end = next((by_plain[name] for name in TO_NAMES if name in by_plain), None)
    step = start or _step_column(path, names)
    known = [name for name in names if quantity_of(name) is not None or name == step]
    named, given = _with_steps([row for row in table if any(_cell(row[name]) for name in known)], names, step)
    table = [*_without_replaced_rows(path, named, step), *given]
    history, unused, taken = History(is_of_environment=any(map(is_environment_column, names))), [], dict[str, str]()
    steps = _steps(path, table, step)
    ends = _steps(path, table, end) if end is not None else steps
    columns = {name: column for name in names if name not in (step, start, end) and (column := _exported(path, name, taken)) is not None}
    for name, column in sorted(columns.items(), key=lambda each: preference(each[1])):
        quantity = quantity_of(column)
        if quantity is None and _has_text(table, name):
            history.notes[name] = tuple((at, row[name]) for at, row in zip(steps, table, strict=True) if row[name])
        elif quantity is None:
            unused += [] if column.lower() in (*SCORE_NAMES, *GAMES_NAMES) else [name]
            if _WATCHED.search(column.lower()):
                history.not_finite |= _named(column, _column(path, table, name, steps, ends)[1])
        elif quantity not in history.series:
            rows, bad = _column(path, table, name, steps, ends)
            history.not_finite |= _named(column, bad)
            if rows and not _is_setting(path, column, quantity, rows):
                history.series[quantity] = _series(column, rows, is_of_environment=history.is_of_environment)
    history.is_ours = any(column in METRICS for column in columns.values())
    history.is_of_language_model = any(map(is_language_model_column, columns.values()))
    history.begins_untrained = plain_name(step) == step.lower() and not taken
    history.unused = tuple(unused)
    history.evaluations = _evaluations(path, table, names, is_history=True)
    return history


def _step_column(path: Path, names: Sequence[str]) -> str:
    by_plain = {plain_name(name): name for name in reversed(names) if name.strip().lower() not in LOGGED_NAMES}
    found = next((by_plain[name] for name in STEP_NAMES if name in by_plain), None)
    found = found or next((name for name in names if name.strip().lower() in LOGGED_NAMES or not name), None)
    if found is None:
        raise HistoryError(f"{path}: no column is the step (looked for {', '.join(STEP_NAMES)}; found {', '.join(names)})")
    return found


def _with_steps(table: Table, names: Sequence[str], step: str) -> tuple[Table, Table]:
    """Return the rows that name their step, and those that got one.

    W&B logs evaluations in rows of their own. Their step stands in another section's column (`eval/global_step`), or is the last one that
    training had logged before, where `_step` counts all rows.
    """
    others = [name for name in names if name != step and name.rpartition("/")[2] == step.rpartition("/")[2]]
    is_counted = any(name.lower() in LOGGED_NAMES and all(_cell(row[name]) for row in table) for name in names)
    named: Table = []
    given: Table = []
    latest = "0" if is_counted else ""
    for row in table:
        if _cell(row[step]):
            named.append(row)
            latest = row[step] if is_counted else ""
        else:
            found = next((row[name] for name in others if _cell(row[name])), latest)
            (given if found else named).append(row | {step: found})
    return named, given


def _without_replaced_rows(path: Path, table: Table, step: str) -> Table:
    """Return the rows without those that a run, resumed from an earlier step, logged again later."""
    rows: Table = []
    for row, at in zip(table, _steps(path, table, step), strict=True):
        if rows and float(rows[-1][step]) > at:
            rows = [earlier for earlier in rows if float(earlier[step]) < at]
        rows.append(row)
    return rows


def _has_text(table: Table, name: str) -> bool:
    return any(_cell(row[name]) and _number(row[name]) is None for row in table)


def _is_setting(path: Path, column: str, quantity: str, rows: Sequence[Sample]) -> bool:
    """Return whether a column is a constant setting under a measurement's name, such as the bound of a clip."""
    if quantity in FRACTIONS and max(row.value for row in rows) > 1 + 1e-6:
        most = max(row.value for row in rows)
        raise HistoryError(f"{path}: column {column}: {most:g} is not between 0 and 1; if it is in percent, divide by 100")
    return quantity == "clip_fraction" and len(rows) >= _A_FEW and len({row.value for row in rows}) == 1 and rows[0].value > 0


def _series(column: str, rows: Sequence[Sample], *, is_of_environment: bool) -> Series:
    """Return the series of a column, with the sign of its quantity."""
    if not is_negative_entropy(column, rows[0].value, is_of_environment=is_of_environment):
        return Series(column, rows)
    return Series(f"-{column}", [Sample(row.step, -row.value, row.end) for row in rows])


def _named(column: str, steps: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    return {column: steps} if steps else {}


def _exported(path: Path, name: str, taken: dict[str, str]) -> str | None:
    """Return the metric's name in a column of W&B's export (`run - metric`); None for the redundant `__MIN` and `__MAX` columns."""
    run, dash, column = name.rpartition(" - ")
    if not dash:
        return name
    if column.endswith(("__MIN", "__MAX")):
        return None
    if taken.setdefault(column, run) != run:
        raise HistoryError(f"{path}: holds {column} of two runs, {taken[column]!r} and {run!r}; a diagnosis is of one: export one run")
    return column


def _column(path: Path, table: Table, name: str, steps: Sequence[float], ends: Sequence[float]) -> tuple[list[Sample], tuple[float, ...]]:
    """Return a column's finite values, and the steps of NaN or infinite values."""
    rows, recorded = [], []
    for number, (row, step, end) in enumerate(zip(table, steps, ends, strict=True), start=2):
        cell = _cell(row[name])
        if not cell:
            continue
        value = _number(cell)
        if value is None:
            _refuse_cell(path, number, name, cell)
        recorded.append((step, value))
        if is_finite(value):
            rows.append(Sample(step, value, end))
    rows.sort(key=lambda row: row.step)
    return rows, _not_finite(recorded)


def _not_finite(recorded: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    """Return the steps at which a column really was NaN or infinite.

    Programs also write nan where nothing was recorded: before a column begins, and between the rows of a column that is logged at
    intervals. NaNs after the last finite value that last longer than such a gap count.
    """
    finite = [index for index, (_, value) in enumerate(recorded) if is_finite(value)]
    bad = [index for index, (_, value) in enumerate(recorded) if not is_finite(value) and not math.isnan(value)]
    if not finite:
        return tuple(step for step, _ in recorded)
    gap = max((later - earlier - 1 for earlier, later in pairwise(finite)), default=0)
    if len(finite) >= _DENSE * (finite[-1] - finite[0] + 1):
        bad += [index for index in range(finite[0], finite[-1]) if math.isnan(recorded[index][1])]
        gap = 0
    if len(recorded) - 1 - finite[-1] > 2 * gap:
        bad += [index for index in range(finite[-1] + 1, len(recorded)) if math.isnan(recorded[index][1])]
    return tuple(recorded[index][0] for index in sorted(set(bad)))


def _steps(path: Path, table: Table, name: str) -> list[float]:
    steps = []
    for number, row in enumerate(table, start=2):
        step = _number(row[name]) if _cell(row[name]) else None
        if step is None or not is_finite(step):
            _refuse_cell(path, number, name, row[name])
        steps.append(step)
    return steps


def _long(path: Path, table: Table, plain: Mapping[str, str], key: str) -> History:
    """Read a table with one row per value."""
    run = next((plain[name] for name in _RUN_NAMES if name in plain), None)
    runs = sorted({row[run] for row in table}) if run is not None else []
    if len(runs) > 1:
        raise HistoryError(f"{path}: holds {len(runs)} runs ({', '.join(runs[:3])}, ...); a diagnosis is of one: export one run")
    if "step" not in plain:
        raise HistoryError(f"{path}: has keys and values, and no column `step`; export it too")
    columns = list(dict.fromkeys(row[key] for row in table))
    unused = tuple(name for name in columns if quantity_of(name) is None)
    history = History(
        unused=unused,
        is_ours=any(name in METRICS for name in columns),
        is_of_language_model=any(map(is_language_model_column, columns)),
        is_of_environment=any(map(is_environment_column, columns)),
    )
    for name in sorted(columns, key=preference):
        quantity = quantity_of(name)
        part = [row for row in table if row[key] == name]
        steps = _steps(path, part, plain["step"])
        if quantity is None or quantity in history.series:
            continue
        rows, bad = _column(path, part, plain["value"], steps, steps)
        history.not_finite |= _named(name, bad)
        if rows:
            history.series[quantity] = _series(name, rows, is_of_environment=history.is_of_environment)
    return history


def _statistics(path: Path, table: Table, plain: Mapping[str, str]) -> History:
    """Read a table of summary statistics with one row per metric."""
    summaries, unused = {}, []
    for number, row in enumerate(table, start=2):
        column = row[plain["metric"]]
        quantity = quantity_of(column)
        if quantity is None:
            unused.append(column)
            continue
        values = {}
        for name in _STATISTICS:
            cell = _cell(row[plain[name]]) if name in plain else ""
            value = _number(cell) if cell else None
            if cell and value is None:
                _refuse_cell(path, number, name, cell)
            values[name] = value if value is not None and is_finite(value) else None
        summaries[quantity] = Summary(
            column=column, mean=values["mean"], low=values["min"], high=values["max"], first=values["first"], last=values["last"]
        )
    return History(summaries=summaries, unused=tuple(unused))


def _evaluations(path: Path, table: Table, names: Sequence[str], *, is_history: bool) -> tuple[Evaluation, ...]:
    """Return the evaluations by games in a table; in a history, a score outside [0, 1] is another quantity and is ignored."""
    by_plain = {name.strip().lower().replace("/", "_"): name for name in reversed(names)}
    score = next((by_plain[name] for name in SCORE_NAMES if name in by_plain), None)
    games = next((by_plain[name] for name in GAMES_NAMES if name in by_plain), None)
    if score is None:
        return ()
    step = _step_column(path, names)
    found = []
    for number, row in enumerate(table, start=2):
        at, value = (_number(_cell(row[name])) if _cell(row[name]) else None for name in (step, score))
        if at is None or value is None or not is_finite(value):
            if _cell(row[score]) and value is None and not is_history:
                _refuse_cell(path, number, score, row[score])
            continue
        if not 0 <= value <= 1:
            if is_history:
                return ()
            raise HistoryError(
                f"{path}: row {number}: the score {row[score]} is not between 0 and 1; it is the mean over games, in which a win is 1 and a"
                " draw 0.5 (if it is in percent, divide by 100)"
            )
        count = _number(_cell(row[games])) if games is not None and _cell(row[games]) else None
        found.append(Evaluation(step=at, score=value, games=count if count is not None and count >= 1 else None))
    return tuple(sorted(found, key=lambda each: each.step))


def _cell(cell: str) -> str:
    """Return a cell's text; "" for the texts that mean an empty cell."""
    return "" if cell.lower() in _EMPTY else cell


def _number(cell: str) -> float | None:
    """Return a cell's number, including NaN and infinity; None if it is not a number."""
    if cell.lower() in _NON_FINITE:
        return float(cell)
    try:
        return float(cell.replace("_", "x"))  # Python reads 1_000 as a number; no exporter writes it.
    except ValueError:
        return None


def _refuse_cell(path: Path, number: int, name: str, cell: str) -> NoReturn:
    raise HistoryError(f"{path}: row {number}, column {name}: {cell!r} is not a number")


def columns_text(history: History) -> str:
    """Return a text with the columns that were used and those that were not."""
    read = {series.column for series in history.series.values()} | {summary.column for summary in history.summaries.values()}
    read |= history.not_finite.keys() | {name for name in history.notes if names_weights(name)}
    unused = [name for name in (*history.unused, *history.notes) if name not in read]
    used = f"columns used: {', '.join(sorted(read)) or 'none'}"
    return f"{used}; not used: {', '.join(unused)}" if unused else f"all {used}"

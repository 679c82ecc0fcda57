"""A run's history: quantities by step, from this trainer's records or from tables of any trainer."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Final, Self

import numpy as np

from grpo.diagnosis import dialects
from grpo.diagnosis.dialects import TABLES, Dialect, Meaning, meaning_of, plain
from grpo.diagnosis.tables import INFINITE, LARGEST, MISSING, NAN, HistoryError, Table, read_table
from grpo.diagnosis.trends import Array, Flags, median
from grpo.metrics.records import Record
from grpo.metrics.table import METRICS

# Evaluation columns, and columns of Hugging Face's last row.
_EVALUATION: Final = re.compile(r"(eval|val|valid\w*|test|held_?out)[-_/]|train_(runtime|loss|samples|steps)|total_flos")
_CHECKED_FOR_NAN: Final = frozenset(
    {"loss", "policy_loss", "kl_penalty", "entropy_bonus", "entropy", "kl", "kl_old", "clip_fraction", "reward", "gradient_norm"}
)
_DENSE: Final = 0.5  # A column with at least this fraction of finite cells counts as logged in every row.
_REGULAR: Final = 0.9  # A column with at least this fraction of equal gaps counts as logged at intervals.
_SAME: Final = 0.02  # Values with at most this relative difference count as equal.
_CLOCK: Final = 1e8  # Seconds since 1970.
_RESUMES: Final = 20  # Largest number of resumes; each appends rows that begin at an earlier step.
_Parts = Sequence[tuple[Array, Array]]
"""A column's steps and cells, one pair per table."""


class When(Flag):
    BEFORE = auto()  # The first rollout, before any update.
    DURING = auto()
    END = auto()  # The complete history.


@dataclass(slots=True)
class Series:
    """Finite values of one quantity, by step; never empty."""

    column: str
    at: list[float] | Array  # Steps, rising.
    logged: list[float] | Array
    unit: str = ""  # "": nats per move or token, or no unit.

    @property
    def steps(self) -> Array:
        return np.asarray(self.at, dtype=float)

    @property
    def values(self) -> Array:
        return np.asarray(self.logged, dtype=float)

    def __len__(self) -> int:
        return len(self.at)

    def from_to(self) -> str:
        return f"{self.column} from {self.logged[0]:.3g} (step {self.at[0]:,.0f}) to {self.logged[-1]:.3g} (step {self.at[-1]:,.0f})"

    def first_step(self, holds: Flags) -> float:
        """Return the first step at which a condition holds, else the last step."""
        return float(self.at[int(np.argmax(holds)) if holds.any() else -1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Games of one checkpoint. The score is the mean of 1 (win), 0.5 (draw) and 0 (loss)."""

    step: float
    score: float
    games: float


@dataclass(slots=True, kw_only=True)
class History:
    when: When = When.END
    dialect: Dialect = dialects.DIALECTS[0]  # This trainer.
    is_of_language_model: bool = False  # Entropies are over tokens or answers, not over moves.
    is_of_windows: bool = False  # A row is the mean of many steps.
    limits: Mapping[str, float] = field(default_factory=dict)  # Settings that checks need: `critical_entropy`.
    series: dict[str, Series] = field(default_factory=dict)  # By quantity.
    not_finite: dict[str, list[float]] = field(default_factory=dict)  # Column -> steps with NaN or infinity.
    events: dict[str, list[float]] = field(default_factory=dict)  # Name of this trainer's event -> steps.
    evaluations: tuple[Evaluation, ...] = ()
    random_weights: str = ""  # Evidence that the run begins with random weights, or "".
    unused: dict[str, None] = field(default_factory=dict)  # Ordered set of columns that no check reads.
    notes: list[str] = field(default_factory=list)  # How the files were read.
    num_rows: int = 0

    @property
    def is_ours(self) -> bool:
        return self.dialect.name == dialects.OURS

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Self:
        history = cls()
        for record in records:
            history.add_record(record)
        return history

    def add_record(self, record: Record) -> None:
        for event in record.events:
            self.events.setdefault(event.name, []).append(record.step)
        self.add(record.step, dict(sorted(record.metrics.items())))  # Sorted, because `add` prefers the first column.

    def add(self, step: float, row: Mapping[str, float]) -> None:
        """Add a row, column -> value. Of several columns of one quantity, the first added counts."""
        self.num_rows += 1
        self.is_of_language_model = self.is_of_language_model or _is_of_language_model(row)
        for column, value in row.items():
            if (meaning := meaning_of(column, self.dialect)) is None:
                self.unused[column] = None
            elif not abs(value) <= LARGEST:  # True for NaN too.
                self.not_finite.setdefault(column, []).append(step)
            elif (series := self.series.setdefault(meaning.quantity, Series(column, [], [], meaning.unit))).column == column:
                assert isinstance(series.at, list)
                assert isinstance(series.logged, list)
                series.at.append(step)
                series.logged.append(meaning.sign * value)

    @classmethod
    def of_tables(cls, tables: Sequence[Table]) -> Self:
        """Changes the tables. Raises HistoryError for tables of several runs."""
        tables = [part for table in tables for part in _in_wide_form(_of_training(table))]
        columns = [column for table in tables for column in (*table.numbers, *table.texts)]
        history = cls(dialect=dialects.DIALECTS[0] if METRICS.keys() & set(columns) else dialects.dialect_of(columns))
        history.is_of_language_model = history.dialect.entropy_of == "tokens" or _is_of_language_model(columns)
        parts: dict[str, list[tuple[Array, Array]]] = {}
        for table in tables:
            steps = history._steps(table)
            history._add_other_columns(table, steps)  # Events need rows in the file's order.
            if len(steps) > 2 and float((np.diff(steps) < 0).mean()) > 0.5:  # The newest row comes first.
                steps, table.numbers = steps[::-1], {name: cells[::-1] for name, cells in table.numbers.items()}
            history.num_rows = max(history.num_rows, table.num_rows)
            _mark_missing(table, history.dialect)
            for column, cells in table.numbers.items():
                parts.setdefault(column, []).append((steps, cells))
        known = {column: meaning for column in parts if (meaning := meaning_of(column, history.dialect)) is not None}
        history.unused |= {column: None for column in parts if column not in known and plain(column) not in TABLES["no_quantity"]}
        history._check_order({column: parts[column] for column in known})
        # The dialect's own columns come first, because a quantity's first column counts.
        for column, meaning in sorted(known.items(), key=lambda item: (history.dialect.meaning(item[0]) is None, item[1].rank)):
            history._add_column(column, meaning, parts[column])
        return history

    def _steps(self, table: Table) -> Array:
        """Remove the columns of steps, and return each row's step."""
        candidates = {name: table.numbers.pop(name) for name in dialects.step_columns([*table.numbers], self.dialect)}
        candidates = {name: cells for name, cells in candidates.items() if np.isfinite(cells).any()}
        if not candidates:
            self.notes.append(f"{table.path.name}: no column is known to be the step, so rows are counted from 1")
            return np.arange(1.0, table.num_rows + 1)
        shares = {name: float(np.isfinite(cells).mean()) for name, cells in candidates.items()}
        name = next((name for name in candidates if shares[name] >= 0.5), max(candidates, key=lambda name: shares[name]))
        steps, others = candidates[name], []
        for other, cells in candidates.items():
            finite = np.isfinite(steps) & np.isfinite(cells)
            if finite.any() and np.array_equal(steps[finite], cells[finite]):
                steps = np.where(np.isfinite(steps), steps, cells)
            else:
                others.append(other)
        if others:
            self.notes.append(f"{table.path.name}: the step is {name}, and not {', '.join(others)}")
        # A row without a step takes the last step above, or the next below if the first row has none.
        way = 1 if np.isfinite(steps[0]) else -1
        finite, steps = np.isfinite(steps[::way]), steps[::way]
        rows = np.maximum.accumulate(np.where(finite, np.arange(len(finite)), -1))
        return steps[np.where(rows < 0, int(np.argmax(finite)), rows)][::way]

    def _add_other_columns(self, table: Table, steps: Array) -> None:
        for row, name in table.events:
            self.events.setdefault(name, []).append(float(steps[row]))
        numbers = {plain(name): cells for name, cells in table.numbers.items()}
        self.is_of_windows |= "step_from" in numbers
        if "score" in numbers and "games" in numbers:
            rows = zip(steps, numbers["score"], numbers["games"], strict=True)
            valid = [row for row in rows if 0 <= row[1] <= 1 and 0 < row[2] < LARGEST]
            evaluations = [Evaluation(step=step, score=score, games=games) for step, score, games in valid]
            self.evaluations = tuple(sorted((*self.evaluations, *evaluations), key=lambda evaluation: evaluation.step))
        for name, cells in table.texts.items():
            at = next((row for row, cell in enumerate(cells) if cell.lower() in ("random", "untrained", "random weights")), None)
            if "weights" in plain(name) and at is not None:
                self.random_weights = f"{name} says {cells[at]} at step {steps[at]:,.0f}"
            else:
                self.unused[name] = None

    def _check_order(self, parts: Mapping[str, _Parts]) -> None:
        """Note steps with several values, in the column with most such steps."""
        duplicates = [(column, *_duplicates(parts[column])) for column in parts]
        column, steps, reason = max(duplicates, key=lambda item: len(item[1]), default=("", np.empty(0), ""))
        if reason:
            fact = f"{reason} ({column} at step {steps[0]:,.0f} has different values)"
            raise HistoryError(f"several runs in one table: {fact}; give the rows of one run, one per step")
        if len(steps):
            seen = f"{len(steps):,} steps are logged twice ({steps[0]:,.0f} to {steps[-1]:,.0f})"
            self.notes.append(f"{seen}, as after a resume: the later row counts")

    def _add_column(self, column: str, meaning: Meaning, parts: _Parts) -> None:
        steps, cells = _latest(parts)
        finite, quantity = np.isfinite(cells), meaning.quantity
        if quantity in _CHECKED_FOR_NAN and (bad := _not_finite(cells)).any():
            self.not_finite.setdefault(column, steps[bad].tolist())
        if not finite.any() or quantity in self.series:
            return
        values, problem = meaning.sign * cells[finite], ""
        # Some trainers log minus the entropy under the same column name.
        if quantity == "entropy" and meaning.sign > 0 and dialects.is_ambiguous(column) and (values <= 0).all() and values.any():
            values = -values
        if quantity in TABLES["fractions"] and 1 + 1e-6 < values.max() <= 100:
            self.notes.append(f"{column} is read as percent: its values go up to {values.max():.3g}")
            values = values / 100
        elif quantity in TABLES["fractions"] and values.max() > 100:
            problem = f"no fraction (values up to {values.max():.3g})"
        if quantity == "clip_fraction" and len(values) >= 5 and values[0] > 0 and (values == values[0]).all():
            problem = "the same number in all rows, as a setting is"
        if problem:
            self.notes.append(f"{column} is {problem}, so it is not read")
        else:
            self.series[quantity] = Series(column, steps[finite], values, meaning.unit)

    def blocks(self, series: Series) -> Array:
        """Return first step, last step and median of each block of `size` successive rows, [blocks, 3].

        If the last rows of a complete history fill no block, one more block ends with the last row and overlaps the block before.
        """
        number, steps, values = len(series), series.steps, series.values
        size = 1 if self.when == When.BEFORE else 10 if self.is_ours else min(10, max(1, number // 5))
        end = number // size * size
        blocks = np.stack([steps[:end:size], steps[size - 1 : end : size], np.median(values[:end].reshape(-1, size), axis=1)], axis=1)
        if end < number and len(blocks) and self.when == When.END:
            blocks = np.vstack([blocks, [steps[number - size], steps[-1], median(values[-size:])]])
        return blocks

    def levels(self, quantity: str) -> tuple[float, float] | None:
        """Return the medians of the first and last block; None without a full block."""
        blocks = self.blocks(self.series[quantity]) if quantity in self.series else np.empty((0, 3))
        return (float(blocks[0, 2]), float(blocks[-1, 2])) if len(blocks) else None

    def together(self, *quantities: str) -> list[tuple[float, ...]]:
        """Return (step, value, value, ...) of each step with all quantities."""
        tables = [dict(zip(self.series[name].at, self.series[name].logged, strict=True)) for name in quantities if name in self.series]
        if len(tables) < len(quantities):
            return []
        return [(step, *(table[step] for table in tables)) for step in tables[0] if all(step in table for table in tables)]

    def columns_text(self) -> str:
        used = {series.column: name for name, series in self.series.items()}
        columns = [column if plain(column) == name else f"{column} ({name})" for column, name in sorted(used.items())]
        columns += sorted(self.not_finite.keys() - used.keys())
        unused = [f"{column}{self._hint(column)}" for column in self.unused]
        lines = [f"read as: {self.dialect.name}, {self.num_rows:,} rows", f"columns used: {', '.join(columns) or 'none'}"]
        return "\n".join([*lines, f"not used: {', '.join(unused) or 'none'}", *(f"note: {note}" for note in self.notes)])

    def _hint(self, unused: str) -> str:
        if meaning_of(unused, self.dialect) is not None:
            return " (no numbers)"
        near = dialects.nearest_column(unused)
        return f" (like {near}?)" if near else ""


def read_tables(paths: Sequence[Path]) -> History:
    """Return one run's history. If a step has several rows, the last row in the order of the files counts.

    Raises HistoryError for an unreadable file, and for tables of several runs.
    """
    return History.of_tables([read_table(path) for path in paths])


def _is_of_language_model(columns: Iterable[str]) -> bool:
    return any(word in column.lower() for column in columns for word in TABLES["of_language_models"])


def _of_training(table: Table) -> Table:
    for name in [name for name in (*table.numbers, *table.texts) if plain(name) in TABLES["runs"]]:
        cells = table.texts.pop(name, None) or [f"{cell:g}" for cell in table.numbers.pop(name)]
        runs = list(dict.fromkeys(cell for cell in cells if cell not in ("", "nan")))
        if 1 < len(runs) <= max(2, len(cells) / 3):  # More values do not name runs.
            raise HistoryError(f"{table.path}: holds several runs by its column {name}: {', '.join(runs[:5])}; give the rows of one")
    for name in [name for name in table.texts if plain(name) in TABLES["splits"]]:
        is_training = [cell.lower().startswith("train") for cell in table.texts[name]]
        table = table.taken(np.flatnonzero(is_training)) if any(is_training) else table
    for name in [name for name in table.numbers if plain(name) in TABLES["times"]]:
        times = table.numbers[name]
        # Smaller times count from a process's start.
        if np.isfinite(times).all() and times.min() >= _CLOCK and (np.diff(times) < 0).any():
            table = table.taken(np.argsort(times, kind="stable"))
    return table


def _in_wide_form(table: Table) -> Iterator[Table]:
    names = {plain(name): name for name in (*table.numbers, *table.texts)}
    key = next((name for name in table.texts if plain(name) in TABLES["keys"]), None)
    if key is not None and "value" in names:
        # MLflow stores NaN as 0.
        if (mark := names.get("is_nan")) is not None:
            is_nan = (
                table.numbers[mark] == 1
                if mark in table.numbers
                else np.array([cell.lower() in ("t", "true") for cell in table.texts[mark]])
            )
            table.numbers[names["value"]] = np.where(is_nan, NAN, table.numbers[names["value"]])
        cells, step = np.array(table.texts[key]), [("step", names[name]) for name in ("step", "global_step") if name in names][:1]
        for name in dict.fromkeys(table.texts[key]):
            yield Table(table.path, {new: table.numbers[old][cells == name] for new, old in (*step, (name, names["value"]))})
    elif key is not None and "first" in names and "step" not in names:  # `first`: a metric's value at step 0.
        firsts = zip(table.texts[key], table.numbers[names["first"]], strict=True)
        yield Table(table.path, {"step": np.zeros(1), **{name: np.array([first]) for name, first in firsts}})
    elif {"step", "value"} <= names.keys() <= {"step", "value", "wall time", "wall_time"}:
        tag = table.path.stem.rpartition("tag-")[2].lower()  # `run-a-tag-train_loss.csv`: TensorBoard writes underscores for slashes.
        known = {name.replace("/", "_"): name for dialect in reversed(dialects.DIALECTS) for name in dialect.names}
        yield Table(table.path, {"step": table.numbers[names["step"]], known.get(tag, tag): table.numbers[names["value"]]})
    else:
        yield _of_panel(table)


def _of_panel(table: Table) -> Table:
    """Rename columns `RUN - COLUMN` of a W&B chart to COLUMN, and drop minima and maxima."""
    exported = {name: name.rpartition(" - ") for name in table.numbers if " - " in name and not name.endswith(("__MIN", "__MAX"))}
    if len(runs := {run for run, _, _ in exported.values()}) > 1:
        raise HistoryError(f"{table.path}: holds several runs: {', '.join(sorted(runs)[:5])}; export the panel with one run")
    numbers = {exported[name][2] if name in exported else name: cells for name, cells in table.numbers.items()}
    if exported:
        numbers = {name: cells for name, cells in numbers.items() if not name.endswith(("__MIN", "__MAX"))}
    return Table(table.path, numbers, table.texts, table.events)


def _mark_missing(table: Table, dialect: Dialect) -> None:
    """Change NAN to MISSING in rows in which no training quantity has a number, such as evaluation rows."""
    meanings = {name: meaning_of(name, dialect) for name in table.numbers}
    known = {name for name, meaning in meanings.items() if meaning is not None and meaning.quantity in _CHECKED_FOR_NAN}
    others = [cells for name, cells in table.numbers.items() if _EVALUATION.match(plain(name)) and name not in known]
    if len(known) < 2 or not any((table.numbers[name] == NAN).any() for name in known):
        return
    is_training = np.any([np.isfinite(table.numbers[name]) for name in known], axis=0)
    # A run may end in NaN, so after the last number only rows with an evaluation's number change.
    last = len(is_training) - int(np.argmax(is_training[::-1])) if is_training.any() else 0
    is_other = (np.arange(len(is_training)) < last) | (np.any(np.isfinite(others), axis=0) if others else False)
    for name in known:
        table.numbers[name] = np.where(~is_training & is_other & (table.numbers[name] == NAN), MISSING, table.numbers[name])


def _latest(parts: _Parts) -> tuple[Array, Array]:
    """Return rising steps, and for each step the last cell that is not MISSING."""
    steps, cells = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    recorded = ~np.isnan(cells)  # MISSING is NaN.
    steps, cells = steps[recorded], cells[recorded]
    if not (np.diff(steps) > 0).all():
        order = np.argsort(steps, kind="stable")
        is_last = np.append(np.diff(steps[order]) > 0, True)
        steps, cells = steps[order][is_last], cells[order][is_last]
    return steps, cells


def _duplicates(parts: _Parts) -> tuple[Array, str]:
    """Return the steps with different values, and evidence of several runs, or "" without evidence."""
    steps, cells = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    recorded = np.isfinite(cells)
    steps, cells = steps[recorded], cells[recorded]
    order = np.argsort(steps, kind="stable")
    differs = ~np.isclose(cells[order][1:], cells[order][:-1], rtol=_SAME, atol=1e-12)
    duplicates = np.unique(steps[order][1:][(np.diff(steps[order]) == 0) & differs])
    if not len(duplicates):
        return duplicates, ""
    falls = np.flatnonzero(np.diff(steps) < 0) + 1
    if len(falls) and len(duplicates) > 1 and steps[falls].min() <= steps[: falls[0]].min():
        return duplicates, "steps begin again"
    is_mixed = len(duplicates) >= 5 and len(duplicates) > len(np.unique(steps)) / 2 and not 0 < len(falls) <= _RESUMES
    return duplicates, "most steps have several rows" if is_mixed or len(falls) > max(_RESUMES, len(steps) / 5) else ""


def _not_finite(cells: Array) -> Flags:
    """Return for each cell whether NaN or infinity was measured.

    Infinity always counts. Programs also write NaN if nothing was measured, so NaN counts only:

    - in a column without numbers
    - between numbers, if the column is logged in every row
    - after the last number, if the column is logged in every row, or if no number follows for two of the longest gaps between numbers
    """
    finite = np.flatnonzero(np.isfinite(cells))
    bad: Flags = cells == INFINITE
    is_nan: Flags = cells == NAN
    if not len(finite):
        return bad | is_nan
    gaps = np.diff(finite)
    is_regular = len(gaps) > 0 and median(gaps) > 1 and float((gaps == median(gaps)).mean()) >= _REGULAR
    is_dense = len(finite) >= _DENSE * (finite[-1] - finite[0] + 1) and not is_regular
    if is_dense:
        bad[finite[0] : finite[-1]] |= is_nan[finite[0] : finite[-1]]
    if len(cells) - 1 - finite[-1] >= (1 if is_dense else 2 * float(gaps.max(initial=1))):
        bad[finite[-1] :] |= is_nan[finite[-1] :]
    return bad

"""A run's history: quantities by step, from our own records or from the tables of other trainers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Final, Self

import numpy as np

from grpo.diagnosis.dialects import (
    DIALECTS,
    OURS,
    TABLES,
    Dialect,
    Meaning,
    dialect_of,
    is_ambiguous,
    meaning_of,
    nearest_column,
    plain,
    step_columns,
)
from grpo.diagnosis.tables import INFINITE, LARGEST, MISSING, NAN, HistoryError, Table, read_table
from grpo.diagnosis.trends import Array, Flags, median
from grpo.metrics.records import Record
from grpo.metrics.table import METRICS

_EVALUATION: Final = re.compile(r"(eval|val|valid\w*|test|held_?out)[-_/]|train_(runtime|loss|samples|steps)|total_flos")
_CHECKED_FOR_NAN: Final = frozenset(
    {"loss", "policy_loss", "kl_penalty", "entropy_bonus", "entropy", "kl", "kl_old", "clip_fraction", "reward", "gradient_norm"}
)
_DENSE, _REGULAR = 0.5, 0.9
"""A column is recorded in all rows where this fraction of the cells is finite; at an interval, where so many distances are equal."""
_SAME: Final = 0.02  # Relative difference of a value that was written twice.
_RESUMES: Final = 20  # Times that a log may have been appended to.
_Parts = Sequence[tuple[Array, Array]]
"""Steps and cells of a column, a pair a table."""


class When(Flag):
    """When a check is asked."""

    BEFORE = auto()
    """Of the first rollout, before any update."""
    DURING = auto()
    """After a step."""
    END = auto()
    """Of a whole history."""


@dataclass(slots=True)
class Series:
    """The finite values of one quantity by step; never empty."""

    column: str  # Name in the file.
    at: list[float] | Array  # Steps, rising.
    found: list[float] | Array  # Value at each step.
    unit: str = ""

    @property
    def steps(self) -> Array:
        """Steps as an array."""
        return np.asarray(self.at, dtype=float)

    @property
    def values(self) -> Array:
        """Values as an array."""
        return np.asarray(self.found, dtype=float)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.at)

    def way(self) -> str:
        """Return a text with the first and the last value."""
        return f"{self.column} from {self.found[0]:.3g} (step {self.at[0]:,.0f}) to {self.found[-1]:.3g} (step {self.at[-1]:,.0f})"

    def first_step(self, holds: Flags) -> float:
        """Return the first step where a condition holds; the last step if there is none."""
        return float(self.at[int(np.argmax(holds)) if holds.any() else -1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Games of one checkpoint; a win is 1, a draw 0.5."""

    step: float
    score: float
    games: float


@dataclass(slots=True, kw_only=True)
class History:
    """What was recorded of one run; grows during the run."""

    when: When = When.END
    dialect: Dialect = DIALECTS[0]
    """Names of the trainer that made it. In ours entropy and KL are exact, every step has a row, and its assertions held."""
    is_of_language_model: bool = False  # Whether entropies are over tokens or answers, which ln(legal moves) does not bound.
    is_of_windows: bool = False  # Whether a row is the mean of many steps.
    limits: Mapping[str, float] = field(default_factory=dict)  # Settings that checks compare with: `critical_entropy`.
    series: dict[str, Series] = field(default_factory=dict)  # By quantity.
    not_finite: dict[str, list[float]] = field(default_factory=dict)  # Column -> steps at which it was recorded as NaN or infinite.
    events: dict[str, list[float]] = field(default_factory=dict)  # Event of our trainer -> its steps.
    evaluations: tuple[Evaluation, ...] = ()
    random_weights: str = ""  # Words on a model that began with random weights.
    unused: dict[str, None] = field(default_factory=dict)  # Columns that no check reads, in their order.
    notes: list[str] = field(default_factory=list)  # What a reader should know of how the files were read.
    num_rows: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether our trainer made it."""
        return self.dialect.name == OURS

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Self:
        """Return the history of our own trainer's records."""
        history = cls()
        for record in records:
            history.add_record(record)
        return history

    def add_record(self, record: Record) -> None:
        """Add the next record of our own trainer."""
        for event in record.events:
            self.events.setdefault(event.name, []).append(record.step)
        self.add(record.step, dict(sorted(record.metrics.items())))  # As in a file, so that a resumed run finds the same.

    def add(self, step: float, row: Mapping[str, float]) -> None:
        """Add a row of columns; of two columns of one quantity the first that was seen counts."""
        self.num_rows += 1
        self.is_of_language_model = self.is_of_language_model or _is_of_language_model(row)
        for column, value in row.items():
            if (meaning := meaning_of(column, self.dialect)) is None:
                self.unused[column] = None
            elif not abs(value) <= LARGEST:
                self.not_finite.setdefault(column, []).append(step)
            elif (series := self.series.setdefault(meaning.quantity, Series(column, [], [], meaning.unit))).column == column:
                assert isinstance(series.at, list)
                assert isinstance(series.found, list)
                series.at.append(step)
                series.found.append(meaning.sign * value)

    @classmethod
    def of_tables(cls, tables: Sequence[Table]) -> Self:
        """Return the history of one run from its tables. Raises HistoryError for tables of several runs."""
        tables = [part for table in tables for part in _in_wide_form(_of_training(table))]
        columns = [column for table in tables for column in (*table.numbers, *table.texts)]
        history = cls(dialect=DIALECTS[0] if METRICS.keys() & set(columns) else dialect_of(columns))
        history.is_of_language_model = history.dialect.entropy_of == "tokens" or _is_of_language_model(columns)
        parts: dict[str, list[tuple[Array, Array]]] = {}
        for table in tables:
            steps = history._steps(table)
            if len(steps) > 2 and float((np.diff(steps) < 0).mean()) > 0.5:  # The newest row is the first.
                steps, table.numbers = steps[::-1], {name: cells[::-1] for name, cells in table.numbers.items()}
            history.num_rows = max(history.num_rows, table.num_rows)
            history._note(table, steps)
            _take_out_evaluations(table, history.dialect)
            for column, cells in table.numbers.items():
                parts.setdefault(column, []).append((steps, cells))
        known = {column: meaning for column in parts if (meaning := meaning_of(column, history.dialect)) is not None}
        history.unused |= {column: None for column in parts if column not in known and plain(column) not in TABLES["no_quantity"]}
        history._check_order({column: parts[column] for column in known})
        for column, meaning in sorted(known.items(), key=lambda item: (history.dialect.meaning(item[0]) is None, item[1].rank)):
            history._add_column(column, meaning, parts[column])
        return history

    def _steps(self, table: Table) -> Array:
        """Return the step of each row, and take out the columns that are steps."""
        found = {name: table.numbers.pop(name) for name in step_columns([*table.numbers], self.dialect)}
        found = {name: cells for name, cells in found.items() if np.isfinite(cells).any()}
        if not found:
            self.notes.append(f"{table.path.name}: no column is known to be the step, so rows are counted from 1")
            return np.arange(1.0, table.num_rows + 1)
        shares = {name: float(np.isfinite(cells).mean()) for name, cells in found.items()}
        name = next((each for each in found if shares[each] >= 0.5), max(found, key=lambda each: shares[each]))
        if others := [each for each in found if not np.array_equal(found[each], found[name])]:
            self.notes.append(f"{table.path.name}: the step is {name}, and not {', '.join(others)}")
        finite = np.isfinite(found[name])
        rows = np.maximum.accumulate(np.where(finite, np.arange(len(finite)), -1))  # A row without a step is of the step before.
        return found[name][np.where(rows < 0, int(np.argmax(finite)), rows)]

    def _note(self, table: Table, steps: Array) -> None:
        """Take events, games, windows and weights of a table."""
        for row, name in table.events:
            self.events.setdefault(name, []).append(float(steps[row]))
        numbers = {plain(name): cells for name, cells in table.numbers.items()}
        self.is_of_windows |= "step_from" in numbers
        if "score" in numbers and "games" in numbers:
            looks = zip(steps, numbers["score"], numbers["games"], strict=True)
            found = [Evaluation(step=at, score=score, games=games) for at, score, games in looks if 0 <= score <= 1 and 0 < games < LARGEST]
            self.evaluations = tuple(sorted((*self.evaluations, *found), key=lambda each: each.step))
        for name, cells in table.texts.items():
            at = next((row for row, cell in enumerate(cells) if cell.lower() in ("random", "untrained", "random weights")), None)
            if "weights" in plain(name) and at is not None:
                self.random_weights = f"{name} says {cells[at]} at step {steps[at]:,.0f}"
            else:
                self.unused[name] = None

    def _check_order(self, parts: Mapping[str, _Parts]) -> None:
        """Tell which steps are there twice. Raises HistoryError where they are of several runs."""
        twice = [found for column in parts if (found := _doubled(column, parts[column])) is not None]
        if not twice:
            return
        column, doubled, why = max(twice, key=lambda each: len(each[1]))
        if why:
            words = f"{why} ({column} at step {doubled[0]:,.0f} has different values)"
            raise HistoryError(f"several runs in one table: {words}; give the rows of one run, one a step")
        self.notes.append(
            f"{len(doubled):,} steps are there twice ({doubled[0]:,.0f} to {doubled[-1]:,.0f}), as of a log that was appended to after a"
            " resume: the later row counts"
        )

    def _add_column(self, column: str, meaning: Meaning, parts: _Parts) -> None:
        steps, cells = _latest(parts)
        finite, quantity = np.isfinite(cells), meaning.quantity
        if quantity in _CHECKED_FOR_NAN and (bad := _not_finite(cells)).any():
            self.not_finite.setdefault(column, steps[bad].tolist())
        if not finite.any() or quantity in self.series:
            return
        values, problem = meaning.sign * cells[finite], ""
        if quantity == "entropy" and meaning.sign > 0 and is_ambiguous(column) and (values <= 0).all() and values.any():
            values = -values
        if quantity in TABLES["fractions"] and 1 + 1e-6 < values.max() <= 100:
            self.notes.append(f"{column} is taken for percent: it goes up to {values.max():.3g}")
            values = values / 100
        elif quantity in TABLES["fractions"] and values.max() > 100:
            problem = f"no fraction (up to {values.max():.3g})"
        if quantity == "clip_fraction" and len(values) >= 5 and values[0] > 0 and (values == values[0]).all():
            problem = "the same number in all rows, as a setting is"
        if problem:
            self.notes.append(f"{column} is {problem}, so it is not read")
        else:
            self.series[quantity] = Series(column, steps[finite], values, meaning.unit)

    def blocks(self, series: Series) -> Array:
        """Return first step, last step and median of each whole block of rows, from the beginning on; and of the last rows at the end.

        A block has ten rows, or a fifth of another trainer's short table.
        """
        number, steps, values = len(series), series.steps, series.values
        size = 1 if self.when == When.BEFORE else 10 if self.is_ours else min(10, max(1, number // 5))
        end = number // size * size
        blocks = np.stack([steps[:end:size], steps[size - 1 : end : size], np.median(values[:end].reshape(-1, size), axis=1)], axis=1)
        if end < number and len(blocks) and self.when == When.END:
            blocks = np.vstack([blocks, [steps[number - size], steps[-1], median(values[-size:])]])
        return blocks

    def levels(self, quantity: str) -> tuple[float, float] | None:
        """Return a quantity's levels at the beginning and at the end; None without a block of rows."""
        blocks = self.blocks(self.series[quantity]) if quantity in self.series else np.empty((0, 3))
        return (float(blocks[0, 2]), float(blocks[-1, 2])) if len(blocks) else None

    def together(self, *quantities: str) -> list[tuple[float, ...]]:
        """Return step and values of the rows that have all these quantities."""
        tables = [dict(zip(self.series[name].at, self.series[name].found, strict=True)) for name in quantities if name in self.series]
        if len(tables) < len(quantities):
            return []
        return [(step, *(table[step] for table in tables)) for step in tables[0] if all(step in table for table in tables)]

    def columns_text(self) -> str:
        """Return which columns of a foreign table were read as what, which not, and what else a reader should know."""
        used = {series.column: name for name, series in self.series.items()}
        words = [column if plain(column) == name else f"{column} ({name})" for column, name in sorted(used.items())]
        words += sorted(self.not_finite.keys() - used.keys())
        unused = [f"{column} (like {near}?)" if (near := nearest_column(column)) else column for column in self.unused]
        lines = [f"read as: {self.dialect.name}, {self.num_rows:,} rows", f"columns used: {', '.join(words) or 'none'}"]
        return "\n".join([*lines, f"not used: {', '.join(unused) or 'none'}", *(f"note: {note}" for note in self.notes)])


def read_tables(paths: Sequence[Path]) -> History:
    """Return the history of one run from its files; of one step's rows the later counts, in the order of the files.

    A cell that is no number was not recorded. Rows with `score` and `games` are evaluations; a table with a column `metric` has one row a
    metric, of which `first` is known to be of step 0. Raises HistoryError for a file that cannot be read, or tables of several runs.
    """
    return History.of_tables([read_table(path) for path in paths])


def _is_of_language_model(columns: Iterable[str]) -> bool:
    return any(word in column.lower() for column in columns for word in TABLES["of_language_models"])


# --- Shapes of tables ---------------------------------------------------------------------------------------------------------------------


def _of_training(table: Table) -> Table:
    """Return the rows of training, in the order of their time. Raises HistoryError where a column names several runs."""
    for name in [name for name in (*table.numbers, *table.texts) if plain(name) in TABLES["runs"]]:
        cells = table.texts.pop(name, None) or [f"{cell:g}" for cell in table.numbers.pop(name)]
        runs = list(dict.fromkeys(cell for cell in cells if cell not in ("", "nan")))
        if 1 < len(runs) <= max(2, len(cells) / 3):
            raise HistoryError(f"{table.path}: holds several runs by its column {name}: {', '.join(runs[:5])}; give the rows of one")
    for name in [name for name in table.texts if plain(name) in TABLES["splits"]]:
        is_training = [cell.lower().startswith("train") for cell in table.texts[name]]
        table = table.taken(np.flatnonzero(is_training)) if any(is_training) else table
    for name in [name for name in table.numbers if plain(name) in TABLES["times"]]:
        times = table.numbers[name]
        if np.isfinite(times).all() and (np.diff(times) < 0).any():
            table = table.taken(np.argsort(times, kind="stable"))
    return table


def _in_wide_form(table: Table) -> Iterator[Table]:
    """Yield tables of one row a step and a column a quantity, from a long table, statistics, TensorBoard's or W&B's export."""
    names = {plain(name): name for name in (*table.numbers, *table.texts)}
    key = next((name for name in table.texts if plain(name) in TABLES["keys"]), None)
    if key is not None and "value" in names:
        cells, step = np.array(table.texts[key]), [("step", names[each]) for each in ("step", "global_step") if each in names][:1]
        for name in dict.fromkeys(table.texts[key]):
            yield Table(table.path, {to: table.numbers[of][cells == name] for to, of in (*step, (name, names["value"]))})
    elif key is not None and "first" in names and "step" not in names:
        firsts = zip(table.texts[key], table.numbers[names["first"]], strict=True)
        yield Table(table.path, {"step": np.zeros(1), **{name: np.array([first]) for name, first in firsts}})
    elif {"step", "value"} <= names.keys() <= {"step", "value", "wall time", "wall_time"}:
        tag = table.path.stem.rpartition("tag-")[2].lower()  # As in `run-a-tag-train_loss.csv`: slashes became underscores.
        known = {name.replace("/", "_"): name for each in reversed(DIALECTS) for name in each.names}
        yield Table(table.path, {"step": table.numbers[names["step"]], known.get(tag, tag): table.numbers[names["value"]]})
    else:
        yield _of_panel(table)


def _of_panel(table: Table) -> Table:
    """Return the table of W&B's export of a panel, whose columns are `RUN - COLUMN`, without the run and the minima and maxima."""
    exported = {name: name.rpartition(" - ") for name in table.numbers if " - " in name and not name.endswith(("__MIN", "__MAX"))}
    if len(runs := {run for run, _, _ in exported.values()}) > 1:
        raise HistoryError(f"{table.path}: holds several runs: {', '.join(sorted(runs)[:5])}; export the panel with one run")
    numbers = {exported[name][2] if name in exported else name: cells for name, cells in table.numbers.items()}
    if exported:
        numbers = {name: cells for name, cells in numbers.items() if not name.endswith(("__MIN", "__MAX"))}
    return Table(table.path, numbers, table.texts, table.events)


def _take_out_evaluations(table: Table, dialect: Dialect) -> None:
    """Take out of a table what rows in which no quantity of training was measured have in its columns, such as rows of evaluations."""
    known = {name for name in table.numbers if (found := meaning_of(name, dialect)) is not None and found.quantity in _CHECKED_FOR_NAN}
    others = [cells for name, cells in table.numbers.items() if _EVALUATION.match(plain(name)) and name not in known]
    if len(known) < 2 or not any((table.numbers[name] == NAN).any() for name in known):
        return
    is_training = np.any([np.isfinite(table.numbers[name]) for name in known], axis=0)
    last = len(is_training) - int(np.argmax(is_training[::-1])) if is_training.any() else 0
    is_other = (np.arange(len(is_training)) < last) | (np.any(np.isfinite(others), axis=0) if others else False)
    for name in known:
        table.numbers[name] = np.where(~is_training & is_other & (table.numbers[name] == NAN), MISSING, table.numbers[name])


# --- Cells --------------------------------------------------------------------------------------------------------------------------------


def _latest(parts: _Parts) -> tuple[Array, Array]:
    """Return the recorded cells by rising step; of several of one step the latest."""
    steps, cells = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    recorded = ~np.isnan(cells)
    steps, cells = steps[recorded], cells[recorded]
    if not (np.diff(steps) > 0).all():
        order = np.argsort(steps, kind="stable")
        is_last = np.append(np.diff(steps[order]) > 0, True)
        steps, cells = steps[order][is_last], cells[order][is_last]
    return steps, cells


def _doubled(column: str, parts: _Parts) -> tuple[str, Array, str] | None:
    """Return a column's steps with different values, and why they are of several runs or ""; None without such steps."""
    steps, cells = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    recorded = np.isfinite(cells)
    steps, cells = steps[recorded], cells[recorded]
    if (np.diff(steps) > 0).all():
        return None
    order = np.argsort(steps, kind="stable")
    differs = ~np.isclose(cells[order][1:], cells[order][:-1], rtol=_SAME, atol=1e-12)
    doubled = np.unique(steps[order][1:][(np.diff(steps[order]) == 0) & differs])
    if not len(doubled):
        return None
    falls = np.flatnonzero(np.diff(steps) < 0) + 1  # Rows at which an earlier step follows.
    if len(falls) and len(doubled) > 1 and steps[falls].min() <= steps[: falls[0]].min():
        return column, doubled, "steps begin again"
    is_mixed = len(doubled) >= 5 and len(doubled) > len(np.unique(steps)) / 2 and not 0 < len(falls) <= _RESUMES
    return column, doubled, "most steps have several rows" if is_mixed or len(falls) > max(_RESUMES, len(steps) / 5) else ""


def _not_finite(cells: Array) -> Flags:
    """Return which recorded cells really were NaN or infinite.

    Programs also write NaN where nothing was measured: before a column begins, and between the rows of a column that is logged at
    intervals. After the last number NaN counts where it lasts longer than such an interval.
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

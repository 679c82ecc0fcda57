"""A run's history: quantities by step, from our own records or from the tables of other trainers."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Final, Self

import numpy as np

from grpo.diagnosis.dialects import FRACTIONS, OURS, Dialect, dialect_of, dialects, is_ambiguous, meaning_of, nearest, plain, step_columns
from grpo.diagnosis.records import Record
from grpo.diagnosis.tables import INFINITE, MISSING, NAN, HistoryError, Table, read_table
from grpo.diagnosis.trends import Array, Flags, median
from grpo.settings.metrics import METRICS

_RUNS: Final = (
    *(
        "run",
        "run_id",
        "run_name",
        "run_uuid",
        "run id",
        "run name",
        "runid",
        "wandb_run",
        "experiment",
        "experiment_id",
        "experiment_name",
    ),
    *("exp_name", "trial", "trial_id", "seed"),
)
"""Columns that name the run of a row."""
_SPLITS: Final = ("split", "phase", "mode", "stage", "subset")
_KEYS: Final = ("key", "metric", "metric_name", "name", "tag", "metric_key")
_TIMES: Final = ("wall time", "wall_time", "timestamp", "_timestamp")
"""Columns with the time of a row, by which rows of one step are ordered."""
_NO_QUANTITY: Final = frozenset({"step_from", "step_to", "score", "games", "epoch", "_runtime", "__index_level_0__", "unnamed: 0"})
_OF_LANGUAGE_MODELS: Final = ("language/", "completion", "response_length", "sequence_length", "parsed", "truncated", "vllm", "num_tokens")
_EVALUATION: Final = re.compile(r"(eval|val|valid\w*|test|held_?out)[-_/]|train_(runtime|loss|samples|steps)|total_flos")
_CHECKED_FOR_NAN: Final = frozenset(
    {"loss", "policy_loss", "kl_penalty", "entropy_bonus", "entropy", "kl", "kl_old", "clip_fraction", "reward", "gradient_norm"}
)
_DENSE: Final = 0.5
"""Fraction of finite cells from which a column is recorded in all rows between its first and its last."""
_REGULAR: Final = 0.9
"""Fraction of equal distances between finite cells from which a column is recorded at an interval."""


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

    column: str
    """Name in the file."""
    at: list[float] | Array
    """Steps."""
    found: list[float] | Array
    """Values."""
    unit: str = ""

    @property
    def steps(self) -> Array:
        """Steps, rising."""
        return np.asarray(self.at, dtype=float)

    @property
    def values(self) -> Array:
        """Value at each step."""
        return np.asarray(self.found, dtype=float)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.at)

    def way(self) -> str:
        """Return a text with the first and the last value."""
        return f"{self.column} from {self.found[0]:.3g} (step {self.at[0]:,.0f}) to {self.found[-1]:.3g} (step {self.at[-1]:,.0f})"

    def first_step(self, is_there: Flags) -> float:
        """Return the first step where a condition holds; the last step if there is none."""
        return float(self.at[int(np.argmax(is_there))] if is_there.any() else self.at[-1])


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
    dialect: Dialect = field(default_factory=lambda: dialects()[0])
    """Names of the trainer that made it; at first ours: entropy and KL are exact, every step has a row, and its assertions held."""
    is_of_language_model: bool = False
    """Whether entropies are over tokens or answers, which ln(legal moves) does not bound."""
    is_of_windows: bool = False
    """Whether a row is the mean of many steps."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Settings that checks compare with: `critical_entropy`."""
    series: dict[str, Series] = field(default_factory=dict)
    """By quantity."""
    not_finite: dict[str, list[float]] = field(default_factory=dict)
    """Column -> steps at which it was recorded as NaN or infinite."""
    events: dict[str, list[float]] = field(default_factory=dict)
    """Event of our trainer -> its steps."""
    evaluations: tuple[Evaluation, ...] = ()
    random_weights: str = ""
    """Words on a model that began with random weights."""
    unused: dict[str, None] = field(default_factory=dict)
    """Columns that no check reads, in their order."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know of how the files were read."""
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
        for column, value in row.items():
            self.is_of_language_model |= any(word in column.lower() for word in _OF_LANGUAGE_MODELS)
            meaning = meaning_of(column, self.dialect)
            if meaning is None:
                self.unused[column] = None
            elif not abs(value) <= 1e100:
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
        columns = [column for table in tables for column in table.numbers]
        ours = any(column in METRICS for column in columns)
        history = cls(dialect=dialects()[0] if ours else dialect_of([*columns, *(name for table in tables for name in table.texts)]))
        history.is_of_language_model = history.dialect.entropy_of == "tokens" or any(
            word in column.lower() for column in columns for word in _OF_LANGUAGE_MODELS
        )
        parts: dict[str, list[tuple[Array, Array]]] = {}
        order: dict[str, int] = {}
        for table in tables:
            steps = history._steps(table)
            history.num_rows = max(history.num_rows, table.num_rows)
            history._note(table, steps)
            _without_evaluations(table, history.dialect)
            for column, cells in table.numbers.items():
                order.setdefault(column, len(order))
                parts.setdefault(column, []).append((steps, cells))
        known = {column: meaning for column in parts if (meaning := meaning_of(column, history.dialect)) is not None}
        history.unused = {column: None for column in parts if column not in known and plain(column) not in _NO_QUANTITY}
        history._check_order(parts, known)
        for column in sorted(known, key=lambda each: (history.dialect.meaning(each) is None, known[each].rank, order[each])):
            history._add_column(column, parts[column])
        return history

    def _steps(self, table: Table) -> Array:
        """Return the step of each row, and take out the columns that are steps."""
        candidates = step_columns([*table.numbers], self.dialect)
        if not candidates:
            self.notes.append(f"{table.path.name}: no column is known to be the step, so rows are counted from 1")
            return np.arange(1.0, table.num_rows + 1)
        shares = {name: float(np.isfinite(table.numbers[name]).mean()) for name in candidates}
        name = next((each for each in candidates if shares[each] >= 0.5), max(candidates, key=lambda each: shares[each]))
        if len(candidates) > 1:
            others = [each for each in candidates if each != name and not np.array_equal(table.numbers[each], table.numbers[name])]
            self.notes += [f"{table.path.name}: the step is {name}, and not {', '.join(others)}"] if others else []
        steps = table.numbers[name]
        for each in candidates:
            del table.numbers[each]
        finite = np.isfinite(steps)
        if finite.all():
            return steps
        if not finite.any():
            return np.arange(1.0, table.num_rows + 1)
        rows = np.maximum.accumulate(np.where(finite, np.arange(len(steps)), -1))  # A row without a step is of the step before.
        return steps[np.where(rows < 0, int(np.argmax(finite)), rows)]

    def _note(self, table: Table, steps: Array) -> None:
        """Take events, games, windows and weights of a table."""
        for row, name in table.events:
            self.events.setdefault(name, []).append(float(steps[row]))
        numbers = {plain(name): cells for name, cells in table.numbers.items()}
        self.is_of_windows |= "step_from" in numbers
        if "score" in numbers and "games" in numbers:
            looks = zip(steps, numbers["score"], numbers["games"], strict=True)
            found = [Evaluation(step=at, score=score, games=games) for at, score, games in looks if 0 <= score <= 1 and np.isfinite(games)]
            self.evaluations = tuple(sorted((*self.evaluations, *found), key=lambda each: each.step))
        for name, cells in table.texts.items():
            at = next((row for row, cell in enumerate(cells) if cell.lower() in ("random", "untrained", "random weights")), None)
            if "weights" in plain(name) and at is not None:
                self.random_weights = f"{name} says {cells[at]} at step {steps[at]:,.0f}"
            elif "weights" not in plain(name):
                self.unused[name] = None

    def _check_order(self, parts: Mapping[str, Sequence[tuple[Array, Array]]], known: Iterable[str]) -> None:
        """Tell which steps are there twice. Raises HistoryError where they are of several runs."""
        twice = [found for column in known if (found := _doubled(column, parts[column])) is not None]
        if not twice:
            return
        column, doubled, begins_again, is_mixed = max(twice, key=lambda each: len(each[1]))
        if begins_again or is_mixed:
            why = "steps begin again" if begins_again else "most steps have several rows"
            raise HistoryError(
                f"several runs in one table: {why} ({column} at step {doubled[0]:,.0f} has different values); give the rows of one run"
            )
        self.notes.append(
            f"{len(doubled):,} steps are there twice ({doubled[0]:,.0f} to {doubled[-1]:,.0f}), as of a log that was appended to after a"
            " resume: the later row counts"
        )

    def _add_column(self, column: str, parts: Sequence[tuple[Array, Array]]) -> None:
        meaning = meaning_of(column, self.dialect)
        assert meaning is not None
        steps, cells = _latest(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))
        finite = np.isfinite(cells)
        if meaning.quantity in _CHECKED_FOR_NAN and (bad := _not_finite(cells)).any():
            self.not_finite.setdefault(column, steps[bad].tolist())
        if not finite.any() or meaning.quantity in self.series:
            return
        at, values = steps[finite], meaning.sign * cells[finite]
        if meaning.quantity == "entropy" and is_ambiguous(column) and meaning.sign > 0 and (values <= 0).all() and values.any():
            values = -values
        if meaning.quantity in FRACTIONS and values.max() > 1 + 1e-6:
            if values.max() > 100:
                self.notes.append(f"{column} is no fraction (up to {values.max():.3g}), so it is not read")
                return
            values = values / 100
            self.notes.append(f"{column} is taken for percent: it goes up to {100 * values.max():.3g}")
        if meaning.quantity == "clip_fraction" and len(values) >= 5 and values[0] > 0 and (values == values[0]).all():
            self.notes.append(f"{column} is the same number in all rows, as a setting is, so it is not read")
            return
        self.series[meaning.quantity] = Series(column, at, values, meaning.unit)

    def block_size(self, series: Series) -> int:
        """Return how many rows make a level: ten, or a fifth of another trainer's short table."""
        if self.when == When.BEFORE:
            return 1
        return 10 if self.is_ours else min(10, max(1, len(series) // 5))

    def blocks(self, series: Series) -> Array:
        """Return first step, last step and median of each whole block of rows, from the beginning on; and of the last rows at the end."""
        size, number, steps, values = self.block_size(series), len(series), series.steps, series.values
        whole = number // size
        ends = [
            steps[: whole * size : size],
            steps[size - 1 : whole * size : size],
            np.median(values[: whole * size].reshape(-1, size), axis=1),
        ]
        blocks = np.stack(ends, axis=1)
        if number % size and whole and self.when == When.END:
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
        unused = [f"{column} (like {near}?)" if (near := nearest(column)) else column for column in self.unused]
        lines = [f"read as: {self.dialect.name}, {self.num_rows:,} rows", f"columns used: {', '.join(words) or 'none'}"]
        return "\n".join([*lines, f"not used: {', '.join(unused) or 'none'}", *(f"note: {note}" for note in self.notes)])


def read_tables(paths: Sequence[Path]) -> History:
    """Return the history of one run from its files; of one step's rows the later counts, in the order of the files.

    A cell that is no number was not recorded. Rows with `score` and `games` are evaluations; a table with a column `metric` has one row a
    metric, of which `first` is known to be of step 0. Raises HistoryError for a file that cannot be read, or tables of several runs.
    """
    return History.of_tables([read_table(path) for path in paths])


# --- Shapes of tables ---------------------------------------------------------------------------------------------------------------------


def _of_training(table: Table) -> Table:
    """Return the rows of training, in the order of their time. Raises HistoryError where a column names several runs."""
    by_name = {plain(name): name for name in (*table.numbers, *table.texts)}
    for name in (by_name[each] for each in _RUNS if each in by_name):
        cells = table.texts.get(name) or [f"{cell:g}" for cell in table.numbers[name]]
        runs = list(dict.fromkeys(cell for cell in cells if cell not in ("", "nan")))
        if 1 < len(runs) <= max(2, table.num_rows / 3):
            raise HistoryError(f"{table.path}: holds several runs by its column {name}: {', '.join(runs[:5])}; give the rows of one")
        table.numbers.pop(name, None)
        table.texts.pop(name, None)
    for name in (by_name[each] for each in _SPLITS if each in by_name and by_name[each] in table.texts):
        cells = [cell.lower() for cell in table.texts[name]]
        if any(cell.startswith("train") for cell in cells):
            table = table.taken([row for row, cell in enumerate(cells) if cell.startswith("train") or not cell])
    for name in (by_name[each] for each in _TIMES if by_name.get(each) in table.numbers):
        times = table.numbers[name]
        if np.isfinite(times).all() and (np.diff(times) < 0).any():
            table = table.taken(np.argsort(times, kind="stable"))
        break
    return table


def _in_wide_form(table: Table) -> Iterator[Table]:
    """Yield tables of one row a step and a column a quantity, from a long table, statistics, TensorBoard's or W&B's export."""
    names = {plain(name): name for name in (*table.numbers, *table.texts)}
    key = next((names[each] for each in _KEYS if each in names and names[each] in table.texts), None)
    if key is not None and "value" in names:
        cells = np.array(table.texts[key])
        step = [("step", names[each]) for each in ("step", "global_step") if each in names][:1]
        for name in dict.fromkeys(table.texts[key]):
            rows = np.flatnonzero(cells == name)
            yield Table(table.path, {to: table.numbers[of][rows] for to, of in (*step, (name, names["value"]))})
    elif key is not None and "first" in names and "step" not in names:
        firsts = zip(table.texts[key], table.numbers[names["first"]], strict=True)
        yield Table(table.path, {"step": np.zeros(1), **{name: np.array([first]) for name, first in firsts}})
    elif {"step", "value"} <= names.keys() <= {"step", "value", "wall time", "wall_time"}:
        yield Table(table.path, {"step": table.numbers[names["step"]], _tag(table.path): table.numbers[names["value"]]})
    else:
        yield _of_panel(table)


def _tag(path: Path) -> str:
    """Return the quantity in a file's name as TensorBoard makes it, such as `run-a-tag-train_loss.csv`: slashes became underscores."""
    tag = path.stem.rpartition("tag-")[2].lower()
    known = {name.replace("/", "_"): name for each in reversed(dialects()) for name in each.names}
    return known.get(tag.replace("/", "_"), tag)


def _of_panel(table: Table) -> Table:
    """Return the table of W&B's export of a panel, whose columns are `RUN - COLUMN`, without the run and the minima and maxima."""
    columns = {name: name.rpartition(" - ") for name in table.numbers if " - " in name}
    runs = sorted({run for run, _, column in columns.values() if not column.endswith(("__MIN", "__MAX"))})
    if len(runs) > 1:
        raise HistoryError(f"{table.path}: holds several runs: {', '.join(runs[:5])}; export the panel with one run")
    kept = {name: column for name, (_, _, column) in columns.items() if not column.endswith(("__MIN", "__MAX"))}
    numbers = {kept.get(name, name): cells for name, cells in table.numbers.items() if name not in columns or name in kept}
    return Table(table.path, numbers, table.texts, table.events)


# --- Cells --------------------------------------------------------------------------------------------------------------------------------


def _latest(steps: Array, cells: Array) -> tuple[Array, Array]:
    """Return the recorded cells by rising step; of several of one step the latest."""
    recorded = ~np.isnan(cells)
    steps, cells = steps[recorded], cells[recorded]
    if len(steps) > 1 and not (np.diff(steps) > 0).all():
        order = np.argsort(steps, kind="stable")
        steps, cells = steps[order], cells[order]
        is_last = np.append(np.diff(steps) > 0, True)
        steps, cells = steps[is_last], cells[is_last]
    return steps, cells


def _doubled(column: str, parts: Sequence[tuple[Array, Array]]) -> tuple[str, Array, bool, bool] | None:
    """Return a column's steps with different values, whether steps begin again, and whether most steps have several rows; None without."""
    steps, cells = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
    recorded = np.isfinite(cells)
    steps, cells = steps[recorded], cells[recorded]
    if len(steps) < 2 or (np.diff(steps) > 0).all():
        return None
    order = np.argsort(steps, kind="stable")
    of_one = np.diff(steps[order]) == 0
    differs = ~np.isclose(cells[order][1:], cells[order][:-1], rtol=0.02, atol=1e-12)
    doubled = np.unique(steps[order][1:][of_one & differs])
    if not len(doubled):
        return None
    falls = np.flatnonzero(np.diff(steps) < 0) + 1  # Rows at which an earlier step follows.
    begins_again = bool(len(falls)) and len(doubled) > 1 and float(steps[falls].min()) <= float(steps[: falls[0]].min())
    is_mixed = len(doubled) >= 5 and len(doubled) > len(np.unique(steps)) / 2 and not 0 < len(falls) <= 20
    return column, doubled, begins_again, is_mixed or len(falls) > max(20, len(steps) / 5)


def _without_evaluations(table: Table, dialect: Dialect) -> None:
    """Take out of a table what rows of evaluations have in columns of training, which were not measured there."""
    known = {name for name in table.numbers if (found := meaning_of(name, dialect)) is not None and found.quantity in _CHECKED_FOR_NAN}
    others = [cells for name, cells in table.numbers.items() if _EVALUATION.match(plain(name)) and name not in known]
    if not others or not any((table.numbers[name] == NAN).any() for name in known):
        return
    is_training = np.any([np.isfinite(table.numbers[name]) for name in known], axis=0)
    is_evaluation = ~is_training & np.any([np.isfinite(cells) for cells in others], axis=0)
    for name in known:
        table.numbers[name] = np.where(is_evaluation & (table.numbers[name] == NAN), MISSING, table.numbers[name])


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
    interval = median(gaps) if len(gaps) else 1.0
    is_regular = interval > 1 and float((gaps == interval).mean()) >= _REGULAR
    is_dense = len(finite) >= _DENSE * (finite[-1] - finite[0] + 1) and not is_regular
    if is_dense:
        bad[finite[0] : finite[-1]] |= is_nan[finite[0] : finite[-1]]
    if len(cells) - 1 - finite[-1] >= (1 if is_dense else 2 * float(gaps.max(initial=1))):
        bad[finite[-1] :] |= is_nan[finite[-1] :]
    return bad

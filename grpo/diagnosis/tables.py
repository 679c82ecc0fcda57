"""Reads training logs of any trainer as tables: CSV, JSON and console output.

A numeric cell is a number or one of three marks: MISSING (not logged), NAN, INFINITE.
"""

import ast
import io
import json
import re
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from grpo.base.errors import PlainError
from grpo.diagnosis.trends import Array

if TYPE_CHECKING:
    import pandas as pd

# Pandas reads empty cells as NaN, so infinities mark logged NaN.
MISSING: Final = np.nan
NAN: Final = np.inf
INFINITE: Final = -np.inf
LARGEST: Final = 1e100
"""Larger numbers count as infinite, so squares cannot overflow."""
_CHUNK: Final = 20_000  # Maximum number of JSON rows in memory as Python objects.
_DELIMITERS: Final = (",", ";", "\t", "|")
_WRAPPERS: Final = frozenset({"data", "metrics", "record", "log", "logs", "scalars", "values", "summary"})
"""Keys that column names leave out: `{"metrics": {"loss": 1}}` is the column `loss`."""
_ENCODINGS: Final = ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))
_DECODER: Final = json.JSONDecoder(parse_constant=str)  # Decodes NaN and infinity as strings.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_CONSOLE: Final = re.compile(r"\bstep:(\d+) - (\S.*)")  # verl's console.
_RULE: Final = "-" * 9  # Stable-Baselines3's console has blocks of cells between such lines.
_CELL: Final = re.compile(r"\|( +)(\S.*?) *\| *(.*?) *\|")
_DICTIONARY: Final = re.compile(r"\{'[^{}]*\}")  # A printed dictionary: Hugging Face's Trainer, slime.
_WRAPPED_NUMBER: Final = re.compile(r"(?:\w+\.)*\w+\(([^()]*)\)")  # `np.float64(0.1)`.
_DECIMAL_COMMA: Final = r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?"  # `0,1`.
_THOUSANDS: Final = r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?"  # `1,200.5`.
_PERCENT: Final = r"[+-]?[\d.,]+\s*%"


class HistoryError(PlainError, ValueError):
    """A file is not the history of one run."""


@dataclass(slots=True)
class Table:
    path: Path
    numbers: dict[str, Array]  # Column -> one cell per row.
    texts: dict[str, list[str]] = field(default_factory=dict)  # Column without any number -> one text per row.
    events: list[tuple[int, str]] = field(default_factory=list)  # Row index and name; only this project's trainer logs events.

    @property
    def num_rows(self) -> int:
        return max((*map(len, self.numbers.values()), *map(len, self.texts.values())), default=0)

    def taken(self, rows: Any) -> "Table":
        """Return the rows with these indices, without events."""
        texts = {name: [cells[row] for row in rows] for name, cells in self.texts.items()}
        return Table(self.path, {name: cells[rows] for name, cells in self.numbers.items()}, texts)


def read_table(path: Path) -> Table:
    """Raises HistoryError if the file has no table or cannot be read."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise HistoryError(f"{path}: {error.strerror}") from None
    encoding = next((name for mark, name in _ENCODINGS if raw.startswith(mark)), "utf-8")
    if b"\x00" in raw[:1_000] and encoding != "utf-16":
        raise HistoryError(f"{path}: is a binary file, such as TensorBoard's events; unpack or export it as CSV or JSON lines")
    start = raw[:200_000].decode(encoding, errors="ignore").lstrip()
    if encoding == "utf-8":
        try:
            raw.decode()
        except UnicodeDecodeError:
            encoding = "cp1252"  # Windows.
    lines = io.TextIOWrapper(io.BytesIO(raw), encoding, errors="replace")
    if not start:
        raise HistoryError(f"{path}: is empty")
    is_json = start.startswith(("[", "{")) and not start.startswith("{'")
    is_console = _CONSOLE.search(_ESCAPES.sub("", start)) or _DICTIONARY.search(start) or re.search(rf"{_RULE}\r?\n\| ", start)
    if is_json or start.startswith("#") or not is_console:
        try:
            return (_json if is_json else _csv)(path, start, lines)
        except HistoryError:
            lines.seek(0)  # A console may begin with other lines.
            if next(_console_rows(lines), None) is None:
                raise
        lines.seek(0)
    return _of_rows(path, _console_rows(lines))


def _csv(path: Path, start: str, lines: io.TextIOWrapper) -> Table:
    import pandas as pd

    first_lines = start.splitlines()
    # Stable-Baselines3 writes settings first, Excel the delimiter.
    num_skipped = next((at for at, line in enumerate(first_lines) if not line.startswith(("#", "sep="))), 0)
    header = re.sub(r'"[^"]*"', "", first_lines[num_skipped])
    delimiter = max(_DELIMITERS, key=header.count)
    options: dict[str, Any] = {"index_col": False, "skipinitialspace": True, "keep_default_na": False, "na_values": [""]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(lines, sep=delimiter, skiprows=num_skipped, low_memory=False, **options)
    except (ValueError, pd.errors.ParserWarning) as error:
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        if isinstance(error, pd.errors.ParserWarning):
            reason = "a row has more cells than the header"
        raise HistoryError(f"{path}: is no table with one row per step: {reason}") from None
    lines.seek(0)
    last = deque(lines, 1)[0]
    is_torn = not last.endswith("\n") and last.count(delimiter) < header.count(delimiter)
    table = _of_frame(path, frame[:-1] if is_torn else frame, has_decimal_commas=delimiter != ",")
    if not table.numbers:
        raise HistoryError(f"{path}: is neither CSV, JSON nor a trainer's console; give a table with one row per step")
    return table


def _of_frame(path: Path, frame: "pd.DataFrame", *, has_decimal_commas: bool = False) -> Table:
    import pandas as pd

    table = Table(path, {})
    for index, label in enumerate(frame.columns):
        cells, name = frame.iloc[:, index], str(label).strip()
        if pd.api.types.is_numeric_dtype(cells):
            values = cells.to_numpy(dtype=float, na_value=MISSING)
            table.numbers[name] = np.where(np.abs(values) > LARGEST, INFINITE, values) if (np.abs(values) > LARGEST).any() else values
        elif (parsed := _parsed(cells, has_decimal_commas=has_decimal_commas)) is not None:
            table.numbers[name] = parsed
        else:
            table.texts[name] = ["" if pd.isna(cell) else str(cell).strip() for cell in cells]
    return table


def _parsed(cells: "pd.Series[Any]", *, has_decimal_commas: bool) -> Array | None:
    """Return numbers and marks, or None if all are MISSING. Other text is MISSING. With `has_decimal_commas`, `1,200` is 1.2."""
    import pandas as pd

    texts = cells.astype("str").str.strip().where(cells.notna(), "")
    is_percent = texts.str.fullmatch(_PERCENT)
    texts = texts.where(~is_percent, texts.str.rstrip("% "))
    commas = texts[texts.str.contains(",", regex=False)]
    if len(commas):
        is_thousands = not has_decimal_commas and commas.str.fullmatch(_THOUSANDS).all()
        if is_thousands or commas.str.fullmatch(_DECIMAL_COMMA).all():
            texts = texts.str.replace(",", "" if is_thousands else ".", regex=False)
    lower = texts.str.lower()
    values = np.array(pd.to_numeric(texts, errors="coerce"), dtype=float)
    values[(np.abs(values) > LARGEST) | lower.str.fullmatch(r"[+-]?inf(?:inity)?").to_numpy(dtype=bool)] = INFINITE
    values[lower.isin(["nan", "+nan", "-nan"]).to_numpy(dtype=bool)] = NAN
    values[is_percent.to_numpy(dtype=bool)] /= 100
    return None if np.isnan(values).all() else values


def _json(path: Path, start: str, lines: io.TextIOWrapper) -> Table:
    if start.startswith("{") and _object(start.partition("\n")[0]) is not None and "\n" in start.strip():
        return _of_rows(path, _json_lines(path, lines))
    try:
        document = json.loads(lines.read(), parse_constant=str)
    except (ValueError, RecursionError):
        raise HistoryError(f"{path}: is no JSON; give an array of rows, or one object per line") from None
    if isinstance(document, dict):
        document = _rows_of(document)
    if isinstance(document, list) and document and all(isinstance(row, list) and len(row) == 3 for row in document):
        import pandas as pd

        return _of_frame(path, pd.DataFrame(document, columns=["Wall time", "Step", "Value"]))  # TensorBoard's export.
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise HistoryError(f"{path}: is JSON without rows; give an array of objects, one object per line, or trainer_state.json")
    return _of_rows(path, document)


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = _DECODER.decode(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _rows_of(document: dict[str, Any]) -> Any:
    """Return `log_history` (trainer_state.json), else the only list of objects, else the rows of equally long columns, else one row."""
    lists = {name: rows for name, rows in document.items() if isinstance(rows, list) and rows and isinstance(rows[0], dict)}
    if "log_history" in lists or len(lists) == 1:
        return lists.get("log_history", next(iter(lists.values())))
    columns = {name: [*cells.values()] if isinstance(cells, dict) else cells for name, cells in document.items()}
    if all(isinstance(cells, list) for cells in columns.values()) and len({len(cells) for cells in columns.values()}) == 1:
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [document]


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield each line's object. Skips blank lines and an incomplete last line."""
    torn = 0  # Number of a line that is no object.
    for number, line in enumerate(lines, start=1):
        if torn or (row := _object(line)) is None:
            if torn:
                raise HistoryError(f"{path}: line {torn} is no JSON object; give one object per line")
            torn = number if line.strip() else 0
        elif not row.get("aside"):  # In this project's journal, rows with `aside` have times, not metrics.
            yield row


def _console_rows(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    block: dict[str, Any] | None = None
    group = ""
    for line in lines:
        if line.startswith(_RULE):
            if block:
                yield block
            block = {}
        elif block is not None and (cell := _CELL.fullmatch(line.strip())):
            group = cell[2] if len(cell[1]) == 1 else group
            if cell[3]:
                block[group + cell[2] if len(cell[1]) > 1 else cell[2]] = cell[3]
        elif match := _CONSOLE.search(_ESCAPES.sub("", line)):
            # The last value of a line without an end may be cut.
            parts = match[2].split(" - ")[: None if line.endswith("\n") else -1]
            pairs = (part.rpartition(":") for part in parts)
            yield {"step": match[1], **{name.strip(): _WRAPPED_NUMBER.sub(r"\1", cell.strip()) for name, _, cell in pairs if name}}
        elif dictionary := _DICTIONARY.search(line):
            # `ast.literal_eval` reads no `nan` and `inf`, so the pattern puts them in quotes.
            literal = re.sub(r"(?<=[:\s])([+-]?)(nan|inf)(?=[,}\s])", r"'\1\2'", _WRAPPED_NUMBER.sub(r"\1", dictionary[0]))
            try:
                row = ast.literal_eval(literal)
            except (ValueError, SyntaxError):
                continue
            yield row if isinstance(row, dict) else {}
    if block:
        yield block


def _of_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Table:
    import pandas as pd

    remaining, frames, events, number = iter(rows), list[pd.DataFrame](), list[tuple[int, str]](), 0
    while chunk := list(islice(remaining, _CHUNK)):
        if not {dict, list}.isdisjoint(chain.from_iterable(map(type, row.values()) for row in chunk)):
            chunk = [dict(_flattened(row)) for row in chunk]
            for offset, row in enumerate(chunk):
                events += [(number + offset, str(event.get("name"))) for event in row.pop("events", ())]
        number += len(chunk)
        frames.append(pd.DataFrame(chunk))
    if not number:
        raise HistoryError(f"{path}: has no rows")
    table = _of_frame(path, pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0])
    table.events = events
    return table


def _flattened(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, cell in row.items():
        if isinstance(cell, dict):
            yield from _flattened(cell, prefix if name in _WRAPPERS else f"{prefix}{name}/")
        elif name == "events" and isinstance(cell, list):
            yield name, [event for event in cell if isinstance(event, dict)]
        elif not isinstance(cell, list):
            yield f"{prefix}{name}", cell

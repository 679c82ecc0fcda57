"""Reads the dataset from the output of `join_boards`. A damaged table raises CorruptError."""

from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from grpo.base.files import CorruptError
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA
from steps.names import BOARDS, GAMES

_NUM_PREVIEWED: Final = 200


def read_boards(folder: Path) -> pa.Table:
    return _read(folder / BOARDS, BOARD_SCHEMA)


def preview(path: Path) -> bytes:
    """Return the first boards as CSV, without columns of lists."""
    columns = [field.name for field in BOARD_SCHEMA if not pa.types.is_nested(field.type)]
    rows = next(pq.ParquetFile(path).iter_batches(batch_size=_NUM_PREVIEWED, columns=columns))
    text = BytesIO()
    pyarrow.csv.write_csv(rows, text)
    return text.getvalue()


def read_game_table(folder: Path) -> pa.Table:
    return _read(folder / GAMES, GAME_SCHEMA)


def position_keys(folder: Path) -> set[str]:
    """Return the keys of all boards and of all positions in their games. No opening may have these keys."""
    boards = pq.read_table(folder / BOARDS, columns=["key"])["key"].to_pylist()
    return {*boards, *chain.from_iterable(pq.read_table(folder / GAMES, columns=["keys"])["keys"].to_pylist())}


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        return pq.read_table(path, schema=schema)
    except pa.ArrowInvalid as error:
        raise CorruptError(f"{path} is damaged ({error}): copy or compute the dataset again") from error

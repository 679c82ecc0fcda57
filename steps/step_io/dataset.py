"""Reads the dataset that `join_boards` leaves, for all steps behind it."""

from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA
from steps.step_io.names import BOARDS, GAMES


def read_boards(folder: Path) -> pa.Table:
    """Return the joined table of boards."""
    return pq.read_table(folder / BOARDS, schema=BOARD_SCHEMA)


def read_game_table(folder: Path) -> pa.Table:
    """Return the joined table of games."""
    return pq.read_table(folder / GAMES, schema=GAME_SCHEMA)


def position_keys(folder: Path) -> set[str]:
    """Return the keys of all boards and of all positions of their games: no opening of a match may be one of them."""
    boards = pq.read_table(folder / BOARDS, columns=["key"])["key"].to_pylist()
    return {*boards, *chain.from_iterable(pq.read_table(folder / GAMES, columns=["keys"])["keys"].to_pylist())}

"""Tables of the dataset's boards and games, and the arrays that training reads.

A board's list columns have an entry per legal move, in ascending order of action id (the move's number in
`grpo.board.actions`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from grpo.board.actions import ID_OF_UCI
from grpo.board.encoding import encode_fens
from grpo.board.phases import PHASES, Phase
from grpo.engine.move_values import ValueTable


class Split(StrEnum):
    TRAIN = "train"
    VALIDATION = "validation"
    HELDOUT = "heldout"


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """A selected board whose moves have no values yet."""

    fen: str
    key: str  # `encoding.position_key`
    phase: Phase
    split: Split
    label: str  # Move played, to imitate; "" to imitate the engine's best move.
    game_id: str
    ply: int  # Half-moves since the game's first position.
    source: str
    offset: int  # Number of the game, or byte offset of the line.
    white_rating: int | None = None
    black_rating: int | None = None
    date: str | None = None  # `YYYY.MM.DD`, with `??` for unknown parts.


def _required(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names]


_IF_KNOWN: Final = [pa.field("white_rating", pa.int32()), pa.field("black_rating", pa.int32()), pa.field("date", pa.string())]
BOARD_SCHEMA: Final = pa.schema(
    [
        *_required(pa.string(), "fen", "key", "phase", "split", "label", "label_from", "game_id"),
        *_required(pa.int32(), "ply"),
        *_required(pa.string(), "source"),
        *_required(pa.int64(), "offset"),
        *_IF_KNOWN,
        *_required(pa.list_(pa.string()), "moves"),
        *_required(pa.list_(pa.float32()), "values"),
        *_required(pa.list_(pa.int32()), "centipawns", "mate_in"),
        pa.field("strong_values", pa.list_(pa.float32())),
        *_required(pa.string(), "engine", "limit"),
    ]
)
"""Columns of the boards.

- `values`: each move's value in [0, 1] for the side to move
- `label_from`: `game` (the move played) or `engine` (the engine's best move)
- `centipawns`, `mate_in`: the engine's score of each move; one of the two is null; `mate_in` is negative if the mover is mated
- `strong_values`: values of a deeper search; null except for held-out boards, which are never trained
- `limit`: depths of the search
"""

GAME_SCHEMA: Final = pa.schema(
    [
        *_required(pa.string(), "game_id", "source"),
        *_required(pa.int64(), "offset"),
        *_required(pa.string(), "split", "start_fen"),
        *_required(pa.int32(), "num_plies"),
        *_required(pa.string(), "result"),
        *_IF_KNOWN,
        *_required(pa.list_(pa.string()), "moves", "keys"),
        *_required(pa.list_(pa.int32()), "label_plies"),
    ]
)
"""Columns of the games. A listed position (a line of an .epd or .fen file) is a game with 0 plies.

- `keys`: `encoding.position_key` before each move
- `label_plies`: plies whose move may be imitated, ascending, without random moves and excluded positions
"""


def board_row(position: Position, table: ValueTable, strong: ValueTable | None, *, engine: str, limit: str) -> dict[str, Any]:
    facts = {name: getattr(position, name) for name in Position.__slots__}
    if not position.label:
        # `argmax` takes the first of equal moves, which has the lowest action id.
        facts["label"] = table.moves[int(table.values.argmax())]
    return facts | {
        "label_from": "game" if position.label else "engine",
        "moves": table.moves,
        "values": table.values,
        "centipawns": [None if score.is_mate else score.value for score in table.scores],
        "mate_in": [score.value if score.is_mate else None for score in table.scores],
        "strong_values": None if strong is None else strong.values,
        "engine": engine,
        "limit": limit,
    }


def board_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=BOARD_SCHEMA)


def phase_counts(phases: Sequence[str]) -> dict[str, int]:
    return {phase.value: sum(name == phase for name in phases) for phase in PHASES}


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelArrays:
    """N positions with the move to imitate, padded to A legal moves."""

    encodings: NDArray[np.uint8]  # [N, 71], from `encoding.encode`.
    action_ids: NDArray[np.int64]  # [N, A], legal moves, ascending; 0 on padding.
    is_legal: NDArray[np.bool_]  # [N, A], False on padding.
    played: NDArray[np.int64]  # [N], column (0 to A - 1) of the move to imitate.

    def __len__(self) -> int:
        return len(self.encodings)


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardArrays(LabelArrays):
    values: NDArray[np.float32]  # [N, A] in [0, 1] for the side to move; 0 on padding.
    phases: NDArray[np.int64]  # [N], index into `PHASES`.


def board_arrays(table: pa.Table, *, split: Split, strong: bool = False) -> BoardArrays:
    """Return a split's boards (at least one) with their `values`, or `strong_values` (held-out split only)."""
    rows = table.filter(pc.equal(table["split"], split.value)).combine_chunks()
    fens = rows["fen"].to_pylist()
    column = rows["strong_values" if strong else "values"].combine_chunks()
    assert not column.null_count, "a board has no values of the deeper search"
    turns = [fen.split(" ", 2)[1] == "w" for fen in fens]
    moves = zip(turns, rows["moves"].to_pylist(), strict=True)
    action_ids, is_legal = legal_columns([[ID_OF_UCI[turn][uci] for uci in ucis] for turn, ucis in moves])
    values = np.zeros(is_legal.shape, dtype=np.float32)
    values[is_legal] = column.flatten().to_numpy()
    played = np.array([ID_OF_UCI[turn][uci] for turn, uci in zip(turns, rows["label"].to_pylist(), strict=True)])
    return BoardArrays(
        encodings=encode_fens(fens),
        action_ids=action_ids,
        is_legal=is_legal,
        values=values,
        played=played_columns(action_ids, is_legal, played),
        phases=np.array([PHASES.index(Phase(phase)) for phase in rows["phase"].to_pylist()], dtype=np.int64),
    )


def legal_columns(ids: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Pad N lists (at least one) of action ids. Return the ids and a mask of the legal moves, [N, A] each."""
    lengths = np.array([len(row) for row in ids])
    is_legal = np.arange(lengths.max()) < lengths[:, None]
    action_ids = np.zeros(is_legal.shape, dtype=np.int64)
    action_ids[is_legal] = np.concatenate(ids)
    return action_ids, is_legal


def played_columns(action_ids: NDArray[np.int64], is_legal: NDArray[np.bool_], played: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the column [N] of each position's played move (action id, [N])."""
    is_played = (action_ids == played[:, None]) & is_legal
    assert is_played.any(1).all(), "a label is not among its board's moves"
    columns: NDArray[np.int64] = is_played.argmax(1)
    return columns

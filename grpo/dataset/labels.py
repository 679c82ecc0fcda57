"""Labels: positions with the move to imitate. A position's key ignores colors and clocks (`encoding.position_key`)."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import chess
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from grpo.base.files import sha256_text
from grpo.board.actions import action_id
from grpo.board.encoding import encode
from grpo.board.moves import legal_actions
from grpo.dataset.table import LabelArrays, Split, board_arrays, legal_columns, played_columns

_BOARDS_AT_ONCE: Final = 1_024


def label_arrays(boards: pa.Table, games: pa.Table, *, max_positions: int) -> LabelArrays:
    """Return all training boards, even above `max_positions`, then `further_positions`, up to `max_positions` in total."""
    of_boards = board_arrays(boards, split=Split.TRAIN)
    positions: list[chess.Board] = []
    ids: list[int] = []
    for board, move_id in further_positions(boards, games, count=max_positions - len(of_boards)):
        positions.append(board.copy(stack=False))
        ids.append(move_id)
    encodings = encode(positions)
    board_ids = [row[is_legal] for row, is_legal in zip(of_boards.action_ids, of_boards.is_legal, strict=True)]
    action_ids, is_legal = legal_columns(board_ids + _legal_ids(encodings))
    further = slice(len(of_boards), None)
    played = played_columns(action_ids[further], is_legal[further], np.array(ids, dtype=np.int64))
    return LabelArrays(
        encodings=np.concatenate([of_boards.encodings, encodings]),
        action_ids=action_ids,
        is_legal=is_legal,
        played=np.concatenate([of_boards.played, played]),
    )


def _legal_ids(encodings: NDArray[np.uint8]) -> list[NDArray[np.int64]]:
    """Return each position's legal moves as action ids; `legal_action_ids` takes three times as long."""
    ids: list[NDArray[np.int64]] = []
    for start in range(0, len(encodings), _BOARDS_AT_ONCE):
        part = torch.from_numpy(encodings[start : start + _BOARDS_AT_ONCE])
        rows, moves = (values.numpy() for values in legal_actions(part))
        ids += np.split(moves, np.bincount(rows, minlength=len(part)).cumsum()[:-1])
    return ids


def further_positions(boards: pa.Table, games: pa.Table, *, count: int) -> Iterator[tuple[chess.Board, int]]:
    """Yield up to `count` positions of training games: board, action id of the move played.

    - The positions have the lowest hashes of their keys, and are not in `boards`.
    - Positions with a single legal move teach nothing: they count, but are not yielded.
    - A position of several games has the first game's move.
    - To keep the board, the caller must copy it.

    The tables have `BOARD_SCHEMA` and `GAME_SCHEMA`. Raises ValueError for an illegal move.
    """
    games = games.filter(pc.equal(games["split"], Split.TRAIN.value))
    plies_of_game = _chosen_plies(games, known=set(boards["key"].to_pylist()), count=max(0, count))
    rows = zip(games["game_id"].to_pylist(), games["start_fen"].to_pylist(), games["moves"].to_pylist(), strict=True)
    for number, (game_id, start_fen, moves) in enumerate(rows):
        board = chess.Board(start_fen)
        # -1: no chosen ply, so an empty range.
        for ply in range(max(plies_of_game.get(number, {-1})) + 1):
            move = chess.Move.from_uci(moves[ply])
            if ply in plies_of_game[number]:
                if not board.is_legal(move):
                    raise ValueError(f"game {game_id}: {move} at ply {ply} is not legal in {board.fen()}; make the boards again")
                if any(islice(board.generate_legal_moves(), 1, None)):
                    yield board, action_id(move, board.turn)
            board.push(move)


def _chosen_plies(games: pa.Table, *, known: set[str], count: int) -> dict[int, set[int]]:
    first: dict[str, tuple[int, int]] = {}
    for row, (keys, plies) in enumerate(zip(games["keys"].to_pylist(), games["label_plies"].to_pylist(), strict=True)):
        for ply in plies:
            if keys[ply] not in known:
                first.setdefault(keys[ply], (row, ply))
    chosen: dict[int, set[int]] = {}
    for row, ply in map(first.__getitem__, sorted(first, key=sha256_text)[:count]):
        chosen.setdefault(row, set()).add(ply)
    return chosen

"""Columns for the checks of a dataset: one value per board or per game.

Most columns count faults of the row, so 0 is right. None: the check does not apply, or another fault of the row prevents it.

- Label: the move to imitate, played in the game or chosen by the engine.
- Score: the engine's centipawns or mate distance for a legal move. The value, in [0, 1], is computed from the score.
- Strong values: values by a deeper search, on held-out boards only.
- Key: text that is equal for equal positions, also with swapped colors.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import chess
import pyarrow as pa

from grpo.board.actions import ACTION_UCI, legal_action_ids
from grpo.board.draws import drawing_moves
from grpo.board.encoding import position_key
from grpo.board.phases import phase_of
from grpo.dataset.quotas import split_fractions, split_of_game
from grpo.dataset.table import BOARD_SCHEMA, GAME_SCHEMA, Split
from grpo.engine.answers import Score
from grpo.engine.move_values import value_of
from grpo.settings.tree import BoardsConfig

WHERE: Final = "where"
"""Column that names the row: the FEN, or the game's id, source and offset."""
_NO_NUMBER: Final = -1.0
"""Replaces a missing value or NaN, so the range check of [0, 1] fails."""

Row = Mapping[str, Any]
Columns = dict[str, list[Any]]


def board_columns(boards: pa.Table, games: pa.Table) -> Columns:
    """Return the boards' columns. The columns below count no faults.

    - `value_error`: largest |value - value of the score|
    - `is_flat`: 1 if all values are equal
    - `label_loss`: best value minus value of the engine's label
    - `label_gain`: value of a played label minus the moves' mean value
    - `label_variance`: variance of these moves' values
    """
    game_of = {game["game_id"]: game for game in games.select(["game_id", "split", "num_plies", "moves", "keys"]).to_pylist()}
    rows = [_board_row(row, game_of.get(row["game_id"])) for batch in boards.to_batches(max_chunksize=1_024) for row in batch.to_pylist()]
    copied = {name: boards[name].to_pylist() for name in ("split", "phase", "key", "engine", "limit")}
    # A row of None gives the names, also for an empty table.
    names = _board_row(dict.fromkeys(BOARD_SCHEMA.names), None)
    return {name: [row[name] for row in rows] for name in names} | copied


def _board_row(row: Row, game: Row | None) -> dict[str, Any]:
    board = None if row["fen"] is None else _board(row["fen"])
    legal = None if board is None else [ACTION_UCI[board.turn][index] for index in legal_action_ids(board)]
    values, scores = _values(row, legal), _scores(row, legal)
    label_value = None if values is None or row["label"] not in row["moves"] else values[row["moves"].index(row["label"])]
    mean = math.fsum(values) / len(values) if values else 0.0
    is_played = row["label_from"] == "game" and label_value is not None
    return {
        WHERE: str(row["fen"]),
        "missing": _num_missing(row, BOARD_SCHEMA),
        "fen_faults": None if row["fen"] is None else int(board is None),
        "phase_faults": None if board is None else int(row["phase"] != phase_of(board)),
        "key_faults": None if board is None else int(row["key"] != position_key(board)),
        "game_key_faults": _num_unlike(row, game, "keys", row["key"]),
        # 1 if only the order is wrong.
        "move_faults": None if legal is None or row["moves"] is None else len(set(row["moves"]) ^ set(legal)) or int(row["moves"] != legal),
        "num_plies": None if game is None else game["num_plies"],
        "ply_faults": None if game is None else int(not 0 <= (row["ply"] or 0) < max(1, game["num_plies"] or 0)),
        "split_faults": None if game is None else int(row["split"] != game["split"]),
        "values_lost": _num_lost(row["values"], legal),
        **_range("value", row["values"]),
        "score_faults": None if legal is None else _score_faults(row, len(legal)),
        "value_error": None if values is None or scores is None else _value_error(values, scores),
        "false_mates": None if board is None or scores is None else _false_mates(board, row["moves"], scores),
        "false_draws": None if board is None or scores is None else _false_draws(board, row["moves"], scores),
        "strong_faults": int((row["strong_values"] is not None) != (row["split"] == Split.HELDOUT)),
        "strong_lost": None if row["strong_values"] is None else _num_lost(row["strong_values"], legal),
        **_range("strong", row["strong_values"]),
        "is_flat": float(min(values) == max(values)) if values else None,
        "label_faults": None if legal is None else int(row["label"] not in legal),
        "label_loss": max(values) - label_value if values and label_value is not None and row["label_from"] == "engine" else None,
        "label_gain": label_value - mean if label_value is not None and is_played else None,
        "label_variance": math.fsum((value - mean) ** 2 for value in values) / len(values) if values and is_played else None,
        "unplayed_labels": _num_unlike(row, game, "moves", row["label"]),
    }


def _num_missing(row: Row, schema: pa.Schema) -> int:
    return sum(row[field.name] is None for field in schema if not field.nullable)


def _board(fen: str) -> chess.Board | None:
    try:
        board = chess.Board(fen)
    except ValueError:
        return None
    return board if board.is_valid() and len(fen.split()) == 6 else None


def _num_lost(values: Sequence[Any] | None, legal: Sequence[str] | None) -> int | None:
    return None if values is None or legal is None else abs(len(values) - len(legal))


def _range(name: str, values: Sequence[float | None] | None) -> dict[str, float | None]:
    numbers = [_NO_NUMBER if value is None or math.isnan(value) else value for value in values or ()]
    return {f"lowest_{name}": min(numbers, default=None), f"highest_{name}": max(numbers, default=None)}


def _values(row: Row, legal: list[str] | None) -> list[float] | None:
    values: list[float] | None = row["values"]
    if values is None or legal is None or row["moves"] != legal or len(values) != len(legal):
        return None
    return values if all(value is not None and 0 <= value <= 1 for value in values) else None


def _score_faults(row: Row, num_moves: int) -> int:
    pairs = list(zip(row["centipawns"] or (), row["mate_in"] or (), strict=False))
    return abs(num_moves - len(pairs)) + sum((centipawns is None) == (mate_in is None) for centipawns, mate_in in pairs)


def _scores(row: Row, legal: list[str] | None) -> list[Score] | None:
    if legal is None or row["moves"] != legal or _score_faults(row, len(legal)):
        return None
    return [
        Score(centipawns) if mate_in is None else Score(mate_in, is_mate=True)
        for centipawns, mate_in in zip(row["centipawns"], row["mate_in"], strict=True)
    ]


def _value_error(values: Sequence[float], scores: Sequence[Score]) -> float:
    return max((abs(value - value_of(score)) for value, score in zip(values, scores, strict=True)), default=0.0)


def _false_mates(board: chess.Board, moves: Sequence[str], scores: Sequence[Score]) -> int:
    num_false = 0
    for move, score in zip(moves, scores, strict=True):
        board.push(chess.Move.from_uci(move))
        num_false += board.is_checkmate() != (score == Score(1, is_mate=True))
        board.pop()
    return num_false


def _false_draws(board: chess.Board, moves: Sequence[str], scores: Sequence[Score]) -> int:
    drawing = {move.uci() for move in drawing_moves(board)}
    return sum(move in drawing and (score.is_mate or score.value != 0) for move, score in zip(moves, scores, strict=True))


def _num_unlike(row: Row, game: Row | None, name: str, expected: str | None) -> int | None:
    """Compare the game's move or key at the board's ply."""
    if row["label_from"] != "game" or game is None or row["ply"] is None or not 0 <= row["ply"] < len(game[name] or ()):
        return None
    return int(game[name][row["ply"]] != expected)


def game_columns(games: pa.Table, boards: pa.Table, config: BoardsConfig) -> Columns:
    """`most_of_a_phase`: the game's boards in its most frequent phase."""
    phases_of: dict[str, Counter[str]] = {}
    for game_id, phase in zip(boards["game_id"].to_pylist(), boards["phase"].to_pylist(), strict=True):
        phases_of.setdefault(game_id, Counter())[phase] += 1
    fractions = split_fractions(config)
    rows = [_game_row(row, phases_of.get(row["game_id"], Counter()), fractions) for row in games.to_pylist()]
    copied = {name: games[name].to_pylist() for name in ("game_id", "white_rating", "black_rating")}
    names = _game_row(dict.fromkeys(GAME_SCHEMA.names), Counter(), fractions)
    return {name: [row[name] for row in rows] for name in names} | copied


def _game_row(row: Row, phases: Counter[str], fractions: Mapping[Split, float]) -> dict[str, Any]:
    return {
        WHERE: f"{row['game_id']} ({row['source']} at {row['offset']})",
        "missing": _num_missing(row, GAME_SCHEMA),
        "ply_faults": _ply_faults(row),
        "num_boards": phases.total(),
        "most_of_a_phase": max(phases.values(), default=0),
        "split_faults": None if row["game_id"] is None else int(row["split"] != split_of_game(row["game_id"], fractions)),
    }


def _ply_faults(row: Row) -> int | None:
    num_plies, moves, keys, labels = (row[name] for name in ("num_plies", "moves", "keys", "label_plies"))
    if None in (num_plies, moves, keys, labels):
        return None
    is_complete = len(moves) == len(keys) == num_plies and None not in moves and None not in keys
    is_rising = all(ply < next_ply for ply, next_ply in pairwise(labels))
    return int(not (is_complete and is_rising and set(labels) <= set(range(num_plies))))

"""A small language model that has learned the format, made once and shared by all tests: on boards of few pieces, learned in seconds."""

import os
import platform
import random
from functools import cache
from pathlib import Path
from typing import Any, Final

import chess
import numpy as np
import pyarrow as pa
import torch
import transformers
from made_language import made_up_rows

from grpo.base.files import atomic_folder, sha256_file, sha256_json
from grpo.board.actions import ACTION_UCI, legal_action_ids
from grpo.dataset.table import Split, board_table
from grpo.engine.answers import Score
from grpo.engine.move_values import ValueTable
from grpo.language.learn.imitation import imitate
from grpo.language.model.policy import load_model
from grpo.language.text.examples import LanguageBoards
from grpo.settings.kinds import LANGUAGE
from grpo.settings.language import LanguageConfig
from grpo.settings.tree import PretrainConfig
from steps.run.code import code_hash

CONFIG: Final = LanguageConfig(
    small_width=96,
    small_num_layers=2,
    num_history_moves=4,
    environment_share=0.4,
    min_parse_rate=0.7,  # So many steps teach as much and little more.
)
_IMITATION: Final = PretrainConfig(num_steps=240, batch_size=8, learning_rate=5e-3, steps_per_validation=240)
SEED: Final = 7
_WORTH: Final = {chess.PAWN: 100, chess.KNIGHT: 300, chess.BISHOP: 300, chess.ROOK: 500, chess.QUEEN: 900, chess.KING: 0}
_SLOPE: Final = 0.003


@cache
def boards_table(num_train: int = 1_500, num_validation: int = 150, num_heldout: int = 90) -> pa.Table:
    """Return boards of all splits with value tables: kings and one to three pieces, moves worth what they take, mate or bring nearer."""
    rng = random.Random(8)
    rows: list[dict[str, Any]] = []
    for split, count in ((Split.TRAIN, num_train), (Split.VALIDATION, num_validation), (Split.HELDOUT, num_heldout)):
        rows += made_up_rows((_some_endgame(rng) for _ in range(count)), split=split, table_of=_table)
    return board_table(rows)


@cache
def pretrained_folder() -> Path:
    """Return the folder of the model after imitation; the first process that asks makes it.

    It lies in the user's cache, under a hash of everything that makes it.
    """
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chess-grpo-tests"
    cache_folder.mkdir(parents=True, exist_ok=True)
    folder = cache_folder / _key()
    if not folder.exists():
        policy = load_model(CONFIG, seed=SEED, device=torch.device("cpu"))
        train, validation = (LanguageBoards(boards_table(), split, CONFIG) for split in (Split.TRAIN, Split.VALIDATION))
        for _ in imitate(policy, train, validation, _IMITATION, seed=SEED):
            pass
        with atomic_folder(folder) as made:
            policy.save(made)
    return folder


def _key() -> str:
    facts = {
        "sources": [
            sha256_file(Path(__file__)),
            *(code_hash(f"grpo.language.{name}", LANGUAGE, "") for name in ("learn.imitation", "model.loading")),
        ],
        "packages": [torch.__version__, transformers.__version__, platform.python_version()],
    }
    return sha256_json(facts)[:24]


def _some_endgame(rng: random.Random) -> chess.Board:
    while True:
        board = chess.Board(None)
        pieces = ["K", "k", *rng.choices("QRRNBPPqrrnbpp", k=rng.randint(1, 3))]
        for piece, square in zip(pieces, rng.sample(chess.SQUARES, len(pieces)), strict=True):
            board.set_piece_at(square, chess.Piece.from_symbol(piece))
        board.turn = rng.random() < 0.5
        board.halfmove_clock, board.fullmove_number = rng.randrange(30), rng.randrange(30, 90)
        if board.is_valid() and not board.is_game_over() and board.legal_moves.count() >= 5:
            return board


def _table(board: chess.Board) -> ValueTable:
    moves = tuple(ACTION_UCI[board.turn][index] for index in legal_action_ids(board))
    scores = tuple(_score(board, chess.Move.from_uci(move)) for move in moves)
    values = [1.0 if score.is_mate else 1 / (1 + np.exp(-_SLOPE * score.value)) for score in scores]
    return ValueTable(moves=moves, values=np.array(values, dtype=np.float32), scores=scores)


def _score(board: chess.Board, move: chess.Move) -> Score:
    """Return material after the move, less what stands to be taken then, and a little for coming near the other king."""
    mover = board.turn
    after = board.copy(stack=False)
    after.push(move)
    if after.is_checkmate():
        return Score(1, is_mate=True)
    worth = sum(_WORTH[piece.piece_type] * (1 if piece.color == mover else -1) for piece in after.piece_map().values())
    hanging = max((_WORTH[after.piece_type_at(reply.to_square) or chess.KING] for reply in after.generate_legal_captures()), default=0)
    king = after.king(not mover)
    assert king is not None
    return Score(worth - hanging - 5 * chess.square_distance(move.to_square, king))

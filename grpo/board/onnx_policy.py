"""A network's ONNX file as a policy: the probabilities of a board's legal moves, by onnxruntime, chess and numpy alone.

MLflow's models of registered policies carry this module and those that it imports, as a package of another name; so these imports are
relative, and there are no others of this project.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import chess
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from .actions import action_id, action_move, legal_action_ids
from .draws import repeating_moves
from .encoding import encode

ONNX: Final = "policy.onnx"
INPUT: Final = "encodings"
ACTIONS_INPUT: Final = "action_ids"
REPEATS_INPUT: Final = "repeats"
OUTPUT: Final = "logits"

_ROWS_PER_RUN: Final = 100


class OnnxPolicy:
    """The policy of an ONNX file that `grpo.policy.onnx_file` wrote."""

    def __init__(self, path: str | Path, *, num_threads: int = 0) -> None:
        """Load the file.

        Args:
            path: the file.
            num_threads: of onnxruntime; 0 leaves that to it.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def log_probs(self, boards: Sequence[chess.Board], *, temperature: float = 1.0) -> list[NDArray[np.float64]]:
        """Return for each board the log-probabilities of its legal moves in nats, in the order of `legal_moves`.

        Args:
            boards: each with a legal move; the history of a board is its move stack.
            temperature: the logits are divided by it; above 0.
        """
        found: list[NDArray[np.float64]] = []
        for start in range(0, len(boards), _ROWS_PER_RUN):
            found += [_log_softmax(logits / temperature) for logits in self._logits(boards[start : start + _ROWS_PER_RUN])]
        return found

    def _logits(self, boards: Sequence[chess.Board]) -> list[NDArray[np.float64]]:
        ids = [legal_action_ids(board) for board in boards]
        action_ids = np.zeros((len(boards), max(map(len, ids))), dtype=np.int64)
        repeats = np.zeros(action_ids.shape, dtype=np.bool_)
        for row, (legal, board) in enumerate(zip(ids, boards, strict=True)):
            action_ids[row, : len(legal)] = legal
            action_ids[row, len(legal) :] = legal[0]  # Padding, whose logits are left out.
            back = {action_id(move, board.turn) for move in repeating_moves(board)}
            repeats[row, : len(legal)] = [index in back for index in legal]
        inputs = {INPUT: encode(boards), ACTIONS_INPUT: action_ids, REPEATS_INPUT: repeats}
        (logits,) = self._session.run([OUTPUT], inputs)
        return [row[: len(legal)].astype(np.float64) for row, legal in zip(logits, ids, strict=True)]


def legal_moves(board: chess.Board) -> list[chess.Move]:
    """Return the legal moves in the order of their action ids, as the network ranks them."""
    return [action_move(index, board.turn) for index in legal_action_ids(board)]


def _log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result

"""The code of a registered network's MLflow model, copied into it (models from code): FENs in, moves and their probabilities out.

It runs where only the model's own requirements are installed: MLflow, onnxruntime, chess, numpy and pandas, but no torch and nothing of
this project. `steps.tracking.mlflow_model` writes the model.
"""

from importlib import import_module
from typing import Any, Final

import chess
import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

_OVER: Final[dict[str, Any]] = {"move": None, "probability": None, "moves": [], "probabilities": []}
"""The answer to a position without legal moves."""


class NetworkModel(PythonModel):  # type: ignore[misc]  # MLflow has no types.
    """The policy as MLflow asks it."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the ONNX file, and the code that encodes boards for it, which is a package in the model's folder `code`."""
        package = context.model_config["package"]
        self._boards_of_fens = import_module(f"{package}.fens").boards_of_fens
        self._onnx = import_module(f"{package}.onnx_policy")
        self._policy = self._onnx.OnnxPolicy(context.artifacts["policy"])

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Return for each FEN a move, its probability, and the most probable moves with theirs.

        Args:
            context: the model's.
            model_input: a table whose first column has the FENs; MLflow makes one of a list.
            params: what MLflow fills up with the signature's defaults. `temperature`: the logits are divided by it and `move` is drawn; at
                0 `move` is the most probable one, and the probabilities are those at temperature 1. `num_moves`: how many moves to list.
                `seed`: of drawing; -1 draws anew each time.

        Raises ValueError for what is no FEN of a legal position, and for parameters out of range.
        """
        assert params is not None
        temperature, num_moves, seed = params["temperature"], params["num_moves"], params["seed"]
        if not 0 <= temperature < float("inf") or num_moves < 1 or seed < -1:
            raise ValueError(f"temperature must be 0 or above, num_moves at least 1, and seed -1 or above: {params}")
        rng = np.random.default_rng(None if seed == -1 else seed)
        boards = self._boards_of_fens(model_input.iloc[:, 0])
        playable = [board for board in boards if any(board.legal_moves)]
        found = iter(self._policy.log_probs(playable, temperature=temperature or 1.0))
        drawn_by = rng if temperature else None
        rows = [self._row(board, next(found), num_moves, drawn_by) if any(board.legal_moves) else _OVER for board in boards]
        return pd.DataFrame(rows, columns=list(_OVER))

    def _row(self, board: chess.Board, log_probs: Any, num_moves: int, rng: np.random.Generator | None) -> dict[str, Any]:
        probs = np.exp(log_probs)
        probs /= probs.sum()
        moves = [move.uci() for move in self._onnx.legal_moves(board)]
        ranked = np.argsort(-probs, kind="stable")
        chosen = ranked[0] if rng is None else rng.choice(len(probs), p=probs)
        listed = ranked[:num_moves].tolist()
        return {
            "move": moves[chosen],
            "probability": float(probs[chosen]),
            "moves": [moves[index] for index in listed],
            "probabilities": [float(probs[index]) for index in listed],
        }


set_model(NetworkModel())

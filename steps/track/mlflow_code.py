"""The code of a registered policy's MLflow model, copied into it (models from code): FENs in, moves and their probabilities out.

It runs where only the model's own requirements are installed. The model brings this project's library `grpo`.
`steps.track.mlflow_model` writes the model.
"""

import sys
from pathlib import Path
from typing import Any

if (_LIBRARY := Path(__file__).with_name("code") / "grpo.zip").is_file():
    sys.path.insert(0, str(_LIBRARY))  # In a model; where the model is written, the library is installed.
import chess
import numpy as np
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from grpo.board.actions import action_move
from grpo.board.fens import boards_of_fens
from grpo.policy.distribution import PositionBatch
from grpo.policy.files import LANGUAGE, policy_kind
from grpo.policy.policy import NetworkPolicy


class PolicyModel(PythonModel):  # type: ignore[misc]  # MLflow has no types.
    """The policy as MLflow asks it, on the CPU."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy."""
        folder, device, self._generator = Path(context.artifacts["policy"]), torch.device("cpu"), None
        if policy_kind(folder) == LANGUAGE:
            from grpo.language.generate.player import AnswerGenerator
            from grpo.language.model.policy import LanguagePolicy

            speaker = LanguagePolicy.load(folder, device)
            self._generator = AnswerGenerator(speaker, speaker.config)
        else:
            self._policy = NetworkPolicy.load(folder, device)

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Return for each FEN all legal moves, the likeliest first, and their probabilities; none where the game is over.

        A language model gives the move of its best answer alone, without a probability; none where that names no legal one.

        Args:
            context: the model's.
            model_input: a table whose first column has the FENs; MLflow makes one of a list.
            params: none.

        Raises MlflowException for what is no FEN of a legal position: a server answers with its message, and status 400.
        """
        try:
            boards = boards_of_fens(model_input.iloc[:, 0])
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        rows = [self._moves(board) if any(board.legal_moves) else ([], []) for board in boards]
        return pd.DataFrame(rows, columns=["moves", "probabilities"])

    @torch.no_grad()
    def _moves(self, board: chess.Board) -> tuple[list[str], list[float]]:
        if self._generator is not None:
            from grpo.language.generate.player import moves_with_retries

            [reply] = moves_with_retries(self._generator, [board], temperature=None, streams=[np.random.default_rng(0)])
            return ([] if reply.move is None else [reply.move.uci()]), []
        positions = PositionBatch.from_boards([board])
        probabilities = self._policy.distribution(positions, temperature=1.0).probs[0].tolist()
        moves = [action_move(index, board.turn).uci() for index in positions.action_ids[0].tolist()]
        ranked = sorted(zip(moves, probabilities, strict=True), key=lambda each: -each[1])
        return [move for move, _ in ranked], [probability for _, probability in ranked]


set_model(PolicyModel())

"""The code of a registered policy's MLflow model, copied into it (models from code): FENs in, moves and their probabilities out.

It runs where only the model's own requirements are installed. The model brings this project's library `grpo`.
`steps.track.mlflow_model` writes the model.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if (_LIBRARY := Path(__file__).with_name("code") / "grpo.zip").is_file():
    sys.path.insert(0, str(_LIBRARY))  # In a model; where the model is written, the library is installed.
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from grpo.board.fens import boards_of_fens
from grpo.policy.files import policy_kind
from grpo.settings.kinds import KINDS


class PolicyModel(PythonModel):  # type: ignore[misc]  # MLflow has no types.
    """The policy as MLflow asks it, on the CPU."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy."""
        folder = Path(context.artifacts["policy"])
        self._ranked = import_module(KINDS[policy_kind(folder)].module).load_ranker(folder, torch.device("cpu"))

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Return for each FEN all legal moves, the likeliest first, and their probabilities; none where the game is over.

        A kind of policy without probabilities gives the move that it plays alone, without a probability; no move if it has no legal one.

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
        rows = [self._ranked(board) if any(board.legal_moves) else ([], []) for board in boards]
        return pd.DataFrame(rows, columns=["moves", "probabilities"])


set_model(PolicyModel())

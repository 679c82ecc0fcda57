"""Prediction code, which `steps.track.mlflow_model` copies into a policy's MLflow model together with the library `grpo`."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

if (_LIBRARY := Path(__file__).with_name("code") / "grpo.zip").is_file():
    sys.path.insert(0, str(_LIBRARY))  # Only inside a model; elsewhere the library is installed.
import pandas as pd
import torch
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from grpo.board.fens import boards_of_fens
from grpo.policy.files import policy_kind
from grpo.settings.kinds import KINDS


class PolicyModel(PythonModel):  # type: ignore[misc]  # MLflow has no types.
    def load_context(self, context: PythonModelContext) -> None:
        folder = Path(context.artifacts["policy"])
        self._rank = import_module(KINDS[policy_kind(folder)].module).load_ranker(folder, torch.device("cpu"))

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Return a row per FEN of the first column: `moves` (legal moves in UCI, likeliest first) and `probabilities`.

        A language model gives at most one move and no probabilities. Raises MlflowException for an invalid FEN.
        """
        try:
            boards = boards_of_fens(model_input.iloc[:, 0])
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None
        rows = [self._rank(board) if any(board.legal_moves) else ([], []) for board in boards]
        return pd.DataFrame(rows, columns=["moves", "probabilities"])


set_model(PolicyModel())

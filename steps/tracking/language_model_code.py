"""The code of a registered language model's MLflow model, copied into it (models from code): FENs in, moves out.

It has the interface of `model_code`, but a language model has no probabilities of moves. The model brings this project's library `grpo`.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

_COLUMNS: Final = ("move", "probability", "moves", "probabilities")


class LanguageModel(PythonModel):  # type: ignore[misc]  # MLflow has no types.
    """The policy as MLflow asks it."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the language model and its tokenizer, on the CPU."""
        import torch

        from grpo.language.generate.generator import PolicyAnswerGenerator
        from grpo.language.model.loading import load_language_policy

        policy, _ = load_language_policy(Path(context.artifacts["policy"]), torch.device("cpu"))
        self._generator = PolicyAnswerGenerator(policy, policy.config)

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Return for each FEN the move that an answer names; none where no allowed answer names a legal one, or the game is over.

        Args:
            context: the model's.
            model_input: a table whose first column has the FENs; MLflow makes one of a list.
            params: what MLflow fills up with the signature's defaults. `temperature`: at 0 the first answer is the best one, above it is
                sampled. `num_moves` is without effect. `seed`: of sampling; -1 samples anew each time.

        Raises ValueError for what is no FEN of a legal position, and for parameters out of range.
        """
        from grpo.board.fens import boards_of_fens
        from grpo.language.generate.retries import moves_with_retries

        assert params is not None
        temperature, seed = params["temperature"], params["seed"]
        if not 0 <= temperature < float("inf") or seed < -1:
            raise ValueError(f"temperature must be 0 or above, and seed -1 or above: {params}")
        boards = boards_of_fens(model_input.iloc[:, 0])
        playable = [board for board in boards if any(board.legal_moves)]
        streams = np.random.default_rng(None if seed == -1 else seed).spawn(len(playable))
        replies = iter(moves_with_retries(self._generator, playable, temperature=temperature or None, streams=streams))
        found = [next(replies).move if any(board.legal_moves) else None for board in boards]
        rows = [
            {"move": None if move is None else move.uci(), "probability": None, "moves": [] if move is None else [move.uci()]}
            for move in found
        ]
        return pd.DataFrame([{**row, "probabilities": []} for row in rows], columns=list(_COLUMNS))


set_model(LanguageModel())

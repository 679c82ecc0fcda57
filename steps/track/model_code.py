"""The code of a registered policy's MLflow model, copied into it (models from code): FENs in, moves and their probabilities out.

It runs where only the model's own requirements are installed. The model brings this project's library `grpo`.
`steps.track.mlflow_model` writes the model.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

if TYPE_CHECKING:
    import chess

_OVER: Final[dict[str, Any]] = {"move": None, "probability": None, "moves": [], "probabilities": []}
"""The answer to a position without legal moves, or of a language model that names no legal one."""


class PolicyModel(PythonModel):  # type: ignore[misc]  # MLflow has no types.
    """The policy as MLflow asks it, on the CPU."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the policy."""
        import torch

        from grpo.policy.files import LANGUAGE, policy_kind

        folder, device = Path(context.artifacts["policy"]), torch.device("cpu")
        self._is_language = policy_kind(folder) == LANGUAGE
        if self._is_language:
            from grpo.language.generate.player import AnswerGenerator
            from grpo.language.model.policy import LanguagePolicy

            policy = LanguagePolicy.load(folder, device)
            self._generator = AnswerGenerator(policy, policy.config)
        else:
            from grpo.policy.policy import NetworkPolicy

            self._policy = NetworkPolicy.load(folder, device)

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Return for each FEN a move, its probability, and the most probable moves with theirs.

        A language model has no probabilities of moves: it gives the move that an answer names, or none.

        Args:
            context: the model's.
            model_input: a table whose first column has the FENs; MLflow makes one of a list.
            params: what MLflow fills up with the signature's defaults. `temperature`: the logits are divided by it and `move` is drawn; at
                0 `move` is the most probable one, and the probabilities are those at temperature 1. `num_moves`: how many moves to list.
                `seed`: of drawing; -1 draws anew each time.

        Raises ValueError for what is no FEN of a legal position, and for parameters out of range.
        """
        from grpo.board.fens import boards_of_fens

        assert params is not None
        temperature, num_moves, seed = params["temperature"], params["num_moves"], params["seed"]
        if not 0 <= temperature < float("inf") or num_moves < 1 or seed < -1:
            raise ValueError(f"temperature must be 0 or above, num_moves at least 1, and seed -1 or above: {params}")
        rng = np.random.default_rng(None if seed == -1 else seed)
        boards = boards_of_fens(model_input.iloc[:, 0])
        playable = [board for board in boards if any(board.legal_moves)]
        found = iter(self._answers(playable, temperature, rng) if self._is_language else self._moves(playable, temperature, num_moves, rng))
        rows = [next(found) if any(board.legal_moves) else _OVER for board in boards]
        return pd.DataFrame(rows, columns=list(_OVER))

    def _moves(self, boards: "list[chess.Board]", temperature: float, num_moves: int, rng: np.random.Generator) -> list[dict[str, Any]]:
        import torch

        from grpo.board.actions import action_move
        from grpo.policy.distribution import PositionBatch

        rows = []
        for board in boards:
            positions = PositionBatch.from_boards([board])
            with torch.no_grad():
                probs = self._policy.distribution(positions, temperature=temperature or 1.0).probs[0].double().numpy()
            probs /= probs.sum()
            moves = [action_move(int(index), board.turn).uci() for index in positions.action_ids[0]]
            ranked = np.argsort(-probs, kind="stable")
            chosen = rng.choice(len(probs), p=probs) if temperature else ranked[0]
            listed = ranked[:num_moves].tolist()
            rows.append(
                {
                    "move": moves[chosen],
                    "probability": float(probs[chosen]),
                    "moves": [moves[index] for index in listed],
                    "probabilities": [float(probs[index]) for index in listed],
                }
            )
        return rows

    def _answers(self, boards: "list[chess.Board]", temperature: float, rng: np.random.Generator) -> list[dict[str, Any]]:
        from grpo.language.generate.player import moves_with_retries

        replies = moves_with_retries(self._generator, boards, temperature=temperature or None, streams=rng.spawn(len(boards)))
        return [_OVER if reply.move is None else _OVER | {"move": reply.move.uci(), "moves": [reply.move.uci()]} for reply in replies]


set_model(PolicyModel())

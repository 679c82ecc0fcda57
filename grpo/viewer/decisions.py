"""A policy's most instructive decisions on held-out boards: where training changed the move most, blunders, only good moves."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.board.phases import PHASES
from grpo.dataset.table import BoardArrays
from grpo.match.regret import move_probabilities
from grpo.policy.distribution import MovePolicy


def notable_decisions(
    policy: MovePolicy, boards: BoardArrays, *, count: int, before: MovePolicy | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return up to `count` decisions of each kind, as plain data; a decision is the most likely move at T = 1 on a board.

    - `improved`, `worsened`: the value rose or fell most, compared with the earlier policy's move (policy `before`).
    - `worst`: largest regret.
    - `best`: right moves where any other move loses most.

    A decision has `fen` (move number 1, because encoded boards have none), `phase`, `regret`, `margin` (best value minus second best), and
    three moves with `move` (UCI), `probability` and `value`: `chosen`, the engine's `best` (`chosen` if equal), and the earlier policy's
    `before`. Ties go to the first board. The boards' `values` come from the deeper search.
    """
    probs = move_probabilities(policy, boards)
    chosen, rows = probs.argmax(1), np.arange(len(boards))
    values = np.where(boards.is_legal, boards.values.astype(np.float64), -np.inf)
    ordered = np.sort(values, axis=1)[:, ::-1]
    regret = ordered[:, 0] - values[rows, chosen]
    second = ordered[:, min(1, ordered.shape[1] - 1)]
    margin = np.where(np.isfinite(second), ordered[:, 0] - second, 0.0)
    earlier = None if before is None else move_probabilities(before, boards)

    def decision(row: int) -> dict[str, Any]:
        board = decode(boards.encodings[row])

        def valued_move(column: int, probabilities: NDArray[np.float64]) -> dict[str, Any]:
            move = action_move(int(boards.action_ids[row, column]), board.turn)
            return {"move": move.uci(), "probability": float(probabilities[row, column]), "value": float(values[row, column])}

        best = int(chosen[row]) if regret[row] == 0 else int(values[row].argmax())
        return {
            "fen": board.fen(),
            "phase": PHASES[int(boards.phases[row])].value,
            "chosen": valued_move(int(chosen[row]), probs),
            "best": valued_move(best, probs),
            "regret": float(regret[row]),
            "margin": float(margin[row]),
            "before": None if earlier is None else valued_move(int(earlier[row].argmax()), earlier),
        }

    def largest(measure: NDArray[np.float64]) -> list[dict[str, Any]]:
        return [decision(int(row)) for row in np.argsort(-measure, kind="stable")[:count] if measure[row] > 0]

    gain = np.zeros(len(boards)) if earlier is None else values[rows, chosen] - values[rows, earlier.argmax(1)]
    only_good = np.where(regret == 0, margin, 0.0)
    return {"improved": largest(gain), "worsened": largest(-gain), "worst": largest(regret), "best": largest(only_good)}

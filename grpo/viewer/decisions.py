"""A policy's most instructive decisions on held-out boards, for diagrams: where training changed its move most, blunders, only moves."""

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
    """Return greedy decisions at T = 1 as plain data: the most `improved` and `worsened` ones, the `worst`, and the `best`.

    An improved decision has a higher value than the earlier policy's move; the worst have the largest regret; the best are correct where
    any other move costs most. Boards with one legal move are skipped; ties go to the first board. Each decision has its `fen` (with move
    number 1, because encoded boards have none), `phase`, `regret` and `margin` (the best value less the second best), and three moves with
    `move` in UCI, `probability` and `value`: the policy's likeliest as `chosen`, the `best` by the engine (of equals the chosen one), and
    the earlier policy's as `before`, None without such a policy.

    Args:
        policy: The policy.
        boards: Held-out boards; `values` must be those of the stronger search.
        count: Maximum number of decisions of each kind.
        before: An earlier policy, with whose moves on the same boards they are compared.
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

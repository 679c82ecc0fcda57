"""A policy's most instructive decisions on held-out boards, by three measures.

- change: value of the policy's most likely move minus the value of an earlier policy's
- regret: best value minus the value of the policy's most likely move
- margin: best value minus second best value; 0 if only one move is legal

A move's value, in [0, 1], is from an engine's search.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grpo.base.documents import Document
from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.board.phases import PHASES, Phase
from grpo.dataset.table import BoardArrays

if TYPE_CHECKING:
    from grpo.policy.distribution import MovePolicy


class ValuedMove(Document):
    move: str  # UCI.
    probability: float
    """Probability at temperature 1; in `NotableDecision.before`, the earlier policy's."""
    value: float  # For the mover.


class NotableDecision(Document):
    fen: str  # Its move number is 1, because encodings have none.
    phase: Phase
    chosen: ValuedMove
    best: ValuedMove  # Engine's best move: the chosen move if no move is better.
    regret: float
    margin: float
    before: ValuedMove | None  # Earlier policy's move.


class Decisions(Document):
    """`improved` and `worsened` are by change, `worst` by regret. `best` is by margin, of boards whose best move the policy found."""

    num_boards: int
    improved: tuple[NotableDecision, ...]
    worsened: tuple[NotableDecision, ...]
    worst: tuple[NotableDecision, ...]
    best: tuple[NotableDecision, ...]


def notable_decisions(policy: "MovePolicy", boards: BoardArrays, *, count: int, before: "MovePolicy | None" = None) -> Decisions:
    """Return, for each list, at most `count` decisions with the largest measure above 0; of equals the earlier board.

    Without the earlier policy `before`, `improved` and `worsened` are empty.
    `boards.values` must be of depth `evaluation.heldout_depth`.
    """
    from grpo.match.regret import move_probabilities

    probs = move_probabilities(policy, boards)
    chosen, rows = probs.argmax(1), np.arange(len(boards))
    values = np.where(boards.is_legal, boards.values.astype(np.float64), -np.inf)
    ordered = np.sort(values, axis=1)[:, ::-1]
    regret = ordered[:, 0] - values[rows, chosen]
    # With one column, `second` is the best value.
    second = ordered[:, min(1, ordered.shape[1] - 1)]
    margin = np.where(np.isfinite(second), ordered[:, 0] - second, 0.0)
    earlier_probs = None if before is None else move_probabilities(before, boards)

    def decision(row: int) -> NotableDecision:
        board = decode(boards.encodings[row])

        def valued_move(column: int, probabilities: NDArray[np.float64]) -> ValuedMove:
            move = action_move(int(boards.action_ids[row, column]), board.turn)
            return ValuedMove(move=move.uci(), probability=float(probabilities[row, column]), value=float(values[row, column]))

        best = int(chosen[row]) if regret[row] == 0 else int(values[row].argmax())
        return NotableDecision(
            fen=board.fen(),
            phase=PHASES[int(boards.phases[row])],
            chosen=valued_move(int(chosen[row]), probs),
            best=valued_move(best, probs),
            regret=float(regret[row]),
            margin=float(margin[row]),
            before=None if earlier_probs is None else valued_move(int(earlier_probs[row].argmax()), earlier_probs),
        )

    def largest(measure: NDArray[np.float64]) -> tuple[NotableDecision, ...]:
        return tuple(decision(int(row)) for row in np.argsort(-measure, kind="stable")[:count] if measure[row] > 0)

    gain = np.zeros(len(boards)) if earlier_probs is None else values[rows, chosen] - values[rows, earlier_probs.argmax(1)]
    margin_if_found = np.where(regret == 0, margin, 0.0)
    return Decisions(
        num_boards=len(boards), improved=largest(gain), worsened=largest(-gain), worst=largest(regret), best=largest(margin_if_found)
    )

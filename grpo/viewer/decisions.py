"""A policy's most instructive decisions on held-out boards, for diagrams: where training changed its move most, blunders, only moves."""

import numpy as np
from numpy.typing import NDArray

from grpo.base.documents import Document
from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.board.phases import PHASES, Phase
from grpo.dataset.table import BoardArrays
from grpo.match.regret import move_probabilities
from grpo.policy.distribution import MovePolicy


class ValuedMove(Document):
    """A move of a board."""

    move: str
    """UCI."""
    probability: float
    """Probability that the move's policy gives it at T = 1; for the engine's best move, the probability that the judged policy gives it."""
    value: float
    """Value in [0, 1] for the player to move."""


class NotableDecision(Document):
    """A policy's likeliest move at T = 1 on a board."""

    fen: str
    """FEN with move number 1, because encoded boards have none."""
    phase: Phase
    chosen: ValuedMove
    best: ValuedMove
    """Best move by the engine; the chosen move if several are best."""
    regret: float
    """Value of the best move less the value of the chosen move."""
    margin: float
    """Value of the best move less the value of the second best."""
    before: ValuedMove | None
    """Move of an earlier policy; None without such a policy."""


class Decisions(Document):
    """Notable decisions of a policy on held-out boards with at least two legal moves."""

    num_boards: int
    """Number of boards that were judged."""
    improved: tuple[NotableDecision, ...]
    """Decisions with the largest gain in value over the earlier policy's move."""
    worsened: tuple[NotableDecision, ...]
    """Decisions with the largest loss of value against the earlier policy's move."""
    worst: tuple[NotableDecision, ...]
    """Decisions with the largest regret."""
    best: tuple[NotableDecision, ...]
    """Best moves with the largest margin."""


def notable_decisions(policy: MovePolicy, boards: BoardArrays, *, count: int, before: MovePolicy | None = None) -> Decisions:
    """Return a policy's notable decisions; ties go to the first board.

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
            before=None if earlier is None else valued_move(int(earlier[row].argmax()), earlier),
        )

    def largest(of_boards: NDArray[np.float64]) -> tuple[NotableDecision, ...]:
        return tuple(decision(int(row)) for row in np.argsort(-of_boards, kind="stable")[:count] if of_boards[row] > 0)

    gain = np.zeros(len(boards)) if earlier is None else values[rows, chosen] - values[rows, earlier.argmax(1)]
    only_good = np.where(regret == 0, margin, 0.0)
    return Decisions(
        num_boards=len(boards), improved=largest(gain), worsened=largest(-gain), worst=largest(regret), best=largest(only_good)
    )

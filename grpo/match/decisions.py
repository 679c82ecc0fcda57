"""A policy's most instructive decisions on held-out boards, for diagrams: where training changed its move most, blunders, only moves."""

from dataclasses import asdict, dataclass
from typing import Any

import chess
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from grpo.board.actions import action_move
from grpo.board.encoding import decode
from grpo.board.phases import PHASES
from grpo.dataset.table import BoardArrays
from grpo.policy.distribution import MovePolicy, PositionBatch

_BATCH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class ValuedMove:
    """A legal move with the policy's probability and the engine's value."""

    move: str
    """UCI."""
    probability: float
    """The policy's probability at T = 1."""
    value: float
    """Value for the mover, by the stronger search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotableDecision:
    """The policy's move and the engine's best move on one board."""

    fen: str
    """FEN with full-move number 1, because encoded boards have no move number."""
    phase: str
    chosen: ValuedMove
    """The policy's most likely move."""
    best: ValuedMove
    """The move with the best value; among equals the chosen move, else the first."""
    regret: float
    """Best value minus the value of the chosen move."""
    margin: float
    """Best value minus the second best value: the cost of missing the best move."""
    before: ValuedMove | None
    """The most likely move of the policy to compare with, if there is one, with that policy's probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotableDecisions:
    """The worst and the best decisions of a policy, and those that differ most from an earlier policy's."""

    improved: tuple[NotableDecision, ...]
    """Decisions with a higher value than that of the earlier policy's move, the largest gain first; empty without such a policy."""
    worsened: tuple[NotableDecision, ...]
    """Decisions with a lower value than that of the earlier policy's move, the largest loss first; empty without such a policy."""
    worst: tuple[NotableDecision, ...]
    """Decisions with regret, the largest first."""
    best: tuple[NotableDecision, ...]
    """Correct decisions, the largest margin first: the policy found the only good move."""

    def facts(self) -> dict[str, Any]:
        """Return the decisions as plain data."""
        return asdict(self)


def notable_decisions(policy: MovePolicy, boards: BoardArrays, *, count: int, before: MovePolicy | None = None) -> NotableDecisions:
    """Return a policy's worst and best greedy decisions at T = 1; `values` must be those of the stronger search.

    Boards with one legal move are skipped; ties go to the first board.

    Args:
        policy: The policy.
        boards: Held-out boards.
        count: Maximum number of decisions of each kind.
        before: An earlier policy, with whose moves on the same boards they are compared.
    """
    probs = _probabilities(policy, boards)
    chosen = probs.argmax(1)
    values = np.where(boards.is_legal, boards.values.astype(np.float64), -np.inf)
    rows = np.arange(len(boards))
    ordered = np.sort(values, axis=1)[:, ::-1]
    regret = ordered[:, 0] - values[rows, chosen]
    second = ordered[:, min(1, ordered.shape[1] - 1)]
    margin = np.where(np.isfinite(second), ordered[:, 0] - second, 0.0)
    earlier = None if before is None else _probabilities(before, boards)

    def decision(row: int) -> NotableDecision:
        def valued_move(column: int, probabilities: NDArray[np.float64]) -> ValuedMove:
            move = action_move(int(boards.action_ids[row, column]), board.turn)
            return ValuedMove(move=move.uci(), probability=float(probabilities[row, column]), value=float(values[row, column]))

        board: chess.Board = decode(boards.encodings[row])
        best = int(chosen[row]) if regret[row] == 0 else int(values[row].argmax())
        return NotableDecision(
            fen=board.fen(),
            phase=PHASES[int(boards.phases[row])].value,
            chosen=valued_move(int(chosen[row]), probs),
            best=valued_move(best, probs),
            regret=float(regret[row]),
            margin=float(margin[row]),
            before=None if earlier is None else valued_move(int(earlier[row].argmax()), earlier),
        )

    def largest(of_boards: NDArray[np.float64]) -> tuple[NotableDecision, ...]:
        found = [int(row) for row in np.argsort(-of_boards, kind="stable")[:count] if of_boards[row] > 0]
        return tuple(map(decision, found))

    gain = np.zeros(len(boards)) if earlier is None else values[rows, chosen] - values[rows, earlier.argmax(1)]
    return NotableDecisions(
        improved=largest(gain), worsened=largest(-gain), worst=largest(regret), best=largest(np.where(regret == 0, margin, 0.0))
    )


@torch.no_grad()
def _probabilities(policy: MovePolicy, boards: BoardArrays) -> NDArray[np.float64]:
    """Return the probability at T = 1 of each legal move, [N, A], 0 on padding."""
    positions = PositionBatch.from_arrays(boards)
    found = np.zeros(boards.is_legal.shape)
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        probs: Tensor = policy.distribution(positions.select_rows(rows), temperature=1.0).probs
        found[rows.numpy(), : probs.shape[1]] = probs.cpu().numpy()
    return found

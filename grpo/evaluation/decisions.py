"""A policy's most telling decisions on held-out boards, to be drawn: those that give most away, and the hardest that it gets right."""

from collections.abc import Sequence
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
from grpo.policy.distribution import Policy, PositionBatch

_BATCH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedMove:
    """A legal move as policy and engine see it."""

    move: str
    """UCI."""
    probability: float
    """The policy's, at T = 1."""
    value: float
    """Win probability for the mover, by the stronger search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TellingDecision:
    """What a policy does on one board, beside what the engine would do."""

    fen: str
    """With full-move number 1: an encoded board has none."""
    phase: str
    chosen: JudgedMove
    """The policy's likeliest move."""
    best: JudgedMove
    """The move of the best value: the chosen one where that is among the best, else the first of them."""
    regret: float
    """Best value less the chosen move's."""
    margin: float
    """Best value less that of the next best move: what it costs to miss the best one."""
    before: JudgedMove | None
    """The likeliest move of the policy that this one is compared with, if there is one, with that policy's probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TellingDecisions:
    """Few decisions that say much."""

    worst: tuple[TellingDecision, ...]
    """Largest regret first; no decision without one."""
    best: tuple[TellingDecision, ...]
    """Decided right, and largest margin first: one move alone held the position's worth, and the policy plays it."""

    def facts(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def telling_decisions(policy: Policy, boards: BoardArrays, *, count: int, before: Policy | None = None) -> TellingDecisions:
    """Return a policy's worst and best decisions, best moves at T = 1; `values` must be those of the stronger search.

    Boards with one legal move are left out, for nothing is decided there; of equals the first board counts.

    Args:
        policy: whose decisions.
        boards: held-out ones.
        count: of each kind, at most.
        before: a policy whose moves on the same boards are told beside.
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

    def decision(row: int) -> TellingDecision:
        def judged(column: int, of_whom: NDArray[np.float64]) -> JudgedMove:
            move = action_move(int(boards.action_ids[row, column]), board.turn)
            return JudgedMove(move=move.uci(), probability=float(of_whom[row, column]), value=float(values[row, column]))

        board: chess.Board = decode(boards.encodings[row])
        best = int(chosen[row]) if regret[row] == 0 else int(values[row].argmax())
        return TellingDecision(
            fen=board.fen(),
            phase=PHASES[int(boards.phases[row])].value,
            chosen=judged(int(chosen[row]), probs),
            best=judged(best, probs),
            regret=float(regret[row]),
            margin=float(margin[row]),
            before=None if earlier is None else judged(int(earlier[row].argmax()), earlier),
        )

    wrong = [row for row in _largest(regret) if regret[row] > 0]
    right = [row for row in _largest(margin) if regret[row] == 0 and margin[row] > 0]
    return TellingDecisions(worst=tuple(map(decision, wrong[:count])), best=tuple(map(decision, right[:count])))


def _largest(of_boards: NDArray[np.float64]) -> Sequence[int]:
    rows: list[int] = np.argsort(-of_boards, kind="stable").tolist()
    return rows


@torch.no_grad()
def _probabilities(policy: Policy, boards: BoardArrays) -> NDArray[np.float64]:
    """Return the probability at T = 1 of each legal move, [N, A], 0 on padding."""
    positions = PositionBatch.from_arrays(boards)
    found = np.zeros(boards.is_legal.shape)
    for rows in torch.split(torch.arange(len(boards)), _BATCH):
        probs: Tensor = policy.distribution(positions.select_rows(rows), temperature=1.0).probs
        found[rows.numpy(), : probs.shape[1]] = probs.cpu().numpy()
    return found

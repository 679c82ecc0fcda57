"""What puzzles and test suites have in common: entries that are left out and why, and shares that are solved, with intervals."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import chess
import numpy as np
import torch
from numpy.typing import NDArray

from grpo.board.actions import action_id
from grpo.policy.distribution import Policy, PositionBatch
from grpo.reading.games import Reason
from grpo.statistics.intervals import wilson_interval

_BATCH: Final = 512


class Fault(StrEnum):
    """Why an entry is no exercise, where no `Reason` of games and positions says it."""

    UNREADABLE_ROW = "unreadable row"
    """Not a row of the table, or not of operations."""
    NO_RATING = "no rating"
    """Neither a number nor within what Lichess gives."""
    UNFINISHED = "unfinished solution"
    """It ends with the opponent's move, or the solver has none."""
    NO_ANSWER = "no answer"
    """Nothing says what is right or wrong."""
    CONTRADICTING_ANSWERS = "contradicting answers"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """An entry of a file that is no exercise."""

    source: str
    offset: int
    """Byte of the unpacked file at which its line begins."""
    reason: Reason | Fault
    detail: str
    """What exactly was found, at most 120 characters."""

    def __str__(self) -> str:
        return f"{self.source}, byte {self.offset:,}: {self.reason}{f' ({self.detail})' if self.detail else ''}"


class ExerciseError(ValueError):
    """An entry is no exercise, for this reason."""

    def __init__(self, reason: Reason | Fault, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(kw_only=True, slots=True)
class LeftOuts:
    """Counts entries that are left out, by reason, with the first of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, entry: LeftOut) -> None:
        """Count one."""
        self.counts[entry.reason.value] += 1
        self.examples.setdefault(entry.reason.value, str(entry))

    def facts(self) -> dict[str, Any]:
        """Return the counts and first examples as plain data."""
        return {reason: {"count": count, "first": self.examples[reason]} for reason, count in sorted(self.counts.items())}


@dataclass(frozen=True, kw_only=True, slots=True)
class SolvedFraction:
    """How much of some exercises was solved, with Wilson's 95 % interval."""

    num: int
    solved: float
    """Exercises; a whole number for best moves, an expectation for sampled ones; points in parts of the most there is count too."""
    low: float
    high: float

    @property
    def share(self) -> float:
        """Solved of all, in [0, 1]."""
        return self.solved / self.num

    def __str__(self) -> str:
        return f"{self.share:6.1%} [{self.low:.1%}, {self.high:.1%}], {self.num:,}"

    def facts(self) -> dict[str, float]:
        """Return all numbers as plain data."""
        return {"num": self.num, "solved": self.solved, "share": self.share, "low": self.low, "high": self.high}


def share_of(parts: Sequence[float]) -> SolvedFraction:
    """Return the share of at least one exercise, each a number in [0, 1]; where they are not 0 or 1, the interval is on the wide side."""
    low, high = wilson_interval(math.fsum(parts), len(parts))
    return SolvedFraction(num=len(parts), solved=math.fsum(parts), low=low, high=high)


Credits = tuple[float, float]
"""Two kinds of credit for one move, each in [0, 1]: of a puzzle, going on and mating otherwise; of a suite, solving and points."""
Solver = Callable[[Sequence[chess.Board], Sequence[Mapping[chess.Move, Credits]]], NDArray[np.float64]]
"""Whoever solves exercises: given B boards, each with the credits of its moves, the credits to expect of its own, [B, 2]."""


@torch.no_grad()
def expected_credits(
    policy: Policy, boards: Sequence[chess.Board], credited: Sequence[Mapping[chess.Move, Credits]], *, temperature: float
) -> NDArray[np.float64]:
    """Return the expected credits, [B, 2], of the policy's move on each board; without randomness at any temperature.

    Args:
        policy: who moves.
        boards: B of them, each with a legal move.
        credited: for each board, legal move -> its credits; moves that are not named have none.
        temperature: of the moves; 0 is the likeliest move.
    """
    parts = [np.zeros((0, 2))]
    for start in range(0, len(boards), _BATCH):
        positions = PositionBatch.from_boards(boards[start : start + _BATCH])
        ids_BA, is_legal_BA = positions.action_ids.numpy(), positions.is_legal.numpy()
        credits_BA2 = np.zeros((*ids_BA.shape, 2))
        for row, (board, of_moves) in enumerate(zip(boards[start:], credited[start : start + _BATCH], strict=False)):
            legal = ids_BA[row, : is_legal_BA[row].sum()]
            for move, credit in of_moves.items():
                credits_BA2[row, legal.searchsorted(action_id(move, board.turn))] = credit
        distribution = policy.distribution(positions, temperature=temperature or 1.0)
        best_BA = torch.zeros(ids_BA.shape).scatter_(1, distribution.best().cpu()[:, None], 1.0)
        probs_BA = (distribution.probs.cpu() if temperature else best_BA).double().numpy()
        parts.append(np.einsum("ba,bak->bk", probs_BA, credits_BA2))
    return np.concatenate(parts)

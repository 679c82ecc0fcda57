"""Shared parts of puzzles and EPD suites: rejected entries with reasons, expected credits, and solved fractions with intervals."""

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
    """Why an entry is not an exercise, in addition to `Reason` of games and positions."""

    UNREADABLE_ROW = "unreadable row"
    """Not a row of the table, or not valid EPD operations."""
    NO_RATING = "no rating"
    """Not a number, or outside Lichess's range."""
    UNFINISHED = "unfinished solution"
    """The solution ends with the opponent's move, or has no move of the solver."""
    NO_ANSWER = "no answer"
    """The entry does not say which moves are right or wrong."""
    CONTRADICTING_ANSWERS = "contradicting answers"


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """A rejected entry of a file of exercises."""

    source: str
    offset: int
    """Byte offset of its line in the decompressed file."""
    reason: Reason | Fault
    detail: str
    """What was found, in at most 120 characters."""

    def __str__(self) -> str:
        return f"{self.source}, byte {self.offset:,}: {self.reason}{f' ({self.detail})' if self.detail else ''}"


class ExerciseError(ValueError):
    """An entry is not a valid exercise, for this reason."""

    def __init__(self, reason: Reason | Fault, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(kw_only=True, slots=True)
class LeftOuts:
    """Counts of rejected entries by reason, with the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, entry: LeftOut) -> None:
        """Count a rejected entry."""
        self.counts[entry.reason.value] += 1
        self.examples.setdefault(entry.reason.value, str(entry))

    def facts(self) -> dict[str, Any]:
        """Return the counts and first examples as plain data."""
        return {reason: {"count": count, "first": self.examples[reason]} for reason, count in sorted(self.counts.items())}


@dataclass(frozen=True, kw_only=True, slots=True)
class SolvedFraction:
    """The solved fraction of some exercises, with Wilson's 95 % interval."""

    num: int
    solved: float
    """Number of solved exercises: an integer for best moves, an expected value for sampled moves, or a sum of fractions of points."""
    low: float
    high: float

    @property
    def share(self) -> float:
        """The solved fraction, in [0, 1]."""
        return self.solved / self.num

    def __str__(self) -> str:
        return f"{self.share:6.1%} [{self.low:.1%}, {self.high:.1%}], {self.num:,}"

    def facts(self) -> dict[str, float]:
        """Return all numbers as plain data."""
        return {"num": self.num, "solved": self.solved, "share": self.share, "low": self.low, "high": self.high}


def solved_fraction(parts: Sequence[float]) -> SolvedFraction:
    """Return the solved fraction of at least one exercise, each a number in [0, 1]; other values than 0 and 1 make the interval wide."""
    low, high = wilson_interval(math.fsum(parts), len(parts))
    return SolvedFraction(num=len(parts), solved=math.fsum(parts), low=low, high=high)


Credits = tuple[float, float]
"""Two credits for one move, each in [0, 1]: for a puzzle, continuing the solution and mating otherwise; for a suite, solving and points."""
Solver = Callable[[Sequence[chess.Board], Sequence[Mapping[chess.Move, Credits]]], NDArray[np.float64]]
"""Function from B boards, with the credits of their moves, to the expected credits of the solver's move, [B, 2]."""


@torch.no_grad()
def expected_credits(
    policy: Policy, boards: Sequence[chess.Board], credited: Sequence[Mapping[chess.Move, Credits]], *, temperature: float
) -> NDArray[np.float64]:
    """Return the exact expected credits, [B, 2], of the policy's move on each board; no moves are sampled.

    Args:
        policy: The policy.
        boards: B boards with a legal move each.
        credited: For each board, legal move -> credits; other moves have none.
        temperature: Sampling temperature; 0 means the most likely move.
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

"""Replies of players that can fail to name a legal move: language models and UCI engines.

A failed answer is retried a few times; then the player forfeits the game.
"""

from dataclasses import asdict, dataclass

import chess


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyCounts:
    num_moves: int = 0  # Requested moves.
    num_answers: int = 0  # First answers and retries.
    num_unreadable: int = 0  # Answers without a readable move, and searches in which the engine died or hung.
    num_illegal: int = 0

    def __add__(self, other: "ReplyCounts") -> "ReplyCounts":
        one, two = asdict(self), asdict(other)
        return ReplyCounts(**{name: one[name] + two[name] for name in one})

    @property
    def num_retries(self) -> int:
        return self.num_answers - self.num_moves

    @property
    def num_forfeits(self) -> int:
        """Failed answers that were not retried; each ended a game."""
        return self.num_failed - self.num_retries

    @property
    def num_failed(self) -> int:
        return self.num_unreadable + self.num_illegal

    def __str__(self) -> str:
        return (
            f"{self.num_answers:,} answers for {self.num_moves:,} moves: {self.num_unreadable:,} unreadable, {self.num_illegal:,} illegal,"
            f" {self.num_retries:,} asked again, {self.num_forfeits:,} games forfeited"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    move: chess.Move | None  # Legal; None forfeits the game.
    counts: ReplyCounts

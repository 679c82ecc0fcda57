"""What a player answers who may fail to name a legal move: the move, or none, and what it took to get it."""

from dataclasses import dataclass

import chess


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplyCounts:
    """How often a player was asked for a move, and what was wrong with its answers; sums of them are of the same kind."""

    num_moves: int = 0
    """Moves it was asked for."""
    num_answers: int = 0
    """Answers it gave: one a move, and one more whenever it was asked again."""
    num_unreadable: int = 0
    """Answers in which no move could be read."""
    num_illegal: int = 0
    """Answers that named a move which is not legal."""

    def __add__(self, other: "ReplyCounts") -> "ReplyCounts":
        """Return the counts of both together."""
        return ReplyCounts(
            num_moves=self.num_moves + other.num_moves,
            num_answers=self.num_answers + other.num_answers,
            num_unreadable=self.num_unreadable + other.num_unreadable,
            num_illegal=self.num_illegal + other.num_illegal,
        )

    @property
    def num_asked_again(self) -> int:
        """Questions beyond the first of a move."""
        return self.num_answers - self.num_moves

    @property
    def num_forfeits(self) -> int:
        """Games given up: failed answers after which it was not asked again."""
        return self.num_unreadable + self.num_illegal - self.num_asked_again

    def facts(self) -> dict[str, int]:
        """Return all numbers as plain data."""
        return {
            "moves": self.num_moves,
            "answers": self.num_answers,
            "unreadable": self.num_unreadable,
            "illegal": self.num_illegal,
            "asked_again": self.num_asked_again,
            "forfeits": self.num_forfeits,
        }

    def __str__(self) -> str:
        return (
            f"{self.num_answers:,} answers for {self.num_moves:,} moves: {self.num_unreadable:,} unreadable, {self.num_illegal:,} illegal,"
            f" {self.num_asked_again:,} asked again, {self.num_forfeits:,} games forfeited"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """The answer of a player who is asked in words."""

    move: chess.Move | None
    """A legal move; None gives the game up."""
    counts: ReplyCounts
    """Of this one move."""

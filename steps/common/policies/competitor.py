"""The interface of a policy of any kind for games and measurements."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import chess

from grpo.match.players import Player
from grpo.match.regret import HeldoutScores
from grpo.uci.search import MoveFinder

if TYPE_CHECKING:
    import pyarrow as pa


class Competitor(Protocol):
    """A policy that plays and is measured."""

    @property
    def weights(self) -> str:
        """Hash of the weights; equal for equal numbers."""

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return a player of sampled moves at a temperature, from the random stream of this name; of best moves for None."""

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return the held-out metrics of a dataset's boards."""

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value of each held-out board at T = 1, in the order of the boards."""

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write decisions on held-out boards that are worth looking at, beside those of another policy, if this kind has any."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> list[dict[str, float]] | None:
        """Return UCI move -> probability at T = 1 for each board; None for a kind without probabilities of moves."""

    def move_finder(self) -> MoveFinder:
        """Return what finds a move of one board at a time, for UCI and the play page."""

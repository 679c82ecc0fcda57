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
    """A policy that plays games and is measured on held-out boards."""

    @property
    def weights(self) -> str:
        """Hash of the weights' values."""

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return a player that samples moves at a temperature from the random stream of this name, or with None plays best moves."""

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return the held-out metrics on the held-out boards of a table."""

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value at T = 1 of each held-out board, in the table's order."""

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write `decisions.json`, notable moves on held-out boards, compared with the policy `before`; some kinds write nothing."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> list[dict[str, float]] | None:
        """Return UCI move -> probability at T = 1 for each board, or None if the kind has no move probabilities."""

    def move_finder(self) -> MoveFinder:
        """Return an object that chooses moves for one board at a time, for UCI and the play page."""

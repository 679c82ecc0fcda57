"""Interface of policies (network, language model) for games and measurements.

Regret: win probability of the best move minus win probability of the policy's move, by an engine's search.
"""

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
    @property
    def weights(self) -> str:
        """Hash of the weights' values."""

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return a player that samples at `temperature` from the random stream, or plays its best move if None."""

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return metric -> value over the table's held-out boards, such as `heldout/regret_best`."""

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regrets and mean move value at T = 1, one row per held-out board, in the table's order."""

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write `decisions.json`: boards with the largest regret, the clearest best moves, or the largest change of value from `before`."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> list[dict[str, float]] | None:
        """Return UCI move -> probability at T = 1 for each board, or None (language models)."""

    def move_finder(self) -> MoveFinder:
        """Return an object that chooses moves of single boards."""

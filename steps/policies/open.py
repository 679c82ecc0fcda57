"""Policies as games and measurements meet them, whatever their kind."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import chess
import torch

from grpo.base.files import verified_manifest
from grpo.match.players import Player
from grpo.match.regret import HeldoutScores
from grpo.policy.files import LANGUAGE, NETWORK, policy_kind
from grpo.settings.language import LanguageConfig
from grpo.uci.search import MoveFinder
from steps.policies.network import open_network

if TYPE_CHECKING:
    import pyarrow as pa


class Competitor(Protocol):
    """A policy that can play and be measured, whatever is inside."""

    kind: str
    """`network` or `language`."""
    is_deterministic: bool
    """Whether its best player answers a position with the same move, always."""
    facts: Mapping[str, Any]
    """Plain data: what else decides how it plays."""

    @property
    def weights(self) -> str:
        """A hash of its weights: equal for equal numbers."""

    def best_player(self, name: str, *, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return who plays its best moves; what chance has a part in comes from the stream of this name."""

    def sampling_player(self, name: str, *, temperature: float, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return who plays moves drawn at a temperature, from the stream of this name."""

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return what is measured on the held-out boards of a dataset's table."""

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value, board by board, to be paired with those of another policy of this kind."""

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write its most telling decisions, beside those of another policy, if its kind has any to tell."""

    def move_probabilities(self, boards: Sequence[chess.Board]) -> list[dict[str, float]] | None:
        """Return for each board UCI move -> probability at temperature 1; None for a kind that has no probabilities of moves."""

    def move_finder(self) -> MoveFinder:
        """Return what finds the moves of the UCI engine."""


def _open_language(folder: Path, device: torch.device, rules: LanguageConfig | None) -> Competitor:
    from steps.policies.language import open_language_policy

    return open_language_policy(folder, device, rules)


_OPENERS: Final[Mapping[str, Callable[[Path, torch.device, LanguageConfig | None], Competitor]]] = {
    NETWORK: open_network,
    LANGUAGE: _open_language,
}


def open_policy(folder: Path, device: torch.device, *, rules: LanguageConfig | None = None) -> Competitor:
    """Return the policy of a folder, whatever its kind.

    Args:
        folder: with its files.
        device: where it computes.
        rules: how often a language model is asked in games, and on how much it is judged; None goes by what it was saved with.

    Raises CorruptError or IncompatibleError when its files do not make one, PlainError when the packages are missing that its kind needs.
    """
    return _OPENERS[policy_kind(folder)](folder, device, rules)


def open_checkpoint(folder: Path, device: torch.device, *, rules: LanguageConfig | None = None) -> Competitor:
    """Return the policy of a checkpoint after checking every file's hash; raises CorruptError when one is not as it was written."""
    verified_manifest(folder)
    return open_policy(folder, device, rules=rules)

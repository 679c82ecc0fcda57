"""Policies of every kind as games and measurements meet them: the one place that knows which kinds there are."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from grpo.base.files import verified_manifest
from grpo.base.seeding import torch_stream
from grpo.dataset.table import Split, board_arrays
from grpo.evaluation.exercises import Solver, expected_credits
from grpo.evaluation.regret import HeldoutScores, heldout_metrics, heldout_scores, illegal_mass
from grpo.learning.checkpoints import load_policy, weights_hash
from grpo.play.players import BestMovePlayer, Player, SamplingPlayer
from grpo.play.replies import ReplyCounts
from grpo.policy.distribution import NetworkPolicy
from grpo.policy.files import LANGUAGE, NETWORK, policy_kind
from grpo.settings.language import LanguageConfig
from grpo.uci.search import MoveFinder, PolicyMoveFinder
from steps.policies.decisions import write_decisions

if TYPE_CHECKING:
    import pyarrow as pa


class Competitor(Protocol):
    """A policy that can play, be measured and solve exercises, whatever is inside."""

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

    def solver(self, *, temperature: float) -> Solver:
        """Return what solves puzzles and suites; raises PlainError when its kind cannot be asked at this temperature."""

    def solver_replies(self) -> ReplyCounts | None:
        """Return what its answers to exercises were like so far; None for who never fails to name a legal move."""

    def move_finder(self) -> MoveFinder:
        """Return what finds the moves of the UCI engine."""


class NetworkCompetitor:
    """A network, which gives every legal move a probability."""

    kind = NETWORK
    is_deterministic = True

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self.facts: Mapping[str, Any] = {}

    @property
    def weights(self) -> str:
        """A hash of the weights."""
        return weights_hash(self.policy)

    def best_player(self, name: str, *, seed: int, stream: tuple[str | int, ...]) -> Player:  # noqa: ARG002
        """Return who plays the likeliest moves; no chance has a part in them."""
        return BestMovePlayer(self.policy, name)

    def sampling_player(self, name: str, *, temperature: float, seed: int, stream: tuple[str | int, ...]) -> Player:
        """Return who plays moves drawn at a temperature."""
        return SamplingPlayer(self.policy, name, temperature=temperature, rng=torch_stream(seed, *stream))

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        """Return regret, expected value, entropy, agreement with the engine, and the mass of illegal moves before the mask."""
        judged = board_arrays(boards, split=Split.HELDOUT, strong=True)
        return {**heldout_metrics(self.policy, judged), "heldout/illegal_mass": float(illegal_mass(self.policy, judged).mean())}

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value board by board, at T = 1."""
        return heldout_scores(self.policy, board_arrays(boards, split=Split.HELDOUT, strong=True))

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write the worst and best decisions, beside those of another network."""
        judged = board_arrays(boards, split=Split.HELDOUT, strong=True)
        write_decisions(folder, self.policy, judged, before=before.policy if isinstance(before, NetworkCompetitor) else None)

    def solver(self, *, temperature: float) -> Solver:
        """Return exact expectations at a temperature; 0 is the likeliest move."""
        return lambda boards, credited: expected_credits(self.policy, boards, credited, temperature=temperature)

    def solver_replies(self) -> None:
        """Return None: the mask leaves legal moves alone."""

    def move_finder(self) -> MoveFinder:
        """Return what ranks the legal moves by probability."""
        return PolicyMoveFinder(self.policy)


def open_policy(folder: Path, device: torch.device, *, rules: LanguageConfig | None = None) -> Competitor:
    """Return the policy of a folder, whatever its kind.

    Args:
        folder: with its files.
        device: where it computes.
        rules: how often a language model is asked in games, and on how much it is judged; None goes by what it was saved with.

    Raises CorruptError or IncompatibleError when its files do not make one, PlainError when the packages are missing that its kind needs.
    """
    if policy_kind(folder) == LANGUAGE:
        from steps.policies.open_language import open_language_policy

        return open_language_policy(folder, device, rules)
    return NetworkCompetitor(load_policy(folder, device)[0])


def open_checkpoint(folder: Path, device: torch.device, *, rules: LanguageConfig | None = None) -> Competitor:
    """Return the policy of a checkpoint after checking every file's hash; raises CorruptError when one is not as it was written."""
    verified_manifest(folder)
    return open_policy(folder, device, rules=rules)

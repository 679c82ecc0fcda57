"""Gives a chess network the interface `Competitor`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import chess
import torch

from grpo.base.documents import write_document
from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.dataset.table import Split, board_arrays
from grpo.match.players import Player
from grpo.match.policy_players import BestMovePlayer, SamplingPlayer
from grpo.match.regret import HeldoutScores, heldout_metrics, heldout_scores
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy, weights_hash
from grpo.settings.tree import Settings
from grpo.uci.search import MoveFinder, PolicyMoveFinder
from grpo.viewer.decisions import notable_decisions
from steps.common.policies.competitor import Competitor
from steps.names import DECISIONS

if TYPE_CHECKING:
    import pyarrow as pa

_NUM_OF_EACH_KIND: Final = 4  # Notable decisions of each kind (improved, worsened, worst, best).


def open_competitor(folder: Path, device: torch.device, settings: Settings | None) -> Competitor:  # noqa: ARG001
    """Networks read no settings."""
    return NetworkCompetitor(NetworkPolicy.load(folder, device))


class NetworkCompetitor:
    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy

    @property
    def weights(self) -> str:
        return weights_hash(self.policy)

    def player(self, name: str, *, temperature: float | None, seed: int, stream: tuple[str | int, ...]) -> Player:
        if temperature is None:
            return BestMovePlayer(self.policy, name)
        return SamplingPlayer(self.policy, name, temperature=temperature, rng=torch_stream(seed, *stream))

    def heldout(self, boards: "pa.Table") -> dict[str, float]:
        return heldout_metrics(self.policy, board_arrays(boards, split=Split.HELDOUT, strong=True))

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        return heldout_scores(self.policy, board_arrays(boards, split=Split.HELDOUT, strong=True))

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: Competitor | None = None) -> None:
        heldout = board_arrays(boards, split=Split.HELDOUT, strong=True)
        earlier_policy = before.policy if isinstance(before, NetworkCompetitor) else None
        write_document(folder / DECISIONS, notable_decisions(self.policy, heldout, count=_NUM_OF_EACH_KIND, before=earlier_policy))

    @torch.no_grad()
    def move_probabilities(self, boards: Sequence[chess.Board]) -> list[dict[str, float]]:
        positions = PositionBatch.from_boards(boards)
        rows = zip(boards, positions.action_ids.tolist(), self.policy.distribution(positions, temperature=1.0).probs.tolist(), strict=True)
        return [
            # A row's legal moves come first, then padding.
            {action_move(action_id, board.turn).uci(): row[column] for column, action_id in enumerate(ids[: board.legal_moves.count()])}
            for board, ids, row in rows
        ]

    def move_finder(self) -> MoveFinder:
        return PolicyMoveFinder(self.policy)

"""A network as games and measurements meet it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import chess
import torch

from grpo.base.files import write_json
from grpo.base.seeding import torch_stream
from grpo.board.actions import action_move
from grpo.dataset.table import Split, board_arrays
from grpo.match.decisions import notable_decisions
from grpo.match.players import BestMovePlayer, Player, SamplingPlayer
from grpo.match.regret import HeldoutScores, heldout_metrics, heldout_scores
from grpo.policy.distribution import PositionBatch
from grpo.policy.files import NETWORK
from grpo.policy.policy import NetworkPolicy, weights_hash
from grpo.settings.language import LanguageConfig
from grpo.uci.search import MoveFinder, PolicyMoveFinder
from steps.names import DECISIONS

if TYPE_CHECKING:
    import pyarrow as pa

    from steps.policies.open import Competitor

_NUM_OF_EACH_KIND: Final = 4


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
        """Return regret, expected value, entropy, and agreement with the engine."""
        return heldout_metrics(self.policy, board_arrays(boards, split=Split.HELDOUT, strong=True))

    def scores(self, boards: "pa.Table") -> HeldoutScores:
        """Return regret and expected value board by board, at T = 1."""
        return heldout_scores(self.policy, board_arrays(boards, split=Split.HELDOUT, strong=True))

    def write_decisions(self, folder: Path, boards: "pa.Table", *, before: "Competitor | None" = None) -> None:
        """Write the worst and best decisions, and those that differ most from another network's."""
        judged = board_arrays(boards, split=Split.HELDOUT, strong=True)
        other = before.policy if isinstance(before, NetworkCompetitor) else None
        found = notable_decisions(self.policy, judged, count=_NUM_OF_EACH_KIND, before=other)
        write_json(folder / DECISIONS, found | {"num_boards": len(judged)})

    @torch.no_grad()
    def move_probabilities(self, boards: Sequence[chess.Board]) -> list[dict[str, float]]:
        """Return the probabilities at temperature 1."""
        positions = PositionBatch.from_boards(boards)
        rows = zip(boards, positions.action_ids.tolist(), self.policy.distribution(positions, temperature=1.0).probs.tolist(), strict=True)
        return [
            # Padding is at the end of a row.
            {action_move(index, board.turn).uci(): row[column] for column, index in enumerate(ids[: board.legal_moves.count()])}
            for board, ids, row in rows
        ]

    def move_finder(self) -> MoveFinder:
        """Return what ranks the legal moves by probability."""
        return PolicyMoveFinder(self.policy)


def open_network(folder: Path, device: torch.device, _: LanguageConfig | None = None) -> NetworkCompetitor:
    """Return the network of a folder; raises CorruptError or IncompatibleError when its files do not make one."""
    return NetworkCompetitor(NetworkPolicy.load(folder, device))

"""The chess network: a move's logit is a score of the position after the move (the afterstate).

Each square has two embeddings: one of (piece, the attackers of both sides), one of (piece, square). A position is the sum of all these and
of a few more, such as mate. Two small layers and a linear short cut turn the sum into a score.

A move changes about 13 squares, so the sum after a move is the board's sum minus the removed rows plus the new rows.

Legend: B boards, A legal moves of a board (padded), N legal moves of all boards, W width.
"""

from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo.board.features import NUM_ROWS, REPETITION
from grpo.policy.distribution import PositionBatch
from grpo.settings.tree import PolicyConfig

_EMBEDDING_SCALE: Final = 0.1  # Makes a new network's sums of 128 rows about 1 in size.


class Scorer(nn.Module):
    """Turns N sums of embeddings, [N, width], into scores, [N]."""

    def __init__(self, width: int, hidden_width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))
        self.hidden = nn.Linear(width, hidden_width)
        self.score = nn.Linear(hidden_width, 1)
        self.short_cut = nn.Linear(width, 1, bias=False)

    def forward(self, sums_NW: Tensor) -> Tensor:
        # In place, because new memory takes longer than the arithmetic.
        first = functional.relu(sums_NW + self.bias, inplace=True)
        second = functional.relu(self.hidden(first), inplace=True)
        # The last layer uses full precision despite autocast, because bfloat16's three digits are too few for probability ratios near 1.
        with torch.autocast(first.device.type, enabled=False):
            second = second.to(first.dtype)
            return cast(Tensor, self.score(second) + self.short_cut(first))[:, 0]


class Network(nn.Module):
    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        rows = torch.randn(NUM_ROWS, config.width) * _EMBEDDING_SCALE
        # Dataset boards have no history, so only GRPO trains this row.
        rows[REPETITION] = 0
        self.embedding = nn.Parameter(rows)
        self.scorer = Scorer(config.width, config.hidden_width)

    def forward(self, positions: PositionBatch) -> Tensor:
        """Return logits, [B, A], 0 on padding."""
        return padded(self.scorer(positions.move_features().sums(self.embedding)), positions.is_legal)


def padded(scores_N: Tensor, is_move_BA: Tensor, padding: float = 0.0) -> Tensor:
    """Return [B, A]: the scores where `is_move_BA` is True, else `padding`."""
    return scores_N.new_full(is_move_BA.shape, padding).masked_scatter(is_move_BA, scores_N)

"""The chess policy network: it scores a move by the position that the move leads to (its afterstate).

A position is a sum over its 64 squares of two embeddings: of what stands there and which pieces of both sides control it, and of what
stands there and where. Two small layers turn the sum into a score. A move changes the codes of some 13 squares, so that its sum is the sum
of the board plus a few rows (`grpo.board.features`).

Legend: B boards, A moves of a board (padded), N moves, W width.
"""

from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo.board.features import NUM_ROWS, REPETITION
from grpo.policy.distribution import PositionBatch
from grpo.settings.tree import PolicyConfig

_EMBEDDING_SCALE: Final = 0.1  # A sum of 128 rows then begins with numbers near 1.


class Network(nn.Module):
    """The score of the position after each move; no dropout, no batch statistics: a move's score does not depend on the others."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        rows = torch.randn(NUM_ROWS, config.width) * _EMBEDDING_SCALE
        # Boards of a dataset have no history, so that imitation leaves this at zero: what a repetition is worth, GRPO learns in its games.
        rows[REPETITION] = 0
        self.embedding = nn.Parameter(rows)
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.hidden = nn.Linear(config.width, config.hidden_width)
        self.score = nn.Linear(config.hidden_width, 1)
        self.short_cut = nn.Linear(config.width, 1, bias=False)

    def forward(self, positions: PositionBatch) -> Tensor:
        """Return the logits of the legal moves, shape [B, A], in the parameters' precision; other entries mean nothing."""
        first = functional.relu(positions.move_features().sums(self.embedding) + self.bias)
        second = functional.relu(self.hidden(first))
        # In full precision despite autocast: bfloat16 has three digits, too few for probability ratios near 1.
        with torch.autocast(first.device.type, enabled=False):
            second = second.to(first.dtype)
            scores_N = cast(Tensor, self.score(second) + self.short_cut(first))[:, 0]
        return scores_N.new_zeros(positions.is_legal.shape).masked_scatter(positions.is_legal, scores_N)

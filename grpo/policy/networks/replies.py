"""A chess network that also scores the opponent's replies to the moves of largest logit (the candidates).

The network `afterstates` gives each legal move a logit. Each reply to a candidate gets a threat: how good the position after the reply is
for the opponent. Threats come from the first columns of the same embedding and from layers of their own.

A candidate's threat t is the largest of its replies' threats. The candidate's logit changes by m - t. The mean m is over the candidates
with replies.

Threats cost several times as much as the logits, so pretraining uses them only in its last quarter. A new network's threats are 0.

Legend: B boards, A legal moves of a board (padded), K candidates of a board, N legal moves of all boards.
"""

from typing import Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from grpo.board.features import MoveFeatures
from grpo.policy.distribution import PositionBatch
from grpo.policy.networks import afterstates
from grpo.settings.tree import PolicyConfig

NUM_CANDIDATES: Final = 3
WIDTH: Final = 64
"""Most columns of the embedding that threats use."""
_ROUNDING: Final = 0.01  # Far above a logit's rounding error in float32.


class Network(nn.Module):
    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.moves = afterstates.Network(config)
        self.threats = afterstates.Scorer(min(WIDTH, config.width), config.hidden_width)
        for weights in (self.threats.score.weight, self.threats.score.bias, self.threats.short_cut.weight):
            nn.init.zeros_(weights)
        self.looks_ahead = True

    def candidates(self, positions: PositionBatch, count: int) -> Tensor:
        """Return the columns of the moves of largest logit, [B, count]. Equal logits keep their order; -1 fills up."""
        return self._likeliest(positions.move_features().sums(self.moves.embedding), positions.is_legal, count)

    def forward(self, positions: PositionBatch) -> Tensor:
        """Return logits, [B, A], 0 on padding."""
        sums = positions.move_features().sums(self.moves.embedding)
        logits = afterstates.padded(self.moves.scorer(sums), positions.is_legal)
        if not self.looks_ahead:
            return logits
        columns_BK = self._likeliest(sums, positions.is_legal, NUM_CANDIDATES)
        rows, slots = (columns_BK >= 0).nonzero(as_tuple=True)
        replies = positions.replies(rows, columns_BK[rows, slots])
        answered = (replies.counts > 0).any(1).nonzero()[:, 0]  # The other candidates end the game.
        if not len(answered):
            return logits
        with torch.no_grad():
            best = afterstates.padded(self._threats(replies), replies.counts > 0, -torch.inf).argmax(1)
        replies = replies.select_moves(best).select_rows(answered, 1)
        # Only the largest threat needs a gradient, so `best` was chosen without.
        slot = rows[answered], slots[answered]
        largest_BK = logits.new_zeros(columns_BK.shape).index_put(slot, self._threats(replies).to(logits.dtype))
        has_BK = torch.zeros_like(largest_BK).index_put(slot, logits.new_ones(len(answered)))
        mean_B1 = largest_BK.sum(1, keepdim=True) / has_BK.sum(1, keepdim=True).clamp(min=1)
        # A missing candidate (-1) adds 0 to column 0.
        return logits.scatter_add(1, columns_BK.clamp(min=0), (mean_B1 - largest_BK) * has_BK)

    @torch.no_grad()
    def _likeliest(self, sums_NW: Tensor, is_legal_BA: Tensor, count: int) -> Tensor:
        """Choose the candidates in float64, from the moves that float32 finds likely enough.

        Float32 rounding depends on the batch's shape, so sampling and loss could choose different ones of two nearly equal moves.
        """
        weights = {name: parameter.double() for name, parameter in self.moves.scorer.named_parameters()}
        with torch.autocast(sums_NW.device.type, enabled=False):
            rough_BA = afterstates.padded(self.moves.scorer(sums_NW), is_legal_BA, -torch.inf)
            least_B1 = rough_BA.topk(min(count, rough_BA.shape[1])).values[:, -1:]
            close_BA = is_legal_BA & (rough_BA >= least_B1 - _ROUNDING)
            scores_N: Tensor = functional_call(self.moves.scorer, weights, sums_NW[close_BA[is_legal_BA]].double())
        logits_BA = afterstates.padded(scores_N, close_BA, -torch.inf)
        columns = logits_BA.sort(dim=1, descending=True, stable=True).indices[:, :count]
        is_move = torch.arange(columns.shape[1], device=columns.device) < is_legal_BA.sum(1, keepdim=True)
        return functional.pad(torch.where(is_move, columns, -1), (0, count - columns.shape[1]), value=-1)

    def _threats(self, replies: MoveFeatures) -> Tensor:
        scores: Tensor = self.threats(replies.sums(self.moves.embedding[:, : len(self.threats.bias)]))
        return scores

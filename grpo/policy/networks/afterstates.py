"""The chess policy network: it scores a move by the position that the move leads to (its afterstate).

A position is a sum over its 64 squares of two embeddings: of what stands there and which pieces of both sides control it, and of what
stands there and where. Two small layers turn the sum into a score. A move changes the codes of some 13 squares, so that its sum is the sum
of the board plus a few rows, as in NNUE (https://www.chessprogramming.org/NNUE).

Legend: B boards, A moves of a board (padded), N moves, M pairs of a move and a square that it changes, W width.
"""

from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from grpo.board.afterstates import NUM_CONTROLS, NUM_FEATURES, afterstates
from grpo.board.encoding import NUM_PIECE_CODES
from grpo.settings.tree import PolicyConfig

_EMBEDDING_SCALE: Final = 0.1  # A sum of 128 embeddings then begins with numbers near 1.


class Network(nn.Module):
    """The score of the position after each move; no dropout, no batch statistics: a move's score does not depend on the others."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.control_embedding = nn.Parameter(torch.randn(NUM_PIECE_CODES * NUM_CONTROLS**2, config.width) * _EMBEDDING_SCALE)
        self.piece_embedding = nn.Parameter(torch.randn(NUM_PIECE_CODES * 64, config.width) * _EMBEDDING_SCALE)
        self.feature_projection = nn.Linear(NUM_FEATURES, config.width)
        # Boards of a dataset have no history, so that imitation leaves this at zero: what a repetition is worth, GRPO learns in its games.
        self.repetition = nn.Parameter(torch.zeros(config.width))
        self.hidden = nn.Linear(config.width, config.hidden_width)
        self.score = nn.Linear(config.hidden_width, 1)
        self.short_cut = nn.Linear(config.width, 1, bias=False)

    def forward(self, encodings_BE: Tensor, action_ids_BA: Tensor, is_legal_BA: Tensor, repeats_BA: Tensor) -> Tensor:
        """Return the logits of the legal moves, shape [B, A], in the parameters' precision; other entries mean nothing.

        Args:
            encodings_BE: Bytes of `encoding.encode`, shape [B, 71].
            action_ids_BA: Ids of the moves, shape [B, A].
            is_legal_BA: Which of them to score, shape [B, A].
            repeats_BA: Which of them return to a position of the game, shape [B, A].
        """
        rows, columns = is_legal_BA.nonzero(as_tuple=True)
        sums_NW, features_NF = self._sums(encodings_BE, rows, action_ids_BA[rows, columns])
        scores_N = self._scores(sums_NW, features_NF, repeats_BA[rows, columns])
        return scores_N.new_zeros(is_legal_BA.shape).index_put((rows, columns), scores_N)

    def _scores(self, sums_NW: Tensor, features_NF: Tensor, repeats_N: Tensor) -> Tensor:
        sums_NW = sums_NW + repeats_N[:, None] * self.repetition
        first = functional.relu(sums_NW + self.feature_projection(features_NF.to(sums_NW.dtype)))
        second = functional.relu(self.hidden(first))
        # In full precision despite autocast: bfloat16 has three digits, too few for probability ratios near 1.
        with torch.autocast(first.device.type, enabled=False):
            second = second.to(first.dtype)
            return cast(Tensor, self.score(second) + self.short_cut(first))[:, 0]

    def _sums(self, encodings_BE: Tensor, rows_N: Tensor, ids_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of embeddings after each move, [N, W], and the features of the afterstates."""
        after = afterstates(encodings_BE, rows_N, ids_N)
        boards = functional.embedding_bag(_control_rows(after.board), self.control_embedding, mode="sum")
        boards = boards + functional.embedding_bag(_piece_rows(after.board, _squares(after.board)), self.piece_embedding, mode="sum")
        old, new, num_moves = after.before, after.after, rows_N.shape[0]
        control = _difference(self.control_embedding, _control_rows(old), _control_rows(new), after.moves, num_moves)
        is_other = old[0] != new[0]
        squares, moves = after.squares[is_other], after.moves[is_other]
        old, new = (_piece_rows(codes[:, is_other], squares) for codes in (old, new))
        return boards[rows_N] + control + _difference(self.piece_embedding, old, new, moves, num_moves), after.features


def _squares(codes: Tensor) -> Tensor:
    return torch.arange(64, device=codes.device)


def _control_rows(codes: Tensor) -> Tensor:
    """Return the rows of the control embedding, of codes [3, ...]: piece, our control, their control."""
    return (codes[0] * NUM_CONTROLS + codes[1]) * NUM_CONTROLS + codes[2]


def _piece_rows(codes: Tensor, squares: Tensor) -> Tensor:
    return codes[0] * 64 + squares


def _difference(embedding: Tensor, old_M: Tensor, new_M: Tensor, moves_M: Tensor, num_moves: int) -> Tensor:
    """Return what each move adds to the sum of its board, [N, W]: new rows less old ones; `moves_M` rises."""
    signs = torch.tensor([-1.0, 1.0], dtype=embedding.dtype, device=embedding.device).repeat(old_M.shape[0])
    first = 2 * torch.searchsorted(moves_M, torch.arange(num_moves, device=moves_M.device))
    return functional.embedding_bag(torch.stack([old_M, new_M], 1).flatten(), embedding, first, mode="sum", per_sample_weights=signs)

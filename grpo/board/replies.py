"""Features of the opponent's replies. A reply is a legal answer to a move; its features describe the position after both.

Legend: B boards, E bytes of an encoding, A legal moves of a board (padded), C cached moves of a board, M >= 1 moves.
"""

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from grpo.board.features import MoveFeatures, joined, move_features
from grpo.board.moves import padded_actions, positions_after

# Some 12,000 replies to 400 moves fit into a CPU's cache. Smaller parts need more calls.
_MOVES_AT_ONCE: Final = {"cpu": 400, "cuda": 20_000}


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class CachedReplies:
    """Cached features of the replies to some moves of B boards. The cache saves time and changes no result."""

    columns: Tensor  # [B, C] int64, column (index in A) of each cached move; -1 in an empty slot.
    features: MoveFeatures  # B * C positions after these moves, row by row. Empty slots and game ends have no entries.

    def select_rows(self, rows: Tensor) -> "CachedReplies":
        columns, width = self.columns[rows], self.features.counts.shape[1]
        index = (rows[:, None] * columns.shape[1] + torch.arange(columns.shape[1], device=rows.device)).flatten()
        return CachedReplies(columns=columns, features=self.features.select_rows(index, width))

    def reflected(self, turned_B: Tensor) -> "CachedReplies":
        turned = turned_B.repeat_interleave(self.columns.shape[1])
        return CachedReplies(columns=self.columns, features=self.features.reflected(turned))


def cache_replies(encodings_BE: Tensor, action_ids_BA: Tensor, columns_BC: Tensor) -> CachedReplies:
    """Compute the replies to the moves in `columns_BC` [B, C]; -1 is no move."""
    rows, slots = (columns_BC >= 0).nonzero(as_tuple=True)
    computed = reply_features(encodings_BE, rows, action_ids_BA[rows, columns_BC[rows, slots]])
    index = rows * columns_BC.shape[1] + slots

    # Empty slots get zeros. `entries` keep their order, because `index` ascends.
    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(columns_BC.numel(), *values.shape[1:]).index_copy(0, index, values)

    features = MoveFeatures(
        boards=spread(computed.boards), counts=spread(computed.counts), num_entries=spread(computed.num_entries), entries=computed.entries
    )
    return CachedReplies(columns=columns_BC, features=features)


def find_replies(encodings_BE: Tensor, action_ids_BA: Tensor, cached: CachedReplies | None, rows: Tensor, columns: Tensor) -> MoveFeatures:
    """Return `reply_features`, from the cache where possible. Move m is in column `columns[m]` >= 0 of board `rows[m]`."""
    ids = action_ids_BA[rows, columns]
    if cached is None:
        return reply_features(encodings_BE, rows, ids)
    is_match = cached.columns[rows] == columns[:, None]
    is_cached = is_match.any(1)
    source = cached.features
    index = rows * cached.columns.shape[1] + is_match.to(torch.uint8).argmax(1)
    misses = (~is_cached).nonzero()[:, 0]
    if len(misses):
        index[misses] = len(source.counts) + torch.arange(len(misses), device=rows.device)
        source = joined([source, reply_features(encodings_BE, rows[misses], ids[misses])])
    return source.select_rows(index, source.counts.shape[1])


def reply_features(encodings_BE: Tensor, rows: Tensor, ids: Tensor) -> MoveFeatures:
    """Return the features of M positions after legal moves, seen by the opponent. The positions' moves are the replies.

    Move m is action `ids[m]` on board `encodings_BE[rows[m]]`. Replies never count as repetitions.
    """
    after_ME = positions_after(encodings_BE, rows, ids)
    action_ids, is_legal = padded_actions(after_ME)
    size = _MOVES_AT_ONCE[ids.device.type]
    parts = zip(after_ME.split(size), action_ids.split(size), is_legal.split(size), strict=True)  # type: ignore[no-untyped-call]
    return joined([move_features(after, replies, legal, torch.zeros_like(legal)) for after, replies, legal in parts])

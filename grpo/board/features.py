"""Afterstates (positions after a move) as sparse features. A network's first layer adds one table row per feature.

Each square, also an empty one, has two features:
- its piece with both sides' control (a side's least valuable attacker, and whether several attack)
- its piece with the square

A move lists the features that it removes or adds (https://www.chessprogramming.org/NNUE), and features of the complete afterstate, such as
mate.

Legend: B boards, A legal moves of a board (padded), N legal moves of all boards (board by board), E entries (in `encodings_BE`: 71 bytes),
R rows and W columns of the network's table.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import embedding_bag

from grpo.board.afterstates import NUM_CONTROLS, NUM_FEATURES, afterstates
from grpo.board.bitboards import places
from grpo.board.encoding import MAX_HALFMOVE_CLOCK, NUM_PIECE_CODES

_PIECES: Final = NUM_PIECE_CODES * NUM_CONTROLS**2  # First feature of a piece with its square.
_WHOLE: Final = _PIECES + NUM_PIECE_CODES * 64  # First feature of the complete afterstate.
REPETITION: Final = _WHOLE + NUM_FEATURES  # Feature of a move that returns to a position of its game.
NUM_ROWS: Final = REPETITION + 1

# An entry is a code, negative if the move removes the feature:
# - Code 1 + i is feature i, because 0 has no sign.
# - The next 101 codes are the half-move clock's values 0-100: row `REPETITION - 1` with weight value / 100.
# - The last code stands for all features of the board before the move.
_CLOCK: Final = NUM_ROWS + 1
_BOARD: Final = _CLOCK + MAX_HALFMOVE_CLOCK + 1
_CODES: Final = torch.arange(_BOARD + 1)
_IS_CLOCK: Final = (_CODES >= _CLOCK) & (_CODES < _BOARD)
_ROW_OF_CODE: Final = torch.where(_IS_CLOCK, REPETITION - 1, _CODES - 1)
_WEIGHT_OF_CODE: Final = torch.where(_IS_CLOCK, (_CODES - _CLOCK) / MAX_HALFMOVE_CLOCK, 1.0)
_HAS_SQUARE: Final = (_CODES > _PIECES) & (_CODES <= _WHOLE)
# Code of the mirrored feature: `^ 7` reverses a square's file.
_REFLECTED: Final = torch.where(_HAS_SQUARE, ((_CODES - 1 - _PIECES) ^ 7) + 1 + _PIECES, _CODES)
# The tables below begin with entry -`_BOARD`.
_ENTRIES: Final = torch.arange(-_BOARD, _BOARD + 1)
_ROW_OF_ENTRY: Final = _ROW_OF_CODE[_ENTRIES.abs()].int()
_WEIGHT_OF_ENTRY: Final = _WEIGHT_OF_CODE[_ENTRIES.abs()] * _ENTRIES.sign()
_REFLECTED_ENTRY: Final = (_REFLECTED[_ENTRIES.abs()] * _ENTRIES.sign()).to(torch.int16)


if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class MoveFeatures:
    boards: Tensor  # [B, 128] int16, features before any move: 64 of piece and control, 64 of piece and square.
    counts: Tensor  # [B, A] uint8, number of entries of each move; 0 on padding.
    num_entries: Tensor  # [B] int64, number of entries of all moves of a board.
    entries: Tensor  # [E] int16, board by board, move by move; a move's first entry is the board's code.

    def select_rows(self, rows: Tensor, width: int) -> "MoveFeatures":
        """Return the features of the boards `rows` [K], which have at most `width` moves."""
        lengths = self.num_entries[rows]
        chosen = _ranges((self.num_entries.cumsum(0) - self.num_entries)[rows], lengths)
        counts = self.counts[rows][:, :width]
        return MoveFeatures(boards=self.boards[rows], counts=counts, num_entries=lengths, entries=self.entries.index_select(0, chosen))

    def select_moves(self, columns_B: Tensor) -> "MoveFeatures":
        """Return the features of one move of each board, in column `columns_B` [B]."""
        counts = self.counts.long()
        rows = torch.arange(len(counts), device=counts.device)
        firsts = (self.num_entries.cumsum(0) - self.num_entries) + (counts.cumsum(1) - counts)[rows, columns_B]
        lengths = counts[rows, columns_B]
        chosen = _ranges(firsts, lengths)
        return MoveFeatures(
            boards=self.boards,
            counts=self.counts[rows, columns_B][:, None],
            num_entries=lengths,
            entries=self.entries.index_select(0, chosen),
        )

    def reflected(self, turned_B: Tensor) -> "MoveFeatures":
        """Return the features, mirrored left to right where `turned_B` ([B] bool) is True. Moves keep their columns."""
        table = _REFLECTED_ENTRY.to(self.entries.device)
        images = table.index_select(0, self.entries.int() + _BOARD)
        boards = torch.where(turned_B[:, None], table[self.boards.long() + 1 + _BOARD] - 1, self.boards)
        entries = torch.where(turned_B.repeat_interleave(self.num_entries), images, self.entries)
        return MoveFeatures(boards=boards, counts=self.counts, num_entries=self.num_entries, entries=entries)

    def sums(self, embedding_RW: Tensor) -> Tensor:
        """Return for each afterstate the sum of its features' rows of `embedding_RW` (R = `NUM_ROWS`), [N, W]."""
        squares = self.boards.int()
        starts = torch.arange(0, squares.numel(), squares.shape[1], dtype=torch.int32, device=squares.device)
        boards_BW = _weighted_sums(embedding_RW, squares.flatten(), starts, embedding_RW.new_ones(squares.numel()))
        moves = places(self.counts > 0)
        counts = self.counts.flatten()[moves].int()
        first = counts.cumsum(0, dtype=torch.int32) - counts
        places_E = self.entries.int() + _BOARD
        index = _ROW_OF_ENTRY.to(places_E.device).index_select(0, places_E)
        # A move's first entry is the board before the move. The entry's row is the board's sum, appended to the table.
        index[first] = (NUM_ROWS + moves // self.counts.shape[1]).int()
        weights = _WEIGHT_OF_ENTRY.to(places_E.device, embedding_RW.dtype).index_select(0, places_E)
        return _weighted_sums(torch.cat([embedding_RW, boards_BW]), index, first, weights)


def joined(parts: Sequence[_Record]) -> _Record:
    """Concatenate tensors [K] or [K, width], also of nested dataclasses. Zeros fill narrow rows. Other values are the first part's."""

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], Tensor):
            width = max(value.shape[-1] for value in values)
            return torch.cat([functional.pad(value, (0, width - value.shape[1])) if value.dim() > 1 else value for value in values])
        return joined(values) if is_dataclass(values[0]) else values[0]

    return replace(parts[0], **{field.name: join([getattr(part, field.name) for part in parts]) for field in fields(parts[0])})


def _weighted_sums(table_RW: Tensor, index_E: Tensor, first_N: Tensor, weights_E: Tensor) -> Tensor:
    """Return weighted sums of table rows, [N, W]. Sum n begins at `first_N[n]` of `index_E`."""
    # `_WeightedSums` adds a row's gradients one by one, which is slow on CUDA.
    if table_RW.is_cuda:
        return embedding_bag(index_E, table_RW, first_N, mode="sum", per_sample_weights=weights_E)
    return cast(Tensor, _WeightedSums.apply(table_RW, index_E, first_N, weights_E))  # type: ignore[no-untyped-call]


class _WeightedSums(torch.autograd.Function):
    """`embedding_bag` whose gradient is a second `embedding_bag`: faster on the CPU."""

    @staticmethod
    def forward(context: Any, table_RW: Tensor, index_E: Tensor, first_N: Tensor, weights_E: Tensor) -> Tensor:
        context.save_for_backward(index_E, first_N, weights_E)
        context.num_rows = len(table_RW)
        return embedding_bag(index_E, table_RW, first_N, mode="sum", per_sample_weights=weights_E)

    @staticmethod
    def backward(context: Any, gradient_NW: Tensor) -> tuple[Tensor, None, None, None]:
        index, first, weights = context.saved_tensors
        # Sorting 16-bit integers is faster. A stable sort fixes the order of addition, so rounding is reproducible.
        rows, order = (index.short() if context.num_rows < 2**15 else index).sort(stable=True)
        lengths = torch.diff(first, append=first.new_tensor([len(index)]))
        sums = torch.arange(len(first), device=index.device).repeat_interleave(lengths, output_size=len(index))
        starts = torch.searchsorted(rows, torch.arange(context.num_rows, dtype=rows.dtype, device=rows.device))
        return embedding_bag(sums[order], gradient_NW, starts, mode="sum", per_sample_weights=weights[order]), None, None, None


def move_features(encodings_BE: Tensor, action_ids_BA: Tensor, is_legal_BA: Tensor, repeats_BA: Tensor) -> MoveFeatures:
    """Return the features of the legal moves. `repeats_BA` ([B, A] bool) marks moves that repeat a position of their game."""
    moves = places(is_legal_BA)
    rows = moves // is_legal_BA.shape[1]
    after = afterstates(encodings_BE, rows, action_ids_BA.flatten()[moves])
    old, new, squares = after.before, after.after, after.squares
    differs = old[0] != new[0]
    sizes = 2 + 2 * differs  # Two entries for control, two more if the piece changes.
    clock = (after.features[:, -1] * MAX_HALFMOVE_CLOCK).round()
    has = torch.cat([torch.ones_like(clock[:, None]) > 0, after.features > 0, repeats_BA.flatten()[moves, None]], 1)
    num_first = has.sum(1)
    counts = num_first.index_add(0, after.moves, sizes)
    entries = torch.empty(int(counts.sum()), dtype=torch.int16, device=rows.device)
    codes = [_BOARD, *range(_WHOLE + 1, _WHOLE + NUM_FEATURES), (_CLOCK + clock).to(torch.int16), REPETITION + 1]
    place = counts.cumsum(0) - counts
    for code, is_there in zip(codes, has.unbind(1), strict=True):
        entries[place] = code  # If the move lacks the feature, the next entry overwrites the code.
        place = place + is_there
    place = sizes.cumsum(0) - sizes + num_first.cumsum(0).index_select(0, after.moves)
    entries.scatter_(0, place, (-1 - _control(old)).to(torch.int16))
    entries.scatter_(0, place + 1, (1 + _control(new)).to(torch.int16))
    pieces = places(differs)
    place, squares = place[pieces] + 2, squares[pieces]
    entries.scatter_(0, place, (-1 - _piece(old[0, pieces], squares)).to(torch.int16))
    entries.scatter_(0, place + 1, (1 + _piece(new[0, pieces], squares)).to(torch.int16))
    boards = torch.cat([_control(after.board), _piece(after.board[0], torch.arange(64, device=rows.device))], 1)
    return MoveFeatures(
        boards=boards.to(torch.int16),
        counts=torch.zeros_like(is_legal_BA, dtype=torch.uint8).flatten().index_put((moves,), counts.to(torch.uint8)).view_as(is_legal_BA),
        num_entries=torch.zeros_like(encodings_BE[:, 0], dtype=torch.int64).index_add(0, rows, counts),
        entries=entries,
    )


def _control(codes: Tensor) -> Tensor:
    return (codes[0] * NUM_CONTROLS + codes[1]) * NUM_CONTROLS + codes[2]


def _piece(codes: Tensor, squares: Tensor) -> Tensor:
    return _PIECES + codes * 64 + squares


def _ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the integers of all ranges [start, start + length)."""
    total = int(lengths.sum())
    ranges = (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths, output_size=total)
    ranges += torch.arange(total, device=starts.device)
    return ranges

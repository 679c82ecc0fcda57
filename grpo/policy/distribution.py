"""Distribution of a policy over the legal moves of a batch of boards.

Legend: B boards, A legal moves (padded), G samples of a board. A column is a move's index among the A. Padding has probability 0.
Padding's log-probability is stored as 0, because 0 * -inf would be NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

import chess
import torch
from torch import Tensor

from grpo.board.actions import action_id
from grpo.board.draws import repeating_moves
from grpo.board.encoding import encode
from grpo.board.features import MoveFeatures, joined, move_features
from grpo.board.moves import padded_actions
from grpo.board.replies import CachedReplies, find_replies
from grpo.dataset.table import LabelArrays

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_Record = TypeVar("_Record", bound="DataclassInstance")
_BOARDS_AT_ONCE: Final = 1_024  # Limits memory.

PRECISIONS: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""Values of `grpo.precision`."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class PositionBatch:
    encodings: Tensor
    """[B, 71] uint8, from `grpo.board.encoding.encode`."""
    action_ids: Tensor
    """[B, A] int64, each legal move's id (`grpo.board.actions`); ascending unless the board is mirrored; padded with 0."""
    is_legal: Tensor
    """[B, A] bool, False on padding."""
    repeats: Tensor
    """[B, A] bool, True if the move repeats a position of the game."""
    features: MoveFeatures | None = None
    """Result of `with_features`, if computed."""
    cached_replies: CachedReplies | None = None
    """The opponent's replies to the likeliest moves, if computed (`NetworkPolicy.prepared`)."""
    reference: Tensor | None = None
    """[B, A] log-probabilities of the KL's reference at temperature 1, if computed (`grpo.train.states.with_reference`)."""
    reference_of_image: Tensor | None = None
    """The same for the boards mirrored left to right."""

    def __len__(self) -> int:
        return len(self.encodings)

    @classmethod
    def from_boards(cls, boards: Sequence[chess.Board]) -> Self:
        """Each board must have a legal move. The boards' move stacks determine `repeats`."""
        encodings = torch.from_numpy(encode(boards))
        action_ids, is_legal = padded_actions(encodings)
        repeats = torch.zeros_like(is_legal)
        for index, board in enumerate(boards):
            for move in repeating_moves(board):
                repeats[index] |= is_legal[index] & (action_ids[index] == action_id(move, board.turn))
        return cls(encodings=encodings, action_ids=action_ids, is_legal=is_legal, repeats=repeats)

    @classmethod
    def from_arrays(cls, arrays: LabelArrays) -> Self:
        """No move repeats a position, because the dataset has no histories."""
        return cls(
            encodings=torch.from_numpy(arrays.encodings),
            action_ids=torch.from_numpy(arrays.action_ids),
            is_legal=torch.from_numpy(arrays.is_legal),
            repeats=torch.zeros(arrays.is_legal.shape, dtype=torch.bool),
        )

    def select_rows(self, rows: Tensor) -> Self:
        """Return the boards `rows` [K]. A becomes their largest number of legal moves."""
        is_legal = self.is_legal[rows]
        width = int(is_legal.sum(1).max()) if len(is_legal) else 0
        return type(self)(
            encodings=self.encodings[rows],
            action_ids=self.action_ids[rows][:, :width],
            is_legal=is_legal[:, :width],
            repeats=self.repeats[rows][:, :width],
            features=None if self.features is None else self.features.select_rows(rows, width),
            cached_replies=None if self.cached_replies is None else self.cached_replies.select_rows(rows),
            reference=None if self.reference is None else self.reference[rows][:, :width],
            reference_of_image=None if self.reference_of_image is None else self.reference_of_image[rows][:, :width],
        )

    def move_features(self) -> MoveFeatures:
        return self.features or move_features(self.encodings, self.action_ids, self.is_legal, self.repeats)

    def replies(self, rows: Tensor, columns: Tensor) -> MoveFeatures:
        """Return the features of all replies to M moves. Move m is column `columns[m]` of board `rows[m]`."""
        return find_replies(self.encodings, self.action_ids, self.cached_replies, rows, columns)

    def with_features(self) -> Self:
        """Return the batch with its moves' features, about 1.5 kB per board, for boards that are used again."""
        if self.features is not None:
            return self
        pieces = [self.select_rows(rows) for rows in torch.split(torch.arange(len(self)), _BOARDS_AT_ONCE)]
        return joined([replace(piece, features=piece.move_features()) for piece in pieces])


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class MoveDistribution:
    log_probs: Tensor
    """[B, A] float, 0 on padding."""
    is_legal: Tensor
    """[B, A] bool."""

    @classmethod
    def from_logits(cls, logits_BA: Tensor, is_legal_BA: Tensor, *, temperature: float) -> Self:
        """Compute softmax(logits / temperature) over the legal moves, in float32 or better."""
        assert logits_BA.shape == is_legal_BA.shape, (
            f"logits have the shape {tuple(logits_BA.shape)}, legal moves {tuple(is_legal_BA.shape)}"
        )
        precise = logits_BA if logits_BA.dtype == torch.float64 else logits_BA.float()
        log_probs = (precise / temperature).masked_fill(~is_legal_BA, -torch.inf).log_softmax(dim=1)
        return cls(log_probs=log_probs.masked_fill(~is_legal_BA, 0.0), is_legal=is_legal_BA)

    @property
    def probs(self) -> Tensor:
        """[B, A], 0 on padding."""
        return self.log_probs.exp() * self.is_legal

    def entropy(self) -> Tensor:
        """Return the exact entropy in nats, [B], from 0 to ln(legal moves)."""
        return -(self.probs * self.log_probs).sum(1)

    def kl_to(self, other: "MoveDistribution") -> Tensor:
        """Return the exact KL(self || other) in nats, [B]."""
        return (self.probs * (self.log_probs - other.log_probs)).sum(1)

    def expectation(self, values_BA: Tensor) -> Tensor:  # [B]
        return (self.probs * values_BA).sum(1)

    def log_prob(self, columns_BG: Tensor) -> Tensor:  # [B, G]
        return self.log_probs.gather(1, columns_BG)

    def sample(self, num_moves: int, rng: torch.Generator) -> Tensor:
        """Return columns of independent samples, [B, num_moves], on the CPU."""
        return self.sample_at(torch.rand(len(self.log_probs), num_moves, dtype=torch.float64, generator=rng))

    def sample_at(self, uniforms_BG: Tensor) -> Tensor:
        """Sample by inverse transform from uniform float64 numbers in [0, 1). Return columns, [B, G] int64 on the CPU."""
        cumulated = self.probs.double().cpu().cumsum(1)
        # The total times the largest uniform number, 1 - 2**-53, rounds to less than the total, so no column is past the last move. `right`
        # skips moves of probability 0.
        return torch.searchsorted(cumulated, uniforms_BG * cumulated[:, -1:], right=True)

    def best(self) -> Tensor:
        """Return the column of the most likely move, [B]; among equals the first."""
        return self.probs.argmax(1)

    def num_legal(self) -> Tensor:  # [B]
        return self.is_legal.sum(1)


class MovePolicy(Protocol):
    def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
        """Return the distribution of each board."""


def on_device(record: _Record, device: torch.device) -> _Record:
    """Return the dataclass with all tensors on the device, also in nested dataclasses."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    tensors = {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    return replace(record, **tensors, **{name: on_device(values[name], device) for name in values if is_dataclass(values[name])})

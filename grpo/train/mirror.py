"""Left and right: chess without castling rights is the same game when the files are reversed, so that one board teaches twice.

Legend: B boards, A legal moves (padded).
"""

from typing import Final

import chess
import torch
from torch import Tensor

from grpo.board.actions import ACTIONS, action_id
from grpo.board.encoding import CASTLING, EN_PASSANT
from grpo.policy.distribution import PositionBatch


def _reflected_move(move: chess.Move) -> chess.Move:
    return chess.Move(move.from_square ^ 7, move.to_square ^ 7, promotion=move.promotion)


_REFLECTED_IDS: Final = torch.tensor([action_id(_reflected_move(move), chess.WHITE) for move in ACTIONS])
_REFLECTED_SQUARES: Final = torch.arange(64) ^ 7


def reflected(positions: PositionBatch, wanted_B: Tensor) -> PositionBatch:
    """Return the positions, those that are wanted so and have no castling rights as their left-right mirror image.

    Each move keeps its column, so that values and phases of the boards hold as they are; columns are then no longer in rising order of
    action id. An engine's scores of the two images differ a little, for its search tells left from right.

    Args:
        positions: on any device.
        wanted_B: bool, shape [B]; a board with castling rights stays as it is whatever is wanted.
    """
    encodings = positions.encodings
    turned = wanted_B.to(encodings.device) & (encodings[:, CASTLING] == 0).all(1)
    images = encodings.clone()
    images[:, :64] = encodings[:, _REFLECTED_SQUARES.to(encodings.device)]
    file = encodings[:, EN_PASSANT]
    images[:, EN_PASSANT] = torch.where(file > 0, 9 - file, file)
    ids = positions.action_ids
    return PositionBatch(
        encodings=torch.where(turned[:, None], images, encodings),
        action_ids=torch.where(turned[:, None], _REFLECTED_IDS.to(ids.device)[ids], ids),
        is_legal=positions.is_legal,
        repeats=positions.repeats,
        features=None if positions.features is None else positions.features.reflected(turned),
    )

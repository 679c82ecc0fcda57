"""States: boards with a value, 0 to 1, for every legal move (`grpo.engine.move_values.value_of`).

About half of a step's boards are mirrored left to right. Boards with castling rights are not, because their images could not castle.

Legend: B boards, A legal moves (padded). A column is a move's index among the A.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import chess
import numpy as np
import torch
from torch import Tensor

from grpo.base.errors import PlainError
from grpo.base.seeding import torch_stream
from grpo.board.actions import ACTIONS, action_id
from grpo.board.encoding import CASTLING, EN_PASSANT
from grpo.board.features import joined
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import MAX_CACHED, NetworkPolicy

_BOARDS_AT_ONCE: Final = 1_024  # Limits memory.

Names = tuple[str | int, ...]
"""Name of a random stream, such as ("states", "reflection")."""
Values = Callable[[Sequence[chess.Board]], Iterable[ValueTable | EngineError]]
"""Boards with a legal move -> each board's move values, or the engine's error."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class States:
    positions: PositionBatch
    values: Tensor
    """[B, A] values for the mover; 0 on padding."""
    phases: Tensor
    """[B] int64 index into `PHASES`."""

    def __len__(self) -> int:
        return len(self.positions)

    def select_rows(self, rows: Tensor) -> "States":
        """Return these rows, padded to their largest number of legal moves."""
        positions = self.positions.select_rows(rows)
        width = positions.is_legal.shape[1]
        return States(positions=positions, values=self.values[rows][:, :width], phases=self.phases[rows])


# `square ^ 7` reverses the file: a1 is 0, h1 is 7.
_IMAGES: Final = (chess.Move(move.from_square ^ 7, move.to_square ^ 7, promotion=move.promotion) for move in ACTIONS)
_REFLECTED_IDS: Final = torch.tensor([action_id(image, chess.WHITE) for image in _IMAGES])
_REFLECTED_SQUARES: Final = torch.arange(64) ^ 7


def reflected(positions: PositionBatch, wanted_B: Tensor) -> PositionBatch:
    """Return the positions, with those of `wanted_B` ([B] bool) mirrored left to right, unless they have castling rights.

    A mirrored move keeps its column, so a mirrored board's action ids do not ascend.
    """
    encodings = positions.encodings
    is_mirrored = wanted_B.to(encodings.device) & (encodings[:, CASTLING] == 0).all(1)
    images = encodings.clone()
    images[:, :64] = encodings[:, _REFLECTED_SQUARES.to(encodings.device)]
    file = encodings[:, EN_PASSANT]  # 1 to 8; 0 is none.
    images[:, EN_PASSANT] = torch.where(file > 0, 9 - file, file)
    ids, plain, mirrored = positions.action_ids, positions.reference, positions.reference_of_image
    return PositionBatch(
        encodings=torch.where(is_mirrored[:, None], images, encodings),
        action_ids=torch.where(is_mirrored[:, None], _REFLECTED_IDS.to(ids.device)[ids], ids),
        is_legal=positions.is_legal,
        repeats=positions.repeats,
        features=None if positions.features is None else positions.features.reflected(is_mirrored),
        cached_replies=None if positions.cached_replies is None else positions.cached_replies.reflected(is_mirrored),
        reference=None if plain is None or mirrored is None else torch.where(is_mirrored[:, None], mirrored, plain),
    )


@torch.no_grad()
def with_reference(positions: PositionBatch, policy: NetworkPolicy) -> PositionBatch:
    """Return `policy.prepared` with the policy's log-probabilities, which saves a forward pass at each use."""
    positions = policy.prepared(positions)
    if len(positions) > MAX_CACHED:
        return positions

    def log_probs(piece: PositionBatch) -> Tensor:
        return policy.distribution(piece, temperature=1.0).log_probs.cpu()

    pieces = [positions.select_rows(rows) for rows in torch.split(torch.arange(len(positions)), _BOARDS_AT_ONCE)]
    images = [reflected(piece, torch.ones(len(piece), dtype=torch.bool)) for piece in pieces]
    return joined(
        [
            replace(piece, reference=log_probs(piece), reference_of_image=log_probs(image))
            for piece, image in zip(pieces, images, strict=True)
        ]
    )


def valued_states(boards: Sequence[chess.Board], values: Values) -> tuple[States | None, list[int]]:
    """Return the states of the boards that the engine could value (None without any), and their indices in `boards`."""
    tables = {index: table for index, table in enumerate(values(boards)) if not isinstance(table, EngineError)}
    if not tables:
        return None, []
    positions = PositionBatch.from_boards([boards[index] for index in tables]).with_features()
    values_BA = np.zeros(tuple(positions.is_legal.shape), dtype=np.float32)
    for row, table in enumerate(tables.values()):
        values_BA[row, : len(table.values)] = table.values
    phases = torch.tensor([PHASES.index(phase_of(boards[index])) for index in tables])
    return States(positions=positions, values=torch.from_numpy(values_BA), phases=phases), [*tables]


def states_of_step(states: States, step: int, size: int, *, seed: int, order: Names, images: Names) -> States:
    """Return `size` of the states for a step, counted from 0. `order` and `images` name the random streams.

    Each epoch shuffles all states, and drops an incomplete last batch. Even epochs mirror a random half of the states, odd epochs the other
    half.
    """
    epoch, index = divmod(step, len(states) // size)
    rows = torch.randperm(len(states), generator=torch_stream(seed, *order, epoch))[index * size : (index + 1) * size]
    is_image = torch.rand(len(states), generator=torch_stream(seed, *images)) < 0.5
    chosen = states.select_rows(rows)
    return replace(chosen, positions=reflected(chosen.positions, is_image[rows] ^ bool(epoch % 2)))


class TooFewStatesError(PlainError, ValueError):
    """The dataset has too few boards for a step."""


class DatasetStates:
    def __init__(
        self,
        arrays: BoardArrays,
        *,
        states_per_step: int,
        seed: int,
        prepared: Callable[[PositionBatch], PositionBatch] = PositionBatch.with_features,
    ) -> None:
        """Keep boards with at least two legal moves. Raises TooFewStatesError for fewer than `states_per_step`.

        `prepared` (`with_reference`) only saves time.
        """
        positions = PositionBatch.from_arrays(arrays)
        values, phases = torch.from_numpy(arrays.values).float(), torch.from_numpy(arrays.phases)
        has_choice = positions.is_legal.sum(1) > 1
        self._all = States(positions=positions, values=values, phases=phases).select_rows(has_choice.nonzero()[:, 0])
        if len(self._all) < states_per_step:
            raise TooFewStatesError(
                f"the dataset's training split has {len(self._all)} boards with at least two legal moves; a step uses {states_per_step}:"
                " lower grpo.states_per_step, or raise boards.num_train"
            )
        self._all = replace(self._all, positions=prepared(self._all.positions))
        self._size, self._seed = states_per_step, seed

    def states(self, step: int) -> States:
        return states_of_step(self._all, step, self._size, seed=self._seed, order=("states",), images=("states", "reflection"))

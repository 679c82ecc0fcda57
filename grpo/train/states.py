"""States: boards with the values of their moves, their left-right mirror images, and where states come from: a dataset, or live values.

Without castling rights chess is the same game when the files are reversed, so that one board teaches twice.

Legend: B boards, A legal moves (padded).
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
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.policy.distribution import PositionBatch

Names = tuple[str | int, ...]
"""Parts of a random stream's name."""
Values = Callable[[Sequence[chess.Board]], Iterable[ValueTable | EngineError]]
"""Values the moves of boards that no dataset has: a table a board, each of which has a legal move, or the engine's error."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class States:
    """Boards with a choice between moves, and the value of every legal move.

    A board with the three legal moves a, b, c, of which b wins, has `values` [0.5, 1.0, 0.4, 0, ...].
    """

    positions: PositionBatch
    values: Tensor
    """[B, A] win probability for the mover; 0 on padding."""
    phases: Tensor
    """[B] index into `phases.PHASES`."""

    def __len__(self) -> int:
        return len(self.positions)

    def select_rows(self, rows: Tensor) -> "States":
        """Return the given rows, no wider than they need to be."""
        positions = self.positions.select_rows(rows)
        width = positions.is_legal.shape[1]
        return States(positions=positions, values=self.values[rows][:, :width], phases=self.phases[rows])


_IMAGES: Final = (chess.Move(move.from_square ^ 7, move.to_square ^ 7, promotion=move.promotion) for move in ACTIONS)
_REFLECTED_IDS: Final = torch.tensor([action_id(image, chess.WHITE) for image in _IMAGES])
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


def valued_states(boards: Sequence[chess.Board], values: Values) -> tuple[States | None, list[int]]:
    """Return the states of those boards on which the engine did not fail, and which boards those are.

    Each board must have two legal moves or more. Without any state, the first is None.
    """
    tables = {index: table for index, table in enumerate(values(boards)) if not isinstance(table, EngineError)}
    if not tables:
        return None, []
    positions = PositionBatch.from_boards([boards[index] for index in tables]).with_features()
    of_moves = np.zeros(tuple(positions.is_legal.shape), dtype=np.float32)
    for row, table in enumerate(tables.values()):
        of_moves[row, : len(table.values)] = table.values
    phases = torch.tensor([PHASES.index(phase_of(boards[index])) for index in tables])
    return States(positions=positions, values=torch.from_numpy(of_moves), phases=phases), [*tables]


def of_step(states: States, step: int, size: int, *, seed: int, order: Names, images: Names) -> States:
    """Return those of the states that a step takes: each epoch takes all in an order of its own, but for the last few.

    A random half is shown as mirror images, in the next epoch the other half, and so on.

    Args:
        states: all of them.
        step: counted from the first that takes of them.
        size: how many it takes.
        seed: root of the random streams.
        order: names the streams of the orders, followed by the epoch.
        images: names the stream of the mirror images.
    """
    epoch, index = divmod(step, len(states) // size)
    rows = torch.randperm(len(states), generator=torch_stream(seed, *order, epoch))[index * size : (index + 1) * size]
    is_image = torch.rand(len(states), generator=torch_stream(seed, *images)) < 0.5
    chosen = states.select_rows(rows)
    return replace(chosen, positions=reflected(chosen.positions, is_image[rows] ^ bool(epoch % 2)))


class TooFewStatesError(PlainError, ValueError):
    """A dataset has fewer boards to learn from than a step takes."""


class DatasetStates:
    """Dataset boards with their value tables; the step is all of its state."""

    def __init__(self, arrays: BoardArrays, *, states_per_step: int, seed: int) -> None:
        """Leave out boards with one legal move: whatever is sampled there, nothing can be learned from it.

        Raises TooFewStatesError when fewer boards are left than a step takes.
        """
        positions = PositionBatch.from_arrays(arrays).with_features()
        values, phases = torch.from_numpy(arrays.values), torch.from_numpy(arrays.phases)
        has_choice = positions.is_legal.sum(1) > 1
        self._all = States(positions=positions, values=values, phases=phases).select_rows(has_choice.nonzero()[:, 0])
        if len(self._all) < states_per_step:
            raise TooFewStatesError(
                f"the dataset's training split has {len(self._all)} boards with a choice of moves, fewer than the {states_per_step} that"
                " a step takes of it: lower grpo.states_per_step, or raise boards.num_train"
            )
        self._size, self._seed = states_per_step, seed

    def states(self, step: int) -> States:
        """Return the states of a step."""
        return of_step(self._all, step, self._size, seed=self._seed, order=("states",), images=("states", "reflection"))

"""Where states come from: the dataset's boards, or boards that are valued live."""

from collections.abc import Callable, Iterable, Sequence

import chess
import numpy as np
import torch

from grpo.base.errors import PlainError
from grpo.base.seeding import torch_stream
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.policy.distribution import PositionBatch
from grpo.train.batch import States

Names = tuple[str | int, ...]
"""Of a random stream."""
Values = Callable[[Sequence[chess.Board]], Iterable[ValueTable | EngineError]]
"""Values the moves of boards that no dataset has: a table a board, each of which has a legal move, or the engine's error."""


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
    return states.select_rows(rows).reflected(is_image[rows] ^ bool(epoch % 2))


class TooFewStatesError(PlainError, ValueError):
    """A dataset has fewer boards to learn from than a step takes."""


class DatasetStates:
    """Dataset boards with their value tables; the step is all of its state."""

    def __init__(self, arrays: BoardArrays, *, states_per_step: int, seed: int) -> None:
        """Leave out boards with one legal move: whatever is sampled there, nothing can be learnt from it.

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

"""Where states come from: the dataset's boards, or boards that are valued live."""

from collections.abc import Callable, Iterable, Sequence

import chess
import numpy as np
import torch
from torch import Tensor

from grpo.base.seeding import torch_stream
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.answers import EngineError
from grpo.engine.move_values import ValueTable
from grpo.policy.distribution import PositionBatch
from grpo.train.batch import States

Values = Callable[[Sequence[chess.Board]], Iterable[ValueTable | EngineError]]
"""Values the moves of boards that no dataset has: a table a board, each of which has a legal move, or the engine's error."""


def valued_states(boards: Sequence[chess.Board], values: Values) -> tuple[States | None, list[int]]:
    """Return the states of those boards on which the engine did not fail, and which boards those are.

    Each board must have two legal moves or more. Without any state, the first is None.
    """
    tables = {index: table for index, table in enumerate(values(boards)) if not isinstance(table, EngineError)}
    if not tables:
        return None, []
    positions = PositionBatch.from_boards([boards[index] for index in tables])
    of_moves = np.zeros(tuple(positions.is_legal.shape), dtype=np.float32)
    for row, table in enumerate(tables.values()):
        of_moves[row, : len(table.values)] = table.values
    phases = torch.tensor([PHASES.index(phase_of(boards[index])) for index in tables])
    return States(positions=positions, values=torch.from_numpy(of_moves), phases=phases), [*tables]


def first_images(num_states: int, rng: torch.Generator) -> Tensor:
    """Return which states are shown as mirror images in the first epoch, bool, shape [num_states]; the others are in the second."""
    return torch.rand(num_states, generator=rng) < 0.5


class DatasetStates:
    """Dataset boards with their value tables, in a new order each epoch; the step is all of its state."""

    def __init__(self, arrays: BoardArrays, *, states_per_step: int, seed: int) -> None:
        """Leave out boards with one legal move: whatever is sampled there, nothing can be learnt from it.

        A random half of the boards is shown as mirror images, in the next epoch the other half, and so on.
        Raises ValueError when fewer boards are left than a step takes.
        """
        everything = States(
            positions=PositionBatch.from_arrays(arrays),
            values=torch.from_numpy(arrays.values),
            phases=torch.from_numpy(arrays.phases),
        )
        has_choice = everything.positions.is_legal.sum(1) > 1
        self._all = everything if has_choice.all() else everything.select_rows(has_choice.nonzero()[:, 0])
        if len(self._all) < states_per_step:
            raise ValueError(
                f"{len(self._all)} boards with a choice of moves are fewer than a step takes ({states_per_step}): lower"
                " grpo.states_per_step or raise boards.num_train"
            )
        self.size = states_per_step
        """States of a step."""
        self._seed = seed
        self._is_image = first_images(len(self._all), torch_stream(seed, "states", "reflection"))
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def states(self, step: int) -> States:
        """Return the states of a step; an epoch's last few boards are left for the next."""
        epoch, index = divmod(step, len(self._all) // self.size)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = torch.randperm(len(self._all), generator=torch_stream(self._seed, "states", epoch))
        rows = self._order[index * self.size : (index + 1) * self.size]
        return self._all.select_rows(rows).reflected(self._is_image[rows] ^ bool(epoch % 2))

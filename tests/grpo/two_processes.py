"""Runs of training in one or several processes, for the tests that hold them to be the same run.

As a program: takes the path of a file's beginning and a number of steps; each process leaves there what came of every case, named by its
rank.
"""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import chess
import torch
from doubles import (
    CPU,
    MadeUpValues,
    WrittenReplies,
    arrays_in_float64,
    fake_arrays,
    in_float64,
    legal_moves,
    lively_policy,
    made_up_number,
    some_boards,
)
from doubles import trainer_of as any_trainer_of
from ports import free_port

from grpo.dataset.table import BoardArrays
from grpo.learning.distributed import Processes, UnlikeMachinesError, joined_processes
from grpo.learning.lifecycle import TrainerLifecycle
from grpo.learning.trainer import GrpoTrainer
from grpo.policy.distribution import MoveDistribution, NetworkPolicy, PositionBatch
from grpo.settings.grpo import GrpoConfig

NUM_STEPS: Final = 2
_LIMIT_SECONDS: Final = 3_600
BOARDS: Final = some_boards(8)
ARRAYS: Final = fake_arrays(BOARDS)
CONFIG: Final = GrpoConfig(states_per_step=8, num_minibatches=2, group_size=4, kl_coefficient=0.05, learning_rate=2e-3, max_kl_old=0.0)
DEPTH: Final = {"num_own_moves": 2, "teacher_probability": 0.5}


class SpoiltOnOneBoard(NetworkPolicy):
    """A policy whose numbers are not finite on the first board, and hence in one process only."""

    def distribution(self, positions: PositionBatch, *, temperature: float) -> MoveDistribution:
        """Return the distributions, NaN on the board."""
        found = super().distribution(positions, temperature=temperature)
        is_it = (positions.encodings == torch.from_numpy(ARRAYS.encodings[0])).all(1)[:, None]
        return MoveDistribution(log_probs=found.log_probs.masked_fill(is_it & found.is_legal, math.nan), is_legal=found.is_legal)


def trainer_of(processes: Processes, arrays: BoardArrays = ARRAYS, **changes: Any) -> GrpoTrainer:
    """Return a trainer in float64."""
    return any_trainer_of(
        CONFIG,
        arrays_in_float64(arrays),
        processes=processes,
        opponent=WrittenReplies(lambda board: legal_moves(board)[0]),
        **{"policy": in_float64(lively_policy()), "reference": in_float64(lively_policy(seed=9)), **changes},
    )


def in_float32(processes: Processes) -> GrpoTrainer:
    """Return the trainer in the precision of real runs."""
    return any_trainer_of(CONFIG, ARRAYS, reference=lively_policy(seed=9), processes=processes)


def with_nan_value(processes: Processes) -> GrpoTrainer:
    """Return a trainer that meets one value that is no number, and hence in one process only."""
    arrays = fake_arrays(BOARDS)
    arrays.values[0, 0] = math.nan
    return trainer_of(processes, arrays, estimator="exact")


def is_unlucky(board: chess.Board) -> bool:
    """Return whether the engine fails on a board: on half of them."""
    return made_up_number(board, chess.Move.null()) < 0.5


def writing(processes: Processes, **changes: Any) -> TrainerLifecycle[Any]:
    """Return a trainer of a language model."""
    from written_language import settings, writer, written_boards

    from grpo.language.learn.trainer import LanguageTrainer
    from grpo.language.text.rewards import grade

    # Prompts do not come out even, nor do the answers that end.
    config = settings(**{"grpo.states_per_step": 7, "grpo.num_inner_epochs": 2, "language.max_answer_tokens": 24, **changes})
    lora = config.language.lora
    policy, reference = writer(config).adapted(lora, seed=0) if lora.rank else (writer(config), writer(config))
    grader = partial(grade, weights=config.language.rewards, logistic_slope=0.003)
    return LanguageTrainer(policy, reference, written_boards(config), config, grader=grader, processes=processes)


CASES: Final[dict[str, Callable[[Processes], TrainerLifecycle[Any]]]] = {
    "sampled": lambda processes: trainer_of(processes, entropy_schedule="target", num_inner_epochs=2),
    "exact": lambda processes: trainer_of(processes, estimator="exact", temperature=1.3, max_states_per_forward=2),
    "sampled with depth": lambda processes: trainer_of(processes, depth=DEPTH, baseline="leave_one_out"),
    "trajectory": lambda processes: trainer_of(processes, depth=DEPTH, estimator="trajectory", num_inner_epochs=2),
    "one state a minibatch": lambda processes: trainer_of(processes, states_per_step=4, num_minibatches=4),
    "an uneven number of states": lambda processes: trainer_of(processes, states_per_step=7, num_minibatches=1),
    "a trust region": lambda processes: trainer_of(processes, num_inner_epochs=4, max_kl_old=0.01),
    "a failing engine": lambda processes: trainer_of(processes, depth=DEPTH, values=MadeUpValues(fails_on=is_unlucky)),
    "a value that is no number": with_nan_value,
    "a probability that is no number": lambda processes: trainer_of(
        processes, states_per_step=4, policy=SpoiltOnOneBoard(in_float64(lively_policy()).network, CPU)
    ),
}
CASES_IN_FLOAT32: Final[dict[str, Callable[[Processes], TrainerLifecycle[Any]]]] = {
    "a network": in_float32,
    **({"a language model": writing, "LoRA": partial(writing, **{"language.lora.rank": 4})} if find_spec("transformers") else {}),
}


def results(processes: Processes, num_steps: int) -> dict[str, Any]:
    """Return of each case the weights after a few steps, and what was measured and happened in each."""
    torch.set_num_threads(1)
    found = {}
    for name, make in {**CASES, **CASES_IN_FLOAT32}.items():
        trainer = make(processes)
        records = [trainer.step() for _ in range(num_steps)]
        found[name] = {
            "weights": {key: tensor.detach().clone() for key, tensor in trainer._trained.named_parameters()},
            "metrics": [dict(record.metrics) for record in records],
            "events": [[event.name for event in record.events] for record in records],
        }
    return found


def primitives(processes: Processes) -> dict[str, Any]:
    """Return what each way of talking to each other gives."""
    rank, size = processes.rank, processes.size
    ones, many = torch.full((2, 2), float(rank)), torch.arange(3, dtype=torch.float64) * (rank + 1)
    processes.sum_([ones, many])
    processes.sum_([])
    return {
        "is_first": processes.is_first,
        "rows": processes.own_rows(7).tolist(),
        "sum": [ones.tolist(), many.tolist()],
        # Process r has r rows, so that the first has none.
        "gathered": processes.gathered(torch.full((rank, 2), float(rank))).tolist(),
        "gathered_one_number": processes.gathered(torch.full((rank + 1,), float(rank))).tolist(),
        "any": [processes.any(rank == which, CPU) for which in (0, size - 1, size)],
        "unlike": unlike(processes),
    }


def unlike(processes: Processes) -> str:
    """Return how machines are refused of which the last has another engine, after those that are alike were not."""
    processes.refuse_unlike({"engine": "Stockfish"}, CPU)
    try:
        processes.refuse_unlike({"engine": "Stockfish" if processes.rank < processes.size - 1 else "Stockfish 17", "lock": "1"}, CPU)
    except UnlikeMachinesError as error:
        return str(error)
    return ""


def launch(size: int, path: Path, *, num_steps: int = NUM_STEPS) -> list[dict[str, Any]]:
    """Return what each of so many real processes found."""
    here = Path(__file__)
    shared = {
        **os.environ,
        "PYTHONPATH": f"{here.parent}:{here.parents[2]}",
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    children = [
        subprocess.Popen(
            [sys.executable, str(here), str(path), str(num_steps)],
            env={**shared, "RANK": str(rank), "GROUP_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [child.communicate(timeout=_LIMIT_SECONDS)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0] * size, "\n".join(outputs)
    return [torch.load(f"{path}.{rank}") for rank in range(size)]


def main(path: str, num_steps: int) -> None:
    """Leave all results in a file of this process."""
    with joined_processes(CPU) as processes:
        found = {"primitives": primitives(processes), "results": results(processes, num_steps)}
        torch.save(found, f"{path}.{processes.rank}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

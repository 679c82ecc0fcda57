"""Which search is the best reward: `python benchmarks/labels.py [--boards 300] [--judge 10] [--seed 0]`.

Plays engine games as `build_boards` does, values all moves of some of their positions at several depths, and prints for each depth, and for
means over depths, what its best move gives away by a deep judge (regret, in win probability), how far its values lie from the judge's, and
the boards per second of one process. The judge is the mean of its last four depths. One search prints the tables of all lower depths, so
that a mean costs no more than its deepest search.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Final

import chess
import numpy as np
from numpy.typing import NDArray

from grpo.dataset.quotas import Candidate, SourceReport
from grpo.dataset.units import fill_unit
from grpo.engine.answers import EngineError
from grpo.engine.move_values import engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.settings.tree import Settings
from grpo.statistics.intervals import Z95
from steps.runtime.machine import Machine

_SHALLOW: Final = (1, 2, 3, 4, 5)
_MEANS: Final = ((1, 2), (1, 2, 3), (1, 2, 3, 4))
_JUDGES: Final = 4
Table = list[NDArray[np.float32]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--boards", type=int, default=300)
    parser.add_argument("--judge", type=int, default=10, help="deepest search of the judge")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    settings, path = Settings(), Machine.here().stockfish
    boards = positions(settings, path, count=given.boards, seed=given.seed)
    with EnginePool(path, num_processes=1, options=engine_options(settings.values)) as pool:
        tables = {depth: values(boards, pool, settings, depth) for depth in _SHALLOW}
        judges = [values(boards, pool, settings, depth)[0] for depth in range(given.judge + 1 - _JUDGES, given.judge + 1)]
    judge = mean(judges)
    print(f"{len(boards)} boards, judged by the mean of depths {given.judge + 1 - _JUDGES} to {given.judge}")
    print("| search | regret | rmse | boards/s |\n| --- | --- | --- | --- |")
    for depth, (table, rate) in tables.items():
        print(f"| depth {depth} | {against(table, judge)} | {rate:.0f} |")
    for depths in _MEANS:
        print(f"| mean of {', '.join(map(str, depths))} | {against(mean([tables[depth][0] for depth in depths]), judge)} | |")


def positions(settings: Settings, path: str, *, count: int, seed: int) -> list[chess.Board]:
    """Return boards with a choice between moves, as many of each phase, from engine games."""
    per_phase = -(-count // 3)
    config = settings.boards.model_copy(update={"num_train": 3 * per_phase, "num_validation": 3, "num_heldout": 3, "num_units": 1})
    found: list[chess.Board] = []

    def take(candidates: Sequence[Candidate], _: object) -> None:
        found.extend(candidate.board for candidate in candidates if candidate.board.legal_moves.count() > 1)

    with EnginePool(path, num_processes=1, options={"Hash": settings.values.hash_mib}) as players:
        fill_unit(
            config,
            unit=0,
            seed=seed,
            players=players,
            report=SourceReport(),
            excluded=frozenset(),
            on_rejection=lambda _: None,
            on_candidates=take,
        )
    return found[:count]


def values(boards: Sequence[chess.Board], pool: EnginePool, settings: Settings, depth: int) -> tuple[Table, float]:
    """Return the values of each board's moves, and the boards per second."""
    start = time.perf_counter()
    tables: Table = []
    for table in value_tables(boards, pool, settings.values, depth=depth):
        if isinstance(table, EngineError):
            raise table
        tables.append(table.values)
    return tables, len(boards) / (time.perf_counter() - start)


def mean(tables: Sequence[Table]) -> Table:
    """Return the mean value of each move over several searches."""
    return [np.mean(of_board, axis=0) for of_board in zip(*tables, strict=True)]


def against(table: Table, judge: Table) -> str:
    """Return regret with its 95 % interval, and root mean square difference, as cells of a row."""
    regrets = np.array([true.max() - true[found.argmax()] for found, true in zip(table, judge, strict=True)])
    error = np.concatenate([found - true for found, true in zip(table, judge, strict=True)])
    margin = Z95 * regrets.std(ddof=1) / len(regrets) ** 0.5
    return f"{regrets.mean():.4f} +- {margin:.4f} | {np.sqrt((error**2).mean()):.3f}"


if __name__ == "__main__":
    main()

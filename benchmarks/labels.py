"""Compare searches as the reward, on the held-out boards of a dataset: `python benchmarks/labels.py .../boards.parquet`.

Prints what the best move of each gives away by the dataset's deep search, with its standard error, and the CPU time a board.
"""

import resource
import sys
from typing import Final

import chess
import numpy as np
import pyarrow.parquet as pq

from grpo.board.actions import MAX_LEGAL_MOVES
from grpo.engine.answers import EngineError
from grpo.engine.move_values import engine_options, value_tables
from grpo.engine.pool import EnginePool
from steps.run.machine import Machine

_WAYS: Final = {"depth 5, all moves": (5, MAX_LEGAL_MOVES), "depth 5, best 8": (5, 8), "depth 6, best 8": (6, 8)}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its engines that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main(path: str) -> None:
    """Print a row for each way."""
    rows = [row for row in pq.read_table(path).to_pylist() if row["strong_values"]]
    boards, baseline = [chess.Board(row["fen"]) for row in rows], 0.0
    for name, (depth, num_deep) in _WAYS.items():
        started = cpu_seconds()
        with EnginePool(Machine.here().stockfish, num_processes=1, options=engine_options()) as pool:
            tables = list(value_tables(boards, pool, depth=depth, num_deep=num_deep))
        used = (cpu_seconds() - started) / len(boards)
        found = [(row["strong_values"], table) for row, table in zip(rows, tables, strict=True) if not isinstance(table, EngineError)]
        regrets = [max(strong) - strong[int(table.values.argmax())] for strong, table in found]
        baseline, error = baseline or used, np.std(regrets, ddof=1) / len(regrets) ** 0.5
        print(f"{name:20} {np.mean(regrets):.4f} +- {error:.4f}   {1e3 * used:5.1f} ms CPU a board, {used / baseline:.2f} of the first")


if __name__ == "__main__":
    main(sys.argv[1])

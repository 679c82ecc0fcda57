"""Benchmarks the engine pool against python-chess's two wrappers, on the same positions in one run: `python benchmarks/engine.py`.

All ways run in turn, so that a change of the machine's speed affects all; quote ratios, not speeds. The first table measures the pipes:
one line, depth 4. The second measures the product: reproducible values of all legal moves, against one search per move through the
wrapper.
"""

import asyncio
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence

import chess
import chess.engine

from grpo.engine.answers import EngineError
from grpo.engine.move_values import engine_options, value_tables
from grpo.engine.pool import EnginePool, Query
from grpo.settings.tree import BoardsConfig

_DEPTH = 4
_HASH_MIB = 16
_NUM_POSITIONS = 1_500
_NUM_FOR_WRAPPERS = 300
_NUM_FOR_TABLES = 300
_NUM_FOR_MOVES = 12
_REPEATS = 5
_STOCKFISH = os.environ.get("CHESS_GRPO_STOCKFISH") or shutil.which("stockfish") or "/usr/games/stockfish"


def positions(count: int) -> list[chess.Board]:
    """Return boards of random games with their moves, from move 4 on, like rollouts of a weak policy."""
    rng, found, board = random.Random(0), [], chess.Board()
    while len(found) < count:
        if board.ply() > 100 or not any(board.legal_moves):
            board = chess.Board()
        board.push(rng.choice(list(board.legal_moves)))
        if board.ply() > 8 and any(board.legal_moves) and rng.random() < 0.2:
            found.append(board.copy())
    return found


def timed(work: Callable[[], float]) -> float:
    """Return units of work a second."""
    start = time.perf_counter()
    done = work()
    return done / (time.perf_counter() - start)


def pool_searches(boards: Sequence[chess.Board], num_processes: int) -> float:
    """Return searches a second of our pool."""
    with EnginePool(_STOCKFISH, num_processes=num_processes, options={"Hash": _HASH_MIB}) as pool:
        pool.search([Query(fen=boards[0].fen(), limit="depth 1")] * num_processes * 8)
        queries = [Query(fen=board.fen(), limit=f"depth {_DEPTH}", board=board) for board in boards]
        return timed(lambda: len(pool.search(queries)))


def simple_searches(boards: Sequence[chess.Board]) -> float:
    """Return searches a second through `chess.engine.SimpleEngine`."""
    with chess.engine.SimpleEngine.popen_uci(_STOCKFISH) as engine:
        engine.configure({"Hash": _HASH_MIB, "Threads": 1})

        def work() -> float:
            for board in boards:
                engine.analyse(board, chess.engine.Limit(depth=_DEPTH))
            return len(boards)

        return timed(work)


def asyncio_searches(boards: Sequence[chess.Board], num_processes: int) -> float:
    """Return searches a second through `chess.engine`'s asyncio interface, the positions dealt out to the processes."""

    async def work() -> float:
        engines = [(await chess.engine.popen_uci(_STOCKFISH))[1] for _ in range(num_processes)]
        for engine in engines:
            await engine.configure({"Hash": _HASH_MIB, "Threads": 1})

        async def one(engine: chess.engine.UciProtocol, part: Sequence[chess.Board]) -> None:
            for board in part:
                await engine.analyse(board, chess.engine.Limit(depth=_DEPTH))

        start = time.perf_counter()
        await asyncio.gather(*(one(engine, boards[index::num_processes]) for index, engine in enumerate(engines)))
        seconds = time.perf_counter() - start
        for engine in engines:
            await engine.quit()
        return len(boards) / seconds

    return asyncio.run(work())


def table_moves(boards: Sequence[chess.Board], num_processes: int) -> float:
    """Return move values a second of the tables that the product ships."""
    with EnginePool(_STOCKFISH, num_processes=num_processes, options=engine_options()) as pool:
        list(value_tables(boards[: 8 * num_processes], pool, depth=1))

        def work() -> float:
            tables = list(value_tables(boards, pool, depth=BoardsConfig().depth))
            return sum(len(table.moves) for table in tables if not isinstance(table, EngineError))

        return timed(work)


def simple_moves(boards: Sequence[chess.Board], depth: int) -> float:
    """Return move values a second by one wrapped search a move, of the position after it."""
    with chess.engine.SimpleEngine.popen_uci(_STOCKFISH) as engine:
        engine.configure({"Hash": _HASH_MIB, "Threads": 1})

        def work() -> float:
            count = 0
            for board in boards:
                for move in list(board.legal_moves):
                    board.push(move)
                    if any(board.legal_moves):
                        engine.analyse(board, chess.engine.Limit(depth=depth))
                    board.pop()
                    count += 1
            return count

        return timed(work)


def show(title: str, unit: str, results: dict[str, list[float]], against: dict[str, str]) -> None:
    """Print the median speed of each way, and its ratio to the baseline, with the range over the repeats."""
    print(f"\n{title}\n{'':44}{unit:>14}   ratio [lowest, highest]")
    for name, speeds in results.items():
        line = f"  {name:42}{statistics.median(speeds):14,.0f}"
        if name in against:
            ratios = [mine / other for mine, other in zip(speeds, results[against[name]], strict=True)]
            line += f"   {statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}] of {against[name]}"
        print(line)


def main() -> None:
    """Run all ways in turn, and print a table each of searches and move values."""
    boards = positions(_NUM_POSITIONS)
    few, some = boards[:_NUM_FOR_WRAPPERS], boards[:_NUM_FOR_TABLES]
    searches: dict[str, list[float]] = {}
    moves: dict[str, list[float]] = {}

    def note(results: dict[str, list[float]], name: str, speed: float) -> None:
        results.setdefault(name, []).append(speed)

    for _ in range(_REPEATS):
        note(searches, "SimpleEngine, 1 process", simple_searches(few))
        note(searches, "our pool, 1 process", pool_searches(boards, 1))
        note(searches, "our pool, 2 processes", pool_searches(boards, 2))
        for count in (1, 2, 4):
            note(searches, f"asyncio, {count} process{'es' * (count > 1)}", asyncio_searches(few, count))
        note(moves, "SimpleEngine, depth 4, a search a move", simple_moves(boards[:_NUM_FOR_MOVES], _DEPTH))
        note(moves, "SimpleEngine, depth 1, a search a move", simple_moves(boards[:_NUM_FOR_MOVES], BoardsConfig().depth - 1))
        note(moves, "our tables, 1 process", table_moves(some, 1))
        note(moves, "our tables, 2 processes", table_moves(some, 2))
    simple = "SimpleEngine, 1 process"
    show(f"Searches, depth {_DEPTH}, ", "searches/s", searches, {name: simple for name in searches if name != simple})
    old = "SimpleEngine, depth 1, a search a move"
    show(
        f"Value of every legal move, depth {BoardsConfig().depth}, hash cleared",
        "move values/s",
        moves,
        {name: old for name in moves if name != old},
    )


if __name__ == "__main__":
    main()

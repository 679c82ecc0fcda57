"""Benchmark of a GRPO step against a plain training loop: `python benchmarks/grpo_step.py` prints transitions per second.

A transition is a sampled move with its advantage. A value table has the engine's value of each legal move of a board.

The plain loop handles one state (board) at a time: one forward pass, 16 sampled moves, one engine search after each move (one thread, by
python-chess), one backward pass. Both loops use the same network, boards and cores.

The plain loop searches to depth 4, as in tests/field_notes, and to our tables' depth minus 1, because a table's search
begins before the move.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Final

# Before torch: its idle threads would take the engine's cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import chess
import chess.engine
import numpy as np
import torch

from grpo.board.actions import action_move
from grpo.board.encoding import encode
from grpo.board.phases import PHASES, phase_of
from grpo.dataset.table import BoardArrays
from grpo.engine.move_values import engine_options, value_tables
from grpo.engine.pool import EnginePool
from grpo.policy.distribution import PositionBatch
from grpo.policy.policy import NetworkPolicy, new_policy
from grpo.settings.grpo import GrpoConfig
from grpo.settings.tree import BoardsConfig, PolicyConfig
from grpo.train.network_problem import NetworkProblem
from grpo.train.states import DatasetStates
from grpo.train.trainer import Trainer
from steps.run.machine import Machine

_REPEATS: Final = 3
_NUM_BOARDS: Final = 1_024
_NUM_PLAIN_STATES: Final = 48
_NUM_PLAIN_ENGINE_STATES: Final = 16
_GROUP: Final = 16
_CPU: Final = torch.device("cpu")


def random_boards(count: int) -> list[chess.Board]:
    rng = np.random.default_rng(0)
    boards: dict[str, chess.Board] = {}
    while len(boards) < count:
        board = chess.Board()
        for _ in range(int(rng.integers(6, 100))):
            legal = list(board.legal_moves)
            if not legal:
                break
            board.push(legal[int(rng.integers(len(legal)))])
        if board.legal_moves.count() > 1:
            boards[board.epd()] = board.copy(stack=False)
    return list(boards.values())


def arrays_of(boards: list[chess.Board], stockfish: str) -> tuple[BoardArrays, float]:
    """Return the boards' values, and boards per second."""
    batch = PositionBatch.from_boards(boards)
    values = np.zeros(tuple(batch.is_legal.shape), dtype=np.float32)
    with EnginePool(stockfish, num_processes=os.cpu_count() or 1, options=engine_options()) as pool:
        start = time.perf_counter()
        for row, table in enumerate(value_tables(boards, pool, depth=BoardsConfig().depth)):
            if isinstance(table, Exception):
                raise table
            values[row, : len(table.values)] = table.values
        speed = len(boards) / (time.perf_counter() - start)
    arrays = BoardArrays(
        encodings=encode(boards),
        action_ids=batch.action_ids.numpy(),
        is_legal=batch.is_legal.numpy(),
        values=values,
        played=np.zeros(len(boards), dtype=np.int64),
        phases=np.array([PHASES.index(phase_of(board)) for board in boards], dtype=np.int64),
    )
    return arrays, speed


def plain_loop(policy: NetworkPolicy, boards: list[chess.Board], reward: Callable[[chess.Board, chess.Move], float]) -> float:
    optimizer = torch.optim.Adam(policy.network.parameters(), lr=5e-4)
    rng = torch.Generator().manual_seed(0)
    start = time.perf_counter()
    for board in boards:
        position = PositionBatch.from_boards([board])
        new = policy.distribution(position, temperature=1.0)
        with torch.no_grad():
            columns = new.sample(_GROUP, rng)
        moves = [action_move(int(position.action_ids[0, column]), board.turn) for column in columns[0].tolist()]
        rewards = torch.tensor([reward(board, move) for move in moves])
        loss = -(new.log_prob(columns)[0] * (rewards - rewards.mean())).mean() - 0.015 * new.entropy()[0]
        (loss / len(boards)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return len(boards) * _GROUP / (time.perf_counter() - start)


def searched(engine: chess.engine.SimpleEngine, depth: int) -> Callable[[chess.Board, chess.Move], float]:

    def reward(board: chess.Board, move: chess.Move) -> float:
        after = board.copy(stack=False)
        after.push(move)
        if after.is_game_over():
            return 1.0 if after.is_checkmate() else 0.5
        score = engine.analyse(after, chess.engine.Limit(depth=depth))["score"].pov(board.turn)
        # Slope and logistic curve as in `grpo.engine.move_values`.
        return float(1 / (1 + np.exp(-0.003 * (score.score(mate_score=10_000) or 0))))

    return reward


def our_steps(arrays: BoardArrays, states_per_step: int, num_steps: int) -> tuple[float, dict[str, float]]:
    """Return transitions per second, and parts' fractions of the time."""
    config = GrpoConfig(states_per_step=states_per_step, group_size=_GROUP, critical_entropy=0.0)
    policy, reference = (new_policy(PolicyConfig(), seed=0, device=_CPU) for _ in range(2))
    states = DatasetStates(arrays, states_per_step=states_per_step, seed=0, prepared=reference.prepared)
    trainer = Trainer(NetworkProblem(reference, states, config, seed=0), policy, config, seed=0)
    trainer.step()
    spent = dict.fromkeys(("states", "rollout", "update", "other"), 0.0)
    start = time.perf_counter()
    for _ in range(num_steps):
        trainer.step()
        for part in spent:
            spent[part] += trainer.timings().metrics[f"time/{part}"]
    seconds = time.perf_counter() - start
    return num_steps * states_per_step * _GROUP / seconds, {part: used / seconds for part, used in spent.items()}


def main() -> None:
    torch.set_num_threads(os.cpu_count() or 1)
    stockfish = Machine.here().stockfish
    boards = random_boards(_NUM_BOARDS)
    arrays, tables_per_second = arrays_of(boards, stockfish)
    rewards = {
        (boards[row].epd(), action_move(int(arrays.action_ids[row, column]), boards[row].turn).uci()): float(arrays.values[row, column])
        for row in range(_NUM_PLAIN_STATES)
        for column in range(int(arrays.is_legal[row].sum()))
    }
    depths = sorted({4, BoardsConfig().depth - 1})
    speeds: dict[str, list[float]] = {}
    shares: list[dict[str, float]] = []
    with chess.engine.SimpleEngine.popen_uci(stockfish) as engine:
        engine.configure({"Threads": 1})
        for _ in range(_REPEATS):
            speed, parts = our_steps(arrays, 512, 3)
            shares.append(parts)
            policy = new_policy(PolicyConfig(), seed=0, device=_CPU)
            plain_loop(policy, boards[:4], lambda board, move: rewards[board.epd(), move.uci()])
            for name, way_speed in (
                ("ours, tables at hand", speed),
                # A table serves G moves.
                ("ours, tables made for one use", 1 / (1 / speed + 1 / (tables_per_second * _GROUP))),
                (
                    "plain loop, network alone",
                    plain_loop(policy, boards[:_NUM_PLAIN_STATES], lambda board, move: rewards[board.epd(), move.uci()]),
                ),
                *(
                    (f"plain loop, search of depth {depth}", plain_loop(policy, boards[:_NUM_PLAIN_ENGINE_STATES], searched(engine, depth)))
                    for depth in depths
                ),
            ):
                speeds.setdefault(name, []).append(way_speed)
    print(f"\nDefault network, G = {_GROUP}, 512 states a step: transitions/s, and how many times as fast ours is [lowest, highest]")
    for name, measured in speeds.items():
        line = f"  {name:38}{statistics.median(measured):9,.0f}"
        for kind in ("tables at hand", "tables made for one use"):
            ratios = [mine / other for mine, other in zip(speeds[f"ours, {kind}"], measured, strict=True)]
            line += f"   {kind}: {statistics.median(ratios):.1f} [{min(ratios):.1f}, {max(ratios):.1f}]"
        print(line)
    parts = {part: statistics.median(share[part] for share in shares) for part in shares[0]}
    print("\nWhere a step's time goes: " + ", ".join(f"{part} {used:.1%}" for part, used in parts.items()))


if __name__ == "__main__":
    main()

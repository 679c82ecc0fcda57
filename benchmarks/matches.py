"""Benchmarks games in lock-step against games one after another: `python benchmarks/matches.py [FOLDER_OF_A_POLICY ...]`.

A policy's best moves against Stockfish. The plain loop plays one game at a time: per move one forward pass, one call of python-chess's
SimpleEngine, and `is_game_over(claim_draw=True)`. Its engine gets 50 ms per move, as in a loop that was measured before this project began
(54 to 58 games per minute), or the fixed nodes of the games in lock-step. With fixed nodes the hash is cleared before each move, as in this
project, or not cleared. All ways run in turn with the same openings and both colours, so that a change of the machine's speed affects all;
quote ratios, not speeds. A stronger engine mates a weak policy sooner, so games differ in length: plies per game are printed, and ratios by
plies as well as by games.
"""

import functools
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import chess
import chess.engine
import torch

from grpo.base.seeding import numpy_stream
from grpo.engine.pool import PLAYING_HASH_MIB, EnginePool
from grpo.learning.checkpoints import load_policy
from grpo.learning.self_play import random_openings
from grpo.play.matches import play_match
from grpo.play.players import BestMovePlayer, EnginePlayer
from grpo.policy.distribution import NetworkPolicy, new_policy
from grpo.settings.tree import EvaluationConfig, PolicyConfig
from steps.runtime.machine import Machine

_REPEATS: Final = 3
_NUM_OPENINGS: Final = 64
_NUM_TIMED_OPENINGS: Final = 4
_NUM_PLAIN_OPENINGS: Final = 12
_NODES: Final = 1
_SECONDS: Final = 0.05
_CPU: Final = torch.device("cpu")
_TINY: Final = PolicyConfig(width=16, hidden_width=8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """What one way did."""

    num_games: int
    num_plies: int
    seconds: float

    @property
    def games_per_minute(self) -> float:
        """Games finished."""
        return 60 * self.num_games / self.seconds

    @property
    def plies_per_second(self) -> float:
        """Moves of both sides."""
        return self.num_plies / self.seconds


def in_lock_step(policy: NetworkPolicy, openings: Sequence[str], stockfish: str) -> Speed:
    """Return the speed of lock-step games; engines start before the clock, as in the plain loop."""
    with EnginePool(stockfish, num_processes=Machine.here().num_threads, options={"Hash": PLAYING_HASH_MIB}) as pool:
        players = BestMovePlayer(policy, "policy"), EnginePlayer(pool, limit=f"nodes {_NODES}", name="stockfish")
        play_match(*players, openings[:8], max_plies=4)
        start = time.perf_counter()
        result = play_match(*players, openings, max_plies=EvaluationConfig().max_plies)
        seconds = time.perf_counter() - start
    return Speed(num_games=len(result.games), num_plies=sum(len(game.moves) for game in result.games), seconds=seconds)


def one_by_one(
    policy: NetworkPolicy, openings: Sequence[str], stockfish: str, limit: chess.engine.Limit, *, is_fresh: bool = False
) -> Speed:
    """Return the plain loop's speed; python-chess clears the hash at each new game."""
    player, num_plies = BestMovePlayer(policy, "policy"), 0
    with chess.engine.SimpleEngine.popen_uci(stockfish) as engine:
        engine.configure({"Hash": PLAYING_HASH_MIB, "Threads": 1})
        engine.play(chess.Board(), limit)
        player.choose([chess.Board()], [0])
        start = time.perf_counter()
        for opening in openings:
            for policy_color in chess.COLORS:
                board = chess.Board(opening)
                while not board.is_game_over(claim_draw=True) and len(board.move_stack) < EvaluationConfig().max_plies:
                    move = (
                        player.choose([board], [0])[0]
                        if board.turn == policy_color
                        else engine.play(board, limit, game=object() if is_fresh else None).move
                    )
                    assert move is not None
                    board.push(move)
                num_plies += len(board.move_stack)
        seconds = time.perf_counter() - start
    return Speed(num_games=2 * len(openings), num_plies=num_plies, seconds=seconds)


def main() -> None:
    """Run the ways in turn, and print ratios with their range over the repeats."""
    machine = Machine.here()
    torch.set_num_threads(machine.num_threads)
    openings = random_openings(_NUM_OPENINGS, max_plies=EvaluationConfig().opening_plies, rng=numpy_stream(0, "benchmark"))
    policies = {
        "tiny network, random weights": new_policy(_TINY, seed=0, device=_CPU),
        "default network, random weights": new_policy(PolicyConfig(), seed=0, device=_CPU),
        **{f"policy {number} of the command line": load_policy(Path(path), _CPU)[0] for number, path in enumerate(sys.argv[1:], start=1)},
    }
    for name, policy in policies.items():
        speeds: dict[str, list[Speed]] = {}
        for _ in range(_REPEATS):
            plain = functools.partial(one_by_one, policy, stockfish=machine.stockfish)
            nodes = chess.engine.Limit(nodes=_NODES)
            for way, speed in (
                (f"lock-step, {2 * _NUM_OPENINGS} games, {_NODES} node", in_lock_step(policy, openings, machine.stockfish)),
                (f"one by one, {1000 * _SECONDS:g} ms", plain(openings[:_NUM_TIMED_OPENINGS], limit=chess.engine.Limit(time=_SECONDS))),
                (f"one by one, {_NODES} node", plain(openings[:_NUM_PLAIN_OPENINGS], limit=nodes, is_fresh=True)),
                (f"one by one, {_NODES} node, hash kept", plain(openings[:_NUM_PLAIN_OPENINGS], limit=nodes)),
            ):
                speeds.setdefault(way, []).append(speed)
        size = sum(parameter.numel() for parameter in policy.network.parameters())
        print(f"\n{name}, {size / 1e6:.2f} M parameters: medians of {_REPEATS}, and how many times as fast lock-step is [lowest, highest]")
        ours = next(iter(speeds.values()))
        for way, found in speeds.items():
            line = f"  {way:34}{statistics.median(speed.games_per_minute for speed in found):8,.0f} games/min"
            line += f"{statistics.median(speed.num_plies / speed.num_games for speed in found):6.1f} plies/game"
            for unit in ("games_per_minute", "plies_per_second"):
                ratios = [getattr(mine, unit) / getattr(other, unit) for mine, other in zip(ours, found, strict=True)]
                line += f"   by {unit.split('_')[0]}: {statistics.median(ratios):5.1f} [{min(ratios):.1f}, {max(ratios):.1f}]"
            print(line, flush=True)


if __name__ == "__main__":
    main()

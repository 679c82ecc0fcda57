"""Benchmarks training steps next to busy processes, with torch's idle threads spinning or sleeping: `python benchmarks/threads.py`."""

import os
import statistics
import subprocess
import sys
import time

_REPEATS = 3
_STEPS = 8
_BATCH = 256


def steps_per_second() -> float:
    """Return the rate of optimiser steps of the default network."""
    import chess
    import torch

    from grpo.policy.distribution import PositionBatch
    from grpo.policy.network import PolicyNetwork
    from grpo.settings.tree import PolicyConfig

    torch.set_num_threads(os.cpu_count() or 1)
    network = PolicyNetwork(PolicyConfig())
    optimiser = torch.optim.Adam(network.parameters())
    positions = PositionBatch.from_boards([chess.Board()] * _BATCH)
    start = time.perf_counter()
    for _ in range(_STEPS):
        optimiser.zero_grad()
        network(*positions.inputs).log_softmax(1)[:, 0].mean().neg().backward()
        optimiser.step()
    return _STEPS / (time.perf_counter() - start)


def measured(policy: str) -> float:
    """Return the rate in a new process, because torch reads the variable at import."""
    command = [sys.executable, __file__, "--one"]
    done = subprocess.run(command, env={**os.environ, "OMP_WAIT_POLICY": policy}, check=True, capture_output=True, text=True)
    return float(done.stdout)


def compare(num_neighbours: int) -> None:
    """Print the ratio of the two, run in turn, next to so many busy processes."""
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_neighbours)]
    try:
        ratios = [measured("PASSIVE") / measured("ACTIVE") for _ in range(_REPEATS)]
    finally:
        for neighbour in neighbours:
            neighbour.kill()
    print(
        f"{num_neighbours} busy neighbours, asleep / spinning: {statistics.median(ratios):.2f} times [{min(ratios):.2f}, {max(ratios):.2f}]"
    )


if __name__ == "__main__":
    if "--one" in sys.argv:
        print(steps_per_second())
    else:
        for count in (0, 1, 2):
            compare(count)

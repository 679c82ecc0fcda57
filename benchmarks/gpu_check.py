"""Checks a GPU with preset `gpu`: speed, and agreement with the CPU. `make gpu-check` then runs the preset."""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.grpo_step import arrays_of, random_boards
from grpo.policy.distribution import PRECISIONS, PositionBatch
from grpo.policy.policy import NetworkPolicy, new_policy
from grpo.settings.tree import Settings, read_settings
from grpo.train.network_problem import NetworkProblem
from grpo.train.states import DatasetStates
from grpo.train.trainer import Trainer
from steps.run.device import torch_device
from steps.run.machine import Machine

_CPU = torch.device("cpu")


def seconds(action: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median; the first call does not count."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def imitation_gradients(policy: NetworkPolicy, positions: PositionBatch, columns: Tensor) -> tuple[Tensor, Tensor]:
    policy.network.zero_grad()
    loss = -policy.distribution(positions, temperature=1.0).log_prob(columns.to(policy.device)).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), torch.cat([parameter.grad.flatten() for parameter in policy.network.parameters() if parameter.grad is not None])


def matmul_flops(device: torch.device, size: int, precision: torch.dtype) -> float:
    a, b = (torch.randn(size, size, device=device, dtype=precision) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device, 5)


def grpo_speed(settings: Settings, policy: NetworkPolicy, dataset: DatasetStates, num_steps: int) -> float:
    reference = new_policy(settings.policy, seed=0, device=policy.device)
    trainer = Trainer(NetworkProblem(reference, dataset, settings.grpo, seed=0), policy, settings.grpo, seed=0)
    return settings.grpo.states_per_step / seconds(trainer.step, policy.device, num_steps - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="gpu")
    parser.add_argument("--boards", type=int, default=16_384)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--matmul", type=int, default=8_192, help="rows of the square matrices")
    options = parser.parse_args()
    settings = read_settings(f'preset = "{options.preset}"\ngrpo.critical_entropy = 0.0')
    machine = Machine.here()
    device = torch_device(machine)
    precision = PRECISIONS[settings.grpo.precision]
    print(f"{torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}, torch {torch.__version__}, {os.cpu_count()} cores")
    boards = random_boards(options.boards)
    arrays, labeled = arrays_of(boards, machine.stockfish)
    print(f"engine: {labeled:,.0f} boards labeled/s, {labeled / (os.cpu_count() or 1):,.0f} a core")

    positions, columns = PositionBatch.from_boards(boards[: settings.pretrain.batch_size]), arrays.values.argmax(1)
    columns = torch.from_numpy(columns[: len(positions)]).unsqueeze(1)
    policy = new_policy(settings.policy, seed=0, device=device).at_precision(precision)
    with FlopCounterMode(display=False) as counter:
        imitation_gradients(policy, positions, columns)
    duration = seconds(lambda: imitation_gradients(policy, positions, columns), device, 10)
    peak = matmul_flops(device, options.matmul, precision)
    share = counter.get_total_flops() / duration / peak
    print(f"imitation, {settings.grpo.precision}: {len(positions) / duration:,.0f} boards/s")
    print(f"  {share:.1%} of the {peak / 1e12:,.1f} TFLOP/s of a matrix product")

    cpu_loss, cpu_gradients = imitation_gradients(new_policy(settings.policy, seed=0, device=_CPU), positions, columns)
    for name, dtype in PRECISIONS.items():
        loss, gradients = imitation_gradients(new_policy(settings.policy, seed=0, device=device).at_precision(dtype), positions, columns)
        distance = (gradients.cpu() - cpu_gradients).norm() / cpu_gradients.norm()
        print(f"{name} minus the CPU's float32: loss {loss.cpu() - cpu_loss:+.1e}, gradients {distance:.1e} (relative norm)")

    dataset = DatasetStates(arrays, states_per_step=settings.grpo.states_per_step, seed=0, prepared=policy.prepared)
    print(f"GRPO, {options.steps} steps: {grpo_speed(settings, policy, dataset, options.steps):,.0f} states/s")


if __name__ == "__main__":
    main()

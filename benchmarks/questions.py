"""Experiments on the field notes' open questions, by small runs: settings are chosen on seeds 0-2 and reported on seeds 3-5.

python benchmarks/questions.py run LAB [--seeds 0 1 2] [--only NAME ...]   # makes boards and pretrained policies in LAB once
python benchmarks/questions.py table LAB --seeds 3 4 5

A seed is that of pretraining and of GRPO; boards are the same for all. A difference is one between two runs of the same seed, with a 95 %
interval by Student's t over the seeds.
"""

import argparse
import json
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pyarrow.parquet as pq
import torch

from grpo.board.phases import PHASES
from grpo.control.controller import Action
from grpo.dataset.table import BoardArrays, Split, board_arrays
from grpo.engine.move_values import engine_options
from grpo.engine.pool import EnginePool
from grpo.evaluation.regret import heldout_metrics
from grpo.learning.checkpoints import load_policy, save_policy
from grpo.learning.imitation import ImitationResult, imitate
from grpo.learning.rollouts import EngineReplies
from grpo.learning.states import DatasetStates, LiveValues
from grpo.learning.trainer import GrpoTrainer
from grpo.policy.distribution import NetworkPolicy, new_policy
from grpo.settings.tree import Settings, read_settings
from steps.cli import main as console
from steps.runtime.machine import Machine
from steps.step_io.names import BOARDS

SIZE: Final = """
preset = "smoke"
boards.num_train = 12_000
boards.num_validation = 900
boards.num_heldout = 1_500
pretrain.max_steps = 1_500
grpo.num_steps = 120
grpo.self_play.fraction = 0.0
grpo.entropy_schedule = "constant"
grpo.critical_entropy = 0.0
grpo.learning_rate = 1e-3
grpo.recovery.kind = "stop"
grpo.learning_rate_decay = "constant"
grpo.mirrors_boards = false
grpo.weight_averaging = 0.0
grpo.kl_coefficient = 0.0
"""
"""Settings that all runs share: 256 states per step, and no KL in the loss. The last four were defaults when docs/objective.md was
measured, with a network of 32 channels and two blocks, which saw no afterstates."""

FIELD_NOTES: Final = """
grpo.entropy_schedule = "field_notes"
grpo.field_notes = {entropy_floor = 1.5, entropy_critical = 0.05, steps_threshold = 25, entropy_boost_factor = 1.5,\
 max_entropy_coefficient = 1.5, kl_reduction_factor = 0.5, min_kl_coefficient = 0.0, temperature_boost = 0.2, max_temperature = 2.5}
"""

VARIANTS: Final[Mapping[str, str]] = {
    "base": "",
    **{f"coefficient {value}": f"grpo.entropy_coefficient = {value}" for value in (0.0, 0.005, 0.03, 0.06)},
    **{
        f"coefficient 0, stop at {nats} nats": f"grpo.entropy_coefficient = 0.0\ngrpo.critical_entropy = {nats}"
        "\ngrpo.recovery.healthy_entropy = 2.5"
        for nats in (1.0, 1.5, 2.0)
    },
    "coefficient 0.25 (1.0 of theirs)": "grpo.entropy_coefficient = 0.25",
    "coefficient 0.375 (1.5 of theirs)": "grpo.entropy_coefficient = 0.375",
    **{f"target {share}": f'grpo.entropy_schedule = "target"\ngrpo.entropy_target.fraction = {share}' for share in (0.3, 0.5, 0.65)},
    "annealed to 0": 'grpo.entropy_schedule = "annealed"',
    "field notes' controller": FIELD_NOTES + "grpo.entropy_coefficient = 0.005",
    "exact": 'grpo.estimator = "exact"',
    "leave one out": 'grpo.baseline = "leave_one_out"',
    "divided by std": "grpo.divide_by_std = true",
    "divided by std, lr / 4": "grpo.divide_by_std = true\ngrpo.learning_rate = 2.5e-4",
    "T 0.7": "grpo.temperature = 0.7",
    "T 1.3": "grpo.temperature = 1.3",
    "T 1.5": "grpo.temperature = 1.5",
    "KL 0.01": "grpo.kl_coefficient = 0.01",
    "KL 0.03": "grpo.kl_coefficient = 0.03",
    "KL 0.01, reference to policy": 'grpo.kl_coefficient = 0.01\ngrpo.kl_direction = "reference_to_policy"',
    "embeddings frozen": "policy.freezes_embeddings = true",
    "1 step a rollout": "grpo.num_minibatches = 1",
    "4 steps a rollout": "grpo.num_minibatches = 4",
    "8 steps a rollout": "grpo.num_minibatches = 4\ngrpo.num_inner_epochs = 2",
    **{f"G {size}": f"grpo.group_size = {size}" for size in (4, 64)},
    **{f"lr {rate}": f"grpo.learning_rate = {rate}" for rate in (3e-4, 3e-3)},
    "lr 3e-3, G 64": "grpo.learning_rate = 3e-3\ngrpo.group_size = 64",
    "lr 3e-3, G 4": "grpo.learning_rate = 3e-3\ngrpo.group_size = 4",
    "depth 3": "grpo.states_per_step = 84\ngrpo.depth.num_own_moves = 3",
    "trajectory": 'grpo.estimator = "trajectory"\ngrpo.states_per_step = 84\ngrpo.depth.num_own_moves = 3',
    "from random weights": "grpo.num_steps = 360",
}
"""Name of a variant -> its differences from `SIZE`."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("lab", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=list(VARIANTS))
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.what == "table":
        print(table(given.lab, given.seeds, given.only))
        return
    boards = given.lab / "boards"
    if not boards.exists():
        console.main(
            [
                "boards",
                "build",
                str(boards),
                *(word for line in SIZE.split("\n") if line and "preset" not in line and "boards" in line for word in ("--set", line)),
                "--config",
                "smoke",
            ]
        )
    waiting = [(given.lab, name, seed) for seed in given.seeds for name in given.only if not _result(given.lab, name, seed).exists()]
    with ProcessPoolExecutor(given.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seed in given.seeds:
            list(pool.map(pretrained, [given.lab], [seed]))
        for done in pool.map(one_run, *zip(*waiting, strict=True)) if waiting else ():
            print(done, flush=True)


def _settings(name: str, seed: int) -> Settings:
    top = {line.split(" = ", 1)[0]: line for line in SIZE.strip().split("\n")}
    top |= {line.split(" = ", 1)[0]: line for line in VARIANTS[name].strip().split("\n") if line}
    return read_settings("\n".join([*top.values(), f"seed = {seed}"]))


def _result(lab: Path, name: str, seed: int) -> Path:
    return lab / "results" / f"{name.replace('/', 'by')}.{seed}.json"


def _arrays(lab: Path, split: Split) -> BoardArrays:
    return board_arrays(pq.read_table(lab / "boards" / BOARDS), split=split, strong=split == Split.HELDOUT)


def pretrained(lab: Path, seed: int) -> Path:
    """Return the folder of a seed's pretrained policy; train it if it does not exist."""
    folder = lab / f"pretrained-{seed}"
    if not folder.exists():
        torch.set_num_threads(1)
        settings = _settings("base", seed)
        policy = new_policy(settings.policy, seed=seed, device=torch.device("cpu"))
        for outcome in imitate(policy, _arrays(lab, Split.TRAIN), _arrays(lab, Split.VALIDATION), settings.pretrain, seed=seed):
            if isinstance(outcome, ImitationResult):
                print(f"pretrained, seed {seed}: {outcome.num_steps} steps, {dict(outcome.best.metrics)}", flush=True)
        folder.mkdir(parents=True)
        save_policy(folder, policy, settings.policy)
    return folder


def one_run(lab: Path, name: str, seed: int) -> str:
    """Run one variant and save its curve and its held-out results."""
    torch.set_num_threads(1)
    cpu = torch.device("cpu")
    settings = _settings(name, seed)
    reference, config = load_policy(pretrained(lab, seed), cpu)
    policy: NetworkPolicy = (
        new_policy(config, seed=seed + 1_000, device=cpu) if name == "from random weights" else load_policy(pretrained(lab, seed), cpu)[0]
    )
    if settings.policy.freezes_embeddings:
        policy.network.freeze_embeddings()  # type: ignore[operator]
    heldout = _arrays(lab, Split.HELDOUT)
    states = DatasetStates(_arrays(lab, Split.TRAIN), states_per_step=settings.grpo.states_per_step, seed=seed, mirrors_boards=False)
    with EnginePool(Machine.here().stockfish, num_processes=1, options=engine_options(settings.values)) as pool:
        trainer = GrpoTrainer(
            policy,
            reference,
            states,
            settings.grpo,
            seed=seed,
            values=LiveValues(pool, settings.values),
            opponent=EngineReplies(pool, nodes=1),
        )
        begin = heldout_metrics(policy, heldout)
        curve: list[dict[str, float]] = []
        reason = "budget spent"
        for _ in range(settings.grpo.num_steps):
            curve.append(dict(trainer.step().metrics))
            if trainer.outcome.action != Action.GO_ON:
                reason = trainer.outcome.reason
                break
    result = {"reason": reason, "start": begin, "end": heldout_metrics(policy, heldout), "curve": curve}
    file = _result(lab, name, seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result), encoding="utf-8")
    return f"{name}, seed {seed}: {reason} after {len(curve)}, best {result['end']['heldout/regret_best']:.4f}"


_T975: Final = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """Return mean and half the width of its 95 % interval, by Student's t."""
    mean = sum(numbers) / len(numbers)
    if len(numbers) == 1:
        return mean, math.nan
    variance = sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return mean, _T975[len(numbers) - 1] * math.sqrt(variance / len(numbers))


def table(lab: Path, seeds: Sequence[int], names: Sequence[str]) -> str:
    """Return the table of all variants that ran with all these seeds."""
    results: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        files = [_result(lab, name, seed) for seed in seeds]
        if all(file.exists() for file in files):
            results[name] = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    lines = [
        "| variant | steps | entropy at end, nats | clipped | KL to pretrained | regret sampled, less base's | regret best, less base's |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    base = results["base"]
    for what in ("start", "end"):
        means = {kind: interval([run[what][f"heldout/regret_{kind}"] for run in base]) for kind in ("sampled", "best")}
        entropy = interval([run[what]["heldout/entropy"] for run in base])[0]
        title = "base's start" if what == "start" else "base"
        lines.append(
            f"| {title} | | {entropy:.2f} | | | {means['sampled'][0]:.4f} +- {means['sampled'][1]:.4f} |"
            f" {means['best'][0]:.4f} +- {means['best'][1]:.4f} |"
        )
    for name, runs in results.items():
        tail = [run["curve"][-20:] for run in runs]

        def late(metric: str, tail: list[Any] = tail) -> float:
            return sum(sum(row.get(metric, math.nan) for row in rows) / len(rows) for rows in tail) / len(tail)

        cells = []
        for kind in ("sampled", "best"):
            differences = [
                run["end"][f"heldout/regret_{kind}"] - one["end"][f"heldout/regret_{kind}"] for run, one in zip(runs, base, strict=True)
            ]
            mean, half = interval(differences)
            cells.append("" if name == "base" else f"{mean:+.4f} +- {half:.4f}")
        steps = sum(len(run["curve"]) for run in runs) / len(runs)
        entropy = interval([run["end"]["heldout/entropy"] for run in runs])[0]
        watched = f"{late('grpo/clip_fraction'):.3f} | {late('grpo/kl_reference'):.2f}"
        lines.append(f"| {name} | {steps:.0f} | {entropy:.2f} | {watched} | {cells[0]} | {cells[1]} |")
    return "\n".join([*lines, "", phase_table(results)])


def phase_table(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return, by seed, the step at which each phase's normalised entropy first fell below half of its initial value."""
    lines = ["| variant | " + " | ".join(f"{phase} halves at step" for phase in PHASES) + " |", "| --- | --- | --- | --- |"]
    for name in ("coefficient 0.0", "coefficient 0.005", "base"):
        cells = []
        for phase in PHASES:
            halved = []
            for run in results.get(name, ()):
                series = [row[f"grpo/normalised_entropy/{phase}"] for row in run["curve"]]
                smooth = [sum(series[max(0, i - 4) : i + 1]) / len(series[max(0, i - 4) : i + 1]) for i in range(len(series))]
                halved.append(next((str(step) for step, value in enumerate(smooth, 1) if value < smooth[0] / 2), "never"))
            cells.append(", ".join(halved))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

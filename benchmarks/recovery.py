"""Compares recoveries from an entropy collapse: the field notes' recovery, the entropy bonus alone, and KL(reference || policy).

python benchmarks/recovery.py LAB [--plot docs/recovery.svg]     # LAB as made by benchmarks/questions.py; three seeds

A policy is first collapsed by GRPO without entropy bonus and with advantages divided by their standard deviation, which goes on pushing
where groups nearly agree, until its mean entropy at T = 1 over ten steps is below 0.2 nats, and for 100 steps more; then each recovery gets
200 steps at the same learning rate, with the optimiser as the collapse left it.
"""

import argparse
import copy
import json
import os
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import questions
import torch

from grpo.dataset.table import Split
from grpo.learning.checkpoints import TrainingState, load_policy
from grpo.learning.states import DatasetStates
from grpo.learning.trainer import GrpoTrainer
from grpo.settings.grpo import GrpoConfig
from grpo.settings.tree import read_settings

SHARED: Final = """
grpo.learning_rate = 1e-3
grpo.states_per_step = 128
"""
COLLAPSE: Final = """
grpo.entropy_coefficient = 0.0
grpo.divide_by_std = true
"""
_NOTES: Final = """
grpo.entropy_schedule = "field_notes"
grpo.field_notes = {entropy_floor = 1.5, entropy_critical = 1e-9, steps_threshold = 100, entropy_boost_factor = 1.5,\
 max_entropy_coefficient = 1.5, kl_reduction_factor = 0.5, min_kl_coefficient = 0.0, temperature_boost = 0.2, max_temperature = 2.5}
grpo.kl_coefficient = 0.001
"""
RECOVERIES: Final = {
    "field notes, from 0.01": _NOTES + "grpo.entropy_coefficient = 0.01",
    "field notes, from 0.1": _NOTES + "grpo.entropy_coefficient = 0.1",
    "entropy bonus of 0.015 alone": "grpo.entropy_coefficient = 0.015",
    "KL(reference || policy)": ('grpo.entropy_coefficient = 0.015\ngrpo.critical_entropy = 0.4\ngrpo.recovery.kind = "forward_kl"'),
}
NUM_FURTHER: Final = 100
NUM_STEPS: Final = 200
MAX_COLLAPSE_STEPS: Final = 1_500


def _config(text: str) -> GrpoConfig:
    top = {line.split(" = ", 1)[0]: line for line in questions.SIZE.strip().split("\n")}
    for part in (SHARED, text):
        top |= {line.split(" = ", 1)[0]: line for line in part.strip().split("\n") if line}
    return read_settings("\n".join(top.values())).grpo


def curves(lab: Path, seed: int, num_further: int) -> dict[str, list[float]]:
    """Return entropy at T = 1 by step: of the collapse, and of each recovery after it."""
    cpu = torch.device("cpu")
    folder = questions.pretrained(lab, seed)
    reference, policy = load_policy(folder, cpu)[0], load_policy(folder, cpu)[0]
    arrays = questions._arrays(lab, Split.TRAIN)

    def trainer_of(config: GrpoConfig, first_step: int) -> GrpoTrainer:
        states = DatasetStates(arrays, states_per_step=config.states_per_step, seed=seed, mirrors_boards=False)
        return GrpoTrainer(policy, reference, states, config, seed=seed, first_step=first_step)

    trainer = trainer_of(_config(COLLAPSE), 0)
    entropies: list[float] = []
    while len(entropies) < MAX_COLLAPSE_STEPS and (len(entropies) < 10 or sum(entropies[-10:]) / 10 >= 0.2):
        entropies.append(trainer.step().metrics["grpo/entropy"])
    entropies += [trainer.step().metrics["grpo/entropy"] for _ in range(num_further)]
    found = {"collapse": entropies}
    weights, state = copy.deepcopy(policy.network.state_dict()), copy.deepcopy(trainer.state({}))
    for name, text in RECOVERIES.items():
        policy.network.load_state_dict(weights)
        again = trainer_of(_config(text), state.step)
        again.begin_from(TrainingState(**{field: getattr(state, field) for field in TrainingState.__slots__}))
        found[name] = [again.step().metrics["grpo/entropy"] for _ in range(NUM_STEPS)]
    return found


def main() -> None:
    """Print when each recovery passed 1 nat, and draw all curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--further", type=int, default=NUM_FURTHER, help="steps that the collapse goes on below 0.2 nats")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for seed in given.seeds:
        file = given.lab / "recovery" / f"{seed}-{given.further}.json"
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(curves(given.lab, seed, given.further)), encoding="utf-8")
        results[seed] = json.loads(file.read_text(encoding="utf-8"))
        for name, series in results[seed].items():
            passed = next((str(step) for step, entropy in enumerate(series, 1) if entropy > 1), "never")
            print(f"seed {seed}: {name}: {len(series)} steps, last {series[-1]:.3f} nats, above 1 nat at step {passed}", flush=True)
    if given.plot is not None:
        plot(results, given.plot)


def plot(results: dict[int, dict[str, list[float]]], file: Path) -> None:
    """Draw entropy over steps, all seeds; the collapse ends at step 0."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "chess-grpo"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.2))
    colours: dict[str, Any] = {}
    for series in results.values():
        for name, values in series.items():
            steps = range(-len(values) + 1, 1) if name == "collapse" else range(1, len(values) + 1)
            (line,) = axes.plot(steps, values, color=colours.get(name), label=None if name in colours else name, linewidth=1)
            colours[name] = line.get_color()
    axes.axhline(1, color="grey", linewidth=0.7, linestyle=":")
    axes.set_xlim(left=-100)
    axes.set_xlabel("steps since entropy fell below 0.2 nats")
    axes.set_ylabel("entropy at T = 1, nats")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


if __name__ == "__main__":
    main()

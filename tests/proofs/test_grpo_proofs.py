"""Proofs about the GRPO loop that take minutes, run by `make prove`."""

import random
from pathlib import Path
from typing import Any

import pytest
import two_processes
from doubles import CPU, FIELD_NOTES, TINY, fake_arrays, largest_difference, lively_policy, some_boards, trainer_of
from two_processes import CASES, launch

from grpo.learning.checkpoints import NETWORK_FORMAT, load_checkpoint, save_checkpoint, weights_hash
from grpo.learning.distributed import ALONE
from grpo.learning.trainer import GrpoTrainer
from grpo.metrics.table import Record
from grpo.policy.distribution import NetworkPolicy
from grpo.settings.grpo import GrpoConfig

pytestmark = pytest.mark.prove

ARRAYS = fake_arrays(some_boards(40))
NOTES = FIELD_NOTES.model_copy(update={"entropy_floor": 9.0, "entropy_critical": 1e-6, "steps_threshold": 2})
"""Entropy, in nats, is always below the floor."""
SCHEDULES: list[dict[str, Any]] = [
    {"entropy_schedule": "constant"},
    {"entropy_schedule": "annealed", "learning_rate_decay": "linear", "warmup_steps": 3},
    {"entropy_schedule": "target", "kl_coefficient": 0.01, "kl_schedule": "target"},
    {"entropy_schedule": "field_notes", "field_notes": NOTES, "kl_coefficient": 0.01},
]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_run_is_cut_wherever_and_gone_on_in_new_objects_ends_bit_for_bit_as_if_never_stopped(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    num_steps = rng.randint(2, 14)
    cuts = sorted(rng.sample(range(num_steps), rng.randint(1, min(3, num_steps))))
    changes = {
        "num_steps": num_steps,
        "estimator": rng.choice(["sampled", "exact", "trajectory"]),
        "group_size": rng.randint(2, 5),
        "depth": {"num_own_moves": rng.randint(2, 3)},
        "states_per_step": 6,
        "num_minibatches": rng.choice([1, 2, 3]),
        "num_inner_epochs": rng.randint(1, 3),
        "steps_per_reference_refresh": rng.choice([0, 1, 3]),
        "steps_per_gradient_budget": rng.randint(1, 4),
        "learning_rate": 10 ** rng.uniform(-4, -2),
        **rng.choice(SCHEDULES),
    }

    def make(policy: NetworkPolicy | None = None) -> GrpoTrainer:
        return trainer_of(GrpoConfig(), ARRAYS, policy=policy, seed=seed, **changes)

    whole = make()
    expected = [whole.step() for _ in range(num_steps)]
    trainer, records = make(), list[Record]()
    for number, cut in enumerate([*cuts, num_steps]):
        records += [trainer.step() for _ in range(cut - trainer.num_steps_done)]
        saved = save_checkpoint(tmp_path / str(number), trainer.policy, TINY, trainer.state({}), NETWORK_FORMAT)
        policy, _, state = load_checkpoint(saved, CPU, NETWORK_FORMAT)
        trainer = make(policy)
        trainer.restore(state)
    assert records == expected
    assert weights_hash(trainer.policy) == weights_hash(whole.policy)
    assert trainer.state({}).controllers == whole.state({}).controllers
    assert largest_difference(whole.policy, lively_policy()) > 0


@pytest.mark.parametrize("size", [2, 4])
def test_a_longer_run_in_several_processes_is_that_of_one(size: int, tmp_path: Path) -> None:
    num_steps = 12
    alone = two_processes.results(ALONE, num_steps)
    for found in launch(size, tmp_path / "found", num_steps=num_steps):
        for case in (name for name in CASES if name != "float32"):
            together, single = found["results"][case], alone[case]
            for name, weight in single["weights"].items():
                assert (together["weights"][name] - weight).abs().max() < 1e-9, (case, name)
            assert together["events"] == single["events"]
            for one, other in zip(together["metrics"], single["metrics"], strict=True):
                assert one == pytest.approx(other, rel=1e-5, abs=1e-8, nan_ok=True), case

"""Killed again and again, and gone on with each time on another machine with an empty disk: the shared store has what is needed."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_server import s3_server
from soaking import SEED, Driver, Place, Undisturbed, lost_of, number_of, part
from test_soak_kills import is_killed

pytestmark = pytest.mark.soak

NUM_KILLS = number_of("SOAK_MACHINES", 20)


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """Give the variables by which tasks reach an S3 of our own, which has one bucket."""
    with s3_server() as variables:
        yield variables


def test_each_time_on_another_machine(
    driver: Driver, undisturbed: Undisturbed, give_tables: Callable[[Path], Path], s3: dict[str, str], tmp_path: Path
) -> None:
    rng, num_fetched = random.Random(SEED), 0
    with part("kills, each time another machine, whose clock jumps") as row:
        while row.injected < NUM_KILLS:
            folder, num_machines = tmp_path / f"pipeline-{row.runs}", 0
            tracking = give_tables(folder / "tracking")
            job: dict[str, Any] = {"clock_jumps": True}
            job["environment"] = {
                **s3,
                "CHESS_GRPO_STORE": f"s3://shop/{folder.name}",
                "MLFLOW_TRACKING_URI": f"sqlite:///{tracking}/mlflow.db",
            }

            def machine(name: int | str, folder: Path = folder) -> Place:
                return Place(folder, folder / f"machine-{name}")

            while row.injected < NUM_KILLS and is_killed(driver, machine(num_machines), undisturbed, rng, **job):
                row.injected += 1
                row.leaked += driver.leaked()
                num_machines += 1
            for name, run in ((num_machines, "run-1"), ("at-last", "run-again")):
                place = machine(name)
                assert driver.run(place, run=run, **job) == 0, f"seed {SEED}: {place.said()}"
            row.runs += 1
            num_fetched += place.log.read_text().count("finetune: progress of another process fetched")
            row.lost += [] if place.hashes() == undisturbed.hashes else ["run-1: other outputs"]
            row.lost += lost_of(place, undisturbed.hashes, "run-again", tracking=tracking)
            row.lost += [f"{step}: made anew" for step, output in place.outputs("run-again").items() if not output["reused"]]
        row.note = f"{num_fetched} times finetune went on from what another machine had kept"

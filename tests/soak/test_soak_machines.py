"""Killed again and again, and gone on with each time on another machine with an empty disk: the shared store has what is needed."""

import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Undisturbed
from ports import free_port
from soaking import RESUMABLE, SEED, Driver, Place, fresh_place, lost_of, number_of, part
from test_soak_kills import killed, next_kill

pytestmark = pytest.mark.soak

NUM_KILLS = number_of("SOAK_MACHINES", 20)
FETCHED = "finetune: progress of another process fetched"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the variables by which tasks reach an S3 of our own, which has one bucket."""
    port = free_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    log = tmp_path_factory.mktemp("s3") / "log"
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stdout=file, stderr=file)
    try:
        for _ in range(600):
            assert server.poll() is None, log.read_text()
            try:
                urllib.request.urlopen(f"{variables['AWS_ENDPOINT_URL']}/moto-api/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
        made = "import boto3; boto3.client('s3').create_bucket(Bucket='shop')"
        subprocess.run([sys.executable, "-c", made], check=True, env={**os.environ, **variables})
        yield variables
    finally:
        server.kill()
        server.wait()


def test_each_time_on_another_machine(driver: Driver, undisturbed: Undisturbed, template: Path, s3: dict[str, str], tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with part("kills, each time another machine") as row:
        row.is_equal = True
        num_fetched = 0
        while row.injected < NUM_KILLS:
            folder = tmp_path / f"pipeline-{row.runs}"
            tracking = fresh_place(folder / "tracking", template).home
            variables = {
                **s3,
                "CHESS_GRPO_STORE": f"s3://shop/{folder.name}",
                "MLFLOW_TRACKING_URI": f"sqlite:///{tracking / 'mlflow.db'}",
            }
            num_machines = 0
            while True:
                place = Place(folder, folder / f"machine-{num_machines}")
                if row.injected == NUM_KILLS:
                    status, number = driver.run(place, environment=variables), 0
                else:
                    number, job, seconds = next_kill(rng, undisturbed)
                    status = killed(driver, place, "run-1", number, {**job, "environment": variables}, seconds)
                if status == 0:
                    break
                assert status in (-number, RESUMABLE), f"seed {SEED}, status {status}: {place.said()}"
                row.injected += 1
                row.leaked += driver.leaked()
                num_machines += 1
            again = Place(folder, folder / "machine-at-last")
            assert driver.run(again, run="run-again", environment=variables) == 0, f"seed {SEED}: {again.said()}"
            row.runs += 1
            num_fetched += place.log.read_text().count(FETCHED)
            row.is_equal &= place.hashes() == again.hashes("run-again") == undisturbed.hashes
            row.lost += lost_of(again, undisturbed.hashes, "run-again", tracking=tracking)
            row.lost += [f"{step}: made anew" for step in undisturbed.hashes if not again.artifact("run-again", step)["reused"]]
        row.recovered = row.injected
        row.notes.append(f"{num_fetched} times finetune went on from what another machine had kept")
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"
        assert row.is_equal, f"seed {SEED}"

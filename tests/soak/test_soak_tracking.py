"""A tracking server that comes and goes while a whole run works: it misses nothing in the end, and has nothing twice."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from forking import has_ended
from soaking import PLAIN_ENDS, SEED, Driver, Place, Undisturbed, lost_of, number_of, part
from toggled_server import Fault, ToggledServer

pytestmark = pytest.mark.soak

NUM_TOGGLES = number_of("SOAK_TOGGLES", 20)
FAULTY_SHARE = 0.3


def test_a_server_that_comes_and_goes(
    driver: Driver, undisturbed: Undisturbed, give_tables: Callable[[Path], Path], tmp_path: Path
) -> None:
    rng, faults = random.Random(SEED), [fault for fault in Fault if fault != Fault.SILENT]
    with part("tracking server toggled") as row:
        while row.injected < NUM_TOGGLES:
            server, place = ToggledServer(give_tables(tmp_path / f"server-{row.runs}")), Place(tmp_path / f"run-{row.runs}")
            variables = {"MLFLOW_TRACKING_URI": server.address}
            with server:
                server.fault = lambda *_: rng.choice(faults) if rng.random() < FAULTY_SHARE else None
                pid = driver.start(place, environment=variables)
                while not has_ended(pid):
                    for change in (server.stop, server.start):
                        time.sleep(rng.uniform(0, 0.1 * undisturbed.seconds))
                        change()
                    row.injected += 1
                status = driver.wait(pid)
                server.fault = lambda *_: None
                while status:
                    assert status in PLAIN_ENDS, f"seed {SEED}, status {status}: {place.said()}"
                    status = driver.run(place, environment=variables)
                # What the first could not log in its time the start of the next does.
                assert driver.run(place, run="run-2", environment=variables) == 0, place.said()
            row.runs += 1
            row.leaked += driver.leaked()
            found = place.outputs()
            # `select` has another version where no registry answers, and the report names it; the outputs of others are those of any run.
            row.lost += [
                f"{step}: another output"
                for step, expected in undisturbed.hashes.items()
                if step != "report" and found[step]["output_hash"] != expected.split()[1]
            ]
            row.lost += lost_of(place, place.hashes(), tracking=server.folder)

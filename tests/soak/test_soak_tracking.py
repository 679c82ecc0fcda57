"""A tracking server that comes and goes while a whole run works: it misses nothing in the end, and has nothing twice."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    with part("tracking server toggled, the clock jumps") as row:
        while row.injected < NUM_TOGGLES:
            server, place = ToggledServer(give_tables(tmp_path / f"server-{row.runs}")), Place(tmp_path / f"run-{row.runs}")
            job: dict[str, Any] = {"clock_jumps": True, "environment": {"MLFLOW_TRACKING_URI": server.address}}
            with server:
                server.fault = lambda *_: rng.choice(faults) if rng.random() < FAULTY_SHARE else None
                pid = driver.start(place, **job)
                while not has_ended(pid):
                    for change in (server.stop, server.start):
                        time.sleep(rng.uniform(0, 0.1 * undisturbed.seconds))
                        change()
                    row.injected += 1
                status = driver.wait(pid)
                server.fault = lambda *_: None
                while status:
                    assert status in PLAIN_ENDS, f"seed {SEED}, status {status}: {place.said()}"
                    status = driver.run(place, **job)
                # What the first could not log in its time the start of the next does.
                assert driver.run(place, run="run-2", **job) == 0, place.said()
            row.runs += 1
            row.leaked += driver.leaked()
            row.lost += other_outputs(place, undisturbed) + lost_of(place, place.hashes(), tracking=server.folder)


def other_outputs(place: Place, undisturbed: Undisturbed) -> list[str]:
    """Return the steps whose output is not that of any run; the report names the version of `select`, which may have met no registry."""
    found = place.outputs()
    expected = {step: wanted.split()[1] for step, wanted in undisturbed.hashes.items() if step != "report"}
    return [f"{step}: another output" for step, wanted in expected.items() if found[step]["output_hash"] != wanted]

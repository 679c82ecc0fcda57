"""Killed a hundred times, by force or politely, at random moments and at failpoints, whole runs end as if nothing had happened."""

import contextlib
import os
import random
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from flow_driver import FAILPOINTS
from forking import ends_within
from soaking import SEED, Driver, NewPlace, Place, Undisturbed, leftovers_of, lost_of, number_of, part

from steps.run.processes import RESUMABLE

pytestmark = pytest.mark.soak

NUM_KILLS = number_of("SOAK_KILLS", 100)
SHARE_AT_FAILPOINTS = 0.5
SHARE_BEGUN_ANEW = 0.2


def is_killed(driver: Driver, place: Place, undisturbed: Undisturbed, rng: random.Random, **job: Any) -> bool:
    """Start a run, or go on with it, and end it at a failpoint or after some seconds; return False for one that came to its end before."""
    number = signal.SIGTERM if rng.random() < 0.2 else signal.SIGKILL
    if rng.random() < SHARE_AT_FAILPOINTS:
        # What an earlier try has done is not done again: of many calls the first are those that a later try still makes.
        failpoint, nth = f"{rng.choice(['before', 'after'])} {rng.choice(sorted(FAILPOINTS))}", rng.choice([1, 1, 2, 3, 5, 8])
        pid = driver.start(place, failpoint=failpoint, nth=nth, signal=int(number), **job)
    else:
        pid = driver.start(place, **job)
        ends_within(pid, rng.uniform(0, 0.35 * undisturbed.seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    status = driver.wait(pid)
    assert status in (0, -number, RESUMABLE), f"seed {SEED}, status {status}: {place.said()}"
    return status != 0


def test_a_hundred_kills(driver: Driver, undisturbed: Undisturbed, new_place: NewPlace, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with part("kills (SIGKILL 80 %, SIGTERM 20 %)") as row:
        while row.injected < NUM_KILLS:
            place, number = new_place(tmp_path / f"pipeline-{row.runs}"), 1
            while row.injected < NUM_KILLS and is_killed(driver, place, undisturbed, rng, run=f"run-{number}"):
                row.injected += 1
                row.leaked += driver.leaked()
                # Now and then not as a resumed run, but as the same command once more.
                number += rng.random() < SHARE_BEGUN_ANEW
            assert driver.run(place, run=f"run-{number}") == 0, f"seed {SEED}: {place.said()}"
            row.runs += 1
            row.lost += lost_of(place, undisturbed.hashes, f"run-{number}") + leftovers_of(place)
            with contextlib.closing(sqlite3.connect(place.home / "mlflow.db")) as tracking:
                row.lost += [f"{run} is left RUNNING" for (run,) in tracking.execute("SELECT name FROM runs WHERE status = 'RUNNING'")]

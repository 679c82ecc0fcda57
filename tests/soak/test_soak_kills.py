"""Killed a hundred times, by force or politely, at random moments and at failpoints, whole runs end as if nothing had happened."""

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Undisturbed
from forking import has_ended
from soaking import RESUMABLE, SEED, Driver, Place, Row, fresh_place, leftovers_of, lost_of, number_of, part, states_of_runs

pytestmark = pytest.mark.soak

NUM_KILLS = number_of("SOAK_KILLS", 100)
SHARE_AT_FAILPOINTS = 0.5
SHARE_BEGUN_ANEW = 0.2


def next_kill(rng: random.Random, undisturbed: Undisturbed) -> tuple[int, dict[str, Any], float]:
    """Return a signal, what of the job makes it strike at a failpoint, and else after how many seconds it does."""
    number = signal.SIGTERM if rng.random() < 0.2 else signal.SIGKILL
    if rng.random() < SHARE_AT_FAILPOINTS:
        place = rng.choice(sorted(name for name, count in undisturbed.counts.items() if count))
        failpoint = f"{rng.choice(['before', 'after'])} {place}"
        # What an earlier try has done is not done again: of many calls the first are those that a later try still makes.
        nth = rng.randint(1, max(1, undisturbed.counts[place] // 3))
        return number, {"failpoint": failpoint, "nth": nth, "signal": int(number)}, 0.0
    return number, {}, rng.uniform(0, 0.35 * undisturbed.seconds)


def killed(driver: Driver, place: Place, run: str, number: int, job: dict[str, Any], seconds: float) -> int:
    """Start it, and end it when its time has come; return its status."""
    pid = driver.start(place, run=run, **job)
    if "failpoint" not in job:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not has_ended(pid):
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return driver.wait(pid)


def brought_to_its_end(driver: Driver, place: Place, undisturbed: Undisturbed, rng: random.Random, row: Row) -> str:
    """Kill and start again until it is done; return the name of the run that was."""
    number_of_run = 1
    while True:
        run = f"run-{number_of_run}"
        if row.injected == NUM_KILLS:
            status = driver.run(place, run=run)
            assert status == 0, f"seed {SEED}: {place.said()}"
            row.recovered = row.injected
            return run
        number, job, seconds = next_kill(rng, undisturbed)
        status = killed(driver, place, run, number, job, seconds)
        if status == 0:
            row.recovered = row.injected
            return run
        assert status in (-number, RESUMABLE), f"seed {SEED}, status {status}: {place.said()}"
        row.injected += 1
        row.leaked += driver.leaked()
        # Now and then not as a resumed run, but as the same command once more.
        number_of_run += rng.random() < SHARE_BEGUN_ANEW


def test_a_hundred_kills(driver: Driver, undisturbed: Undisturbed, template: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    states, abandoned, temporary = 0, 0, []
    with part("kills (SIGKILL 80 %, SIGTERM 20 %)") as row:
        row.is_equal = True
        while row.injected < NUM_KILLS:
            place = fresh_place(tmp_path / f"pipeline-{row.runs}", template)
            run = brought_to_its_end(driver, place, undisturbed, rng, row)
            row.runs += 1
            row.is_equal &= place.hashes(run) == undisturbed.hashes
            row.lost += lost_of(place, undisturbed.hashes, run)
            temporary += leftovers_of(place)
            found = states_of_runs(place.home)
            states, abandoned = states + found.total(), abandoned + found["RUNNING"]
        row.notes.append(f"{abandoned} of {states} tracked runs are left RUNNING by a SIGKILL, {len(temporary)} temporary folders left")
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"
        assert row.is_equal, f"seed {SEED}"
        assert not temporary, f"seed {SEED}"
        assert not abandoned, f"seed {SEED}"

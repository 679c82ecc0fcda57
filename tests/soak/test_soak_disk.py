"""A disk that fills up at random moments stops a run with a plain message and damages nothing; with room, the same command goes on."""

import random
from pathlib import Path

import pytest
from forking import ends_within
from soaking import PLAIN_ENDS, SEED, Driver, NewPlace, Row, Undisturbed, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_TIMES = number_of("SOAK_FULL_DISKS", 20)
FREE_BYTES = (0, 4_096, 32_768, 262_144)
DAMAGE = ("changed since it was written", "is missing or unreadable", "is damaged", "not in the manifest")


def filled_and_emptied(driver: Driver, pid: int, rng: random.Random, row: Row, *, at_most: int, seconds: float) -> int:
    """Make the disk full at most so often while a process runs, until it ends; return its status."""
    for _ in range(at_most):
        assert driver.disk is not None
        if ends_within(pid, rng.uniform(0, 0.5 * seconds)):
            break
        driver.resize(driver.disk, rng.choice(FREE_BYTES))
        row.injected += 1
        ends_within(pid, rng.uniform(0, 0.3 * seconds))
        driver.resize(driver.disk, None)
    return driver.wait(pid)


def test_a_disk_that_fills_up(driver: Driver, undisturbed: Undisturbed, new_place: NewPlace, tmp_path: Path) -> None:
    if driver.disk is None:
        pytest.skip("no mount namespace of our own here: unshare is missing, or not allowed")
    rng, num_ended = random.Random(SEED), 0
    with part("disk full") as row:
        while row.injected < NUM_TIMES:
            folder = tmp_path / f"pipeline-{row.runs}"
            place = new_place(folder, driver.disk / folder.name)
            seconds = undisturbed.seconds
            while status := filled_and_emptied(driver, driver.start(place), rng, row, at_most=NUM_TIMES - row.injected, seconds=seconds):
                assert status in PLAIN_ENDS, f"seed {SEED}, status {status}: {place.said()}"
                num_ended += 1
                row.leaked += driver.leaked()
            row.lost += [line for line in place.log.read_text().splitlines() if any(words in line for words in DAMAGE)]
            row.runs += 1
            left = driver.taken_home(place)
            row.lost += lost_of(left, undisturbed.hashes) + leftovers_of(left)
        row.note = f"{num_ended} runs ended by it with a plain error; the others went on"

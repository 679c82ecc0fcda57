"""A disk that fills up at random moments stops a run with a plain message and damages nothing; with room, the same command goes on."""

import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from forking import ends_within
from soaking import PLAIN_ENDS, SEED, Driver, NewPlace, Place, Row, Undisturbed, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_TIMES = number_of("SOAK_FULL_DISKS", 20)
FREE_BYTES = (0, 4_096, 32_768, 262_144)
DAMAGE = ("changed since it was written", "is missing or unreadable", "is damaged", "not in the manifest")


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Return the place of a small disk that only its driver's processes have mounted."""
    tried = ["unshare", "--user", "--map-root-user", "--mount", "--", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace of our own here: unshare is missing, or not allowed")
    return tmp_path / "disk"


@pytest.fixture
def disk_driver(disk: Path, stockfish: str, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path / "driver", tmpfs=disk, CHESS_GRPO_STOCKFISH=stockfish)
    yield driver
    driver.close()


def filled_and_emptied(driver: Driver, disk: Path, pid: int, rng: random.Random, row: Row, *, seconds: float) -> int:
    """Make the disk full while a process runs, until it ends or is past it; return its status."""
    while True:
        if ends_within(pid, rng.uniform(0, 0.5 * seconds)) or row.injected == NUM_TIMES:
            return driver.wait(pid)
        driver.resize(disk, rng.choice(FREE_BYTES))
        row.injected += 1
        ends_within(pid, rng.uniform(0, 0.3 * seconds))
        driver.resize(disk, None)


def test_a_disk_that_fills_up(disk_driver: Driver, disk: Path, undisturbed: Undisturbed, new_place: NewPlace, tmp_path: Path) -> None:
    rng, driver, num_ended = random.Random(SEED), disk_driver, 0
    with part("disk full") as row:
        while row.injected < NUM_TIMES:
            folder = tmp_path / f"pipeline-{row.runs}"
            place = new_place(folder, root=driver.root, elsewhere=disk / folder.name)
            while status := filled_and_emptied(driver, disk, driver.start(place), rng, row, seconds=undisturbed.seconds):
                assert status in PLAIN_ENDS, f"seed {SEED}, status {status}: {place.said()}"
                num_ended += 1
                row.leaked += driver.leaked()
            row.lost += [line for line in place.log.read_text().splitlines() if any(words in line for words in DAMAGE)]
            row.runs += 1
            # Looked at from here: sqlite takes /proc/PID/root for the link to / that it says it is.
            left = Place(folder, folder / "home-that-was")
            shutil.move(driver.root / place.home.relative_to("/"), left.home)
            row.lost += lost_of(left, undisturbed.hashes) + leftovers_of(left)
        row.note = f"{num_ended} runs ended by it with a plain error; the others went on"

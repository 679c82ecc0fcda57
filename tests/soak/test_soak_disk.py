"""A disk that fills up at random moments stops a run with a plain message and damages nothing; with room, the same command goes on."""

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Undisturbed
from forking import has_ended
from soaking import NO_RETRY, RESUMABLE, SEED, Driver, Place, Row, fresh_place, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_TIMES = number_of("SOAK_FULL_DISKS", 20)
FREE_BYTES = (0, 4_096, 32_768, 262_144)
DAMAGE = ("changed since it was written", "is missing or unreadable", "is damaged", "not in the manifest")


@dataclass(frozen=True)
class Disk:
    """A small disk that only its driver's processes have mounted."""

    driver: Driver
    folder: Path


@pytest.fixture
def disk(stockfish: str, tmp_path: Path) -> Iterator[Disk]:
    """Give a disk that can be made full."""
    tried = ["unshare", "--user", "--map-root-user", "--mount", "--", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace of our own here: unshare is missing, or not allowed")
    driver = Driver(tmp_path / "driver", tmpfs=tmp_path / "disk", CHESS_GRPO_STOCKFISH=stockfish)
    yield Disk(driver, tmp_path / "disk")
    driver.close()


def wait(pid: int, seconds: float) -> None:
    """Wait so long, or until the process ends."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not has_ended(pid):
        time.sleep(0.01)


def filled_and_emptied(disk: Disk, pid: int, seconds: float, rng: random.Random, row: Row) -> int:
    """Make the disk full while a process runs, until it ends or is past it; return its status."""
    while True:
        wait(pid, rng.uniform(0, 0.5 * seconds))
        if has_ended(pid) or row.injected == NUM_TIMES:
            return disk.driver.wait(pid)
        disk.driver.resize(disk.folder, rng.choice(FREE_BYTES))
        row.injected += 1
        wait(pid, rng.uniform(0, 0.3 * seconds))
        disk.driver.resize(disk.folder, None)


def test_a_disk_that_fills_up(disk: Disk, undisturbed: Undisturbed, template: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    ends: list[str] = []
    damage: list[str] = []
    with part("disk full") as row:
        row.is_equal = True
        while row.injected < NUM_TIMES:
            folder = tmp_path / f"pipeline-{row.runs}"
            place = fresh_place(folder, template, root=disk.driver.root, elsewhere=disk.folder / folder.name)
            while status := filled_and_emptied(disk, disk.driver.start(place), undisturbed.seconds, rng, row):
                ends.append(how_it_ended(place, status))
                row.leaked += disk.driver.leaked()
            damage += [line for line in place.log.read_text().splitlines() if any(words in line for words in DAMAGE)]
            row.runs += 1
            row.is_equal &= place.hashes() == undisturbed.hashes
            # Looked at from here: sqlite takes /proc/PID/root for the link to / that it says it is.
            left = Place(folder, folder / "home-that-was")
            shutil.move(disk.driver.root / place.home.relative_to("/"), left.home)
            row.lost += lost_of(left, undisturbed.hashes, "run-1") + leftovers_of(left)
        row.recovered = row.injected
        plain = [end for end in ends if end in ("StorageError", "StoreError")]
        row.notes.append(f"{len(ends)} runs ended by it, {len(plain)} of them with a plain error; the others went on")
        assert not damage, f"seed {SEED}"
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"
        assert row.is_equal, f"seed {SEED}"
        assert ends == plain, f"seed {SEED}"


def how_it_ended(place: Place, status: int) -> str:
    """Return the kind of the plain error that ended the last process, or the end of its traceback."""
    lines = place.log.read_text(errors="replace").rpartition("\n--- ")[2].splitlines()
    if status in (NO_RETRY, RESUMABLE):
        return next(line for line in reversed(lines) if line.startswith("soak: plain ")).split()[2].rstrip(":")
    return f"status {status}: " + " | ".join(line.strip() for line in lines[-14:] if line.strip())

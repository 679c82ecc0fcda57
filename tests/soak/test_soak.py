"""Whole runs under fault after fault: each ends as if nothing had happened, loses nothing and leaves no process behind."""

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from forking import ends_within, has_ended
from jobs import FAILPOINTS
from s3_server import s3_server
from soaking import SEED, Pipelines, Place, Row, Undisturbed, leftovers_of, lost_of, number_of, other_outputs, part
from toggled_server import Fault, ToggledServer

from steps.run.processes import NO_RETRY, RESUMABLE

pytestmark = pytest.mark.soak

PLAIN_ENDS = (NO_RETRY, RESUMABLE)
"""How a run ends that says in one line why."""
SOON_SILENT = {"grpo.engine.process.SILENT_SECONDS": 2.0}
"""Constants of a job whose engine hangs now and then."""
FREE_BYTES = (0, 4_096, 32_768, 262_144)
DAMAGE = ("changed since it was written", "is missing or unreadable", "is damaged", "not in the manifest")
FAULTS = [fault for fault in Fault if fault != Fault.SILENT]


@dataclass
class Soak:
    """Shared by the parts of the soak; each part draws its faults from a random stream of its own."""

    pipelines: Pipelines
    undisturbed: Undisturbed
    give_tables: Callable[[Path], Path]
    folder: Path
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))

    def place(self, row: Row, *, is_on_small_disk: bool = False) -> Place:
        """Return a new place, whose tracking store has its tables already."""
        folder, disk = self.folder / f"pipeline-{row.runs}", self.pipelines.disk
        place = Place(folder, disk / f"{self.folder.name}-{row.runs}" if is_on_small_disk and disk else None)
        self.give_tables(place.home if place.elsewhere is None else self.pipelines.seen(place.elsewhere))
        return place

    def is_killed(self, row: Row, place: Place, **job: Any) -> bool:
        """Start a run, or go on with it, and end it at a failpoint or after some seconds; return False if it came to its end before."""
        number = signal.SIGTERM if self.rng.random() < 0.2 else signal.SIGKILL
        if self.rng.random() < 0.5:
            # What an earlier try has done is not done again: of many calls the first are those that a later try still makes.
            failpoint, nth = (
                f"{self.rng.choice(['before', 'after'])} {self.rng.choice(sorted(FAILPOINTS))}",
                self.rng.choice([1, 1, 2, 3, 5, 8]),
            )
            deed = "kill" if number == signal.SIGKILL else "terminate"
            pid = self.pipelines.start(place, failpoint=failpoint, nth=nth, deed=deed, **job)
        else:
            pid = self.pipelines.start(place, **job)
            ends_within(pid, self.rng.uniform(0, 0.35 * self.undisturbed.seconds))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        status = self.pipelines.wait(pid)
        assert status in (0, -number, RESUMABLE), f"seed {SEED}, status {status}: {place.said()}"
        row.injected += status != 0
        row.leaked += self.pipelines.leaked()
        return status != 0

    def is_starved(self, row: Row, place: Place, at_most: int, **job: Any) -> bool:
        """Start a run, or go on with it, and make the disk full at most so often; return False if it came to its end."""
        pid, disk = self.pipelines.start(place, **job), self.pipelines.disk
        for _ in range(at_most if disk else 0):
            assert disk is not None
            if ends_within(pid, self.rng.uniform(0, 0.5 * self.undisturbed.seconds)):
                break
            self.pipelines.resize(disk, self.rng.choice(FREE_BYTES))
            row.injected += 1
            ends_within(pid, self.rng.uniform(0, 0.3 * self.undisturbed.seconds))
            self.pipelines.resize(disk, None)
        status = self.pipelines.wait(pid)
        assert status in (0, *PLAIN_ENDS), f"seed {SEED}, status {status}: {place.said()}"
        row.leaked += self.pipelines.leaked()
        return status != 0

    def run(self, row: Row, place: Place, **job: Any) -> None:
        """Run to the end, or go on with it."""
        assert self.pipelines.run(place, **job) == 0, f"seed {SEED}: {place.said()}"
        row.leaked += self.pipelines.leaked()


@pytest.fixture
def soak(pipelines: Pipelines, undisturbed: Undisturbed, give_tables: Callable[[Path], Path], tmp_path: Path) -> Soak:
    return Soak(pipelines, undisturbed, give_tables, tmp_path)


def test_a_hundred_kills(soak: Soak) -> None:
    num_kills = number_of("SOAK_KILLS", 100)
    with part("kills (SIGKILL 80 %, SIGTERM 20 %)") as row:
        while row.injected < num_kills:
            place, number = soak.place(row), 1
            while row.injected < num_kills and soak.is_killed(row, place, run=f"run-{number}"):
                # Now and then not as a resumed run, but as the same command once more.
                number += soak.rng.random() < 0.2
            soak.run(row, place, run=f"run-{number}")
            row.runs += 1
            row.lost += lost_of(place, soak.undisturbed.hashes, f"run-{number}") + leftovers_of(place)
            with contextlib.closing(sqlite3.connect(place.home / "mlflow.db")) as tracking:
                row.lost += [f"{run} is left RUNNING" for (run,) in tracking.execute("SELECT name FROM runs WHERE status = 'RUNNING'")]


def test_each_time_on_another_machine(soak: Soak) -> None:
    num_kills, num_fetched = number_of("SOAK_MACHINES", 20), 0
    with part("kills, each time another machine, whose clock jumps") as row, s3_server() as s3:
        while row.injected < num_kills:
            folder, number = soak.folder / f"pipeline-{row.runs}", 0
            tracking = soak.give_tables(folder / "tracking")
            store = {"CHESS_GRPO_STORE": f"s3://shop/{folder.name}", "MLFLOW_TRACKING_URI": f"sqlite:///{tracking}/mlflow.db"}
            job: dict[str, Any] = {"clock_jumps": True, "environment": {**s3, **store}}
            while row.injected < num_kills and soak.is_killed(row, Place(folder, folder / f"machine-{number}"), **job):
                number += 1
            for home, run in ((f"machine-{number}", "run-1"), ("machine-at-last", "run-again")):
                soak.run(row, place := Place(folder, folder / home), run=run, **job)
            row.runs += 1
            num_fetched += place.log.read_text().count("finetune: progress of another process fetched")
            row.lost += [] if place.hashes() == soak.undisturbed.hashes else ["run-1: other outputs"]
            row.lost += lost_of(place, soak.undisturbed.hashes, "run-again", tracking=tracking)
            row.lost += [f"{step}: made anew" for step, output in place.outputs("run-again").items() if not output["reused"]]
        row.note = f"{num_fetched} times finetune went on from what another machine had kept"


def test_a_disk_that_fills_up(soak: Soak) -> None:
    if soak.pipelines.disk is None:
        pytest.skip("no mount namespace of our own here: unshare is missing, or not allowed")
    num_times, num_ended = number_of("SOAK_FULL_DISKS", 20), 0
    with part("disk full") as row:
        while row.injected < num_times:
            place = soak.place(row, is_on_small_disk=True)
            while soak.is_starved(row, place, num_times - row.injected):
                num_ended += 1
            if "NOT LOGGED to MLflow yet" in place.log.read_text():  # The disk was still full at the end: the next run logs this one.
                soak.run(row, place, run="run-2")
            row.lost += [line for line in place.log.read_text().splitlines() if any(words in line for words in DAMAGE)]
            row.runs += 1
            left = soak.pipelines.taken_home(place)
            row.lost += lost_of(left, soak.undisturbed.hashes) + leftovers_of(left)
        row.note = f"{num_ended} runs ended by it with a plain error; the others went on"


def test_a_hundred_engine_faults(soak: Soak) -> None:
    num_faults, two_engines = number_of("SOAK_FAULTS", 100), {"CHESS_GRPO_THREADS": "2"}
    with part("engine faults, each met once") as row:
        soak.run(row, whole := Place(soak.folder / "without-faults"), environment=two_engines)
        while row.injected < num_faults:
            place = soak.place(row)
            (struck := place.folder / "struck").mkdir()
            soak.run(row, place, environment=two_engines | {"SOAK_ENGINE_FAULTS": str(struck)}, constants=SOON_SILENT)
            row.runs += 1
            row.injected += len(list(struck.iterdir()))
            row.lost += lost_of(place, whole.hashes()) + leftovers_of(place)


def test_a_server_that_comes_and_goes(soak: Soak) -> None:
    num_toggles, rng = number_of("SOAK_TOGGLES", 20), soak.rng
    with part("tracking server toggled, the clock jumps") as row:
        while row.injected < num_toggles:
            place, server = soak.place(row), ToggledServer(soak.give_tables(soak.folder / f"server-{row.runs}"))
            job: dict[str, Any] = {"clock_jumps": True, "environment": {"MLFLOW_TRACKING_URI": server.address}}
            with server:
                server.fault = lambda *_: rng.choice(FAULTS) if rng.random() < 0.3 else None
                pid = soak.pipelines.start(place, **job)
                while not has_ended(pid):
                    for change in (server.stop, server.start):
                        time.sleep(rng.uniform(0, 0.1 * soak.undisturbed.seconds))
                        change()
                    row.injected += 1
                assert soak.pipelines.wait(pid) in (0, *PLAIN_ENDS), f"seed {SEED}: {place.said()}"
                server.fault = lambda *_: None
                # What the first could not log in its time the start of the next does.
                for run in ("run-1", "run-2"):
                    soak.run(row, place, run=run, **job)
            row.runs += 1
            row.lost += other_outputs(place, soak.undisturbed) + lost_of(place, place.hashes(), tracking=server.folder)


def test_every_fault_at_once(soak: Soak) -> None:
    num_kills, kills_of_a_run, of_calls = number_of("SOAK_AT_ONCE", 30), 3, random.Random(SEED)
    with part("all faults at once") as row:
        for number in range(num_kills // kills_of_a_run):
            place, server = soak.place(row, is_on_small_disk=True), ToggledServer(soak.give_tables(soak.folder / f"server-{number}"))
            (struck := place.folder / "struck").mkdir(parents=True)
            variables = {"SOAK_ENGINE_FAULTS": str(struck), "SOAK_ENGINE_RARITY": "10", "MLFLOW_TRACKING_URI": server.address}
            job: dict[str, Any] = {"clock_jumps": True, "constants": SOON_SILENT, "environment": variables}
            with server:
                server.fault = lambda *_: of_calls.choice(FAULTS) if of_calls.randrange(10) == 0 else None
                for _ in range(kills_of_a_run):
                    server.stop()
                    if soak.rng.random() < 0.5:
                        server.start()
                    soak.is_killed(row, place, **job)
                server.stop()
                server.start()
                while soak.is_starved(row, place, at_most=1, **job):
                    pass
                server.fault = lambda *_: None
                soak.run(row, place, run="run-2", **job)
            row.runs += 1
            row.injected += len(list(struck.iterdir()))
            left = soak.pipelines.taken_home(place)
            row.lost += other_outputs(left, soak.undisturbed) + lost_of(left, left.hashes(), tracking=server.folder)
            # `screen` has another version where no registry answers. Of a version that no run asks for again the progress stays.
            asked_for = {output["version"] for run in ("run-1", "run-2") for output in left.outputs(run).values()}
            row.lost += [path for path in leftovers_of(left) if any(version in path for version in asked_for)]

"""Every fault at once: kills, a full disk, a failing engine, a tracking server that comes and goes, a clock that jumps by hours."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from soaking import PLAIN_ENDS, SEED, SOON_SILENT, Driver, NewPlace, Undisturbed, leftovers_of, lost_of, number_of, part
from test_soak_disk import filled_and_emptied
from test_soak_kills import is_killed
from test_soak_tracking import other_outputs
from toggled_server import Fault, ToggledServer

KILLS_OF_A_RUN = 3
ONE_CALL_IN = 10
ENGINE_RARITY = "10"


@pytest.mark.parametrize("num_kills", [KILLS_OF_A_RUN, pytest.param(number_of("SOAK_AT_ONCE", 30), marks=pytest.mark.soak)])
def test_every_fault_at_once(
    num_kills: int, driver: Driver, undisturbed: Undisturbed, new_place: NewPlace, give_tables: Callable[[Path], Path], tmp_path: Path
) -> None:
    rng, of_calls, faults = random.Random(SEED), random.Random(SEED), [Fault.DROPPED, Fault.LOST, Fault.ERROR]
    with part("all faults at once") as row:
        for number in range(num_kills // KILLS_OF_A_RUN):
            server = ToggledServer(give_tables(tmp_path / f"server-{number}"))
            place = new_place(tmp_path / f"pipeline-{number}", driver.disk and driver.disk / f"at-once-{number}")
            (struck := place.folder / "struck").mkdir(parents=True)
            variables = {"SOAK_ENGINE_FAULTS": str(struck), "SOAK_ENGINE_RARITY": ENGINE_RARITY, "MLFLOW_TRACKING_URI": server.address}
            job: dict[str, Any] = {"clock_jumps": True, "constants": SOON_SILENT, "environment": variables}
            with server:
                server.fault = lambda *_: of_calls.choice(faults) if of_calls.randrange(ONE_CALL_IN) == 0 else None
                for _ in range(KILLS_OF_A_RUN):
                    server.stop()
                    if rng.random() < 0.5:
                        server.start()
                    row.injected += is_killed(driver, place, undisturbed, rng, **job)
                server.stop()
                server.start()
                often = {"at_most": int(driver.disk is not None), "seconds": undisturbed.seconds}
                while status := filled_and_emptied(driver, driver.start(place, **job), rng, row, **often):
                    assert status in PLAIN_ENDS, f"seed {SEED}, status {status}: {place.said()}"
                server.fault = lambda *_: None
                assert driver.run(place, run="run-2", **job) == 0, f"seed {SEED}: {place.said()}"
            row.runs += 1
            row.injected += len(list(struck.iterdir()))
            row.leaked += driver.leaked()
            left = driver.taken_home(place)
            row.lost += other_outputs(left, undisturbed) + lost_of(left, left.hashes(), tracking=server.folder)
            # `screen` has another version where no registry answers. Of a version that no run asks for again the progress stays.
            asked_for = {output["version"] for run in ("run-1", "run-2") for output in left.outputs(run).values()}
            row.lost += [path for path in leftovers_of(left) if any(version in path for version in asked_for)]

"""An engine that fails a hundred times costs nothing but time."""

from pathlib import Path

import pytest
from soaking import SEED, SOON_SILENT, Driver, NewPlace, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_FAULTS = number_of("SOAK_FAULTS", 100)
TWO_ENGINES = {"CHESS_GRPO_THREADS": "2"}


def test_a_hundred_engine_faults(driver: Driver, new_place: NewPlace, tmp_path: Path) -> None:
    whole = new_place(tmp_path / "without-faults")
    assert driver.run(whole, environment=TWO_ENGINES) == 0, whole.said()
    with part("engine faults, each met once") as row:
        while row.injected < NUM_FAULTS:
            place = new_place(tmp_path / f"pipeline-{row.runs}")
            (struck := place.folder / "struck").mkdir()
            status = driver.run(place, environment=TWO_ENGINES | {"SOAK_ENGINE_FAULTS": str(struck)}, constants=SOON_SILENT)
            assert status == 0, f"seed {SEED}: {place.said()}"
            row.runs += 1
            row.injected += len(list(struck.iterdir()))
            row.leaked += driver.leaked()
            row.lost += lost_of(place, whole.hashes()) + leftovers_of(place)

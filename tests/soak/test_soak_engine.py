"""An engine that fails a hundred times costs nothing but time."""

import sys
from collections.abc import Iterator
from pathlib import Path

import faulty_engine
import pytest
from soaking import SEED, Driver, NewPlace, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_FAULTS = number_of("SOAK_FAULTS", 100)
SILENT_SECONDS = 2.0


@pytest.fixture
def faulty_driver(stockfish: str, tmp_path: Path) -> Iterator[Driver]:
    """Give a process that runs pipelines with the proxy for an engine."""
    launcher = tmp_path / "stockfish"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(faulty_engine.__file__).resolve()}" "{stockfish}"\n')
    launcher.chmod(0o755)
    driver = Driver(tmp_path, CHESS_GRPO_STOCKFISH=str(launcher), CHESS_GRPO_THREADS="2")
    yield driver
    driver.close()


def test_a_hundred_engine_faults(faulty_driver: Driver, new_place: NewPlace, tmp_path: Path) -> None:
    whole = new_place(tmp_path / "without-faults")
    assert faulty_driver.run(whole) == 0, whole.said()
    with part("engine faults, each met once") as row:
        while row.injected < NUM_FAULTS:
            place = new_place(tmp_path / f"pipeline-{row.runs}")
            (struck := place.folder / "struck").mkdir()
            status = faulty_driver.run(place, environment={"SOAK_ENGINE_FAULTS": str(struck)}, silent_seconds=SILENT_SECONDS)
            assert status == 0, f"seed {SEED}: {place.said()}"
            row.runs += 1
            row.injected += len(list(struck.iterdir()))
            row.leaked += faulty_driver.leaked()
            row.lost += lost_of(place, whole.hashes()) + leftovers_of(place)

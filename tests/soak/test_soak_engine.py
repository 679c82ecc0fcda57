"""An engine that fails a hundred times costs nothing but time."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faulty_engine
import pytest
from soaking import SEED, Driver, NewPlace, Place, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_FAULTS = number_of("SOAK_FAULTS", 100)
FAULTS_PER_RUN = 25
HANGS_PER_RUN = 3
PLIES_BETWEEN_FAULTS = 600
SILENT_SECONDS = 2.0


def run(driver: Driver, place: Place, faults: dict[str, str]) -> list[str]:
    """Run a pipeline whose engine has these faults, and return the kind of each that struck."""
    plan, struck = place.folder / "plan.json", place.folder / "struck"
    struck.touch()
    plan.write_text(json.dumps({"counter": str(place.folder / "counter"), "struck": str(struck), "faults": faults}))
    status = driver.run(place, environment={"SOAK_ENGINE_PLAN": str(plan)}, silent_seconds=SILENT_SECONDS)
    assert status == 0, f"seed {SEED}: {place.said()}"
    return struck.read_text().splitlines()


@pytest.fixture
def faulty_driver(stockfish: str, tmp_path: Path) -> Iterator[Driver]:
    """Give a process that runs pipelines with the proxy for an engine."""
    launcher = tmp_path / "stockfish"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(faulty_engine.__file__).resolve()}" "{stockfish}"\n')
    launcher.chmod(0o755)
    driver = Driver(tmp_path, CHESS_GRPO_STOCKFISH=str(launcher), CHESS_GRPO_THREADS="2")
    yield driver
    driver.close()


def some_faults(rng: random.Random, num_faults: int, num_searches: dict[str, Any]) -> dict[str, str]:
    """Return at which searches what goes wrong, far enough from each other that what is asked again is answered.

    A game is played once more from its beginning, so that two faults must not be within two games' length.
    """
    num_in_games = min(num_faults, num_searches["game"] // PLIES_BETWEEN_FAULTS)
    counts = {"game": num_in_games, "position": num_faults - num_in_games}
    chosen = rng.choices(faulty_engine.SLOW, k=min(HANGS_PER_RUN, num_faults))
    chosen += rng.choices(faulty_engine.KINDS, k=num_faults - len(chosen))
    rng.shuffle(chosen)
    found = {}
    for of, count in counts.items():
        spacing = num_searches[of] // max(1, count)
        for index in range(count):
            found[f"{of} {1 + index * spacing + rng.randrange(max(1, spacing // 4))}"] = chosen.pop()
    return found


def test_a_hundred_engine_faults(faulty_driver: Driver, new_place: NewPlace, tmp_path: Path) -> None:
    rng, kinds = random.Random(SEED), Counter[str]()
    whole = new_place(tmp_path / "without-faults")
    assert run(faulty_driver, whole, {}) == []
    num_searches = json.loads((whole.folder / "counter").read_text())
    with part("engine faults, each met once") as row:
        while row.injected < NUM_FAULTS:
            place = new_place(tmp_path / f"pipeline-{row.runs}")
            met = run(faulty_driver, place, some_faults(rng, min(FAULTS_PER_RUN, NUM_FAULTS - row.injected), num_searches))
            assert met, f"seed {SEED}"
            row.runs += 1
            row.injected += len(met)
            kinds.update(met)
            row.leaked += faulty_driver.leaked()
            row.lost += lost_of(place, whole.hashes()) + leftovers_of(place)
        row.notes.append(", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())))

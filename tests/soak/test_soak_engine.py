"""An engine that fails a hundred times costs nothing but time, and one that cannot value a position costs that position."""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faulty_engine
import pyarrow.parquet as pq
import pytest
from soaking import SEED, Driver, Place, fresh_place, leftovers_of, lost_of, number_of, part

pytestmark = pytest.mark.soak

NUM_FAULTS = number_of("SOAK_FAULTS", 100)
FAULTS_PER_RUN = 25
HANGS_PER_RUN = 3
PLIES_BETWEEN_FAULTS = 600
SILENT_SECONDS = 2.0
SHARE_OF_POSITIONS = 0.04


@dataclass(frozen=True)
class Reference:
    place: Place
    num_searches: dict[str, int]
    """Within games, and of positions alone."""


def planned(folder: Path, *, faults: dict[str, str] | None = None, fens: float = 0.0) -> dict[str, str]:
    """Write a plan, and return the environment in which the engine follows it."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = {
        "counter": str(folder / "counter"),
        "struck": str(folder / "struck"),
        "faults": faults or {},
        "fens": fens,
    }
    (folder / "struck").touch()
    (folder / "plan.json").write_text(json.dumps(plan))
    return {"SOAK_ENGINE_PLAN": str(folder / "plan.json")}


def struck(place: Place) -> list[str]:
    """Return what kind of fault struck, each time that one did."""
    return [line.partition(": ")[0] for line in (place.folder / "struck").read_text().splitlines()]


@pytest.fixture(scope="module")
def faulty_driver(stockfish: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Give a process that runs pipelines with the proxy for an engine."""
    folder = tmp_path_factory.mktemp("faulty")
    launcher = folder / "stockfish"
    launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "{Path(faulty_engine.__file__).resolve()}" "{stockfish}"\n')
    launcher.chmod(0o755)
    driver = Driver(folder, CHESS_GRPO_STOCKFISH=str(launcher), CHESS_GRPO_THREADS="2")
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def reference(faulty_driver: Driver, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return a run with the same engine in which nothing fails, and how many searches it takes."""
    place = fresh_place(tmp_path_factory.mktemp("without-faults"), template)
    status = faulty_driver.run(place, environment=planned(place.folder))
    assert status == 0, place.said()
    assert struck(place) == []
    return Reference(place, json.loads((place.folder / "counter").read_text()))


def some_faults(rng: random.Random, num_faults: int, num_searches: dict[str, int]) -> dict[str, str]:
    """Return at which searches what goes wrong, far enough from each other that what is asked again is answered.

    A game is played once more from its beginning, so that two faults must not be within two games' length.
    """
    num_in_games = min(num_faults, num_searches["game"] // PLIES_BETWEEN_FAULTS)
    counts = {"game": num_in_games, "position": num_faults - num_in_games}
    kinds = [kind for kind in faulty_engine.KINDS if kind not in faulty_engine.SLOW] * num_faults
    chosen = [*rng.choices(faulty_engine.SLOW, k=min(HANGS_PER_RUN, num_faults)), *rng.sample(kinds, num_faults)][:num_faults]
    rng.shuffle(chosen)
    found = {}
    for of, count in counts.items():
        spacing = num_searches[of] // max(1, count)
        for index in range(count):
            found[f"{of} {1 + index * spacing + rng.randrange(max(1, spacing // 4))}"] = chosen.pop()
    return found


def test_a_hundred_engine_faults(faulty_driver: Driver, reference: Reference, template: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    expected = reference.place.hashes()
    kinds: Counter[str] = Counter()
    with part("engine faults, each met once") as row:
        row.is_equal = True
        while row.injected < NUM_FAULTS:
            place = fresh_place(tmp_path / f"pipeline-{row.runs}", template)
            faults = some_faults(rng, min(FAULTS_PER_RUN, NUM_FAULTS - row.injected), reference.num_searches)
            status = faulty_driver.run(place, environment=planned(place.folder, faults=faults), silent_seconds=SILENT_SECONDS)
            assert status == 0, f"seed {SEED}: {place.said()}"
            row.runs += 1
            met = struck(place)
            assert met, f"seed {SEED}"
            row.injected += len(met)
            row.recovered += len(met)
            kinds.update(met)
            row.leaked += faulty_driver.leaked()
            row.is_equal &= place.hashes() == expected
            row.lost += lost_of(place, expected, "run-1") + leftovers_of(place)
        row.notes.append(", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items())))
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"
        assert row.is_equal, f"seed {SEED}"


def boards_of(place: Place) -> dict[str, dict[str, Any]]:
    output = place.artifact("run-1", "join_boards")
    rows = pq.read_table(place.home / "outputs" / "join_boards" / output["version"] / "boards.parquet").to_pylist()
    return {row["key"]: row for row in rows}


def test_positions_that_the_engine_cannot_value_are_dropped_and_all_others_have_the_values_they_had(
    faulty_driver: Driver, reference: Reference, template: Path, tmp_path: Path
) -> None:
    with part("positions that no search survives") as row:
        place = fresh_place(tmp_path / "pipeline", template)
        job = {"environment": planned(place.folder, fens=SHARE_OF_POSITIONS), "until": "finetune"}
        status = faulty_driver.run(place, **job)
        assert status == 0, f"seed {SEED}: {place.said()}"
        row.runs = 1
        row.leaked += faulty_driver.leaked()
        report = place.artifact("run-1", "join_boards")
        facts = json.loads((place.home / "outputs" / "join_boards" / report["version"] / "report.json").read_text())
        num_dropped = facts["left_out"].get("engine failure", 0)
        failed = {line.partition(": ")[2] for line in (place.folder / "struck").read_text().splitlines()}
        row.injected = len((place.folder / "struck").read_text().splitlines())
        boards, others = boards_of(place), boards_of(reference.place)
        row.lost += [f"{each['fen']}: was kept, though it failed" for each in boards.values() if f"position fen {each['fen']}" in failed]
        row.lost += [f"{key}: another row" for key in boards.keys() & others.keys() if boards[key] != others[key]]
        row.is_equal = not row.lost
        row.recovered = row.injected
        row.notes.append(
            f"{num_dropped} boards dropped and counted, {len(failed)} positions failed,"
            f" {len(boards.keys() & others.keys())} of {len(boards)} boards are those of the run without faults"
        )
        assert num_dropped > 0
        assert len(boards.keys() & others.keys()) > len(boards) // 2
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"

"""A tracking server that comes and goes while a whole run works: it misses nothing in the end, and has nothing twice."""

import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Undisturbed
from forking import has_ended
from soaking import SEED, Driver, Place, number_of, part

from grpo.base.files import sha256_file

pytestmark = pytest.mark.soak

NUM_TOGGLES = number_of("SOAK_TOGGLES", 20)
FAULTY_SHARE = 0.3
NUM_SERVER_KILLS = number_of("SOAK_SERVER_KILLS", 6)
OF_THE_MOMENT = (
    "metaflow.run",
    "mlflow.parentRunId",
    "chess_grpo.output_held_by",
    "mlflow.note.content",
    "chess_grpo.child",
    "chess_grpo.version",
)
"""Tags that name this very run; and the version, for `select` has another when the registry does not answer: its output is the same."""
WITH_TIMES = ("manifest.json", "model_card.md", "README.md")
"""Files that name it, or hold hashes of pages with times in them."""


@dataclass(frozen=True)
class Told:
    """What a tracking store knows of one flow run, by step: without times and ids."""

    runs: Counter[str]
    states: dict[str, set[str]]
    tags: dict[str, set[tuple[str, str]]]
    metrics: dict[str, Counter[tuple[str, int, str]]]
    files: dict[str, dict[str, str]]
    aliases: set[str]
    versions: int


def told(folder: Path, run: str) -> Told:
    """Read what a server keeps in its folder of a flow run."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        tags: dict[str, dict[str, str]] = {}
        for run_id, key, value in store.execute("SELECT run_uuid, key, value FROM tags"):
            tags.setdefault(run_id, {})[key] = value
        ids = {run_id: of["chess_grpo.step"] for run_id, of in tags.items() if of.get("metaflow.run") == run}
        states = dict(store.execute("SELECT run_uuid, status FROM runs").fetchall())
        metrics: dict[str, Counter[tuple[str, int, str]]] = {}
        for run_id, key, step, value in store.execute("SELECT run_uuid, key, step, value FROM metrics"):
            if run_id in ids and not key.startswith(("time/", "cache/", "system/")):
                metrics.setdefault(ids[run_id], Counter())[key, step, repr(value)] += 1
        aliases = {alias for (alias,) in store.execute("SELECT alias FROM registered_model_aliases")}
        (versions,) = store.execute("SELECT count(*) FROM model_versions").fetchone()
    found: dict[str, set[tuple[str, str]]] = {}
    files: dict[str, dict[str, str]] = {}
    for run_id, step in ids.items():
        found.setdefault(step, set()).update(
            item for item in tags[run_id].items() if item[0] not in OF_THE_MOMENT and "note" not in item[0]
        )
        for root in (folder / "files").rglob(f"{run_id}/artifacts"):
            paths = [path for path in root.rglob("*") if path.is_file() and "aside" not in path.parts and path.suffix != ".md"]
            files.setdefault(step, {}).update(
                {str(path.relative_to(root)): sha256_file(path) for path in paths if path.name != "manifest.json"}
            )
    return Told(
        runs=Counter(ids.values()),
        states={step: {states[run_id] for run_id, of in ids.items() if of == step} for step in set(ids.values())},
        tags=found,
        metrics=metrics,
        files=files,
        aliases=aliases,
        versions=versions,
    )


@pytest.fixture
def servers(template: Path, tmp_path: Path) -> Iterator[Any]:
    """Give a maker of toggled servers, one at a time."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "steps"))
    toggled_server = pytest.importorskip("toggled_server", reason="no toggled server here yet")
    pytest.importorskip("steps.tracking.journal", reason="what a run says is not kept for a server that is away yet")
    made = []

    def make(name: str) -> Any:
        (folder := tmp_path / name).mkdir()
        (folder / "mlflow.db").write_bytes(template.read_bytes())
        made.append(toggled_server.ToggledServer(folder))
        return made[-1]

    yield make
    for server in made:
        server.stop()


def test_a_server_that_comes_and_goes(driver: Driver, undisturbed: Undisturbed, servers: Any, tmp_path: Path) -> None:
    from toggled_server import Fault

    rng = random.Random(SEED)
    calm = servers("calm")
    place = Place(tmp_path / "calm-run")
    with calm:
        assert driver.run(place, environment={"MLFLOW_TRACKING_URI": calm.address}) == 0, place.said()
        assert driver.run(place, run="run-2", environment={"MLFLOW_TRACKING_URI": calm.address}) == 0, place.said()
    expected = told(calm.folder, "run-1")
    with part("tracking server toggled") as row:
        row.is_equal = True
        while row.injected < NUM_TOGGLES:
            server = servers(f"toggled-{row.runs}")
            faults = [fault for fault in Fault if fault not in (Fault.SILENT, Fault.LATE)]
            met: Counter[str] = Counter()
            is_calm = False

            def fault(number: int, call: str) -> Any:
                if is_calm or rng.random() > FAULTY_SHARE:  # noqa: B023
                    return None
                met[chosen := rng.choice(faults)] += 1  # noqa: B023
                return chosen

            server.fault = fault
            place = Place(tmp_path / f"run-{row.runs}")
            variables = {"MLFLOW_TRACKING_URI": server.address}
            is_calm = True
            server.start()
            pid = None
            while pid is None or not has_ended(pid):
                if pid is None:
                    pid = driver.start(place, environment=variables)
                    # What a run begins with must be known: it is refused without a server, in plain words.
                    while not (place.artifacts / "run-1" / "start.json").exists() and not has_ended(pid):
                        time.sleep(0.05)
                    is_calm = False
                time.sleep(rng.uniform(0, 0.1 * undisturbed.seconds))
                server.stop()
                row.injected += 1
                time.sleep(rng.uniform(0, 0.1 * undisturbed.seconds))
                server.start()
            status = driver.end(pid)
            is_calm = True
            attempts = 1
            while status:
                assert status in (202, 75), f"seed {SEED}, status {status}: {place.said()}"
                attempts += 1
                status = driver.run(place, environment=variables)
            assert driver.run(place, run="run-2", environment=variables) == 0, place.said()
            server.stop()
            row.runs += 1
            row.leaked += driver.leaked()
            row.is_equal &= outputs(place.hashes()) == outputs(undisturbed.hashes)
            row.lost += differences(told(server.folder, "run-1"), expected)
            row.notes.append(f"run {row.runs}: {met.total()} calls failed, {attempts} attempts")
        row.recovered = row.injected
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"
        assert row.is_equal, f"seed {SEED}"


def outputs(hashes: dict[str, str]) -> dict[str, str]:
    """Return step -> hash of its output."""
    return {step: found.split()[1] for step, found in hashes.items()}


def test_the_real_server_is_killed_in_the_middle_of_finetune(
    driver: Driver, undisturbed: Undisturbed, template: Path, tmp_path: Path
) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "steps"))
    from toggled_server import ServerProcess

    def until_finetune(name: str, disturb: Callable[[ServerProcess, Place, int], None] = lambda *_: None) -> tuple[Place, Told]:
        (folder := tmp_path / name).mkdir()
        (folder / "mlflow.db").write_bytes(template.read_bytes())
        place = Place(tmp_path / f"{name}-run")
        with ServerProcess(folder) as server:
            given = {"environment": {"MLFLOW_TRACKING_URI": server.address}, "until": "finetune"}
            pid = driver.start(place, **given)
            disturb(server, place, pid)
            assert driver.end(pid) == 0, place.said()
            server.kill()
            server.start()
            assert driver.run(place, run="run-2", **given) == 0, place.said()
        return place, told(folder, "run-1")

    rng = random.Random(SEED)

    def kill(server: ServerProcess, place: Place, pid: int) -> None:
        while "begins finetune" not in place.said() and not has_ended(pid):
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 0.2 * undisturbed.seconds))
        server.kill()
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.1 * undisturbed.seconds))
            server.start()

    _, expected = until_finetune("calm")
    with part("tracking server killed in finetune") as row:
        row.is_equal = True
        while row.injected < NUM_SERVER_KILLS:
            place, found = until_finetune(f"killed-{row.runs}", kill)
            row.injected += 1
            row.runs += 1
            row.leaked += driver.leaked()
            row.is_equal &= place.artifact("run-1", "finetune")["output_hash"] == undisturbed.hashes["finetune"].split()[1]
            row.lost += differences(found, expected)
        row.recovered = row.injected
        assert not row.lost, f"seed {SEED}"
        assert not row.leaked, f"seed {SEED}"
        assert row.is_equal, f"seed {SEED}"


def differences(found: Told, expected: Told) -> list[str]:
    """Return what one store has and the other has not."""
    lines = []
    for name in ("runs", "states", "tags", "metrics", "files"):
        mine, theirs = getattr(found, name), getattr(expected, name)
        lines += [
            f"{name} of {step}: {mine.get(step)} instead of {theirs.get(step)}"
            for step in mine.keys() | theirs.keys()
            if mine.get(step) != theirs.get(step)
        ]
    lines += [f"{name}: {getattr(found, name)}" for name in ("aliases", "versions") if getattr(found, name) != getattr(expected, name)]
    return lines

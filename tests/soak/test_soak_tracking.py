"""A tracking server that comes and goes while a whole run works: it misses nothing in the end, and has nothing twice."""

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Undisturbed
from forking import has_ended
from soaking import SEED, Driver, Place, number_of, part
from toggled_server import Fault, ToggledServer
from tracked_runs import client_of

from grpo.base.files import sha256_file
from steps.track.client import EXPERIMENT

pytestmark = pytest.mark.soak

NUM_TOGGLES = number_of("SOAK_TOGGLES", 20)
FAULTY_SHARE = 0.3
OF_THE_MOMENT = (
    "metaflow.run",
    "mlflow.parentRunId",
    "mlflow.note",
    "mlflow.artifact",
    "chess_grpo.child",
    "chess_grpo.version",
    "chess_grpo.run",
    "chess_grpo.command",
    "chess_grpo.reused",
    "chess_grpo.logged",
)
"""Tags that name this very run; and the version, for `select` has another when the registry does not answer: its output is the same."""
OF_THE_MACHINE = {"time", "cache", "system"}
"""Families of metrics that no two runs have alike."""
WITH_TIMES = ("manifest.json", ".md", "results.json")
"""Files that name it or a version, or hold hashes of pages with times in them; those of policies have the time in them."""
NewServer = Callable[[str], ToggledServer]


def told(folder: Path, run: str) -> dict[str, Any]:
    """Return what a server keeps of one flow run: by step its runs, without times and ids; and the registry."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    client, steps = client_of(folder), {}
    experiment = client.get_experiment_by_name(EXPERIMENT).experiment_id
    for each in client.search_runs([experiment], f"tags.`metaflow.run` = '{run}'"):
        tags = {
            name: tag
            for name, tag in each.data.tags.items()
            if name not in OF_THE_MOMENT and not name.startswith(("mlflow.artifact", "mlflow.note"))
        }
        if tags["chess_grpo.step"] == "report":
            del tags["chess_grpo.output_hash"]  # Of a document that names the version of `select`.
        names = sorted(name for name in each.data.metrics if not OF_THE_MACHINE & set(name.split("/")))
        rows = {name: sorted(f"{row.step} {row.value}" for row in client.get_metric_history(each.info.run_id, name)) for name in names}
        files = {
            str(path.relative_to(root)): sha256_file(path)
            for root in (folder / "files").glob(f"*/{each.info.run_id}/artifacts")
            for path in root.rglob("*")
            if path.is_file() and not {"policies", "aside"} & set(path.parts) and not path.name.endswith(WITH_TIMES)
        }
        steps.setdefault(tags["chess_grpo.step"], []).append((each.info.status, tags, rows, files))
    aliases = sorted(name for model in client.search_registered_models() for name in model.aliases)
    return {
        **{step: sorted(found, key=str) for step, found in steps.items()},
        "aliases": aliases,
        "versions": len(client.search_model_versions()),
    }


@pytest.fixture
def servers(template: Path, tmp_path: Path) -> Iterator[NewServer]:
    """Give a maker of toggled servers, one at a time."""
    made: list[ToggledServer] = []

    def make(name: str) -> ToggledServer:
        (folder := tmp_path / name).mkdir()
        (folder / "mlflow.db").write_bytes(template.read_bytes())
        made.append(ToggledServer(folder))
        return made[-1]

    yield make
    for server in made:
        server.stop()


def test_a_server_that_comes_and_goes(driver: Driver, undisturbed: Undisturbed, servers: NewServer, tmp_path: Path) -> None:
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
            status = driver.wait(pid)
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
    """Return step -> hash of its output, but for the report: it names the version of `select`, another one if no registry answered."""
    return {step: found.split()[1] for step, found in hashes.items() if step != "report"}


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return what one store has and the other has not."""
    names = sorted(found.keys() | expected.keys())
    return [f"{name}: {found.get(name)} instead of {expected.get(name)}" for name in names if found.get(name) != expected.get(name)]

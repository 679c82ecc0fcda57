"""A policy is found by alias or folder: here, or through the tracking store; it is the one that was written, and looking writes nothing."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import CPU, TINY

from grpo.base.files import MANIFEST, CorruptError, read_json, write_json
from grpo.learning.checkpoints import NETWORK_FORMAT, TrainingState, load_policy, save_checkpoint, save_policy
from grpo.policy.distribution import new_policy
from grpo.policy.files import POLICY, WEIGHTS, IncompatibleError
from steps.runs.find_policy import FoundPolicy, find_policy
from steps.runtime.machine import Machine
from steps.step_io.aliases import CHAMPION, PEAK
from steps.store.outputs import Store
from steps.tracking import registry_reader
from steps.tracking.registry import Registry
from steps.tracking.registry_reader import RegistryError
from steps.tracking.tracker import Tracker


def machine_at(home: Path, tracking: str | None = None) -> Machine:
    """Return a machine with this home, and this tracking store or its own."""
    return Machine(stockfish="none", home=home, tracking_uri=tracking or f"sqlite:///{home / 'mlflow.db'}", device="cpu", num_threads=1)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> Machine:
    """A machine on which a run has ended: a champion of step 40, a peak of step 60, registered as the step `select` does it."""
    machine = machine_at(give_tables(tmp_path_factory.mktemp("home")))
    tracker, store = Tracker(machine), Store(machine.home)
    registry = Registry(tracker)
    parent = tracker.start_flow_run(metaflow_run="1234", settings={}, tags={}, note="")
    with store.writing("select", "v1", {}) as folder:
        write_policy(folder / CHAMPION, seed=1)
        policy = new_policy(TINY, seed=2, device=CPU)
        state = TrainingState(step=60, optimiser={"state": {}, "param_groups": []}, controllers={}, facts={})
        save_checkpoint(folder, policy, TINY, state, NETWORK_FORMAT).rename(folder / PEAK)
        write_json(folder / "report.json", {"champion_step": 40, "peak_step": 60})
    output = store.find("select", "v1")
    assert output is not None
    with tracker.child(parent, "select", {}) as child:
        for part in (MANIFEST, "report.json"):
            child.file(store.folder("select", "v1") / part)
        for part, step in ((PEAK, 60), (CHAMPION, 40)):
            child.file(store.folder("select", "v1") / part, part)
            version = registry.register(
                holder=child.holder, folder=part, flow_run=parent, policy_step=step, initial_weights="w", low=None, description=""
            )
            registry.give(part, version)
        child.finished(output)
    return machine


@pytest.fixture
def elsewhere(chosen: Machine, tmp_path: Path) -> Machine:
    """Another machine, whose tracking store is the first one's."""
    return machine_at(tmp_path / "elsewhere", chosen.tracking_uri)


def write_policy(folder: Path, *, seed: int) -> Path:
    """Write a tiny policy and return its folder."""
    folder.mkdir(parents=True)
    save_policy(folder, new_policy(TINY, seed=seed, device=CPU), TINY)
    return folder


def file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def content(database: Path) -> list[str]:
    """Return all that is in a database, as SQL."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


# By alias.


@pytest.mark.parametrize(("alias", "step", "seed"), [("champion", 40, 1), ("peak", 60, 2)])
def test_an_alias_is_the_policy_that_the_run_chose_from_this_machines_outputs(chosen: Machine, alias: str, step: int, seed: int) -> None:
    model = find_policy(alias, chosen)
    folder = Store(chosen.home).folder("select", "v1") / alias
    assert model == FoundPolicy(folder=folder, kind="network", run="1234", policy_step=step, weights_hash=file_hash(folder / WEIGHTS))
    loaded, _ = load_policy(model.folder, CPU)
    expected = new_policy(TINY, seed=seed, device=CPU).network.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in loaded.network.state_dict().items())


@pytest.mark.parametrize("alias", ["champion", "peak"])
def test_on_another_machine_the_same_files_come_from_the_tracking_store(chosen: Machine, elsewhere: Machine, alias: str) -> None:
    there, here = find_policy(alias, chosen), find_policy(alias, elsewhere)
    assert replace(here, folder=there.folder) == there
    assert here.folder.is_relative_to(elsewhere.home)
    assert {path.name: path.read_bytes() for path in here.folder.iterdir()} == {
        path.name: path.read_bytes() for path in there.folder.iterdir()
    }


def test_the_second_look_downloads_nothing_and_a_spoilt_cache_is_made_anew(elsewhere: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_policy("champion", elsewhere)
    whole = registry_reader.download
    calls: list[str] = []
    monkeypatch.setattr(registry_reader, "download", lambda *given: (calls.append("download"), whole(*given)))
    assert (find_policy("champion", elsewhere), calls) == (first, [])
    spoil(first.folder / WEIGHTS)
    assert (find_policy("champion", elsewhere), calls) == (first, ["download"])
    assert file_hash(first.folder / WEIGHTS) == first.weights_hash
    assert not list((elsewhere.home / "models").glob(".*"))


def test_an_output_that_is_spoilt_here_is_not_played_the_tracking_stores_files_are(chosen: Machine, tmp_path: Path) -> None:
    shutil.copytree(chosen.home, tmp_path / "home")
    machine = machine_at(tmp_path / "home", chosen.tracking_uri)
    spoil(Store(machine.home).folder("select", "v1") / "champion" / WEIGHTS)
    assert find_policy("champion", machine).weights_hash == find_policy("champion", chosen).weights_hash


@pytest.mark.parametrize("spoilt", [WEIGHTS, POLICY, MANIFEST])
def test_files_that_were_changed_in_the_tracking_store_are_refused(
    spoilt: str, elsewhere: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = registry_reader.download

    def changed(machine: Machine, mlflow_run: str, names: tuple[str, ...], target: Path) -> None:
        whole(machine, mlflow_run, names, target)
        if spoilt == MANIFEST:  # One that fits other weights.
            write_json(target / MANIFEST, {**read_json(target / MANIFEST), "files": {}})
        else:
            spoil(target / "champion" / spoilt)

    monkeypatch.setattr(registry_reader, "download", changed)
    with pytest.raises(CorruptError, match=spoilt):
        find_policy("champion", elsewhere)
    assert not list((elsewhere.home / "models").iterdir())


def test_looking_changes_nothing_in_the_tracking_store_and_makes_no_files_beside(
    chosen: Machine, elsewhere: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = chosen.home / "mlflow.db"
    before, files = content(database), everything(chosen.home)
    find_policy("champion", chosen)
    find_policy("peak", elsewhere)
    assert content(database) == before
    assert everything(chosen.home) == files
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere"}
    assert {path.name for path in elsewhere.home.iterdir()} == {"models"}


def test_without_a_run_there_is_no_alias_and_no_store_is_made(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match=r"no policy has the alias 'champion' in sqlite:.*; let a run finish first"):
        find_policy("champion", machine_at(tmp_path / "home"))
    assert not list(tmp_path.iterdir())


def test_a_store_with_runs_but_no_policy_says_so(tmp_path: Path, chosen: Machine) -> None:
    shutil.copy(chosen.home / "mlflow.db", tmp_path / "mlflow.db")
    with sqlite3.connect(tmp_path / "mlflow.db") as connection:
        connection.execute("DELETE FROM registered_model_aliases WHERE alias = 'champion'")
    connection.close()
    machine = machine_at(tmp_path)
    with pytest.raises(RegistryError, match="no policy has the alias 'champion'"):
        find_policy("champion", machine)
    assert find_policy("peak", machine).policy_step == 60, "its alias is there"


def test_a_tracking_server_that_is_down_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match=r"http://127\.0\.0\.1:1 does not answer"):
        find_policy("champion", machine_at(tmp_path, "http://127.0.0.1:1"))


# By folder.


def test_a_checkpoint_is_found_by_its_folder_with_its_step(chosen: Machine, tmp_path: Path) -> None:
    shutil.copytree(find_policy("peak", chosen).folder, tmp_path / "step-00000060")
    model = find_policy(str(tmp_path / "step-00000060"), machine_at(tmp_path))
    assert model == replace(find_policy("peak", chosen), folder=tmp_path / "step-00000060", run="step-00000060")


def test_the_output_of_select_stands_for_its_champion(chosen: Machine) -> None:
    output = Store(chosen.home).folder("select", "v1")
    assert find_policy(str(output), chosen) == replace(find_policy("champion", chosen), run="v1-champion")
    assert find_policy(str(output / "champion"), chosen) == replace(find_policy("champion", chosen), run="v1-champion")


def test_a_bare_policy_has_no_step(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine", seed=3)
    assert find_policy(str(folder), machine_at(tmp_path)) == FoundPolicy(
        folder=folder, kind="network", run="mine", policy_step=None, weights_hash=file_hash(folder / WEIGHTS)
    )


def test_a_folder_named_like_an_alias_is_meant_when_written_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_policy(tmp_path / "champion", seed=3)
    assert find_policy("./champion", machine_at(tmp_path)).folder == folder
    with pytest.raises(RegistryError):
        find_policy("champion", machine_at(tmp_path))


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "is not a folder; give champion, peak, or the folder of a checkpoint"),
        (without(WEIGHTS), f"is not the folder of a policy: it has no {WEIGHTS}; give"),
        (without(POLICY), f"is not the folder of a policy: it has no {POLICY}; give"),
    ],
)
def test_what_is_no_policy_is_refused_with_what_it_lacks(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine", seed=3)
    change(folder)
    with pytest.raises(PolicyNotFoundError, match=message):
        find_policy(str(folder), machine_at(tmp_path))


def test_another_action_table_and_an_unreadable_description_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine", seed=3)
    write_json(folder / POLICY, {**read_json(folder / POLICY), "action_table": "deadbeef" * 8})
    with pytest.raises(IncompatibleError, match="action_table is deadbeefdead"):
        find_policy(str(folder), machine_at(tmp_path))
    for text in ("not JSON", "{}", "[1]"):
        (folder / POLICY).write_text(text)
        with pytest.raises(CorruptError, match=r"policy\.json is missing or unreadable"):
            find_policy(str(folder), machine_at(tmp_path))


def test_a_checkpoint_with_a_changed_file_is_refused(chosen: Machine, tmp_path: Path) -> None:
    folder = shutil.copytree(find_policy("peak", chosen).folder, tmp_path / "step-00000060")
    spoil(folder / WEIGHTS)
    with pytest.raises(CorruptError, match="changed since it was written"):
        find_policy(str(folder), machine_at(tmp_path))


def test_a_folder_is_looked_at_without_torch_or_tracker(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine", seed=3)
    script = (
        "import json, sys; from steps.runtime.machine import Machine; from steps.runs.find_policy import find_policy;"
        f"find_policy({str(folder)!r}, Machine.here());"
        "print(json.dumps([name for name in ('torch', 'mlflow', 'metaflow', 'pandas') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


def spoil(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

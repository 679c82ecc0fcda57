"""A policy is found by any of its names, in any of the places that have its files, and it is the one that was written."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles import CPU, TINY
from logged_runs import machine_of
from whole_runs import CHAMPION_AT, PEAK_AT, WholeRun, do_run, weights_at

from grpo.base.files import MANIFEST, CorruptError, read_json, sha256_file, write_json
from grpo.learning.checkpoints import save_policy
from grpo.policy.distribution import new_policy
from grpo.policy.files import POLICY, WEIGHTS, IncompatibleError
from grpo.settings.tree import read_settings
from steps.runs.files import fetch_checkpoint, fetch_output, output_manifest
from steps.runs.find_policy import FoundPolicy, find_policy
from steps.runs.index import find_run
from steps.runs.names import NotFoundError
from steps.runtime.machine import Machine
from steps.store.outputs import StepOutput, Store
from steps.tracking.outages import ArtifactError, TrackingAwayError
from steps.tracking.tracker import Tracker

AT_ALL_PLACES = {
    "champion": CHAMPION_AT,
    "peak": PEAK_AT,
    "v1": PEAK_AT,
    "v2": CHAMPION_AT,
    "last": CHAMPION_AT,
    "run-1": CHAMPION_AT,
    f"run-1/{PEAK_AT}": PEAK_AT,
    f"last/{CHAMPION_AT}": CHAMPION_AT,
    "run-1/0": 0,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, give_tables: Callable[[Path], Path]) -> tuple[Machine, WholeRun]:
    """A machine on which run-1 has ended and run-2 was killed in its selection; and run-1."""
    machine = machine_of(give_tables(tmp_path_factory.mktemp("home")))
    run = do_run(machine, read_settings("test"), "run-1")
    do_run(machine, read_settings("test"), "run-2", until="finetune")
    return machine, run


@pytest.fixture
def home(made: tuple[Machine, WholeRun]) -> Machine:
    return made[0]


@pytest.fixture
def elsewhere(home: Machine, tmp_path: Path) -> Machine:
    """Another machine, whose tracking store is the first one's."""
    return machine_of(tmp_path / "elsewhere", home.tracking_uri)


@pytest.fixture
def sharing(made: tuple[Machine, WholeRun], elsewhere: Machine, tmp_path: Path) -> Machine:
    """A third machine; it and the first share a store."""
    first = Store.of(replace(made[0], shared=str(tmp_path / "shared")))
    for output in made[1].outputs.values():
        first.find(output["step"], output["version"])  # It publishes them.
    return replace(elsewhere, shared=str(tmp_path / "shared"))


def content(database: Path) -> list[str]:
    """Return all that is in a database, as SQL."""
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


def spoil(path: Path) -> None:
    """Change one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


# By name.


@pytest.mark.parametrize("place", ["home", "sharing", "elsewhere"])
def test_every_name_is_the_policy_that_the_run_wrote_wherever_its_files_are(
    place: str, home: Machine, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    machine: Machine = request.getfixturevalue(place)
    before, files = content(home.home / "mlflow.db"), set(home.home.rglob("*"))
    for name, step in AT_ALL_PLACES.items():
        capsys.readouterr()
        found = find_policy(name, machine)
        said = capsys.readouterr()
        assert (found.folder / WEIGHTS).read_bytes() == weights_at(step), name
        assert found.folder.is_relative_to(machine.home)
        expected = FoundPolicy(folder=found.folder, kind="network", run="run-1", policy_step=step, weights_hash=found.weights_hash)
        assert found == expected
        assert said.err.splitlines()[-1] == f"{name}: step {step} of run run-1, in {found.folder}"
        assert not said.out, "that is for a command's results"
        if name in ("champion", f"run-1/{PEAK_AT}", "run-1/0"):  # The first of its output.
            origin = {"home": "", "sharing": f"fetched from {machine.shared}", "elsewhere": "fetched from MLflow run "}[place]
            assert ("fetched" in said.err) == bool(origin)
            assert origin.removeprefix("fetched from ") in said.err
        assert find_policy(name, machine) == found
        assert "fetched" not in capsys.readouterr().err, "it is here now"
    assert find_run("last", machine).metaflow_run == "run-1", "run-2 is newer, and has not finished"
    assert content(home.home / "mlflow.db") == before, "looking changes nothing"
    assert set(home.home.rglob("*")) == files


@pytest.mark.parametrize("name", ["champion", f"run-1/{PEAK_AT}"])
def test_what_is_damaged_here_or_in_the_shared_store_comes_from_the_next_place(
    name: str, home: Machine, sharing: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = find_policy(name, home).weights_hash
    for path in (tmp_path / "shared").rglob(good):
        spoil(path)
    shutil.copytree(home.home, tmp_path / "copy")
    copy = replace(sharing, home=tmp_path / "copy")
    spoil(tmp_path / "copy" / find_policy(name, home).folder.relative_to(home.home) / WEIGHTS)
    capsys.readouterr()
    assert find_policy(name, copy).weights_hash == good
    assert "fetched from MLflow run " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chmpion", "did you mean champion?"),
        ("run-3", "did you mean run-"),
        ("v9", "no run or policy in sqlite:.* is called 'v9'"),
        ("last/6/2", "no checkpoint of step 6/2: .* Available steps: 2, 6"),
        ("run-1/²", "no checkpoint of step ²"),
        ("run-1/4", "no checkpoint of step 4: .* Available steps: 2, 6"),
        ("peak/6", "is one checkpoint already"),
        ("v1/", "is one checkpoint already"),
        ("", "is called ''"),
        ("x' or '1'='1", "is called"),
        ("run-2", "run-2 has no champion: .*resume --origin-run-id run-2`, or take a checkpoint by run-2/STEP"),
    ],
)
def test_what_nothing_is_called_is_refused_with_what_there_is(name: str, words: str, home: Machine) -> None:
    with pytest.raises(NotFoundError, match=words):
        find_policy(name, home)


def test_a_tracking_server_that_is_down_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrackingAwayError, match=r"http://127\.0\.0\.1:1 does not answer \(Connection refused\)"):
        find_policy("champion", machine_of(tmp_path, "http://127.0.0.1:1"))


# Files.


@pytest.fixture
def artifacts(home: Machine, tmp_path: Path) -> Iterator[Path]:
    """Give the folder with the tracking store's files, which can be spoilt: it is put in order afterwards."""
    folder = home.home / "mlartifacts"
    shutil.copytree(folder, tmp_path / "whole")
    yield folder
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "whole", folder)


def fetch(machine: Machine, output: StepOutput) -> Path:
    return fetch_checkpoint(machine, output, PEAK_AT) if output["step"] == "finetune" else fetch_output(machine, output)


def lost(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def replaced(path: Path) -> None:
    path.write_text("<html>502 Bad Gateway</html>")


@pytest.mark.parametrize("damage", [spoil, cut, replaced, lost])
@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("join_boards", "boards.parquet"),
        ("check_boards", "docs/aside/page.html"),
        ("finetune", f"checkpoints/step-{PEAK_AT:08d}/weights.safetensors"),
    ],
)
def test_what_is_damaged_in_the_last_place_is_named_and_nothing_of_it_is_kept(
    step: str, name: str, damage: Callable[[Path], None], made: tuple[Machine, WholeRun], artifacts: Path, elsewhere: Machine
) -> None:
    output = made[1].outputs[step]
    holder = Tracker(made[0]).holder(output)
    damage(artifacts / str(holder) / "artifacts" / name)
    with pytest.raises(ArtifactError if damage is lost else CorruptError, match=f"^{name} of MLflow run {holder} "):
        fetch(elsewhere, output)
    assert not [path for path in elsewhere.home.rglob("*") if path.is_file()]
    assert not list(elsewhere.home.rglob(".*")), "no half of one is left behind"


@pytest.mark.parametrize(
    "lie",
    [
        lambda told: {**told, "files": {**told["files"], "more.txt": "0" * 64}},
        lambda told: {**told, "parts": {**told["parts"], "settings": {}}},
        lambda told: {**told, "aside": {"../../outside/aside/x": "0" * 64}},
        lambda told: {key: value for key, value in told.items() if key != "parts"},
        lambda told: "<html>502 Bad Gateway</html>",
    ],
)
def test_a_manifest_is_not_believed_wherever_it_is(
    lie: Callable[[Any], Any], made: tuple[Machine, WholeRun], artifacts: Path, elsewhere: Machine
) -> None:
    output = made[1].outputs["join_boards"]
    path = artifacts / str(Tracker(made[0]).holder(output)) / "artifacts" / MANIFEST
    told = read_json(path)
    here = fetch(elsewhere, output) / MANIFEST
    for place in (here, path):
        write_json(place, lie(told))
        if place is here:
            assert output_manifest(elsewhere, output) == told, "the tracking store has the true one"
    with pytest.raises(CorruptError, match=f"^{MANIFEST} of MLflow run "):
        output_manifest(elsewhere, output)


def test_what_a_machine_made_itself_otherwise_is_set_aside_for_the_runs(made: tuple[Machine, WholeRun], elsewhere: Machine) -> None:
    output = made[1].outputs["pretrain"]
    # The same version with other last bits, as other processors give.
    with Store(elsewhere.home).writing("pretrain", output["version"], {}) as folder:
        (folder / WEIGHTS).write_bytes(b"other")
    folder = fetch(elsewhere, output)
    assert (folder / WEIGHTS).read_bytes() == weights_at(0)
    assert (folder.with_name(f"{output['version']}.set-aside-1") / WEIGHTS).read_bytes() == b"other"


def test_files_that_no_place_has_are_asked_for_with_all_that_was_tried(
    request: pytest.FixtureRequest, made: tuple[Machine, WholeRun], elsewhere: Machine
) -> None:
    tracker = Tracker(made[0])
    holder = tracker.holder(made[1].outputs["select"])
    assert holder is not None
    tracker.client.delete_tag(holder, "chess_grpo.holds_output")
    request.addfinalizer(lambda: tracker.client.set_tag(holder, "chess_grpo.holds_output", "True"))
    with pytest.raises(ArtifactError, match=rf"of select, version .*, is nowhere to be had: {elsewhere.home}.* is missing.*; no run in"):
        find_policy("champion", elsewhere)


# By folder.


def write_policy(folder: Path) -> Path:
    """Write a tiny policy and return its folder."""
    folder.mkdir(parents=True)
    save_policy(folder, new_policy(TINY, seed=3, device=CPU), TINY)
    return folder


def test_a_checkpoint_is_found_by_its_folder_with_its_step(home: Machine, tmp_path: Path) -> None:
    named = find_policy(f"run-1/{PEAK_AT}", home)
    folder = shutil.copytree(named.folder, tmp_path / "step-00000002")
    assert find_policy(str(folder), machine_of(tmp_path)) == replace(named, folder=folder, run="step-00000002")
    spoil(folder / WEIGHTS)
    with pytest.raises(CorruptError, match="changed since it was written"):
        find_policy(str(folder), machine_of(tmp_path))


def test_the_output_of_select_stands_for_its_champion(home: Machine) -> None:
    named = find_policy("champion", home)
    output = named.folder.parent
    for folder in (output, output / "champion"):
        assert find_policy(str(folder), home) == replace(named, run=f"{output.name}-champion")


def test_a_bare_policy_has_no_step(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine")
    assert find_policy(str(folder), machine_of(tmp_path)) == FoundPolicy(
        folder=folder, kind="network", run="mine", policy_step=None, weights_hash=sha256_file(folder / WEIGHTS)
    )


def test_a_folder_named_like_an_alias_is_meant_when_written_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_policy(tmp_path / "champion")
    assert find_policy("./champion", machine_of(tmp_path)).folder == folder
    with pytest.raises(NotFoundError):
        find_policy("champion", machine_of(tmp_path))


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (shutil.rmtree, "is not a folder; give champion, peak, v7"),
        (without(WEIGHTS), f"is not the folder of a policy: it has no {WEIGHTS}; give"),
        (without(POLICY), f"is not the folder of a policy: it has no {POLICY}; give"),
    ],
)
def test_what_is_no_policy_is_refused_with_what_it_lacks(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine")
    change(folder)
    with pytest.raises(NotFoundError, match=message):
        find_policy(str(folder), machine_of(tmp_path))


def test_another_action_table_and_an_unreadable_description_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine")
    write_json(folder / POLICY, {**read_json(folder / POLICY), "action_table": "deadbeef" * 8})
    with pytest.raises(IncompatibleError, match="action_table is deadbeefdead"):
        find_policy(str(folder), machine_of(tmp_path))
    for text in ("not JSON", "{}", "[1]"):
        (folder / POLICY).write_text(text)
        with pytest.raises(CorruptError, match=r"policy\.json is (damaged|missing or unreadable)"):
            find_policy(str(folder), machine_of(tmp_path))


def test_a_folder_is_looked_at_without_torch_or_tracker(tmp_path: Path) -> None:
    folder = write_policy(tmp_path / "mine")
    script = (
        "import json, sys; from steps.runtime.machine import Machine; from steps.runs.find_policy import find_policy;"
        f"find_policy({str(folder)!r}, Machine.here());"
        "print(json.dumps([name for name in ('torch', 'mlflow', 'metaflow', 'pandas') if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []

"""A policy is found by any of its names, in any of the places that have its files, and it is the one that was written."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from doubles import saved_policy
from made_runs import CHAMPION_AT, PEAK_AT, MadeRun, machine_of, make_run, weights_at, write_policy, write_step

from grpo.base.files import CorruptError, read_json, sha256_file, write_json
from grpo.policy.files import FACTS, WEIGHTS, IncompatibleError
from steps.run.machine import Machine
from steps.run.store import Store
from steps.track import registry
from steps.track.find import INCLUDED, INCLUDED_FOLDER, FoundPolicy, NotFoundError, find_policy, find_run, named_policy
from steps.track.registry import Version

IN_THE_STORE = {
    "last": CHAMPION_AT,
    "run-1": CHAMPION_AT,
    f"run-1/{PEAK_AT}": PEAK_AT,
    "run-1/0": 0,
}
REGISTERED = {
    "champion": CHAMPION_AT,
    "peak": PEAK_AT,
    "v1": PEAK_AT,
    "smoke/v2": CHAMPION_AT,
    "smoke/champion": CHAMPION_AT,
}


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.fixture
def home(tmp_path: Path) -> Machine:
    """A machine on which run-1 has ended and run-2 was killed in its selection."""
    machine = machine_of(tmp_path / "home", store=tmp_path / "store")
    make_run(machine, MadeRun(name="run-1"))
    make_run(machine, MadeRun(name="run-2", until="select", ends="killed"))
    return machine


@pytest.fixture
def registered(home: Machine, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], Version]:
    """Give a registry in place of MLflow's, in which the policies of run-1 are the first of preset smoke."""
    run = find_run("run-1", Store.of(home))
    output = run.output_of("select")
    assert output is not None
    made: dict[tuple[str, str], Version] = {}
    for number, (role, step) in enumerate((("peak", PEAK_AT), ("champion", CHAMPION_AT)), start=1):
        version = Version(preset="smoke", number=number, run="run-1", role=role, output_hash=output["output_hash"], policy_step=step)
        made |= {("smoke", role): version, ("smoke", f"v{number}"): version}
    monkeypatch.setattr(registry, "named", lambda name, _: {preset: made[preset, each] for preset, each in made if each == name})
    return made


# By name.


def test_every_name_is_the_policy_that_the_run_wrote_and_looking_changes_nothing(
    home: Machine, registered: object, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Path(home.store)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for name, step in (IN_THE_STORE | REGISTERED).items():
        capsys.readouterr()
        found = find_policy(name, home)
        said = capsys.readouterr()
        assert (found.folder / WEIGHTS).read_bytes() == weights_at(step), name
        assert (found.run, found.policy_step) == ("run-1", step)
        assert found.record is not None
        assert found.record.name == "run-1"
        assert said.err.splitlines()[-1] == f"{name}: step {step} of run run-1, in {found.folder}"
        assert not said.out, "that is for a command's results"
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


def test_a_run_alone_stands_for_its_champion_or_to_resume_from_for_its_peak(home: Machine) -> None:
    for role, step in (("champion", CHAMPION_AT), ("peak", PEAK_AT)):
        found = named_policy("run-1", home, role=role)
        assert (found.run_id, found.policy_step, found.part) == ("run-1", step, role)
        assert found.run is not None
        assert found.run.facts["preset"] == "smoke"


def test_the_last_run_is_the_newest_that_has_what_is_asked(home: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store.of(home)
    make_run(home, MadeRun(name="run-3", until="pretrain", ends="running"))
    assert find_run("last", store, has=lambda _: True).name == "run-3"
    assert find_run("last", store).name == "run-2", "it was killed, so it is over"
    assert find_run("last", store, has=lambda run: run.output_of("select") is not None).name == "run-1"
    assert "last: run run-1 (run run-3 is newer" in capsys.readouterr().err
    assert find_policy(f"last/{PEAK_AT}", home).run == "run-2", "it has checkpoints, though no champion"


def test_last_without_a_run_is_refused_and_not_suggested(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"no run in .* is far enough for this; there is no run yet: `make run") as refusal:
        find_run("last", Store(tmp_path, tmp_path))
    assert "last" not in str(refusal.value).replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("chmpion", "did you mean champion?"),
        ("last/6/2", "no checkpoint of step 6/2: .* Available steps: 2, 6"),
        ("run-1/²", "no checkpoint of step ²"),
        ("peak/6", "is one checkpoint already"),
        ("included/6", "is one checkpoint already"),
        ("", "is called ''"),
        ("../run-1", "is not a folder; give champion, peak"),
        ("v9", "no policy of preset laptop in .* is called 'v9'; let a run finish first"),
        ("laptop/champion", "no policy of preset laptop in .* is called 'champion'; there is smoke/champion"),
        ("run-2", "run-2 has no champion yet: .*resume --origin-run-id run-2`, or take a checkpoint by run-2/STEP"),
    ],
)
def test_what_nothing_is_called_is_refused_with_what_there_is(name: str, words: str, home: Machine, registered: object) -> None:
    with pytest.raises(NotFoundError, match=words):
        find_policy(name, home)


def test_the_included_policy_is_the_champion_until_a_run_registers_one(home: Machine, registered: dict[tuple[str, str], Version]) -> None:
    included = find_policy(INCLUDED, home)
    assert (included.folder, included.record) == (INCLUDED_FOLDER, None)
    assert included.strength
    assert find_policy("champion", home) != included, "a run's champion is preferred"
    registered.clear()
    assert find_policy("champion", home) == included
    for name in ("peak", "v1", "laptop/champion"):
        with pytest.raises(NotFoundError, match="let a run finish first"):
            find_policy(name, home)
    with pytest.raises(NotFoundError, match="let a run finish first"):
        named_policy("champion", home, role="peak")  # A run never resumes from the included policy.


def test_an_alias_is_the_default_presets_or_the_only_ones(home: Machine, registered: dict[tuple[str, str], Version]) -> None:
    smoke = registered["smoke", "champion"]
    registered["blitz", "champion"] = replace(smoke, preset="blitz", policy_step=PEAK_AT, role="peak")
    with pytest.raises(NotFoundError, match=r"no policy of preset laptop in .* there is blitz/champion, smoke/champion"):
        find_policy("champion", home)
    assert find_policy("blitz/champion", home).policy_step == PEAK_AT
    assert named_policy("champion", home, role="peak", preset="smoke").policy_step == CHAMPION_AT
    registered["laptop", "champion"] = replace(smoke, preset="laptop", policy_step=PEAK_AT, role="peak")
    assert find_policy("champion", home).policy_step == PEAK_AT


# Files.


def test_a_version_whose_output_is_damaged_or_not_in_the_store_comes_from_the_registry(
    home: Machine, registered: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    champion = find_policy("champion", home)
    kept = shutil.copytree(champion.folder, tmp_path / "policy")
    monkeypatch.setattr(registry, "fetch", lambda version, _: kept.parent if version.role == "champion" else None)
    elsewhere = machine_of(tmp_path / "elsewhere")
    assert find_policy("champion", elsewhere) == replace(champion, folder=kept)
    assert named_policy("champion", elsewhere, role="peak").run is None
    spoil(champion.folder / WEIGHTS)
    assert find_policy("champion", home) == replace(champion, folder=kept)
    with pytest.raises(CorruptError, match="no complete copy"):
        find_policy("run-1", home)


def test_another_machines_run_of_the_same_id_is_not_taken_for_the_versions_own(
    home: Machine, registered: dict[tuple[str, str], Version]
) -> None:
    registered["smoke", "champion"] = replace(registered["smoke", "champion"], output_hash="another")
    assert named_policy("champion", home, role="champion").output is None


def test_a_policy_is_found_by_its_folder_with_its_step_where_that_is_known(home: Machine, tmp_path: Path) -> None:
    write_step(tmp_path, "finetune")
    checkpoint, bare = tmp_path / "checkpoints" / f"step-{PEAK_AT:08d}", saved_policy(tmp_path / "mine", 3)
    assert find_policy(str(checkpoint), home) == FoundPolicy(folder=checkpoint, run=checkpoint.name, policy_step=PEAK_AT)
    found = find_policy(str(bare), home)
    assert found == FoundPolicy(folder=bare, run="mine", policy_step=None)
    assert found.weights_hash == sha256_file(bare / WEIGHTS)
    named = find_policy("run-1", home)
    for folder in (named.folder.parent, named.folder):
        assert find_policy(str(folder), home) == replace(named, run=folder.name, policy_step=None)
    spoil(checkpoint / WEIGHTS)
    with pytest.raises(CorruptError, match="changed since it was written"):
        find_policy(str(checkpoint), home)


def test_a_folder_named_like_an_alias_is_meant_when_written_as_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "named", lambda *_: {})
    write_policy(tmp_path / "peak", 1)
    assert find_policy("./peak", machine_of(tmp_path)).folder == tmp_path / "peak"
    with pytest.raises(NotFoundError, match="let a run finish first"):
        find_policy("peak", machine_of(tmp_path))


def test_another_action_table_an_unreadable_description_and_missing_weights_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    folder = saved_policy(tmp_path / "mine", 3)
    facts = read_json(folder / FACTS)
    write_json(folder / FACTS, {**facts, "action_table": "deadbeef" * 8})
    with pytest.raises(IncompatibleError, match="action_table is deadbeefdead"):
        find_policy(str(folder), machine_of(tmp_path))
    for text in ("not JSON", "{}", "[1]"):
        (folder / FACTS).write_text(text)
        with pytest.raises(CorruptError, match=r"facts\.json is (damaged|missing or unreadable)"):
            find_policy(str(folder), machine_of(tmp_path))
    write_json(folder / FACTS, facts)
    (folder / WEIGHTS).unlink()
    with pytest.raises(NotFoundError, match=f"is not the folder of a policy: it has no {WEIGHTS}; give"):
        find_policy(str(folder), machine_of(tmp_path))


def test_a_folder_and_a_run_are_found_without_torch_or_tracker(home: Machine, tmp_path: Path) -> None:
    folder = saved_policy(tmp_path / "mine", 3)
    script = (
        "import json, sys; from steps.run.machine import Machine; from steps.track.find import find_policy;"
        f"[find_policy(name, Machine.here()) for name in ({str(folder)!r}, 'last', 'run-1/2')];"
        "print(json.dumps([name for name in ('torch', 'mlflow', 'metaflow', 'pandas', 'boto3') if name in sys.modules]))"
    )
    environment = {"PATH": "", "CHESS_GRPO_HOME": str(home.home), "CHESS_GRPO_STORE": home.store}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert json.loads(done.stdout) == []

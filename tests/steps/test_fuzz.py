"""Foreign data behind every door: thousands of changed records, journals, tags and manifests end no command and write nothing outside."""

import json
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_runs import MadeRun, machine_of, make_run

from grpo.base.door import ForeignError
from grpo.base.errors import PlainError
from grpo.base.files import MANIFEST, file_hashes, json_text, seal
from steps.cli import runs, show
from steps.cli.main import main
from steps.run.machine import Machine
from steps.run.records import Runs
from steps.run.store import Store
from steps.run.work import JOURNAL, read_journal
from steps.track import registry

SEED = 20261128
NUMBERS = [60, pytest.param(2_000, marks=pytest.mark.prove)]
MAX_BYTES = 3 * 2**29
"""1.5 GiB, of this whole process."""
BAD = (
    "../../precious",
    "/etc/passwd",
    "",
    "a/../../b",
    "\x00",
    "x" * 5_000,
    -1,
    2**70,
    1e300,
    True,
    None,
    [],
    {},
    [[["../"]]],
    "ÿ",
    "1 of 2",
    "end",
)
"""Values in the place of any other."""


def changed(value: Any, rng: random.Random) -> Any:
    """Return a document with one key more or less, or one value changed, at any depth."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        match rng.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return {**value, rng.choice(("more", "../x", key.upper())): rng.choice(BAD)}
            case _:
                return {**value, key: changed(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], changed(value[place], rng), *value[place + 1 :]]
    return rng.choice(BAD)


def torn(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a flip, a gap, a doubling, or what another program writes."""
    place, width = rng.randrange(len(data)), rng.randrange(1, 60)
    match rng.randrange(6):
        case 0:
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        case 1:
            return data[:place] + data[place + width :]
        case 2:
            return data[: place + width] + data[place:]
        case 3:
            return data[:place]
        case 4:
            return data[:place] + rng.randbytes(width) + data[place:]
    return rng.choice((b"", b"<html>", b"[" * 100_000, b"{}", b"null", b"\xff\xfe{\x00}\x00", b'{"a": NaN}', b"9" * 9_000))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A home with a run that is finished, one that failed, and one at work."""
    machine = machine_of(tmp_path_factory.mktemp("made") / "home")
    make_run(machine, MadeRun(name="1", tags={"a": "b"}))
    make_run(machine, MadeRun(name="2", until="screen", ends="failed", error="no", origin={"name": "1/2", "run": "1", "step": 2}))
    make_run(machine, MadeRun(name="3", until="finetune", ends="running"))
    return machine


@pytest.fixture
def here(made: Machine, tmp_path: Path) -> Iterator[Machine]:
    """Give a copy of it, beside which nothing may change."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("work of years")
    shutil.copytree(made.home, home := tmp_path / "home")
    yield machine_of(home)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "precious"]
    assert (tmp_path / "precious" / "file").read_text() == "work of years"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MAX_BYTES


def refused_or_fine(use: Callable[[], Any]) -> bool:
    """Return whether a plain error refused it; any other error fails the test."""
    try:
        use()
    except PlainError:
        return True
    return False


@pytest.mark.parametrize("number", NUMBERS)
def test_records(number: int, here: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CHESS_GRPO_HOME", str(here.home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for module in (runs, show):
        monkeypatch.setattr(module, "close_gone", lambda *_: None)  # It is another test's, and imports MLflow.
    rng, store = random.Random(SEED), Store.of(here)
    records = sorted(path for place in ("runs", "marks") for path in (here.home / place).rglob("*") if path.is_file())
    for _ in range(number):
        path = rng.choice(records)
        key, before = path.relative_to(here.home).as_posix(), path.read_bytes()
        if rng.random() < 0.5:
            facts = changed({name: fact for name, fact in json.loads(before).items() if name != "record_hash"}, rng)
            path.write_text(json_text(facts | {"record_hash": seal(facts, place=key)} if isinstance(facts, dict) else facts))
        else:
            path.write_bytes(torn(before, rng))
        found = Runs(store)
        for run in found.all():
            assert run.status in ("running", "finished", "failed", "killed")
            assert {attempt.run for attempt in run.attempts} <= {run.name}
        found.close_gone()
        assert {run.name for run in found.unpublished()} <= {"1", "2", "3"}
        words = rng.choice((("runs",), ("show", "1"), ("show", "last"), ("show", "2"), ("compare", "1", "2")))
        assert main(list(words)) in (0, 1, 2), (key, path.read_bytes())
        assert "Traceback" not in capsys.readouterr().err
        path.write_bytes(before)


@pytest.mark.parametrize("number", NUMBERS)
def test_journals(number: int, here: Machine) -> None:
    from grpo.metrics.records import Record
    from grpo.settings.tree import Settings
    from steps.run.work import Work

    rng = random.Random(SEED)
    (place := here.home / "journal").mkdir()
    work = Work(folder=place, progress_folder=place, settings=Settings(), machine=here)
    for step in range(8):
        work.log(Record(step, {"grpo/loss": rng.random()}))
    before = (place / JOURNAL).read_bytes()
    rows = read_journal(place)
    assert len(rows) == 8
    for _ in range(number):
        (place / JOURNAL).write_bytes(torn(before, rng))
        found = read_journal(place)
        assert found == rows[: len(found)], "what is read was written"
        again = Work(folder=place, progress_folder=place, settings=Settings(), machine=here)
        again.go_on_after(3)
        assert read_journal(place) == rows[: min(4, len(found))]


@pytest.mark.parametrize("number", NUMBERS)
def test_tags_of_the_registry(number: int, here: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(SEED)
    facts = {
        "run": "7",
        "role": "peak",
        "output_hash": "0" * 64,
        "policy_step": 5,
        "weights": "w",
        "initial_weights": "v",
        "low": 0.5,
        "files": "f" * 64,
    }
    registered, num_passed = here.home / "registered", 0
    monkeypatch.setattr("steps.track.client._SHORT", "1")
    for _ in range(number):
        tag = json.dumps(changed(facts, rng)) if rng.random() < 0.6 else torn(json.dumps(facts).encode(), rng).decode("latin-1")
        found = SimpleNamespace(
            version="3", source=rng.choice(("file:///nowhere", "http://elsewhere", "../x", "")), tags={registry._POLICY: tag}
        )
        try:
            version = registry._version(found, "default")
        except ForeignError:
            continue
        num_passed += 1
        assert refused_or_fine(lambda version=version: registry.fetch(version, here))
    assert num_passed < number / 2
    assert {path.suffix for path in registered.iterdir()} <= {".lock"} if registered.exists() else True


@pytest.mark.parametrize("number", NUMBERS)
def test_manifests(number: int, here: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    rng, run = random.Random(SEED), Runs(Store.of(here)).get("1")
    assert run is not None
    outputs = [attempt.output for attempt in run.attempts if attempt.output is not None]
    kept = here.home.parent / "home" / "kept"
    for _ in range(number):
        output = rng.choice(outputs)
        folder = Store.of(here).folder(output["step"], output["version"])
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)
        before = (folder / MANIFEST).read_bytes()
        if rng.random() < 0.5:
            facts = changed({name: fact for name, fact in json.loads(before).items() if name != "manifest_hash"}, rng)
            data = json_text(facts | {"manifest_hash": seal(facts)} if isinstance(facts, dict) else facts).encode()
        else:
            data = torn(before, rng)
        (folder / MANIFEST).write_bytes(data)
        is_refused = refused_or_fine(lambda output=output: Store.of(here).open(output))
        with Store.of(here).making(output["step"], output["version"]) as making:
            assert making.output is None or making.output["output_hash"] == output["output_hash"] or not is_refused
        for aside in folder.parent.glob("*"):
            shutil.rmtree(aside)
        shutil.copytree(kept, folder)
        assert file_hashes(folder) == file_hashes(kept)

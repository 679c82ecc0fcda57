"""Machines without a common disk hand each other outputs and progress by the shared store, whole or not at all."""

import json
from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import CorruptError
from steps.pipeline.make_output import make_output
from steps.step_io.work import TerminalSink, Work
from steps.store.objects import Objects, SharedStoreError, objects_at
from steps.store.outputs import StepOutput, Store
from steps.store.shared import SharedStore


@pytest.fixture
def in_s3(aws: Any) -> str:
    return "s3://shop/chess-grpo"


@pytest.fixture(params=["folder", "S3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return objects_at(tmp_path / "shared" if request.param == "folder" else request.getfixturevalue("in_s3"))


class Machines:
    """Machines with a home each, and one shared store."""

    def __init__(self, folder: Path, objects: Objects) -> None:
        self._folder = folder
        self.objects = objects

    def home(self, name: str) -> Path:
        return self._folder / name

    def store(self, name: str) -> Store:
        return Store(self.home(name), SharedStore(self.objects))

    def make(self, name: str, body: Any, *, version: str = "v1", resumes: bool = True, **more: Any) -> StepOutput:
        terminal = TerminalSink("finetune", (), print)
        given = {"facts": {}, "is_fresh": False, "sinks": (), **more}
        return make_output(self.store(name), "finetune", version, body=body, resumes=resumes, terminal=terminal, **given)


@pytest.fixture
def machines(tmp_path: Path, objects: Objects) -> Machines:
    return Machines(tmp_path, objects)


def write(work: Work) -> None:
    (work.folder / "deep").mkdir()
    (work.folder / "deep" / "weights").write_bytes(b"weights")
    (work.folder / "aside").mkdir()
    (work.folder / "aside" / "page.html").write_text("noon")


def test_what_one_machine_made_another_opens_by_its_hash_and_finds_by_its_version(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    folder = machines.store("two").open(made)
    assert folder.is_relative_to(machines.home("two"))
    assert (folder / "deep" / "weights").read_bytes() == b"weights"
    assert (folder / "aside" / "page.html").read_text() == "noon"
    found = machines.store("three").find("finetune", "v1")
    assert found == {**made, "reused": True}
    assert machines.store("three").find("finetune", "v2") is None


def test_an_output_from_before_there_was_a_shared_store_is_published_when_it_is_found(machines: Machines) -> None:
    made = make_output(
        Store(machines.home("one")),
        "finetune",
        "v1",
        facts={},
        body=write,
        resumes=False,
        is_fresh=False,
        sinks=(),
        terminal=TerminalSink("finetune", (), print),
    )
    assert not machines.store("two").has(made)
    machines.store("one").find("finetune", "v1")
    assert machines.store("two").has(made)
    assert not (machines.home("two") / "outputs").exists(), "asking fetches nothing"


def test_an_output_without_its_manifest_is_not_there(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    [manifest] = [key for key in machines.objects.keys("outputs/") if key.endswith("manifest.json")]
    machines.objects.delete(manifest)
    assert not machines.store("two").has(made)
    with pytest.raises(CorruptError, match="is missing"):
        machines.store("two").open(made)


@pytest.mark.parametrize("damage", [lambda objects, key: objects.put(key, b"other"), lambda objects, key: objects.delete(key)])
def test_a_damaged_copy_is_told_of_and_made_anew(damage: Any, machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    made = machines.make("one", write, resumes=False)
    [weights] = [key for key in machines.objects.keys("outputs/") if key.endswith("weights")]
    damage(machines.objects, weights)
    with pytest.raises(CorruptError, match="weights"):
        machines.store("two").open(made)
    assert machines.store("two").find("finetune", "v1") is None
    assert "finetune: WARNING" in capsys.readouterr().out
    assert list((machines.home("two") / "outputs" / "finetune").iterdir()) == []
    assert machines.store("three").find("finetune", "v1") is None, "nobody tries it again"


def test_a_manifest_that_names_files_elsewhere_writes_none(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    [key] = [key for key in machines.objects.keys("outputs/") if key.endswith("manifest.json")]
    stored = machines.objects.get(key)
    assert stored is not None
    manifest = json.loads(stored.data)
    manifest["files"]["../../../evil"] = "0"
    machines.objects.put(key, json.dumps(manifest).encode())
    with pytest.raises(CorruptError, match="outside"):
        machines.store("two").open(made)
    assert not list(machines.home("two").parent.rglob("evil"))


class Killed(BaseException):
    """The machine is gone."""


def count_to(last: int, *, kill_at: int | None = None) -> Any:
    """Return a body that counts in its progress folder, keeps each number, and goes on where it was."""

    def body(work: Work) -> None:
        assert work.progress_folder is not None
        files = sorted(work.progress_folder.glob("number-*"))
        first = int(files[-1].name.removeprefix("number-")) + 1 if files else 0
        print(f"from {first}")
        for number in range(first, last):
            (work.progress_folder / f"number-{number}").write_text(str(number))
            for old in sorted(work.progress_folder.glob("number-*"))[:-2]:
                old.unlink()
            work.saved()
            if number == kill_at:
                (work.progress_folder / "number-9").write_text("not kept")
                raise Killed
        (work.folder / "numbers").write_text(str(last))

    return body


def test_a_lost_machines_work_is_gone_on_from_as_it_was_last_kept(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machines.make("undisturbed", count_to(6), version="v0")
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    with pytest.raises(Killed):
        machines.make("two", count_to(6, kill_at=4))
    assert sorted(path.name for path in (machines.home("two") / "in_progress/finetune/v1").glob("n*")) == [
        "number-3",
        "number-4",
        "number-9",
    ]
    made = machines.make("three", count_to(6))
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("from")] == ["from 0", "from 0", "from 3", "from 5"]
    assert made["output_hash"] == whole["output_hash"]
    assert machines.objects.keys("progress/") == [], "what was kept goes when the output is there"


def test_a_machine_that_comes_back_resumes_from_its_own_disk_unless_another_was_further(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=1))
    (machines.home("one") / "in_progress/finetune/v1/number-9").rename(machines.home("one") / "in_progress/finetune/v1/number-2")
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=3))  # From its own 2, which was not kept.
    with pytest.raises(Killed):
        machines.make("two", count_to(9, kill_at=5))
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=6))
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("from")] == ["from 0", "from 3", "from 4", "from 6"]


def test_fresh_takes_nobodys_progress(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    machines.make("two", count_to(6), is_fresh=True)
    assert "from 0\nfinetune" not in (printed := capsys.readouterr().out)
    assert printed.count("from 0") == 2


def test_what_was_kept_goes_when_the_machine_was_lost_after_its_output_was_published(machines: Machines) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    kept = {key: machines.objects.get(key) for key in machines.objects.keys("progress/")}
    made = machines.make("two", count_to(6))
    for key, stored in kept.items():
        assert stored is not None
        machines.objects.put(key, stored.data)
    third = machines.store("three")
    assert third.find("finetune", "v1") == {**made, "reused": True}
    third.forget_progress("finetune", "v1")
    assert machines.objects.keys("progress/") == []


def test_damaged_progress_is_refused(machines: Machines) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    key = next(key for key in machines.objects.keys("progress/") if "/files/" in key)
    machines.objects.put(key, b"other")
    with pytest.raises(CorruptError, match="changed since it was saved"):
        machines.make("two", count_to(6))


def test_a_shared_store_that_is_away_stops_no_training_and_gets_all_later(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    upload = type(machines.objects).upload

    def failing(self: Any, path: Path, key: str) -> None:
        calls.append(key)
        if len(calls) in (2, 3):
            raise SharedStoreError("away")
        upload(self, path, key)

    monkeypatch.setattr(type(machines.objects), "upload", failing)
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=3))
    assert capsys.readouterr().out.count("WARNING: if this machine is lost now") == 2
    with pytest.raises(Killed):
        machines.make("two", count_to(6, kill_at=4))
    assert "from 4" in capsys.readouterr().out


def test_a_run_that_begins_anew_on_another_kind_of_machine_says_so(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2), whose={"run": "7", "device": "cpu AVX512"})
    machines.make("two", count_to(6), version="v2", whose={"run": "7", "device": "cpu AVX2"})
    assert "WARNING: this run began as version v1 on cpu AVX512; here it is version v2 on cpu AVX2" in capsys.readouterr().out
    machines.make("three", count_to(6), version="v3", whose={"run": "8", "device": "cpu AVX2"})
    assert "WARNING" not in capsys.readouterr().out

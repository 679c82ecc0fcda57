"""Machines without a common disk hand each other outputs and progress by the shared store, whole or not at all."""

import threading
from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import CorruptError
from steps.pipeline.make_output import make_output
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work
from steps.store.objects import Objects, SharedStoreError, objects_at
from steps.store.outputs import StepOutput, Store
from steps.store.shared import SharedStore


@pytest.fixture(params=["folder", "S3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "S3":
        request.getfixturevalue("aws")
    return objects_at("s3://shop/chess-grpo" if request.param == "S3" else tmp_path / "shared")


class Machines:
    """Machines with a home each, and one shared store."""

    def __init__(self, folder: Path, objects: Objects) -> None:
        self._folder = folder
        self.objects = objects

    def home(self, name: str) -> Path:
        return self._folder / name

    def progress(self, name: str) -> Path:
        return self.home(name) / "in_progress" / "finetune" / "v1"

    def store(self, name: str) -> Store:
        return Store(self.home(name), SharedStore(self.objects))

    def make(self, name: str, body: Any, *, resumes: bool = True, is_fresh: bool = False) -> StepOutput:
        terminal = TerminalSink("finetune", (), print)
        store = self.store(name)
        return make_output(store, "finetune", "v1", facts={}, body=body, resumes=resumes, is_fresh=is_fresh, sinks=(), terminal=terminal)


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
    assert machines.store("three").find("finetune", "v1") == {**made, "reused": True}
    assert machines.store("three").find("finetune", "v2") is None


def test_an_upload_that_is_cut_off_leaves_no_output(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = []
    upload = type(machines.objects).upload

    def cut_off(self: Any, path: Path, key: str) -> None:
        uploads.append(key)
        if len(uploads) == 3:
            raise SharedStoreError("away")
        upload(self, path, key)

    monkeypatch.setattr(type(machines.objects), "upload", cut_off)
    with pytest.raises(SharedStoreError):
        machines.make("one", write, resumes=False)
    assert machines.store("two").find("finetune", "v1") is None
    assert [key for key in machines.objects.keys("outputs/") if "/files/" not in key] == []


def test_two_machines_that_make_the_same_version_at_once_both_end_and_the_first_output_stands(machines: Machines) -> None:
    gate, made = threading.Barrier(2), {}

    def body(work: Work) -> None:
        assert work.progress_folder is not None
        (work.progress_folder / "step-1").write_text("1")
        work.saved()
        gate.wait(300)
        write(work)

    threads = [threading.Thread(target=lambda name=name: made.update({name: machines.make(name, body)})) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made["one"]["output_hash"] == made["two"]["output_hash"]
    assert machines.store("three").find("finetune", "v1") == {**made["one"], "reused": True}
    assert machines.objects.keys("progress/") == []


@pytest.mark.parametrize("damage", [lambda objects, key: objects.put(key, b"other"), lambda objects, key: objects.delete(key)])
def test_a_damaged_copy_is_told_of_and_mended_by_the_next_who_has_the_output(
    damage: Any, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    made = machines.make("one", write, resumes=False)
    damage(machines.objects, next(key for key in machines.objects.keys("outputs/") if machines.objects.get(key) == b"weights"))
    assert machines.store("two").find("finetune", "v1") is None
    assert capsys.readouterr().out.startswith("finetune: WARNING")
    assert list((machines.home("two") / "outputs" / "finetune").iterdir()) == []
    assert machines.make("three", write, resumes=False)["output_hash"] == made["output_hash"]
    assert (machines.store("four").open(made) / "deep" / "weights").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["index.json", "latest.json"])
@pytest.mark.parametrize("data", [b"<html>", b"[]", b'{"files": 3}'])
def test_a_damaged_index_or_pointer_is_an_output_that_is_not_there(data: bytes, name: str, machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    machines.objects.put(next(key for key in machines.objects.keys("outputs/") if key.endswith(name)), data)
    assert machines.store("two").find("finetune", "v1") is None
    assert machines.make("two", write, resumes=False)["output_hash"] == made["output_hash"]
    assert machines.store("three").find("finetune", "v1") == {**made, "reused": True}


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_output_that_is_discarded_everywhere_is_found_by_no_machine(everywhere: bool, machines: Machines) -> None:
    machines.make("one", write, resumes=False)
    machines.store("one").discard("finetune", "v1", everywhere=everywhere)
    assert (machines.store("two").find("finetune", "v1") is None) == everywhere


def test_an_index_that_names_files_elsewhere_writes_none(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    key = next(key for key in machines.objects.keys("outputs/") if key.endswith("index.json"))
    stored = machines.objects.get(key)
    assert stored is not None
    machines.objects.put(key, stored.replace(b'"deep/weights"', b'"../../../evil"'))
    with pytest.raises(CorruptError, match="outside"):
        machines.store("two").open(made)
    assert not list(machines.home("two").parent.rglob("evil"))


# Progress.


class Killed(BaseException):
    """The machine is gone."""


def count_to(last: int, *, kill_at: int | None = None) -> Any:
    """Return a body that counts in its progress folder, keeps the last two numbers, and goes on where it was."""

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


def begun_from(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("from")]


def test_a_lost_machines_work_is_gone_on_from_as_it_was_last_kept(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    for name, number in (("one", 2), ("two", 4)):
        with pytest.raises(Killed):
            machines.make(name, count_to(6, kill_at=number))
    assert {path.name for path in machines.progress("two").glob("n*")} == {"number-3", "number-4", "number-9"}
    assert len([key for key in machines.objects.keys("progress/") if "/files/" in key]) == 4, "of each attempt no more than its folder"
    machines.make("three", count_to(6))
    assert begun_from(capsys) == ["from 0", "from 3", "from 5"]
    assert machines.objects.keys("progress/") == [], "what was kept goes when the output is there"


def test_a_machine_that_comes_back_resumes_from_its_own_disk_unless_another_was_further(
    machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=1))
    (machines.progress("one") / "number-9").rename(machines.progress("one") / "number-2")
    for name, number in (("one", 3), ("two", 5), ("one", 6)):  # First from its own 2, which was not kept.
        with pytest.raises(Killed):
            machines.make(name, count_to(9, kill_at=number))
    assert begun_from(capsys) == ["from 0", "from 3", "from 4", "from 6"]


def test_fresh_takes_nobodys_progress(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    machines.make("two", count_to(6), is_fresh=True)
    assert begun_from(capsys) == ["from 0", "from 0"]


@pytest.mark.parametrize("is_index", [False, True])
def test_of_damaged_progress_the_newest_whole_one_is_taken(is_index: bool, machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    for name, number in (("one", 1), ("two", 3)):
        with pytest.raises(Killed):
            machines.make(name, count_to(9, kill_at=number))
    newest = max(key.split("/")[3] for key in machines.objects.keys("progress/"))
    key = next(key for key in machines.objects.keys(f"progress/finetune/v1/{newest}/") if ("/files/" not in key) == is_index)
    machines.objects.put(key, b"other")
    machines.make("three", count_to(9))
    assert begun_from(capsys) == ["from 0", "from 2", "from 2"]


def test_progress_that_goes_away_while_it_is_fetched_replaces_nothing(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("one", 1), ("two", 3)):
        with pytest.raises(Killed):
            machines.make(name, count_to(9, kill_at=number))
    before = {path.name: path.read_bytes() for path in machines.progress("one").iterdir()}

    def away(*_: Any) -> None:
        raise SharedStoreError("away")

    monkeypatch.setattr(type(machines.objects), "download", away)
    with pytest.raises(SharedStoreError):
        machines.make("one", count_to(9))
    assert {path.name: path.read_bytes() for path in machines.progress("one").iterdir()} == before


def test_progress_whose_deletion_is_cut_off_is_not_there(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    delete, deleted = type(machines.objects).delete, []

    def cut_off(self: Any, key: str) -> None:
        if deleted:
            raise SharedStoreError("away")
        deleted.append(key)
        delete(self, key)

    monkeypatch.setattr(type(machines.objects), "delete", cut_off)
    with pytest.raises(SharedStoreError):
        SharedStore(machines.objects).delete_progress("finetune", "v1")
    assert not SharedStore(machines.objects).fetch_progress("finetune", "v1", machines.home("two"))


def test_a_shared_store_that_is_away_or_full_stops_no_training_and_gets_all_later(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    upload = type(machines.objects).upload

    def failing(self: Any, path: Path, key: str) -> None:
        calls.append(key)
        if len(calls) in (2, 3):
            raise SharedStoreError("No space left on device")
        upload(self, path, key)

    monkeypatch.setattr(type(machines.objects), "upload", failing)
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=3))
    assert capsys.readouterr().out.count("WARNING: if this machine is lost now") == 2
    machines.make("two", count_to(6))
    assert begun_from(capsys) == ["from 4"]

"""Machines without a common disk hand each other outputs and progress by the shared store, whole or not at all."""

import errno
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from grpo.base.files import CorruptError
from steps.pipeline.make_output import make_output
from steps.step_io.terminal import TerminalSink
from steps.step_io.work import Work
from steps.store.object_lease import Lease, LeaseLostError
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


def test_an_output_without_its_index_is_not_there(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    machines.objects.delete(index_key(machines.objects))
    assert not machines.store("two").has(made)
    with pytest.raises(CorruptError, match="is missing"):
        machines.store("two").open(made)


def index_key(objects: Objects) -> str:
    [key] = [key for key in objects.keys("outputs/") if key.endswith("index.json")]
    return key


def blob_of(objects: Objects, content: bytes) -> str:
    return next(key for key in objects.keys("") if "/files/" in key and (stored := objects.get(key)) and stored.data == content)


def test_an_upload_that_is_cut_off_leaves_no_output(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = []

    def cut_off(self: Any, path: Path, key: str) -> None:
        uploads.append(key)
        if len(uploads) == 3:
            raise SharedStoreError("away")
        upload(self, path, key)

    upload = type(machines.objects).upload
    monkeypatch.setattr(type(machines.objects), "upload", cut_off)
    with pytest.raises(SharedStoreError):
        machines.make("one", write, resumes=False)
    assert machines.store("two").find("finetune", "v1") is None
    assert [key for key in machines.objects.keys("outputs/") if "/files/" not in key] == []


def test_runs_that_publish_the_same_version_at_once_do_not_disturb_each_other(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_is_ready, fast_is_done = threading.Event(), threading.Event()
    put = type(machines.objects).put

    def page_at(when: str) -> Any:
        def body(work: Work) -> None:
            write(work)
            (work.folder / "aside" / "page.html").write_text(when)

        return body

    def stalling(self: Any, key: str, data: bytes) -> str:
        if threading.current_thread() is slow and key.endswith("index.json"):
            slow_is_ready.set()
            assert fast_is_done.wait(600)
        return str(put(self, key, data))

    monkeypatch.setattr(type(machines.objects), "put", stalling)
    slow = threading.Thread(target=lambda: machines.make("one", page_at("10:00"), resumes=False))
    slow.start()
    assert slow_is_ready.wait(600)
    made = machines.make("two", page_at("10:01"), resumes=False)
    fast_is_done.set()
    slow.join()
    assert (machines.store("three").open(made) / "aside" / "page.html").read_text() == "10:00"


@pytest.mark.parametrize("damage", [lambda objects, key: objects.put(key, b"other"), lambda objects, key: objects.delete(key)])
def test_a_damaged_copy_is_mended_by_the_next_who_has_the_output(
    damage: Any, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    made = machines.make("one", write, resumes=False)
    damage(machines.objects, blob_of(machines.objects, b"weights"))
    with pytest.raises(CorruptError, match="weights"):
        machines.store("two").open(made)
    assert machines.make("three", write, resumes=False)["output_hash"] == made["output_hash"]
    assert (machines.store("four").open(made) / "deep" / "weights").read_bytes() == b"weights"


@pytest.mark.parametrize("damage", [lambda objects, key: objects.put(key, b"other"), lambda objects, key: objects.delete(key)])
def test_a_damaged_copy_is_told_of_and_made_anew(damage: Any, machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    made = machines.make("one", write, resumes=False)
    damage(machines.objects, blob_of(machines.objects, b"weights"))
    assert machines.store("two").find("finetune", "v1") is None
    assert "weights is" in (printed := capsys.readouterr().out)
    assert printed.startswith("finetune: WARNING")
    assert not machines.store("two").has(made)
    assert list((machines.home("two") / "outputs" / "finetune").iterdir()) == []
    assert machines.store("three").find("finetune", "v1") is None, "nobody tries it again"


@pytest.mark.parametrize("everywhere", [False, True])
def test_an_output_that_is_discarded_everywhere_is_found_by_no_machine(everywhere: bool, machines: Machines) -> None:
    machines.make("one", write, resumes=False)
    machines.store("one").discard("finetune", "v1", everywhere=everywhere)
    assert (machines.store("two").find("finetune", "v1") is None) == everywhere


def test_an_index_that_names_files_elsewhere_writes_none(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    stored = machines.objects.get(key := index_key(machines.objects))
    assert stored is not None
    index = json.loads(stored.data)
    index["files"]["../../../evil"] = next(iter(index["files"].values()))
    machines.objects.put(key, json.dumps(index).encode())
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


NO_OBJECTS = (b"<html>", b"[]", b'{"files": 3}')
"""No JSON, no object, and no index of files."""


@pytest.mark.parametrize("data", NO_OBJECTS)
def test_a_damaged_index_of_an_output_is_an_output_that_is_not_there(data: bytes, machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    machines.objects.put(index_key(machines.objects), data)
    assert not machines.store("two").has(made)
    assert machines.make("two", write, resumes=False)["output_hash"] == made["output_hash"]
    machines.store("three").open(made)


def test_a_damaged_index_of_an_output_is_written_anew_by_the_next_who_has_the_output(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    machines.objects.put(index_key(machines.objects), b"<html>")
    machines.store("one").find("finetune", "v1")
    machines.store("two").open(made)


@pytest.mark.parametrize("data", NO_OBJECTS)
def test_a_damaged_pointer_to_the_latest_output_is_told_of_and_mended(
    data: bytes, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    made = machines.make("one", write, resumes=False)
    machines.objects.put("outputs/finetune/v1/latest.json", data)
    assert machines.store("two").find("finetune", "v1") is None
    assert "latest.json is damaged" in capsys.readouterr().out
    machines.make("two", write, resumes=False)
    assert machines.store("three").find("finetune", "v1") == {**made, "reused": True}


def damaged_progress(objects: Objects, *, is_index: bool) -> None:
    key = next(key for key in objects.keys("progress/") if ("/files/" not in key) == is_index)
    objects.put(key, b"other")


@pytest.mark.parametrize("is_index", [False, True])
def test_damaged_progress_is_refused_where_there_is_no_other(is_index: bool, machines: Machines) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=2))
    damaged_progress(machines.objects, is_index=is_index)
    with pytest.raises(CorruptError, match=r"(changed since it was saved|is damaged).*--fresh starts over"):
        machines.make("two", count_to(6))


@pytest.mark.parametrize("is_index", [False, True])
def test_damaged_progress_replaces_nothing(is_index: bool, machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=1))
    with pytest.raises(Killed):
        machines.make("two", count_to(9, kill_at=3))
    damaged_progress(machines.objects, is_index=is_index)
    (machines.home("one") / "in_progress/finetune/v1/number-9").unlink()
    capsys.readouterr()
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=4))
    printed = capsys.readouterr().out
    assert "the progress on this machine's disk is used instead" in printed
    assert "from 2" in printed
    with pytest.raises(Killed):
        machines.make("three", count_to(9, kill_at=5))
    assert "from 5" in capsys.readouterr().out, "what one saved after it is whole"


def test_progress_that_goes_away_while_it_is_fetched_replaces_nothing(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        machines.make("one", count_to(9, kill_at=1))
    with pytest.raises(Killed):
        machines.make("two", count_to(9, kill_at=3))
    folder = machines.home("one") / "in_progress/finetune/v1"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def away(*_: Any) -> None:
        raise SharedStoreError("away")

    monkeypatch.setattr(type(machines.objects), "download", away)
    with pytest.raises(SharedStoreError):
        machines.make("one", count_to(9))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_holder_that_stalled_overwrites_nothing_of_its_successor(tmp_path: Path, objects: Objects) -> None:
    shared, one, two, three = SharedStore(objects), tmp_path / "1", tmp_path / "2", tmp_path / "3"
    one.mkdir()
    (one / "step-100").write_text("100")
    shared.save_progress("finetune", "v", one, {"run": "7"}, token=1)
    (one / "step-200").write_text("200")
    real = objects.upload

    def stalled(path: Path, key: str) -> None:
        """Upload; meanwhile the lease is taken over, and the successor gets further and prunes."""
        real(path, key)
        monkey.undo()
        assert shared.fetch_progress("finetune", "v", two)
        (two / "step-100").unlink()
        (two / "step-300").write_text("300")
        shared.save_progress("finetune", "v", two, {"run": "7"}, token=2)

    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(objects, "upload", stalled)
        with pytest.raises(LeaseLostError, match="fencing token 2, ours is 1"):
            shared.save_progress("finetune", "v", one, {"run": "7"}, token=1)
    assert shared.fetch_progress("finetune", "v", three)
    assert sorted(path.name for path in three.iterdir()) == ["shared_tag", "step-300"]


def test_a_stalled_holders_last_write_does_not_stop_its_successor(tmp_path: Path, objects: Objects) -> None:
    shared, one, two, three = SharedStore(objects), tmp_path / "1", tmp_path / "2", tmp_path / "3"
    one.mkdir()
    (one / "step-100").write_text("100")
    shared.save_progress("finetune", "v", one, {}, token=1)
    assert shared.fetch_progress("finetune", "v", two)
    (one / "step-200").write_text("200")
    (one / "step-100").unlink()
    shared.save_progress("finetune", "v", one, {}, token=1)
    (two / "step-300").write_text("300")
    shared.save_progress("finetune", "v", two, {}, token=2)
    assert shared.fetch_progress("finetune", "v", three)
    assert sorted(path.name for path in three.iterdir()) == ["shared_tag", "step-100", "step-300"]


def test_saved_progress_holds_no_more_than_the_folder(tmp_path: Path, objects: Objects) -> None:
    shared, folder = SharedStore(objects), tmp_path / "1"
    folder.mkdir()
    for step in range(3):
        (folder / f"step-{step}").write_text(str(step))
        (folder / f"step-{step - 1}").unlink(missing_ok=True)
        shared.save_progress("finetune", "v", folder, {}, token=1)
        assert len(objects.keys("progress/finetune/v/files/")) == 1


def test_progress_whose_deletion_is_cut_off_is_not_there(tmp_path: Path, objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, folder = SharedStore(objects), tmp_path / "1"
    folder.mkdir()
    (folder / "step-1").write_text("1")
    shared.save_progress("finetune", "v", folder, {}, token=1)
    delete, deleted = type(objects).delete, []

    def cut_off(self: Any, key: str) -> None:
        if deleted:
            raise SharedStoreError("away")
        deleted.append(key)
        delete(self, key)

    monkeypatch.setattr(type(objects), "delete", cut_off)
    with pytest.raises(SharedStoreError):
        shared.delete_progress("finetune", "v")
    assert not shared.fetch_progress("finetune", "v", tmp_path / "2")


def test_progress_is_saved_only_after_the_lease_is_confirmed(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(self: Lease) -> None:
        raise LeaseLostError("another machine has it")

    monkeypatch.setattr(Lease, "confirm", lost)
    with pytest.raises(LeaseLostError):
        machines.make("one", count_to(6))
    assert machines.objects.keys("progress/") == []


def test_who_lost_the_lease_deletes_no_progress_of_its_successor(machines: Machines) -> None:
    def taken_over(work: Work) -> None:
        count_to(3)(work)
        [key] = machines.objects.keys("leases/")
        lease = machines.objects.get(key)
        assert lease is not None
        machines.objects.put(key, lease.data.replace(b'"claim": "', b'"claim": "of another '))

    machines.make("one", taken_over)
    assert machines.objects.keys("progress/") != []


def test_a_fetch_by_another_process_survives_the_start_of_the_step(machines: Machines) -> None:
    made = machines.make("one", write, resumes=False)
    store = machines.store("two")
    with store.receiving(made) as folder:
        (folder / "part").write_text("half")
        with store.progressing("finetune", "v1", is_fresh=False):
            assert (folder / "part").exists()
        (folder / "part").unlink()
        SharedStore(machines.objects).fetch(made, folder)
    assert store.find("finetune", "v1") == {**made, "reused": True}


@pytest.mark.parametrize("damage", [b"<html>", b"{}"])
def test_an_index_that_is_damaged_while_training_goes_on_is_written_anew(
    damage: bytes, machines: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    def disturbed(work: Work) -> None:
        save = work.on_saved
        assert save is not None

        def damage_and_save() -> None:
            for key in machines.objects.keys("progress/"):
                if key.endswith("/index.json"):
                    machines.objects.put(key, damage)
            save()

        work.on_saved = damage_and_save
        count_to(6, kill_at=3)(work)

    with pytest.raises(Killed):
        machines.make("one", disturbed)
    with pytest.raises(Killed):
        machines.make("two", count_to(6, kill_at=4))
    assert "from 4" in capsys.readouterr().out


def test_a_full_or_lost_shared_folder_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = Machines(tmp_path, objects_at(tmp_path / "shared"))
    refusals = iter([OSError(errno.ENOSPC, "No space left on device"), OSError(errno.ESTALE, "Stale file handle")])
    copyfile = shutil.copyfile

    def refused(source: Path, target: Path) -> Any:
        if (error := next(refusals, None)) is not None:
            raise error
        return copyfile(source, target)

    monkeypatch.setattr("steps.store.objects.shutil.copyfile", refused)
    with pytest.raises(Killed):
        machines.make("one", count_to(6, kill_at=3))
    printed = capsys.readouterr().out
    assert printed.count("WARNING: if this machine is lost now") == 2
    assert "No space left on device" in printed
    with pytest.raises(Killed):
        machines.make("two", count_to(6, kill_at=4))
    assert "from 4" in capsys.readouterr().out


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

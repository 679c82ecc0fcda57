"""Outputs by version and the progress of unfinished ones: whole or not there, never changed, in a folder and in S3 alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from grpo.base.files import CorruptError, json_text, sha256_json, write_manifest
from steps.run.objects import S3Objects, StoreError
from steps.run.step import StepOutput
from steps.run.store import Making, Store

Body = Callable[[Making, Path], None]


class Killed(BaseException):
    """The machine is gone."""


def write(making: Making, folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "weights").write_bytes(b"weights")
    (folder / "aside").mkdir()
    (folder / "aside" / "page.html").write_text("noon")


def count_to(last: int, *, kill_at: int | None = None) -> Body:
    """Return a body that counts in its progress folder, keeps the last two numbers, and goes on where it was."""

    def body(making: Making, folder: Path) -> None:
        numbers = sorted(int(path.name.removeprefix("number-")) for path in making.progress.glob("number-*"))
        first = numbers[-1] + 1 if numbers else 0
        print(f"from {first}")
        for number in range(first, last):
            (making.progress / f"number-{number}").write_text(str(number))
            (making.progress / f"number-{number - 2}").unlink(missing_ok=True)
            making.save()
            if number == kill_at:
                (making.progress / "number-9").write_text("not saved")
                raise Killed
        (folder / "numbers").write_text(str(last))

    return body


class Machines:
    def __init__(self, place: str | Path, homes: Path) -> None:
        self.place, self.homes = place, homes

    @property
    def is_s3(self) -> bool:
        return str(self.place).startswith("s3://")

    def store(self, name: str = "one") -> Store:
        return Store(self.place, self.homes / name)

    def make(self, name: str = "one", body: Body = write, *, version: str = "v1") -> StepOutput:
        with self.store(name).making("finetune", version) as making:
            if making.output is None:
                with making.filling({"parts": {"seed": 0}}) as folder:
                    body(making, folder)
        assert making.output is not None
        return making.output

    def found(self, name: str = "one", version: str = "v1") -> StepOutput | None:
        with self.store(name).making("finetune", version) as making:
            return making.output

    def killed(self, name: str, number: int) -> None:
        with pytest.raises(Killed):
            self.make(name, count_to(9, kill_at=number))


@pytest.fixture(params=["folder", "S3"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Machines:
    if request.param == "S3":
        request.getfixturevalue("aws")
    return Machines("s3://shop/chess-grpo" if request.param == "S3" else tmp_path / "store", tmp_path)


@pytest.fixture
def cloud(aws: Any, tmp_path: Path) -> Machines:
    return Machines("s3://shop/chess-grpo", tmp_path)


def objects() -> S3Objects:
    return S3Objects("s3://shop/chess-grpo")


def begun_from(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("from")]


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# Outputs.


def test_what_one_machine_made_all_find_by_its_version_and_open_by_its_hash(machines: Machines) -> None:
    made = machines.make("one")
    assert (made["step"], made["version"], made["reused"]) == ("finetune", "v1", False)
    store = machines.store("two")
    folder = store.open(made)
    assert folder.is_relative_to(machines.homes / ("two" if machines.is_s3 else "store"))
    assert (folder / "deep" / "weights").read_bytes() == b"weights"
    assert (folder / "aside" / "page.html").read_text() == "noon"
    assert store.manifest(made)["parts"] == {"seed": 0}
    assert [path.name for path in store.file(made, "deep").iterdir()] == ["weights"]
    with pytest.raises(FileNotFoundError, match="has no dee"):
        store.file(made, "dee")
    assert machines.found("three") == {**made, "reused": True}
    assert machines.found("three", "v2") is None
    assert machines.make("four") == {**made, "reused": True}
    assert machines.make("one", version="v2")["output_hash"] == made["output_hash"]
    assert machines.make("one", count_to(1), version="v3")["output_hash"] != made["output_hash"]


def test_the_home_holds_no_copy_where_the_store_is_a_folder_and_nothing_is_left_beside_the_output(tmp_path: Path) -> None:
    Machines(tmp_path / "store", tmp_path).make()
    names = ["aside/page.html", "deep/weights", "manifest.json"]
    assert files(tmp_path) == ["store/locks/finetune-v1", *(f"store/outputs/finetune/v1/{name}" for name in names)]


def test_a_step_that_fails_leaves_no_output_and_its_progress(machines: Machines) -> None:
    machines.killed("one", 2)
    assert machines.found() is None
    assert not any("outputs" in name for name in files(machines.homes))
    assert sum("number-" in name for name in files(machines.homes)) == 3


def test_a_damaged_output_is_told_of_set_aside_and_computed_again(machines: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    made, store = machines.make(), machines.store()
    path = store.folder("finetune", "v1") / "deep" / "weights"
    path.write_bytes(b"Weights")
    if machines.is_s3:
        objects().put(place_of(cloud_keys()[0]) + "/deep/weights", b"Weights")
    with pytest.raises(CorruptError, match=r"no complete copy of the output .* of finetune"):
        store.open(made)
    assert machines.found() is None
    assert "WARNING" in (said := capsys.readouterr().out)
    assert "deep/weights is changed" in said
    [aside] = path.parents[2].glob("v1.set-aside-*")
    assert (aside / "deep" / "weights").read_bytes() == b"Weights"
    assert machines.make("two") == made
    assert (machines.store("three").open(made) / "deep" / "weights").read_bytes() == b"weights"


def test_an_output_of_another_hash_is_nowhere_and_the_error_says_where_it_was_looked_for(machines: Machines) -> None:
    made = machines.make()
    for other in ({**made, "output_hash": "0" * 64}, {**made, "version": "v2"}):
        with pytest.raises(CorruptError, match=f"{machines.place} has no complete copy of the output .* of finetune"):
            machines.store().open(StepOutput(**other))


# S3.


def cloud_keys(prefix: str = "outputs/", ends: str = "/manifest.json") -> list[str]:
    return [key for key in objects().keys(prefix) if key.endswith(ends)]


def place_of(key: str) -> str:
    return key.rpartition("/")[0]


@pytest.mark.parametrize("damage", ["changed", "missing", "manifest", "elsewhere"])
def test_a_damaged_copy_is_used_by_nobody_and_computed_again(damage: str, cloud: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    made = cloud.make("one")
    [manifest] = cloud_keys()
    match damage:
        case "changed":
            objects().put(f"{place_of(manifest)}/deep/weights", b"Weights")
        case "missing":
            objects().delete(f"{place_of(manifest)}/aside/page.html")
        case "manifest":
            objects().put(manifest, b"<html>")
        case "elsewhere":  # With a right hash of its own.
            folder = cloud.homes / "bad"
            (folder / "x").mkdir(parents=True)
            written = write_manifest(folder, {"step": "finetune", "version": "v1"})
            written["files"] = {"../../../evil": "0"}
            written["output_hash"] = sha256_json(written["files"])
            del written["manifest_hash"]
            written["manifest_hash"] = sha256_json(written)
            objects().put(manifest, json_text(written).encode())
    assert cloud.found("two") is None
    assert "WARNING" in capsys.readouterr().out
    assert not list(cloud.homes.rglob("evil"))
    assert files(cloud.homes / "two") == ["locks/finetune-v1"]
    assert cloud.make("three")["output_hash"] == made["output_hash"]
    capsys.readouterr()
    assert (cloud.store("four").open(made) / "deep" / "weights").read_bytes() == b"weights"
    assert "WARNING" not in capsys.readouterr().out, "the newest is whole"


def test_after_a_machine_was_lost_at_any_request_another_makes_the_equal_output(
    cloud: Machines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import botocore.client

    call, num_left = botocore.client.BaseClient._make_api_call, 10_000

    def counted(self: Any, *arguments: Any) -> Any:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise Killed
        return call(self, *arguments)

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", counted)
    cloud.make("whole", count_to(2), version="whole")
    num_calls = 10_000 - num_left
    assert num_calls > 10
    for number in range(num_calls):
        num_left, version = number, f"v{number}"
        with pytest.raises(Killed):
            cloud.make(f"lost-{number}", count_to(2), version=version)
        num_left = 10_000
        names = [key for key in objects().keys(f"progress/finetune/{version}/") if key.endswith("index.json")]
        for name in ("another", f"lost-{number}"):
            made = cloud.make(name, count_to(2), version=version)
            assert (cloud.store(name).open(made) / "numbers").read_text() == "2"
        assert objects().keys(f"progress/finetune/{version}/") == []
        assert len(cloud_keys(f"outputs/finetune/{version}/")) == 1
        if names and not any("outputs" in name for name in files(cloud.homes / f"lost-{number}")):
            assert "from 0\nfrom 0" not in capsys.readouterr().out, "what was saved is not computed again"


# Progress.


def test_a_lost_machines_work_is_gone_on_from_as_it_was_last_saved(cloud: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.killed("one", 2)
    cloud.killed("two", 4)
    assert len([key for key in objects().keys("progress/") if not key.endswith("index.json")]) == 4, (
        "of each attempt no more than its folder"
    )
    cloud.make("three", count_to(6))
    assert begun_from(capsys) == ["from 0", "from 3", "from 5"]
    assert objects().keys("progress/") == []


def test_a_machine_that_comes_back_goes_on_from_its_own_disk_unless_another_was_further(
    cloud: Machines, capsys: pytest.CaptureFixture[str]
) -> None:
    cloud.killed("one", 1)
    folder = cloud.homes / "one" / "progress" / "finetune" / "v1"
    (folder / "number-9").rename(folder / "number-2")
    for name, number in (("one", 3), ("two", 5), ("one", 6)):  # First from its own 2, which was not saved.
        cloud.killed(name, number)
        (cloud.homes / name / "progress" / "finetune" / "v1" / "number-9").unlink()
    assert begun_from(capsys) == ["from 0", "from 3", "from 4", "from 6"]


@pytest.mark.parametrize("damage", ["index", "changed", "missing"])
def test_of_damaged_progress_the_newest_whole_one_is_taken(damage: str, cloud: Machines, capsys: pytest.CaptureFixture[str]) -> None:
    cloud.killed("one", 1)
    cloud.killed("two", 3)
    newest = max(key.split("/")[3] for key in objects().keys("progress/"))
    keys = objects().keys(f"progress/finetune/v1/{newest}/")
    key = next(key for key in keys if key.endswith("index.json") == (damage == "index"))
    objects().delete(key) if damage == "missing" else objects().put(key, b"other")
    cloud.make("three", count_to(9))
    assert begun_from(capsys) == ["from 0", "from 2", "from 2"]


def test_an_s3_that_is_away_stops_no_training_and_gets_all_later(
    cloud: Machines, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upload, num_calls = S3Objects.upload, 0

    def failing(self: Any, *what: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls in (2, 3):
            raise StoreError("away")
        upload(self, *what)

    monkeypatch.setattr(S3Objects, "upload", failing)
    cloud.killed("one", 3)
    assert capsys.readouterr().out.count("WARNING: if this machine is lost now") == 2
    cloud.make("two", count_to(6))
    assert begun_from(capsys) == ["from 4"]


def test_the_progress_of_one_who_was_killed_with_the_output_in_the_store_goes_when_it_is_found(machines: Machines) -> None:
    machines.killed("one", 2)
    progress = next(machines.homes.rglob("number-9")).parent
    kept = {path.name: path.read_bytes() for path in progress.iterdir()}
    machines.make("one", count_to(9))
    progress.mkdir()
    for name, content in kept.items():
        (progress / name).write_bytes(content)
    (progress.parent / ".v1.half-made-by-one-who-was-killed").mkdir()
    assert machines.found() is not None
    assert list(progress.parent.iterdir()) == []


# Records.


def test_a_record_is_written_once_and_found_by_its_key(machines: Machines) -> None:
    store = machines.store()
    assert store.create("runs/1/start.json", {"who": "first"})
    assert not store.create("runs/1/start.json", {"who": "second"})
    assert store.create("runs/10/start.json", {})
    assert machines.store("two").read_all(["runs/1/start.json", "runs/2/start.json"], TypeAdapter(dict[str, str])) == {
        "runs/1/start.json": {"who": "first"}
    }
    assert store.keys("runs/1/") == ["runs/1/start.json"]
    assert store.keys("runs/") == ["runs/1/start.json", "runs/10/start.json"]
    assert store.keys("nothing/") == []
    store.probe()
    store.probe()

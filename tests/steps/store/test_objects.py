"""Objects in a folder and in S3 keep the same promises, and what S3 refuses is told with its remedy."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steps.store.objects import FolderObjects, Objects, S3Objects, SharedStoreError, objects_at


@pytest.fixture(params=["folder", "S3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Both kinds, empty."""
    if request.param == "folder":
        return objects_at(tmp_path / "objects")
    request.getfixturevalue("aws")
    return objects_at("s3://shop/some/prefix")


def test_a_place_in_s3_and_one_on_the_disk_are_told_apart(tmp_path: Path, aws: Any) -> None:
    assert isinstance(objects_at("s3://shop"), S3Objects)
    assert isinstance(objects_at(tmp_path), FolderObjects)
    assert str(objects_at("s3://shop/a/")) == "s3://shop/a"


def test_what_was_put_is_got_until_it_is_deleted(objects: Objects) -> None:
    assert objects.get("a/b") is None
    objects.put("a/b", b"one")
    objects.put("a/b", b"two")
    stored = objects.get("a/b")
    assert stored is not None
    assert stored.data == b"two"
    objects.delete("a/b")
    objects.delete("a/b")
    assert objects.get("a/b") is None


def test_keys_are_found_by_prefix_in_order(objects: Objects) -> None:
    for key in ("b/2", "b/1", "a", "bc"):
        objects.put(key, b"")
    assert objects.keys("b/") == ["b/1", "b/2"]
    assert objects.keys("b") == ["b/1", "b/2", "bc"]
    assert objects.keys("") == ["a", "b/1", "b/2", "bc"]
    assert objects.keys("z") == []


def test_only_the_first_creates(objects: Objects) -> None:
    tag = objects.create("lease", b"mine")
    assert tag is not None
    assert objects.create("lease", b"yours") is None
    stored = objects.get("lease")
    assert stored is not None
    assert (stored.data, stored.tag) == (b"mine", tag)


def test_only_who_knows_the_present_tag_replaces(objects: Objects) -> None:
    first = objects.create("lease", b"1")
    assert first is not None
    second = objects.replace("lease", b"2", tag=first)
    assert second not in (None, first)
    assert objects.replace("lease", b"3", tag=first) is None
    stored = objects.get("lease")
    assert stored is not None
    assert stored.data == b"2"
    objects.delete("lease")
    assert objects.replace("lease", b"4", tag=str(second)) is None
    assert objects.get("lease") is None


@pytest.mark.parametrize("write", [lambda objects, n: objects.create("k", n), lambda objects, n: objects.replace("k", n, tag=objects.seen)])
def test_of_many_at_once_one_alone_is_first(write: Callable[[Any, bytes], str | None], tmp_path: Path) -> None:
    for round_ in range(20):
        objects: Any = objects_at(tmp_path / str(round_))
        if "replace" in write.__code__.co_names:
            objects.seen = objects.create("k", b"before")
        gate, tags = threading.Barrier(8), []

        def try_it(name: int, objects: Any = objects, gate: threading.Barrier = gate, tags: list[Any] = tags) -> None:
            gate.wait()
            tags.append(write(objects, str(name).encode()))

        threads = [threading.Thread(target=try_it, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [winner] = [tag for tag in tags if tag is not None]
        assert objects.get("k").tag == winner


def test_files_go_up_and_come_down(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(bytes(range(256)) * 50_000)  # Above the size from which S3 is written in parts.
    objects.upload(tmp_path / "up", "deep/file")
    objects.download("deep/file", tmp_path / "new" / "down")
    assert (tmp_path / "new" / "down").read_bytes() == (tmp_path / "up").read_bytes()
    with pytest.raises(KeyError):
        objects.download("deep/other", tmp_path / "new" / "other")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["down"]


@pytest.mark.parametrize("is_upload", [True, False])
def test_a_file_is_on_the_disk_before_it_has_its_name_and_others_may_read_it(
    is_upload: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, source, target = FolderObjects(tmp_path / "objects"), tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"12345")
    if not is_upload:
        objects.upload(source, "a/b")
    else:
        target = tmp_path / "objects/a/b"
    on_disk: dict[int, tuple[int, bool]] = {}
    real = os.fsync

    def fsync(handle: int) -> None:
        on_disk[os.fstat(handle).st_ino] = os.fstat(handle).st_size, target.exists()
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    objects.upload(source, "a/b") if is_upload else objects.download("a/b", target)
    assert on_disk[target.stat().st_ino] == (5, False)
    assert target.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied", "NoSuchBucket"])
def test_what_s3_refuses_is_told_with_its_remedy_and_another_try_may_help(
    code: str, aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ClientError

    (tmp_path / "f").write_text("x")
    objects: Any = objects_at("s3://shop/x")
    remedy = {"ExpiredToken": "log in again", "AccessDenied": "ask the bucket's owner", "NoSuchBucket": "correct the bucket's name"}[code]

    def refuse(*_: Any, **__: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "Any")

    for name in ("get_object", "put_object", "delete_object", "get_paginator"):
        monkeypatch.setattr(objects._client, name, refuse)
    calls = [
        lambda: objects.get("k"),
        lambda: objects.put("k", b""),
        lambda: objects.create("k", b""),
        lambda: objects.replace("k", b"", tag="t"),
        lambda: objects.delete("k"),
        lambda: objects.keys("k"),
        lambda: objects.upload(tmp_path / "f", "k"),
        lambda: objects.download("k", Path("f")),
    ]
    for call in calls:
        with pytest.raises(SharedStoreError, match=f"s3://shop/x/k.*{remedy}") as caught:
            call()
        assert caught.value.may_pass


@pytest.mark.parametrize("ends_late", [False, True])
def test_an_upload_that_s3_refuses_is_told_too(ends_late: bool, aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_text("x")
    if ends_late:  # The transfer's own thread has not yet signed off when the caller hears of the error.
        monkeypatch.setattr("s3transfer.manager.TransferCoordinatorController.remove_transfer_coordinator", lambda *_: None)
    with pytest.raises(SharedStoreError, match=r"s3://nobodys/k: .*correct the bucket's name"):
        objects_at("s3://nobodys").upload(tmp_path / "f", "k")

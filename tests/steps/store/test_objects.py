"""Objects in a folder and in S3 keep the same promises, and what S3 refuses is told with its remedy."""

import threading
from pathlib import Path
from typing import Any

import pytest

from steps.store.objects import Objects, SharedStoreError, objects_at


@pytest.fixture(params=["folder", "S3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Both kinds, empty."""
    if request.param == "folder":
        return objects_at(tmp_path / "objects")
    request.getfixturevalue("aws")
    return objects_at("s3://shop/some/prefix")


def test_what_was_put_is_got_and_listed_until_it_is_deleted(objects: Objects) -> None:
    assert objects.get("a/b") is None
    objects.put("a/b", b"one")
    objects.put("a/b", b"two")
    objects.put("bc", b"")
    assert objects.get("a/b") == b"two"
    assert (objects.keys("a/"), objects.keys(""), objects.keys("z")) == (["a/b"], ["a/b", "bc"], [])
    objects.delete("a/b")
    objects.delete("a/b")
    assert objects.get("a/b") is None


def test_only_the_first_creates(objects: Objects) -> None:
    assert objects.create("manifest", b"mine")
    assert not objects.create("manifest", b"yours")
    assert objects.get("manifest") == b"mine"
    assert objects.keys("") == ["manifest"]


def test_of_many_at_once_one_alone_is_first(tmp_path: Path) -> None:
    objects, gate, won = objects_at(tmp_path), threading.Barrier(8), []

    def try_it(name: int) -> None:
        gate.wait()
        won.append(objects.create("k", str(name).encode()))

    threads = [threading.Thread(target=try_it, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(won) == 1


def test_files_go_up_and_come_down(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "up").write_bytes(bytes(range(256)) * 50_000)  # Above the size from which S3 is written in parts.
    objects.upload(tmp_path / "up", "deep/file")
    objects.download("deep/file", tmp_path / "new" / "down")
    assert (tmp_path / "new" / "down").read_bytes() == (tmp_path / "up").read_bytes()
    with pytest.raises(KeyError):
        objects.download("deep/other", tmp_path / "new" / "other")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["down"]


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied", "NoSuchBucket"])
def test_what_s3_refuses_is_told_with_its_remedy_and_another_try_may_help(
    code: str, aws: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import ClientError

    objects: Any = objects_at("s3://shop/x")
    remedy = {"ExpiredToken": "log in again", "AccessDenied": "ask the bucket's owner", "NoSuchBucket": "correct the bucket's name"}[code]

    def refuse(*_: Any, **__: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "Any")

    for name in ("get_object", "put_object", "delete_object", "get_paginator"):
        monkeypatch.setattr(objects._client, name, refuse)
    for call in (lambda: objects.get("k"), lambda: objects.create("k", b""), lambda: objects.keys("k")):
        with pytest.raises(SharedStoreError, match=f"s3://shop/x/k.*{remedy}") as caught:
            call()
        assert caught.value.may_pass

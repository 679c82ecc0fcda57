"""A secret is found wherever it may hide, and nothing else is taken for it."""

import base64
import gzip
import io
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.canary import files_with, holds

SECRET = "canary-0123456789abcdef"


def in_tar(data: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo("deep/file.py")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return file.getvalue()


def in_zip(data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deep/file.py", data)
    return file.getvalue()


HIDES: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda data: b"before " + data + b" after",
    "artifact": lambda data: gzip.compress(pickle.dumps({"key": data.decode()})),
    "code package": lambda data: gzip.compress(in_tar(b"x = 1\n" + data)),
    "zip": in_zip,
    "archive in an archive": lambda data: in_zip(gzip.compress(in_tar(data))),
    "utf-16": lambda data: data.decode().encode("utf-16-le"),
    **{f"HTTP, a name of {n}": lambda data, n=n: b"Basic " + base64.b64encode(b"u" * n + b":" + data) for n in range(1, 5)},
}


@pytest.mark.parametrize("hide", HIDES.values(), ids=HIDES)
def test_a_secret_is_found(hide: Callable[[bytes], bytes]) -> None:
    assert holds(hide(SECRET.encode()), SECRET)
    assert not holds(hide(SECRET[::-1].encode()), SECRET)


def test_broken_archives_are_looked_at_as_they_are() -> None:
    packed = gzip.compress(b"nothing" * 1000)
    assert not holds(packed[:-9], SECRET)
    assert holds(packed[:-9] + SECRET.encode(), SECRET)
    assert not holds(b"PK\x03\x04 no zip", SECRET)


def test_the_files_of_a_folder_are_named_databases_too(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "clean.txt").write_text("nothing")
    with sqlite3.connect(tmp_path / "deep" / "runs.db") as database:
        database.execute("CREATE TABLE params (value TEXT)")
        database.execute("INSERT INTO params VALUES (?)", (f"password={SECRET}",))
    database.close()
    assert files_with(tmp_path, SECRET) == [str(tmp_path / "deep" / "runs.db")]

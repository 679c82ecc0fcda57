"""Objects by key, in a folder or in S3: what several machines write to and read from, with the two writes that decide who was first."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from grpo.base.errors import PlainError
from grpo.base.files import replace_file
from grpo.reading.games import SourceError
from grpo.reading.s3 import S3_SCHEME, S3Object, in_words, new_client, split_address, storage_errors

_LOCK: Final = ".lock"
_FIRST: Final = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's words for: somebody else was first, or is writing right now."""
_ABSENT: Final = "NoSuchKey"


class SharedStoreError(PlainError, OSError):
    """The shared store cannot be used; the message says why, and what to do about it."""

    may_pass = True


@dataclass(frozen=True, slots=True)
class Stored:
    """An object's content."""

    data: bytes
    tag: str
    """Another content has another tag."""


class Objects(Protocol):
    """Objects by key; a key is a relative path, with `/` between its parts."""

    def get(self, key: str) -> Stored | None:
        """Return an object; None when there is none."""

    def put(self, key: str, data: bytes) -> str:
        """Write an object, whatever was there, and return its tag."""

    def create(self, key: str, data: bytes) -> str | None:
        """Write an object unless there is one, and return its tag; None when there is one."""

    def replace(self, key: str, data: bytes, *, tag: str) -> str | None:
        """Write an object if it still has this tag, and return its new one; None when it has another, or is gone."""

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, sorted."""

    def upload(self, path: Path, key: str) -> None:
        """Write a file's content, whatever was there."""

    def download(self, key: str, path: Path) -> None:
        """Write an object's content to a file, which appears whole or not at all; raises KeyError when there is no object."""


def objects_at(place: str | Path) -> Objects:
    """Return the objects at `s3://BUCKET/PREFIX`, or in a folder.

    Their methods raise SharedStoreError, which says what to do, when S3 refuses or cannot be reached after some tries.
    """
    return S3Objects(str(place)) if str(place).startswith(S3_SCHEME) else FolderObjects(Path(place))


class FolderObjects:
    """Objects as files of a folder, for processes that share its disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def get(self, key: str) -> Stored | None:
        """See `Objects`."""
        try:
            data = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        return Stored(data, _tag(data))

    def put(self, key: str, data: bytes) -> str:
        """See `Objects`."""
        with self._alone():
            return self._write(key, data)

    def create(self, key: str, data: bytes) -> str | None:
        """See `Objects`."""
        with self._alone():
            return None if self._path(key).exists() else self._write(key, data)

    def replace(self, key: str, data: bytes, *, tag: str) -> str | None:
        """See `Objects`."""
        with self._alone():
            held = self.get(key)
            return self._write(key, data) if held is not None and held.tag == tag else None

    def delete(self, key: str) -> None:
        """See `Objects`."""
        with self._alone():
            self._path(key).unlink(missing_ok=True)

    def keys(self, prefix: str) -> list[str]:
        """See `Objects`."""
        # Below the prefix only: what several machines share may be large, and far.
        paths = (self._folder / prefix.rpartition("/")[0]).rglob("*")
        names = (path.relative_to(self._folder).as_posix() for path in paths if path.is_file())
        return sorted(name for name in names if name.startswith(prefix) and not PurePosixPath(name).name.startswith("."))

    def upload(self, path: Path, key: str) -> None:
        """See `Objects`."""
        _copy(path, self._path(key))

    def download(self, key: str, path: Path) -> None:
        """See `Objects`."""
        if not self._path(key).exists():
            raise KeyError(key)
        _copy(self._path(key), path)

    def _path(self, key: str) -> Path:
        return self._folder / key

    def _write(self, key: str, data: bytes) -> str:
        self._path(key).parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path(key), data)
        return _tag(data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class S3Objects:
    """Objects below a prefix of a bucket."""

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self._bucket, prefix = split_address(self._uri)
        self._prefix = f"{prefix}/" if prefix else ""
        with self._in_words(""):
            self._client = new_client()

    def __str__(self) -> str:
        return self._uri

    def get(self, key: str) -> Stored | None:
        """See `Objects`."""
        with self._in_words(key):
            found = self._opened(key)
            if found is None:
                return None
            with found:
                return Stored(found.readall(), found.etag)

    def put(self, key: str, data: bytes) -> str:
        """See `Objects`."""
        with self._in_words(key):
            return str(self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)["ETag"])

    def create(self, key: str, data: bytes) -> str | None:
        """See `Objects`."""
        return self._put_if(key, data, IfNoneMatch="*")

    def replace(self, key: str, data: bytes, *, tag: str) -> str | None:
        """See `Objects`."""
        return self._put_if(key, data, IfMatch=tag)

    def delete(self, key: str) -> None:
        """See `Objects`."""
        with self._in_words(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        """See `Objects`."""
        with self._in_words(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            return sorted(entry["Key"].removeprefix(self._prefix) for page in pages for entry in page.get("Contents", ()))

    def upload(self, path: Path, key: str) -> None:
        """See `Objects`."""
        with self._in_words(key):
            self._client.upload_file(str(path), self._bucket, self._prefix + key)

    def download(self, key: str, path: Path) -> None:
        """See `Objects`."""
        with self._in_words(key):
            found = self._opened(key)
            if found is None:
                raise KeyError(key)
            with found, _appearing(path) as made, made.open("wb") as file:
                shutil.copyfileobj(found, file)

    def _opened(self, key: str) -> S3Object | None:
        """Return an object to be read, over however many connections; None when there is none."""
        try:
            return S3Object(f"s3://{self._bucket}/{self._prefix}{key}", client=self._client)
        except SourceError as error:
            if _code(error.__cause__) == _ABSENT:
                return None
            raise

    def _put_if(self, key: str, data: bytes, **condition: str) -> str | None:
        with self._in_words(key):
            try:
                return str(self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, **condition)["ETag"])
            except storage_errors() as error:
                # An object that is to be replaced may be gone.
                if _code(error) not in (*_FIRST, _ABSENT):
                    raise
                has_retried = getattr(error, "response", {}).get("ResponseMetadata", {}).get("RetryAttempts", 0)
        # The answer to an earlier try may have been lost: then it is our own write that was first.
        held = self.get(key) if has_retried else None
        return held.tag if held is not None and held.data == data else None

    @contextmanager
    def _in_words(self, key: str) -> Iterator[None]:
        from boto3.exceptions import Boto3Error

        try:
            yield
        except SourceError as error:  # Which names the object.
            raise SharedStoreError(str(error)) from error
        except storage_errors() as error:
            raise SharedStoreError(f"{self._uri}/{key}: {in_words(error)}") from error
        except Boto3Error as error:  # Of an upload, around the error that says why.
            why = error.__context__
            told = in_words(why) if isinstance(why, storage_errors()) else str(error)
            raise SharedStoreError(f"{self._uri}/{key}: {told}") from error


def _code(error: Any) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _tag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _copy(source: Path, target: Path) -> None:
    with _appearing(target) as made:
        shutil.copyfile(source, made)


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """Give an empty file that becomes `target` when the block ends well, and vanishes when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(handle)
    made = Path(name)
    try:
        yield made
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)

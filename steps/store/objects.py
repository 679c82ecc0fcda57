"""Object storage in a folder or in S3; an object can be written on the condition that there is none."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from grpo.base.errors import PlainError
from grpo.base.files import atomic_file, replace_file
from grpo.reading.games import SourceError
from grpo.reading.s3 import S3_SCHEME, S3Object, in_words, new_client, split_address, storage_errors

_CONFLICTS: Final = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's error codes when another writer was first, or is writing right now."""
_ABSENT: Final = "NoSuchKey"


class SharedStoreError(PlainError, OSError):
    """The shared store failed; the message says why, and what to do about it."""

    may_pass = True


class Objects(Protocol):
    """Objects by key; a key is a relative path, with `/` between its parts."""

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None when there is none."""

    def put(self, key: str, data: bytes) -> None:
        """Write an object unconditionally."""

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one, and return whether it was written."""

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, sorted."""

    def upload(self, path: Path, key: str) -> None:
        """Write a file's content unconditionally."""

    def download(self, key: str, path: Path) -> None:
        """Write an object's content to a file atomically; raises KeyError when there is no object."""


def objects_at(place: str | Path) -> Objects:
    """Return the objects at `s3://BUCKET/PREFIX`, or in a folder.

    Their methods raise SharedStoreError, which says what to do, when S3 refuses or still fails after retries.
    """
    return S3Objects(str(place)) if str(place).startswith(S3_SCHEME) else FolderObjects(Path(place))


@contextmanager
def _as_store_error() -> Iterator[None]:
    """Raise SharedStoreError where the disk refuses: a full or lost shared disk is to callers what a lost S3 is."""
    try:
        yield
    except SharedStoreError:
        raise
    except OSError as error:
        raise SharedStoreError(f"the shared folder failed ({error}): free space there, or mount it again") from error


class FolderObjects:
    """Objects as files of a folder, for processes that share its disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    @_as_store_error()
    def get(self, key: str) -> bytes | None:
        """See `Objects`."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None

    @_as_store_error()
    def put(self, key: str, data: bytes) -> None:
        """See `Objects`."""
        self._path(key).parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path(key), data)

    @_as_store_error()
    def create(self, key: str, data: bytes) -> bool:
        """See `Objects`."""
        self._path(key).parent.mkdir(parents=True, exist_ok=True)
        made = self._path(key).with_name(f".{uuid.uuid4().hex}")
        try:
            replace_file(made, data)
            self._path(key).hardlink_to(made)
        except FileExistsError:
            return False
        finally:
            made.unlink(missing_ok=True)
        return True

    @_as_store_error()
    def delete(self, key: str) -> None:
        """See `Objects`."""
        self._path(key).unlink(missing_ok=True)

    @_as_store_error()
    def keys(self, prefix: str) -> list[str]:
        """See `Objects`."""
        # List below the prefix only: a shared folder may be large and remote.
        paths = (self._folder / prefix.rpartition("/")[0]).rglob("*")
        names = (path.relative_to(self._folder).as_posix() for path in paths if path.is_file())
        return sorted(name for name in names if name.startswith(prefix) and not PurePosixPath(name).name.startswith("."))

    @_as_store_error()
    def upload(self, path: Path, key: str) -> None:
        """See `Objects`."""
        with _written_to(self._path(key)) as made:
            shutil.copyfile(path, made)

    @_as_store_error()
    def download(self, key: str, path: Path) -> None:
        """See `Objects`."""
        if not self._path(key).exists():
            raise KeyError(key)
        with _written_to(path) as made:
            shutil.copyfile(self._path(key), made)

    def _path(self, key: str) -> Path:
        return self._folder / key


class S3Objects:
    """Objects below a prefix of a bucket."""

    def __init__(self, uri: str) -> None:
        self._uri = uri.rstrip("/")
        self._bucket, prefix = split_address(self._uri)
        self._prefix = f"{prefix}/" if prefix else ""
        with self._translated_errors(""):
            self._client = new_client()

    def __str__(self) -> str:
        return self._uri

    def get(self, key: str) -> bytes | None:
        """See `Objects`."""
        with self._translated_errors(key):
            found = self._opened(key)
            if found is None:
                return None
            with found:
                return found.readall()

    def put(self, key: str, data: bytes) -> None:
        """See `Objects`."""
        with self._translated_errors(key):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

    def create(self, key: str, data: bytes) -> bool:
        """See `Objects`."""
        with self._translated_errors(key):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, IfNoneMatch="*")
            except storage_errors() as error:
                if _code(error) not in _CONFLICTS:
                    raise
            else:
                return True
        # The response to an earlier attempt may have been lost: then our own write was first.
        return self.get(key) == data

    def delete(self, key: str) -> None:
        """See `Objects`."""
        with self._translated_errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        """See `Objects`."""
        with self._translated_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            return sorted(entry["Key"].removeprefix(self._prefix) for page in pages for entry in page.get("Contents", ()))

    def upload(self, path: Path, key: str) -> None:
        """See `Objects`."""
        from boto3.s3.transfer import TransferConfig, create_transfer_manager

        # Not the client's `upload_file`: it replaces S3's error by one of its own, and while its threads end it may lose the cause.
        with self._translated_errors(key), create_transfer_manager(self._client, TransferConfig()) as transfers:
            transfers.upload(str(path), self._bucket, self._prefix + key).result()

    def download(self, key: str, path: Path) -> None:
        """See `Objects`."""
        with self._translated_errors(key):
            found = self._opened(key)
            if found is None:
                raise KeyError(key)
            with found, _written_to(path) as made, made.open("wb") as file:
                shutil.copyfileobj(found, file)

    def _opened(self, key: str) -> S3Object | None:
        """Open an object for reading, with reconnects; None when there is none."""
        try:
            return S3Object(f"s3://{self._bucket}/{self._prefix}{key}", client=self._client)
        except SourceError as error:
            if _code(error.__cause__) == _ABSENT:
                return None
            raise

    @contextmanager
    def _translated_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except SourceError as error:  # Its message names the object.
            raise SharedStoreError(str(error)) from error
        except storage_errors() as error:
            raise SharedStoreError(f"{self._uri}/{key}: {in_words(error)}") from error


def _code(error: Any) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


@contextmanager
def _written_to(target: Path) -> Iterator[Path]:
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as made:
        yield made

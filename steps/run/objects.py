"""Objects by key, in a folder or in S3: each can be written on the condition that there is none, and nobody reads half of one."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfileobj
from typing import Any, Final

from grpo.base.errors import PlainError
from grpo.base.files import atomic_file, create_file
from grpo.dataset.games import SourceError
from grpo.dataset.s3 import S3Object, in_words, new_client, split_address, storage_errors

NUM_AT_ONCE: Final = 16
"""Requests to S3: each waits for the network, not for this machine."""
_CONFLICTS: Final = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's error codes when another writer was first, or is writing right now."""
_ABSENT: Final = "NoSuchKey"


class StoreError(PlainError, OSError):
    """The store failed; the message says why, and what to do about it."""

    may_pass = True


class FolderObjects:
    """Small objects as files of a folder."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which need not exist."""
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None when there is none."""
        try:
            return (self._folder / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one, and return whether it was written."""
        return create_file(self._folder / key, data)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys below a prefix that ends in `/`, sorted."""
        found: list[str] = []
        for place, folders, names in os.walk(self._folder / prefix):  # It bears folders that go away meanwhile, those of writers.
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [(Path(place) / name).relative_to(self._folder).as_posix() for name in names]
        return sorted(found)


class S3Objects:
    """Objects below a prefix of a bucket.

    All raise StoreError, which says what to do, when S3 refuses or still fails after retries.
    """

    def __init__(self, address: str) -> None:
        """Take `s3://BUCKET/PREFIX`; asks S3 for nothing yet."""
        self._address = address.rstrip("/")
        self._bucket, prefix = split_address(self._address)
        self._prefix = f"{prefix}/" if prefix else ""
        with self._in_words(""):
            self._client = new_client()

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None when there is none."""
        with self._in_words(key):
            found = self._opened(key)
            if found is None:
                return None
            with found:
                return found.readall()

    def put(self, key: str, data: bytes) -> None:
        """Write an object unconditionally."""
        with self._in_words(key):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one, and return whether it was written."""
        with self._in_words(key):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, IfNoneMatch="*")
            except storage_errors() as error:
                if _code(error) not in _CONFLICTS:
                    raise
            else:
                return True
        # The answer to an earlier try may have been lost: then our own write was first.
        return self.get(key) == data

    def delete(self, key: str) -> None:
        """Delete an object, if it is there."""
        with self._in_words(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, sorted."""
        with self._in_words(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            return sorted(entry["Key"].removeprefix(self._prefix) for page in pages for entry in page.get("Contents", ()))

    def upload(self, files: Mapping[str, Path]) -> None:
        """Write the content of files to objects by their keys, unconditionally."""
        from boto3.s3.transfer import TransferConfig, create_transfer_manager

        # Not the client's `upload_file`: it replaces S3's error by one of its own, and while its threads end it may lose the cause.
        with self._in_words(""), create_transfer_manager(self._client, TransferConfig()) as transfers:
            futures = [transfers.upload(str(path), self._bucket, self._prefix + key) for key, path in files.items()]
            for future in futures:
                future.result()

    def download(self, files: Mapping[Path, str]) -> None:
        """Write to files, each atomically, the content of objects by their keys; raises KeyError when there is no such object."""
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            for _ in pool.map(self._download, files.values(), files.keys()):
                pass

    def _download(self, key: str, path: Path) -> None:
        with self._in_words(key):
            found = self._opened(key)
            if found is None:
                raise KeyError(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with found, atomic_file(path) as made, made.open("wb") as file:
                copyfileobj(found, file)

    def _opened(self, key: str) -> S3Object | None:
        """Open an object for reading, with reconnects; None when there is none."""
        try:
            return S3Object(f"s3://{self._bucket}/{self._prefix}{key}", client=self._client)
        except SourceError as error:
            if _code(error.__cause__) == _ABSENT:
                return None
            raise

    @contextmanager
    def _in_words(self, key: str) -> Iterator[None]:
        try:
            yield
        except SourceError as error:  # Its message names the object.
            raise StoreError(str(error)) from error
        except storage_errors() as error:
            raise StoreError(f"{self._address}/{key}: {in_words(error)}") from error


def _code(error: Any) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))

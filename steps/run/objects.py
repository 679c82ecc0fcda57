"""Objects by key, in a folder or in S3: each can be written on the condition that there is none, and nobody reads half of one."""

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from grpo.base.errors import PlainError
from grpo.base.files import create_file
from grpo.settings.types import S3_SCHEME

NUM_AT_ONCE: Final = 16
"""Requests to S3: each waits for the network, not for this machine."""
_PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds after each time that the connection breaks in an object."""
_CHUNK_SIZE: Final = 2**20
_CONFLICTS: Final = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's error codes when another writer was first, or is writing right now."""
_ABSENT: Final = "NoSuchKey"

_REMEDIES: Final = {
    "NoSuchBucket": "correct the bucket's name",
    "AccessDenied": "ask the bucket's owner for s3:GetObject and s3:ListBucket, or use other credentials (AWS_PROFILE)",
    "ExpiredToken": "the credentials have expired: log in again (aws sso login), or renew them",
    "InvalidAccessKeyId": "correct the credentials (aws configure)",
    "SignatureDoesNotMatch": "correct the credentials (aws configure)",
    "PermanentRedirect": "set AWS_DEFAULT_REGION to the bucket's region",
    "NoCredentialsError": "there are no credentials: log in (aws configure, aws sso login) or set AWS_PROFILE",
}
_REMEDY: Final = "check credentials, clock, network and the address (AWS_ENDPOINT_URL), and start again"


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
        self._bucket, _, prefix = self._address.removeprefix(S3_SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        with self._in_words(""):
            self._client = _new_client()

    def __str__(self) -> str:
        return self._address

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None when there is none."""
        content = BytesIO()
        try:
            self._read(key, content)
        except KeyError:
            return None
        return content.getvalue()

    def put(self, key: str, data: bytes) -> None:
        """Write an object unconditionally."""
        with self._in_words(key):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one, and return whether it was written."""
        with self._in_words(key):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, IfNoneMatch="*")
            except _s3_errors() as error:
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
        """Write to files the content of objects by their keys; raises KeyError when there is no such object."""
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            for _ in pool.map(self._download, files.values(), files.keys()):
                pass

    def _download(self, key: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            self._read(key, file)

    def _read(self, key: str, file: BinaryIO) -> None:
        """Write an object's bytes to a file; goes on where a connection broke. Raises KeyError when there is no such object."""
        broken = _breaks()
        for seconds in (*_PAUSES, None):
            rest = {"Range": f"bytes={start}-"} if (start := file.tell()) else {}
            try:
                with self._in_words(key, but=broken):
                    answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, **rest)
                for piece in answer["Body"].iter_chunks(_CHUNK_SIZE):
                    file.write(piece)
            except broken as error:
                if seconds is None:
                    raise StoreError(f"{self._address}/{key}: the connection broke at byte {file.tell():,} ({error}); {_REMEDY}") from error
                time.sleep(seconds)
            else:
                return

    @contextmanager
    def _in_words(self, key: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Turn botocore's errors, except those in `but`, into a StoreError that says how to fix it, or a KeyError for no object."""
        try:
            yield
        except but:
            raise
        except _s3_errors() as error:
            code = _code(error)
            if code == _ABSENT:
                raise KeyError(key) from None
            remedy = _REMEDIES.get(code or type(error).__name__, _REMEDY)
            raise StoreError(f"{self._address}/{key}: S3 {'refuses' if code else 'cannot be used'} ({error}); {remedy}") from error


def _new_client() -> Any:
    """Return an S3 client that retries with back-off."""
    import boto3.session
    import botocore.config

    # A separate session, because boto3's default session is shared by the whole process.
    settings = botocore.config.Config(connect_timeout=20, read_timeout=60, retries={"mode": "standard"})
    return boto3.session.Session().client("s3", config=settings)


def _s3_errors() -> tuple[type[Exception], ...]:
    """Return the error types of botocore, which is imported lazily."""
    import botocore.exceptions

    return botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError


def _breaks() -> tuple[type[Exception], ...]:
    """Return the errors after which the connection is made anew."""
    import botocore.exceptions
    import urllib3.exceptions

    broken = botocore.exceptions
    return broken.HTTPClientError, broken.ConnectionError, broken.IncompleteReadError, urllib3.exceptions.HTTPError, ConnectionError


def _code(error: Any) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))

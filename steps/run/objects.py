"""Objects by key, in a folder or in S3: each can be written on the condition that there is none, and nobody reads half of one."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from grpo.base.errors import PlainError
from grpo.base.files import create_file
from grpo.settings.types import S3_SCHEME

_CONFLICTS: Final = ("PreconditionFailed", "ConditionalRequestConflict")
"""S3's error codes when another writer was first, or is writing right now."""
_ABSENT: Final = ("NoSuchKey", "404")
"""When there is no such object; the number where S3 answers without a text, as before a download."""

_NUM_READS: Final = 3
"""Times that an object is read before a cut answer counts as a failure."""
_CODE: Final = re.compile(r"An error occurred \((\w+)\)")
_REMEDIES: Final = {
    "NoSuchBucket": "correct the bucket's name",
    "AccessDenied": "ask the bucket's owner for s3:GetObject and s3:ListBucket, or use other credentials (AWS_PROFILE)",
    "ExpiredToken": "the credentials have expired: log in again (aws sso login), or renew them",
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
        keys: list[str] = []
        for folder, subfolders, names in os.walk(self._folder / prefix):  # It bears folders that go away meanwhile, those of writers.
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            keys += [(Path(folder) / name).relative_to(self._folder).as_posix() for name in names]
        return sorted(keys)


class S3Objects:
    """Objects below a prefix of a bucket.

    All raise StoreError, which says what to do, when S3 refuses or still fails after retries.
    """

    def __init__(self, address: str) -> None:
        """Take `s3://BUCKET/PREFIX`; asks S3 for nothing yet."""
        import boto3.session
        import botocore.config

        self._address = address.rstrip("/")
        self._bucket, _, prefix = self._address.removeprefix(S3_SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        # A session of its own, because boto3's default session is shared by the whole process. The client retries with back-off.
        settings = botocore.config.Config(connect_timeout=20, read_timeout=60, retries={"mode": "standard"})
        with self._plain_errors(""):
            self._client = boto3.session.Session().client("s3", config=settings)

    def __str__(self) -> str:
        return self._address

    def get(self, key: str) -> bytes | None:
        """Return an object's content; None when there is none."""
        try:
            with self._plain_errors(key):
                return self._body(key)
        except KeyError:
            return None

    def _body(self, key: str) -> bytes:
        """Return an object's content; botocore retries the request, but not the reading of a body that is cut."""
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        for _ in range(_NUM_READS - 1):
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"]
            with suppress(HTTPClientError, IncompleteReadError):
                return bytes(body.read())
        return bytes(self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        """Write an object unconditionally."""
        with self._plain_errors(key):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one, and return whether it was written."""
        with self._plain_errors(key):
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
        with self._plain_errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with the prefix, sorted."""
        with self._plain_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            return sorted(entry["Key"].removeprefix(self._prefix) for page in pages for entry in page.get("Contents", ()))

    def upload(self, key: str, path: Path) -> None:
        """Write a file's content to an object, unconditionally."""
        with self._plain_errors(key):
            self._client.upload_file(str(path), self._bucket, self._prefix + key)

    def download(self, key: str, path: Path) -> None:
        """Write an object's content to a new file; raises KeyError when there is no such object."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._plain_errors(key):  # It goes on where a connection breaks.
            self._client.download_file(self._bucket, self._prefix + key, str(path))

    @contextmanager
    def _plain_errors(self, key: str) -> Iterator[None]:
        """Turn botocore's errors into a StoreError that says how to fix it, or a KeyError for no object."""
        try:
            yield
        except _s3_errors() as error:
            code = _code(error)
            if code in _ABSENT:
                raise KeyError(key) from None
            remedy = _REMEDIES.get(code or type(error).__name__, _REMEDY)
            raise StoreError(f"{self._address}/{key}: S3 {'refuses' if code else 'cannot be used'} ({error}); {remedy}") from error


def _s3_errors() -> tuple[type[Exception], ...]:
    """Return the error types of boto3 and botocore, which are imported lazily."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return ClientError, BotoCoreError, Boto3Error


def _code(error: Exception) -> str:
    """Return S3's own word for an error, which boto3's error of an upload has in its text alone; empty when S3 did not answer."""
    match = _CODE.search(str(error))
    return "" if match is None else match[1]

"""Objects (byte strings by key) in a folder or in S3. No reader sees an incomplete object."""

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
_ABSENT: Final = ("NoSuchKey", "404")  # 404 answers a HEAD request.
_NUM_READS: Final = 3
_ERROR_CODE: Final = re.compile(r"An error occurred \((\w+)\)")
_REMEDIES: Final = {
    "NoSuchBucket": "correct the bucket's name",
    "AccessDenied": "ask the bucket's owner for the rights that docs/aws.md lists, or use other credentials (AWS_PROFILE)",
    "ExpiredToken": "the credentials have expired: log in again (aws sso login), or renew them",
    "NoCredentialsError": "there are no credentials: log in (aws configure, aws sso login) or set AWS_PROFILE",
}
_REMEDY: Final = "check credentials, clock, network and the address (AWS_ENDPOINT_URL), and start again"


class StoreError(PlainError, OSError):
    may_pass = True  # A retry may succeed.


class FolderObjects:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        try:
            return (self._folder / key).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists. Return whether it was written."""
        return create_file(self._folder / key, data)

    def keys(self, prefix: str) -> list[str]:
        """Return the sorted keys below `prefix`, which ends with a slash."""
        keys: list[str] = []
        for folder, subfolders, names in os.walk(self._folder / prefix):
            # Hidden folders have unfinished objects. `os.walk` does not enter a folder that is removed from its list.
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            keys += [(Path(folder) / name).relative_to(self._folder).as_posix() for name in names]
        return sorted(keys)


class S3Objects:
    """Objects below `s3://BUCKET/PREFIX`. All methods raise StoreError if S3 refuses, or fails after retries."""

    def __init__(self, address: str) -> None:
        import boto3.session
        import botocore.config

        self._address = address.rstrip("/")
        self._bucket, _, prefix = self._address.removeprefix(S3_SCHEME).partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        settings = botocore.config.Config(connect_timeout=20, read_timeout=60, retries={"mode": "standard"})
        with self._plain_errors(""):
            # Threads share boto3's default session, which is not thread-safe, so this client has another.
            self._client = boto3.session.Session().client("s3", config=settings)

    def __str__(self) -> str:
        return self._address

    def get(self, key: str) -> bytes | None:
        try:
            with self._plain_errors(key):
                return self._body(key)
        except KeyError:
            return None

    def _body(self, key: str) -> bytes:
        """Retry if the connection breaks while the answer is read; botocore retries only requests."""
        from botocore.exceptions import HTTPClientError, IncompleteReadError

        for _ in range(_NUM_READS - 1):
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"]
            with suppress(HTTPClientError, IncompleteReadError):
                return bytes(body.read())
        return bytes(self._client.get_object(Bucket=self._bucket, Key=self._prefix + key)["Body"].read())

    def put(self, key: str, data: bytes) -> None:
        with self._plain_errors(key):
            self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists. Return whether it was written, or exists with equal content."""
        with self._plain_errors(key):
            try:
                self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, IfNoneMatch="*")
            except _s3_errors() as error:
                if _error_code(error) not in _CONFLICTS:
                    raise
            else:
                return True
        # If a write's answer is lost, botocore writes again and conflicts with itself.
        return self.get(key) == data

    def delete(self, key: str) -> None:
        with self._plain_errors(key):
            self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def keys(self, prefix: str) -> list[str]:
        with self._plain_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix + prefix)
            return sorted(entry["Key"].removeprefix(self._prefix) for page in pages for entry in page.get("Contents", ()))

    def upload(self, key: str, path: Path) -> None:
        with self._plain_errors(key):
            self._client.upload_file(str(path), self._bucket, self._prefix + key)

    def download(self, key: str, path: Path) -> None:
        """Raise KeyError if the object is missing."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._plain_errors(key):  # boto3 resumes a broken download.
            self._client.download_file(self._bucket, self._prefix + key, str(path))

    @contextmanager
    def _plain_errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except _s3_errors() as error:
            code = _error_code(error)
            if code in _ABSENT:
                raise KeyError(key) from None
            remedy = _REMEDIES.get(code or type(error).__name__, _REMEDY)
            raise StoreError(f"{self._address}/{key}: S3 {'refuses' if code else 'cannot be used'} ({error}); {remedy}") from error


def _s3_errors() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return ClientError, BotoCoreError, Boto3Error


def _error_code(error: Exception) -> str:
    """Return S3's error code, or "". An upload's error has the code only in its message."""
    match = _ERROR_CODE.search(str(error))
    return "" if match is None else match[1]

"""S3 objects as files: listing, streaming reads, and readable AWS errors."""

import fnmatch
import io
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from grpo.dataset.games import SourceError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_MAX_BREAKS: Final = 5
"""In a row, without a byte read between them."""
_BACK_OFF_SECONDS: Final = 0.5  # After the first break, doubled after each further one: 15 s in total.
S3_SCHEME: Final = "s3://"

_REMEDIES: Final = {
    "NoSuchBucket": "correct the bucket's name",
    "NoSuchKey": "correct the key; a folder's address ends in /",
    "AccessDenied": "ask the bucket's owner for s3:GetObject and s3:ListBucket, or use other credentials (AWS_PROFILE)",
    "AllAccessDisabled": "ask the bucket's owner for access",
    "ExpiredToken": "the credentials have expired: log in again (aws sso login), or renew them",
    "RequestExpired": "the credentials have expired, or this machine's clock is wrong: log in again, set the clock",
    "RequestTimeTooSkewed": "set this machine's clock",
    "InvalidToken": "correct the credentials (aws configure)",
    "InvalidAccessKeyId": "correct the credentials (aws configure)",
    "SignatureDoesNotMatch": "correct the credentials (aws configure)",
    "PreconditionFailed": "the object was replaced while it was read: start again when nothing writes it",
    "InvalidObjectState": "the object is archived: restore it first (aws s3api restore-object)",
    "PermanentRedirect": "set AWS_DEFAULT_REGION to the bucket's region",
    "AuthorizationHeaderMalformed": "set AWS_DEFAULT_REGION to the bucket's region",
    "NoCredentialsError": "there are no credentials: log in (aws configure, aws sso login) or set AWS_PROFILE",
    "PartialCredentialsError": "the credentials are incomplete: complete them (aws configure)",
    "CredentialRetrievalError": "the credentials cannot be retrieved: log in again (aws sso login)",
    "TokenRetrievalError": "the credentials have expired: log in again (aws sso login)",
    "SSOTokenLoadError": "you are not logged in: aws sso login",
    "UnauthorizedSSOTokenError": "the credentials have expired: log in again (aws sso login)",
    "ProfileNotFound": "correct AWS_PROFILE",
    "NoRegionError": "set AWS_DEFAULT_REGION",
    "ParamValidationError": "correct the address: s3://bucket/key",
}
_OTHER_REMEDY: Final = "check the network and the address (AWS_ENDPOINT_URL), and start again"


def list_objects(pattern: str) -> tuple[bool, list[str]]:
    """Return whether the address names a single object, and the sorted addresses of all objects that it matches.

    An address that ends in `/` matches all objects below it. `*`, `?` and `[...]` are wildcards, and `*` also matches `/`. Any other
    address names a single object.

    Raises SourceError if the object does not exist, or the bucket cannot be listed.
    """
    bucket, key = split_address(pattern)
    glob_starts = re.search(r"[*?[]", key)
    if key and not key.endswith("/") and glob_starts is None:
        S3Object(pattern).close()
        return True, [pattern]
    prefix = key[: glob_starts.start()] if glob_starts else key
    with _in_words(pattern):
        pages = new_client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    matching = [found for found in keys if glob_starts is None or fnmatch.fnmatchcase(found, key)]
    return False, sorted(f"{S3_SCHEME}{bucket}/{found}" for found in matching)


class S3Object(io.RawIOBase):
    """One S3 object as a seekable file; all reads are of the version that was opened, and go on where a connection broke.

    Raises SourceError if it cannot be opened, if it is replaced while it is read, or if the connection breaks too often.
    """

    def __init__(self, uri: str, *, client: Any = None) -> None:
        """Open the object with the given client, or with a new one."""
        super().__init__()
        self._uri = uri
        self._bucket, self._key = split_address(uri)
        with _in_words(uri):
            self._client = client or new_client()
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key)
        self.size: int = answer["ContentLength"]
        """In bytes."""
        self.etag: str = answer["ETag"]
        """Names the version."""
        self._position = self._body_at = 0
        self._body: Any = answer["Body"]
        """Streams the bytes from `_body_at` on."""

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True; after a seek, the next read requests the range from the new position."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position and return it."""
        position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if position < 0:
            raise ValueError(f"negative seek position {position}")
        self._position = position
        return position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        """Read the next available bytes into the buffer and return their number; 0 means the end."""
        target = memoryview(buffer).cast("B")
        breaks = _breaks()
        for num_breaks in range(_MAX_BREAKS + 1):
            if self._position >= self.size:
                return 0
            if self._body_at != self._position:
                self._drop()
            try:
                with _in_words(self._uri, breaks):
                    if self._body is None:
                        # IfMatch, so that the rest is never that of another version.
                        self._body = self._client.get_object(
                            Bucket=self._bucket, Key=self._key, Range=f"bytes={self._position}-", IfMatch=self.etag
                        )["Body"]
                        self._body_at = self._position
                    piece = self._body.read(len(target))
                    if not piece:
                        raise ConnectionError(f"{self._position} read, but total bytes expected is {self.size}")
            except breaks as error:
                self._drop()
                if num_breaks == _MAX_BREAKS:
                    raise SourceError(
                        f"{self._uri}: the connection broke {num_breaks + 1} times in a row at byte {self._position:,} of {self.size:,}"
                        f" ({error}); {_OTHER_REMEDY}"
                    ) from error
                time.sleep(_BACK_OFF_SECONDS * 2**num_breaks)
                continue
            target[: len(piece)] = piece
            self._position += len(piece)
            self._body_at = self._position
            return len(piece)
        raise AssertionError("the last break raises")

    def close(self) -> None:
        """Close the connection."""
        self._drop()
        super().close()

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


def _breaks() -> tuple[type[Exception], ...]:
    """Return the errors after which the connection is made anew."""
    import botocore.exceptions
    import urllib3.exceptions

    return (
        botocore.exceptions.HTTPClientError,
        botocore.exceptions.ConnectionError,
        botocore.exceptions.IncompleteReadError,
        urllib3.exceptions.HTTPError,
        OSError,
    )


def split_address(uri: str) -> tuple[str, str]:
    """Return the bucket and the key of an `s3://` address."""
    bucket, _, key = uri.removeprefix(S3_SCHEME).partition("/")
    return bucket, key


def new_client() -> Any:
    """Return an S3 client that retries with back-off."""
    import boto3.session
    import botocore.config

    # A separate session, because boto3's default session is shared by the whole process.
    settings = botocore.config.Config(connect_timeout=20, read_timeout=60, retries={"mode": "standard"})
    return boto3.session.Session().client("s3", config=settings)


def storage_errors() -> tuple[type[Exception], ...]:
    """Return the error types of botocore, which is imported lazily."""
    import botocore.exceptions

    return botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError


def in_words(error: Exception) -> str:
    """Return a message for an error of `storage_errors`: what it means and how to fix it."""
    import botocore.exceptions

    if isinstance(error, botocore.exceptions.ClientError):
        return f"S3 refuses ({error}); {_REMEDIES.get(error.response['Error']['Code'], _OTHER_REMEDY)}"
    return f"S3 cannot be used ({error}); {_REMEDIES.get(type(error).__name__, _OTHER_REMEDY)}"


@contextmanager
def _in_words(uri: str, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn botocore's errors, except those in `but`, into a SourceError that says how to fix it."""
    try:
        yield
    except but:
        raise
    except storage_errors() as error:
        raise SourceError(f"{uri}: {in_words(error)}") from error

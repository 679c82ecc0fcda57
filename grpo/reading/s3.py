"""S3 objects as files: listing, streaming reads, and readable AWS errors."""

import fnmatch
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from grpo.reading.games import SourceError
from grpo.reading.remote import RemoteFile

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


class S3Object(RemoteFile):
    """One S3 object as a seekable file; see `RemoteFile`."""

    def __init__(self, uri: str, *, client: Any = None) -> None:
        """Open the object with the given client, or with a new one."""
        super().__init__(uri)
        self._bucket, self._key = split_address(uri)
        with _in_words(uri):
            self._client = client or new_client()
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key)
        self.size = answer["ContentLength"]
        self.etag = answer["ETag"]
        self._body = answer["Body"]

    def _open_at(self, position: int) -> Any:
        # IfMatch, so that the rest is never that of another version.
        rest = f"bytes={position}-"
        return self._client.get_object(Bucket=self._bucket, Key=self._key, Range=rest, IfMatch=self.etag)["Body"]

    def _breaks(self) -> tuple[type[Exception], ...]:
        import botocore.exceptions
        import urllib3.exceptions

        return (
            botocore.exceptions.HTTPClientError,
            botocore.exceptions.ConnectionError,
            botocore.exceptions.IncompleteReadError,
            urllib3.exceptions.HTTPError,
            OSError,
        )

    def _in_words(self, but: tuple[type[Exception], ...]) -> AbstractContextManager[None]:
        return _in_words(self._uri, but)


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

"""Searches for a leaked canary secret in files, S3 objects, archives and AWS Batch jobs."""

import base64
import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from infra.batch_standin import StandIn

_GZIP: Final = b"\x1f\x8b"
_ZIP: Final = b"PK\x03\x04"
_DEEPEST: Final = 4  # Archives in archives.


def holds(data: bytes, secret: str, depth: int = 0) -> bool:
    """Return whether bytes contain a secret: literally, in base64 (as in HTTP basic authentication), or in archives."""
    if any(form in data for form in _forms(secret)):
        return True
    return depth < _DEEPEST and any(holds(part, secret, depth + 1) for part in _parts(data))


def files_with(folder: Path, secret: str) -> list[str]:
    """Return the files below a folder that hold a secret."""
    return [
        str(path) for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink() and holds(path.read_bytes(), secret)
    ]


def objects_with(standin: StandIn, secret: str) -> list[str]:
    """Return the objects in all buckets that hold a secret, code packages and artifacts unpacked."""
    s3, found = standin.client("s3"), []
    for bucket in (row["Name"] for row in s3.list_buckets()["Buckets"]):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for key in (row["Key"] for row in page.get("Contents", [])):
                if holds(s3.get_object(Bucket=bucket, Key=key)["Body"].read(), secret):
                    found.append(f"s3://{bucket}/{key}")  # noqa: PERF401 - A comprehension would hide the walk.
    return found


def jobs_with(standin: StandIn, secret: str) -> list[str]:
    """Return the jobs and job definitions that contain a secret, in their descriptions or their containers' variables."""
    batch = standin.client("batch")
    definitions = batch.describe_job_definitions()["jobDefinitions"]
    found = [row["jobDefinitionName"] for row in definitions if holds(repr(row).encode(), secret)]
    for job in standin.jobs():
        [described] = batch.describe_jobs(jobs=[job.id])["jobs"]
        if holds(repr((described, job.nodes, job.variables)).encode(), secret):
            found.append(job.name)
    return found


def secrets_with(standin: StandIn, secret: str) -> list[str]:
    """Return the names of the secrets in the Secrets Manager that contain it, where it belongs."""
    manager = standin.client("secretsmanager")
    names = [row["Name"] for row in manager.list_secrets()["SecretList"]]
    return [name for name in names if holds(manager.get_secret_value(SecretId=name)["SecretString"].encode(), secret)]


def _forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    yield secret.encode("utf-16-le")
    # In base64 the secret may be shifted by 0, 1 or 2 bytes; characters at its ends depend on neighbouring bytes.
    for shift in range(3):
        image = base64.b64encode(b"\0" * shift + secret.encode())
        yield image[4 if shift else 0 : -4]


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the members of an archive; nothing for other or broken data."""
    if data.startswith(_GZIP):
        try:
            yield gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return
    elif data.startswith(_ZIP):
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in archive.namelist():
                    yield archive.read(name)
        except (zipfile.BadZipFile, zlib.error, RuntimeError):
            return
    elif data[257:262] == b"ustar":
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                members: list[Any] = [archive.extractfile(member) for member in archive.getmembers() if member.isfile()]
                for member in members:
                    yield member.read()
        except tarfile.TarError:
            return

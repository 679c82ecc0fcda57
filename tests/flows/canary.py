"""Searches for a secret in what a run leaves, packed or not."""

import base64
import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path


def holds(data: bytes, secret: str) -> bool:
    """Return whether bytes contain a secret: literally, in base64 (as in HTTP basic authentication), or in archives."""
    return any(form in data for form in _forms(secret)) or any(holds(part, secret) for part in _parts(data))


def files_with(folder: Path, secret: str) -> list[str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return [str(path) for path in files if holds(path.read_bytes(), secret)]


def _forms(secret: str) -> Iterator[bytes]:
    yield secret.encode()
    # In base64 the secret may be shifted by 0, 1 or 2 bytes; characters at its ends depend on neighboring bytes.
    for shift in range(3):
        yield base64.b64encode(b"\0" * shift + secret.encode())[4 if shift else 0 : -4]


def _parts(data: bytes) -> Iterator[bytes]:
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)
    elif data[257:262] == b"ustar":
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                if (file := archive.extractfile(member)) is not None:
                    yield file.read()

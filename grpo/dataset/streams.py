"""Files of games and positions: finding, opening and hashing."""

import hashlib
import io
import lzma
import os
import re
import struct
import sys
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from grpo.base.files import sha256_file, sha256_text
from grpo.dataset.games import SourceError
from grpo.settings.types import S3_SCHEME, refuse_secret

MAX_LINE: Final = 2**20  # Maximum bytes of a line (with its end) or of a game.
_BUFFER_SIZE: Final = 2**20


class FileKind(StrEnum):
    GAMES = "games"
    POSITIONS = "positions"
    PUZZLES = "puzzles"


_KINDS: Final = {".pgn": FileKind.GAMES, ".epd": FileKind.POSITIONS, ".fen": FileKind.POSITIONS, ".csv": FileKind.PUZZLES}
_CODECS: Final = {".zst": "zstd", ".gz": "gzip", ".bz2": "bz2"}
_ZIP: Final = ".zip"
_SUFFIXES: Final = f"{', '.join(_KINDS)}, plain or followed by {', '.join((*_CODECS, _ZIP))}"
_BEGINS: Final = {
    FileKind.GAMES: re.compile(rb'\[[A-Za-z]\w* "'),
    FileKind.POSITIONS: re.compile(rb"(?:[pnbrqkPNBRQK1-8]{1,8}/){7}[pnbrqkPNBRQK1-8]{1,8}[ \t]+[wb][ \t]"),
    FileKind.PUZZLES: re.compile(rb"PuzzleId,FEN,Moves\b"),
    "a web page": re.compile(rb"<!doctype html|<html", re.IGNORECASE),
    "packed": re.compile(rb"\x28\xb5\x2f\xfd|\x1f\x8b|BZh|PK\x03\x04"),
    "no UTF-8 text": re.compile(rb".?\x00|\xff\xfe|\xfe\xff"),
}
"""Kind of content -> pattern of its first bytes. The last three kinds are always refused."""


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SourceFile:
    name: str  # File name without folder, or `ARCHIVE.zip/MEMBER`.
    uri: str  # Path, or `s3://`, `https://` or `hf://` address.
    kind: FileKind
    member: str = ""  # Of a ZIP archive.


def find_files(patterns: Sequence[str]) -> list[SourceFile]:
    """Return the files that the patterns match, each once, sorted by name.

    A pattern is an https address, or a file, folder or glob (local, S3 or hub). Folders include subfolders, without hidden files and
    unknown suffixes.

    Raises SourceError if a pattern matches no file or may contain a secret, two files have one name, or a file is unreadable.
    """
    files = sorted({file for pattern in patterns for uri in _addresses(pattern) for file in _files_of(uri)})
    name, count = max(Counter(file.name for file in files).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        uris = " and ".join(sorted({file.uri for file in files if file.name == name}))
        raise SourceError(f"{count} different files are called {name} ({uris}); boards record only the name, so rename one of them")
    return files


@contextmanager
def opened(file: SourceFile) -> Iterator[BinaryIO]:
    """Open a file as decompressed bytes. Raises SourceError, also for an OSError in the `with` block."""
    import pyarrow as pa

    where = f"{file.uri} (member {file.member})" if file.member else file.uri
    with _plain_errors(where), _open_raw(file.uri) as raw:
        unpacked = raw
        if file.member:
            with _plain_zip_errors(where):
                unpacked = zipfile.ZipFile(raw).open(file.member)  # noqa: SIM115
        elif codec := _CODECS.get(PurePosixPath(file.uri).suffix.lower()):
            unpacked = pa.CompressedInputStream(raw, codec)
        stream = io.BufferedReader(unpacked, _BUFFER_SIZE)
        head = stream.peek()[:4_096].removeprefix(b"\xef\xbb\xbf").lstrip()
        content = next((name for name, begins in _BEGINS.items() if begins.match(head)), file.kind)
        if content != file.kind:
            raise SourceError(f"{where}: the content is {content}, but the name says {file.kind}; give the right file, or rename this one")
        yield stream


def lines_of(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield byte offset and bytes of each line, then close the stream. A line above `MAX_LINE` bytes is cut to `MAX_LINE` + 1 bytes."""
    offset = 0
    with io.TextIOWrapper(stream, encoding="latin-1", newline="") as text:  # Latin-1: one character per byte.
        while line := text.readline(MAX_LINE + 1):
            start, offset, piece = offset, offset + len(line), line
            while piece and piece[-1] not in "\r\n":
                piece = text.readline(MAX_LINE)
                offset += len(piece)
            yield start, line.encode("latin-1")


def fingerprint(file: SourceFile) -> str:
    """Return a hash that changes with the file's content or `member`. Raises SourceError."""
    with _plain_errors(file.uri):
        digest = _version(file.uri) if "://" in file.uri else sha256_file(Path(file.uri))
    return sha256_text(f"{digest}/{file.member}") if file.member else digest


def fingerprint_of_all(files: Iterable[SourceFile]) -> str:
    """Return a hash of the files' contents, without order and names."""
    return sha256_text("\n".join(sorted(map(fingerprint, files))))


def _addresses(pattern: str) -> list[str]:
    try:
        refuse_secret(pattern)
        with _plain_errors(pattern):
            is_one_file, matches = _matches(pattern)
    except ValueError as error:  # A secret, or an unknown scheme.
        raise SourceError(str(error)) from None
    if is_one_file and _kind(matches[0]) is None:
        raise SourceError(f"{pattern}: the suffix is unknown; rename or convert the file to {_SUFFIXES}")
    usable = [uri for uri in matches if not PurePosixPath(uri).name.startswith(".") and _kind(uri) is not None]
    if not usable:
        raise SourceError(f"{pattern}: no file found; give a file, folder, glob, or s3://, hf:// or https:// address: {_SUFFIXES}")
    return usable


def _matches(pattern: str) -> tuple[bool, list[str]]:
    """Return whether the pattern names one file, and the addresses of all matches."""
    if pattern.startswith(("http://", "https://")):
        return True, [pattern]
    filesystem, path = _filesystem(pattern)
    try:
        # Unlike `find` and `glob`, `info` raises for an unreadable file.
        is_one_file = filesystem.info(path)["type"] != "directory"  # Also true for a pipe; `_files_of` refuses pipes.
        matches = [path] if is_one_file else filesystem.find(path)
    except FileNotFoundError:
        is_one_file, matches = False, [file for match in filesystem.glob(path) for file in filesystem.find(match)]
    if "://" in pattern:
        return is_one_file, [f"{pattern.partition('://')[0]}://{match}" for match in matches]
    return is_one_file, [os.path.normpath(match) for match in matches]


def _filesystem(uri: str) -> tuple[Any, str]:
    import fsspec.core

    if not uri.startswith(S3_SCHEME):
        filesystem, path = fsspec.core.url_to_fs(uri)
        return filesystem, str(path)
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return ArrowFSWrapper(S3FileSystem(endpoint_override=endpoint)), uri.removeprefix(S3_SCHEME)


def _kind(uri: str) -> FileKind | str | None:
    suffixes = [suffix.lower() for suffix in PurePosixPath(uri).suffixes]
    if suffixes[-1:] == [_ZIP]:
        return _ZIP
    if suffixes[-1:] and suffixes[-1] in _CODECS:
        suffixes.pop()
    return _KINDS.get(suffixes[-1]) if suffixes else None


def _files_of(uri: str) -> Iterator[SourceFile]:
    kind, name = _kind(uri), PurePosixPath(uri).name
    if (path := os.fsencode(uri).decode(errors="backslashreplace")) != uri:
        raise SourceError(f"{path}: the path is not UTF-8; rename it")
    if "://" not in uri and not Path(uri).is_file():
        raise SourceError(f"{uri}: is a pipe, socket, device or broken link; give a file")
    if isinstance(kind, FileKind):
        yield SourceFile(name=name, uri=uri, kind=kind)
        return
    with _plain_errors(uri), _open_raw(uri) as stream, _plain_zip_errors(uri), zipfile.ZipFile(stream) as archive:
        names = archive.namelist()
    # Folders and hidden members, such as macOS metadata (`__MACOSX/._games.pgn`), are left out.
    members = {member: _kind(member) for member in names if not (member.endswith("/") or PurePosixPath(member).name.startswith("."))}
    if packed := [member for member, kind in members.items() if kind and PurePosixPath(member).suffix.lower() not in _KINDS]:
        raise SourceError(f"{uri}: its member {packed[0]} is packed, too; unpack the archive, and give the files")
    usable = {member: kind for member, kind in members.items() if isinstance(kind, FileKind)}
    if not usable:
        raise SourceError(f"{uri}: the archive has no visible {', '.join(_KINDS)} file among its {len(members)} members; give another file")
    for member, kind in usable.items():
        if names.count(member) > 1:
            raise SourceError(f"{uri}: {names.count(member)} members are called {member}; unpack the archive, and give the files")
        yield SourceFile(name=f"{name}/{member}", uri=uri, kind=kind, member=member)


def _open_raw(uri: str) -> Any:
    filesystem, path = _filesystem(uri)
    return filesystem.open(path, "rb")


def _version(uri: str) -> str:
    """Return a hash of a remote file's version tag and size; without a tag, of the content."""
    filesystem, path = _filesystem(uri)
    facts = filesystem.info(path)
    tag = facts.get("ETag") or facts.get("blob_id")
    if uri.startswith(S3_SCHEME):  # `info` returns no tag for S3.
        with filesystem.fs.open_input_stream(path, compression=None) as stream:
            tag = stream.metadata()["ETag"].decode()
    if tag:
        return sha256_text(f"{tag}:{facts['size']}")
    with _open_raw(uri) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def _plain_zip_errors(where: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # Encrypted, or compressed by an unknown method.
        raise SourceError(f"{where}: cannot be unpacked here ({error}); unpack it, and give its files") from error
    except (ValueError, struct.error) as error:
        raise _damaged(where, error) from error


@contextmanager
def _plain_errors(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError(f"{where}: no file found; correct the address") from error
    except (EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(where, error) from error
    except _reading_errors() as error:
        if "too much memory" in str(error):
            raise SourceError(f"{where}: has a zstd window above 128 MiB; unpack it with `zstd -d --long=31`") from error
        # pyarrow raises OSError without errno for damaged data.
        if isinstance(error, OSError) and error.errno is None and "://" not in where:
            raise _damaged(where, error) from error
        raise SourceError(
            f"{where}: cannot be read ({error}); check the address, the network and your rights (S3: aws sso login, AWS_PROFILE,"
            " AWS_DEFAULT_REGION)"
        ) from error


def _damaged(where: str, error: Exception) -> SourceError:
    return SourceError(f"{where}: damaged or cut short ({error}); download it again")


def _reading_errors() -> tuple[type[Exception], ...]:
    # fsspec does not translate errors of the libraries for web and hub.
    names = {"aiohttp": "ClientError", "httpx2": "HTTPError"}
    of_libraries = [getattr(sys.modules[library], name) for library, name in names.items() if library in sys.modules]
    return (OSError, ImportError, *of_libraries)

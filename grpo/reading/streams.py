"""Reads files, local or remote (S3, https, Hugging Face's hub), plain or compressed (zstd, gzip, bzip2, ZIP).

It detects truncation, damage, decompression bombs, and content of another kind than the name says.
"""

import bz2
import glob
import hashlib
import io
import os
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import zstandard

from grpo.base.files import sha256_file, sha256_text
from grpo.reading.games import SourceError
from grpo.reading.remote import RemoteFile
from grpo.reading.s3 import S3_SCHEME, S3Object, list_objects
from grpo.reading.web import WEB_SCHEMES, WebFile, list_web_files, web_name

CHUNK_SIZE: Final = 2**20
"""Largest chunk of `read_chunks`, in bytes."""

_PIECE_SIZE: Final = 2**16  # Compressed bytes per call of zlib and bz2; errors state the damage with this precision.
_MAX_ZSTD_WINDOW: Final = 2**27  # 128 MiB, as `zstd -d` allows; more needs `zstd --long=31`, and that much memory.
# Limits for decompression bombs: game files compress 5 to 10 times, deflate at most 1,032 times. Small files are exempt.
_BOMB_GRACE: Final = 2**26
_BOMB_RATIO: Final = 1_000


class FileKind(StrEnum):
    """What a file contains."""

    GAMES = "games"
    POSITIONS = "positions"
    PUZZLES = "puzzles"


class Packing(StrEnum):
    """Compression of a file."""

    NONE = "none"
    ZST = "zst"
    GZ = "gz"
    BZ2 = "bz2"
    ZIP = "zip"


_KINDS: Final = {".pgn": FileKind.GAMES, ".epd": FileKind.POSITIONS, ".fen": FileKind.POSITIONS, ".csv": FileKind.PUZZLES}
_PACKINGS: Final = {".zst": Packing.ZST, ".gz": Packing.GZ, ".bz2": Packing.BZ2, ".zip": Packing.ZIP}
_SUFFIXES: Final = f"{', '.join(_KINDS)}, plain or followed by {', '.join(_PACKINGS)}"
_PLACES: Final = "a file, a folder, a glob, an s3://, hf:// or https:// address"
_MAGIC: Final = {Packing.ZST: b"\x28\xb5\x2f\xfd", Packing.GZ: b"\x1f\x8b", Packing.BZ2: b"BZh", Packing.ZIP: b"PK\3\4"}
_EXAMPLES: Final = {FileKind.GAMES: ".pgn", FileKind.POSITIONS: ".epd", FileKind.PUZZLES: ".csv"}
_CONTENTS: Final = {FileKind.GAMES: "games", FileKind.POSITIONS: "a list of positions", FileKind.PUZZLES: "a table of puzzles"}
_BEGINS: Final = {
    FileKind.GAMES: re.compile(rb'\[[A-Za-z]\w* "'),
    FileKind.POSITIONS: re.compile(rb"(?:[pnbrqkPNBRQK1-8]{1,8}/){7}[pnbrqkPNBRQK1-8]{1,8}[ \t]+[wb][ \t]"),
    FileKind.PUZZLES: re.compile(rb"PuzzleId,FEN,Moves\b"),
}
_WEB_PAGE: Final = re.compile(rb"<!doctype html|<html", re.IGNORECASE)
_RESCUES: Final = {
    Packing.ZST: "zstd -dc FILE > WHOLE",
    Packing.GZ: "gzip -dc FILE > WHOLE",
    Packing.BZ2: "bzip2 -dc FILE > WHOLE",
    Packing.ZIP: "zip -FF FILE --out WHOLE.zip",
}


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SourceFile:
    """A file of games, positions or puzzles; files are ordered by name, so that the order is the same on every machine."""

    name: str
    """The name that boards record: without folder, and `ARCHIVE.zip/MEMBER` for a member of an archive."""
    uri: str
    """Absolute path, or an `s3://`, `https://` or `hf://` address."""
    kind: FileKind
    packing: Packing
    member: str = ""
    """Path inside the archive, for `Packing.ZIP`."""


def find_files(patterns: Sequence[str]) -> list[SourceFile]:
    """Return the files that the patterns match, each once, sorted by name.

    A pattern is a path, a folder (read recursively), a glob, or an S3 key, prefix (`.../`) or glob. Folders, prefixes and globs match only
    files with a known suffix that are not hidden. Names are unique, so that the order depends neither on the order of the patterns nor on
    the folders.

    Raises SourceError if a pattern matches nothing, a named file has an unknown suffix, an archive cannot be read, or two different files
    have the same name.
    """
    found = {file for pattern in patterns for uri, name in _addresses(pattern) for file in _files_of(uri, name)}
    files = sorted(found)
    name, count = max(Counter(file.name for file in files).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        places = " and ".join(sorted({file.uri for file in files if file.name == name}))
        raise SourceError(f"{count} different files are called {name} ({places}); a board states only the name: rename one of them")
    return files


@dataclass(slots=True)
class Gauge:
    """How much of a file `read_chunks` has read."""

    size: int = 0
    """Of the compressed file, in bytes."""
    num_packed: int = 0
    """Bytes read of it."""
    num_unpacked: int = 0
    """What they unpacked to, in bytes."""

    def fraction(self, position: int) -> float:
        """Return which fraction of the file lies before a position of the unpacked bytes, by the compression seen so far."""
        whole = self.size * self.num_unpacked
        return min(1.0, position * self.num_packed / whole) if whole else 1.0


def read_chunks(file: SourceFile, *, start: int = 0, gauge: Gauge | None = None) -> Iterator[bytes]:
    """Yield the decompressed bytes in chunks of at most 1 MiB, streaming, so that memory is bounded for any file.

    Args:
        file: The file.
        start: Skip this many decompressed bytes.
        gauge: Counts what was read.

    Raises SourceError if the file cannot be read, is truncated or damaged, has data after its end, or is a decompression bomb. Plain files
    have no checks.
    """
    gauge = Gauge() if gauge is None else gauge
    chunks = _chunks(file, start, gauge)
    if (first := next(chunks, None)) is None:
        return
    if not start:
        _refuse_other_kind(file, first)
    yield first
    yield from chunks


def _chunks(file: SourceFile, start: int, gauge: Gauge) -> Iterator[bytes]:
    with _opened(file.uri) as stream:
        _refuse_other_packing(file, stream)
        if file.packing == Packing.NONE:
            gauge.size = _size(stream)
            gauge.num_packed = gauge.num_unpacked = stream.seek(start)
            for chunk in iter(partial(stream.read, CHUNK_SIZE), b""):
                gauge.num_packed += len(chunk)
                gauge.num_unpacked += len(chunk)
                yield chunk
            return
        for chunk in _unpacked(file, stream, gauge):
            before = gauge.num_unpacked
            gauge.num_unpacked += len(chunk)
            if gauge.num_unpacked > start:
                yield chunk[max(0, start - before) :]


def _refuse_other_packing(file: SourceFile, stream: BinaryIO) -> None:
    """Raise SourceError if the first bytes are not of the packing that the name says."""
    head = stream.read(4)
    stream.seek(0)
    if file.packing == Packing.ZIP or not head:
        return
    is_text = len(head) == 4 and all(byte in b"\t\r\n" or 32 <= byte < 127 for byte in head)
    found = next((packing for packing, magic in _MAGIC.items() if head.startswith(magic)), Packing.NONE if is_text else file.packing)
    if found != file.packing:
        content = "is not packed" if found == Packing.NONE else f"is packed as {found}"
        end = f"{_EXAMPLES[file.kind]}{'' if found == Packing.NONE else f'.{found}'}"
        raise SourceError(f"{file.uri}: its content {content}, and its name says otherwise; rename it, to end in {end}")


def _refuse_other_kind(file: SourceFile, head: bytes) -> None:
    """Raise SourceError if the first bytes of the content are plainly of another kind than the name says."""
    text = head[:4_096].removeprefix(b"\xef\xbb\xbf").lstrip()
    num_zeros = [text[parity::2].count(0) for parity in (0, 1)]
    where = f"{file.uri}{f' (member {file.member})' if file.member else ''}"
    if len(text) >= 32 and max(num_zeros) > len(text) // 4 > 8 * min(num_zeros):
        raise SourceError(
            f"{where}: is UTF-16, where UTF-8 is needed; convert it: iconv -f UTF-16LE -t UTF-8 FILE > NEW{_EXAMPLES[file.kind]}"
        )
    if _WEB_PAGE.match(text):
        raise SourceError(f"{where}: is a web page (an error, or a login) and no file of chess; download it again")
    found = next((kind for kind, begins in _BEGINS.items() if begins.match(text)), file.kind)
    if found != file.kind:
        raise SourceError(
            f"{where}: its content is {_CONTENTS[found]}, and its name says {_CONTENTS[file.kind]}; rename it, to end in {_EXAMPLES[found]}"
        )


def _unpacked(file: SourceFile, stream: BinaryIO, gauge: Gauge) -> Iterator[bytes]:
    if file.packing == Packing.ZIP:
        yield from _read_member(file, stream, gauge)
        return
    gauge.size = _size(stream)
    packed = _Packed(file, stream, gauge=gauge)
    yield from _without_bombs(_UNPACKERS[file.packing](packed), packed)


def fingerprint(file: SourceFile) -> str:
    """Return a hex hash of the compressed bytes, or of ETag and size for a remote file; the path of an archive's member is hashed in.

    Raises SourceError if the file cannot be read.
    """
    if _is_remote(file.uri):
        with _remote(file.uri) as remote:
            named = f"{remote.etag}:{remote.size}" if remote.etag else ""
            # Without a name of its version the content counts.
            whole = sha256_text(named) if named else hashlib.sha256(remote.read()).hexdigest()
    else:
        with _opened(file.uri):  # For its error message if the file cannot be read.
            whole = sha256_file(Path(file.uri))
    return sha256_text(f"{whole}/{file.member}") if file.member else whole


def fingerprint_of_all(files: Iterable[SourceFile]) -> str:
    """Return a hex hash of the contents of several files, independent of their order and names."""
    return sha256_text("\n".join(sorted(map(fingerprint, files))))


def _addresses(pattern: str) -> list[tuple[str, str]]:
    """Return the address and the base name of each file that one pattern matches."""
    if pattern.startswith(S3_SCHEME):
        is_named, uris = list_objects(pattern)
        found = [(uri, uri.rpartition("/")[2]) for uri in uris]
    elif pattern.startswith(WEB_SCHEMES):
        is_named, uris = list_web_files(pattern)
        found = [(uri, web_name(uri)) for uri in uris]
    elif "://" in pattern:
        scheme = pattern.partition("://")[0]  # Alone: a password may follow.
        raise SourceError(f"{scheme}://: there is no reader for such addresses; copy the files to a place that is read: {_PLACES}")
    else:
        path = Path(os.path.expanduser(pattern))  # noqa: PTH111 (Path.expanduser fails for users that are not known.)
        try:
            is_named = path.is_file()
            # Given name, real path: a file that is also found through a link of the same name counts once.
            found = [(os.path.realpath(match), match.name) for match in _local_files(pattern, path)]
        except OSError as error:
            raise _unreadable(pattern, error) from error
    if not is_named:
        found = [(uri, name) for uri, name in found if not name.startswith(".") and _is_known(name)]
    elif found[0][1].lower().endswith(".bin"):
        raise SourceError(
            f"{pattern}: is a Polyglot book, which has hashes of positions and no positions; give the games or positions that it was made"
            " from, as .pgn or .epd"
        )
    elif not _is_known(found[0][1]):
        raise SourceError(f"{pattern}: cannot tell by its suffix what it is; known are {_SUFFIXES}: rename or convert it")
    if not found:
        raise SourceError(f"{pattern}: no file found; give {_PLACES}, of files in {_SUFFIXES}")
    return found


def _local_files(pattern: str, path: Path) -> Iterator[Path]:
    if not pattern.strip() or (path.exists() and not path.is_file() and not path.is_dir()):
        raise SourceError(f"{pattern!r} is neither a file nor a folder; give the path of one")
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from _files_below(path)
    else:
        for match in map(Path, glob.iglob(str(path), recursive=True)):  # noqa: PTH207 (Path.glob takes no absolute pattern.)
            if match.is_dir():
                yield from _files_below(match)
            else:
                yield match


def _files_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise _unreadable(str(error.filename), error) from error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place) / name for name in names)


def _suffixes(name: str) -> tuple[FileKind | None, Packing]:
    stem, suffix = os.path.splitext(name.lower())  # noqa: PTH122
    packing = _PACKINGS.get(suffix, Packing.NONE)
    return _KINDS.get(suffix if packing == Packing.NONE else os.path.splitext(stem)[1]), packing  # noqa: PTH122


def _is_known(name: str) -> bool:
    kind, packing = _suffixes(name)
    return packing == Packing.ZIP or kind is not None


def _files_of(uri: str, name: str) -> Iterator[SourceFile]:
    """Yield the file itself, or the members of an archive that have a known suffix."""
    kind, packing = _suffixes(name)
    if packing != Packing.ZIP:
        assert kind is not None
        yield SourceFile(name=_storable(name), uri=uri, kind=kind, packing=packing)
        return
    with _opened(uri) as stream:
        members = Counter(member.filename for member in _directory(uri, stream).infolist())
    # Skip hidden files and macOS metadata (`__MACOSX/._games.pgn`).
    known = {member: _suffixes(member) for member in members if not member.rpartition("/")[2].startswith(".")}
    if nested := [member for member, (kind, packing) in known.items() if packing != Packing.NONE and (kind or packing == Packing.ZIP)]:
        raise SourceError(f"{uri}: its member {nested[0]} is compressed again; unpack the archive, and give its content")
    usable = {member: kind for member, (kind, _) in known.items() if kind is not None}
    if not usable:
        raise SourceError(f"{uri}: the archive has no member in {', '.join(_KINDS)} (but {len(members)} others); give another file")
    for member, kind in usable.items():
        if members[member] > 1:
            raise SourceError(f"{uri}: {members[member]} members are called {member}; recreate the archive")
        yield SourceFile(name=_storable(f"{name}/{member}"), uri=uri, kind=kind, packing=packing, member=member)


def _storable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{name!r}: the name is not UTF-8, and boards state it; rename the file") from None
    return name


def _unreadable(uri: str, error: OSError) -> SourceError:
    return SourceError(f"{uri}: cannot be read ({error.strerror or error}); correct the path, the rights or the disk, and start again")


def _size(stream: BinaryIO) -> int:
    raw = getattr(stream, "raw", None)  # Asked without seeking, which would make a remote file's server send it again.
    return raw.size if isinstance(raw, RemoteFile) else os.fstat(stream.fileno()).st_size


def _is_remote(uri: str) -> bool:
    return uri.startswith((S3_SCHEME, *WEB_SCHEMES))


def _remote(uri: str) -> RemoteFile:
    return S3Object(uri) if uri.startswith(S3_SCHEME) else WebFile(uri)


@contextmanager
def _opened(uri: str) -> Iterator[BinaryIO]:
    """Open a local or remote file for reading; an OSError, also inside the block, becomes a SourceError."""
    try:
        if _is_remote(uri):
            with io.BufferedReader(_remote(uri), CHUNK_SIZE) as stream:
                yield stream
        else:
            path = Path(uri)
            if path.exists() and not path.is_file():  # Opening a pipe would wait forever.
                raise SourceError(f"{uri}: cannot be read (it is not a regular file); give a file, or a folder of files")
            with path.open("rb", CHUNK_SIZE) as stream:
                yield stream
    except OSError as error:
        raise _unreadable(uri, error) from error


class _Packed:
    """Sequential reader of the compressed bytes of one file or archive member, with a counter."""

    def __init__(self, file: SourceFile, stream: BinaryIO, num_left: int | None = None, *, gauge: Gauge | None = None) -> None:
        self._file = file
        self._gauge = gauge or Gauge()
        self._stream = stream
        self._num_left = num_left
        """Remaining bytes of an archive member; None for a file, which is read to its end."""
        self.num_read = 0

    def read_up_to(self, count: int) -> bytes:
        """Return the next `count` bytes, or fewer if the file ends."""
        piece = self._stream.read(count if self._num_left is None else min(count, self._num_left))
        self.num_read += len(piece)
        self._gauge.num_packed += len(piece)
        if self._num_left is not None:
            self._num_left -= len(piece)
        return piece

    def exactly(self, count: int) -> bytes:
        """Return the next `count` bytes, or raise SourceError if the file ends."""
        piece = self.read_up_to(count)
        if len(piece) < count:
            raise self.cut_short()
        return piece

    def cut_short(self) -> SourceError:
        return self._bad(f"truncated: it ends at byte {self._stream.tell():,}, and more must follow")

    def damaged(self, start: int, what: str) -> SourceError:
        """Return an error for the bytes that were read since `num_read` was `start`."""
        end = self._stream.tell()
        return self._bad(f"damaged between bytes {end - (self.num_read - start):,} and {end:,} ({what})")

    def _bad(self, what: str) -> SourceError:
        member = f" (member {self._file.member})" if self._file.member else ""
        rescue = _RESCUES[self._file.packing]
        return SourceError(f"{self._file.uri}{member}: {what}; download it again, or unpack the intact part: {rescue}")


def _unpack_zstd(packed: _Packed) -> Iterator[bytes]:
    """Decompress block by block (RFC 8878, 3.1), because zstandard does not detect a file that ends inside a frame.

    A block decompresses to at most 128 KiB, so that memory is bounded and errors state the damaged block.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    is_first = True
    while (magic := packed.read_up_to(4)) or is_first:
        is_first = False
        start = packed.num_read - len(magic)
        if len(magic) == 4 and magic[0] & 0xF0 == 0x50 and magic[1:] == b"\x2a\x4d\x18":  # Skippable frame: size, then any bytes.
            left = int.from_bytes(packed.exactly(4), "little")
            while left:
                left -= len(packed.exactly(min(left, _PIECE_SIZE)))
            continue
        header = magic + packed.exactly(5 - len(magic))
        try:
            header += packed.exactly(zstandard.frame_header_size(header) - len(header))
            frame = zstandard.get_frame_parameters(header)
            if frame.window_size > _MAX_ZSTD_WINDOW:
                raise packed.damaged(start, f"or it needs {frame.window_size:,} bytes to unpack: compress it without --long or --ultra")
            stream = decompressor.decompressobj()
            stream.decompress(header)
            is_last = False
            while not is_last:
                start = packed.num_read
                head = packed.exactly(3)
                block = int.from_bytes(head, "little")
                is_last = bool(block & 1)
                is_run = block >> 1 & 3 == 1  # One byte, repeated; the size is that of the run.
                yield stream.decompress(head + packed.exactly(1 if is_run else block >> 3))
            if frame.has_checksum:
                yield stream.decompress(packed.exactly(4))
        except zstandard.ZstdError as error:
            raise packed.damaged(start, str(error)) from None
        assert stream.eof


class _Stream(Protocol):
    """The common interface of zlib's and bz2's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpack_streams(new_stream: Callable[[], _Stream], packed: _Packed) -> Iterator[bytes]:
    """Decompress one stream after another (members of a gzip file, streams of a bzip2 file) until the end."""
    piece = packed.exactly(1)
    while piece:
        stream = new_stream()
        has_more = True  # Whether the decompressor may have more output without new input.
        while not stream.eof:
            if not piece and not has_more and not (piece := packed.read_up_to(_PIECE_SIZE)):
                raise packed.cut_short()
            try:
                chunk = stream.decompress(piece, CHUNK_SIZE)
            except (zlib.error, OSError) as error:
                raise packed.damaged(max(packed.num_read - _PIECE_SIZE, 0), str(error)) from None
            yield chunk
            has_more = len(chunk) == CHUNK_SIZE
            piece = getattr(stream, "unconsumed_tail", b"")  # bz2 buffers unconsumed input itself.
        piece = stream.unused_data or packed.read_up_to(_PIECE_SIZE)


def _unpack_nothing(packed: _Packed) -> Iterator[bytes]:
    return iter(partial(packed.read_up_to, CHUNK_SIZE), b"")


_UNPACKERS: Final[dict[Packing, Callable[[_Packed], Iterator[bytes]]]] = {
    Packing.NONE: _unpack_nothing,
    Packing.ZST: _unpack_zstd,
    Packing.GZ: partial(_unpack_streams, partial(zlib.decompressobj, 31)),
    Packing.BZ2: partial(_unpack_streams, bz2.BZ2Decompressor),
}
_MEMBER_UNPACKERS: Final[dict[int, Callable[[_Packed], Iterator[bytes]]]] = {  # By the ZIP format's number of the method (APPNOTE 4.4.5).
    0: _unpack_nothing,
    8: partial(_unpack_streams, partial(zlib.decompressobj, -15)),
    12: _UNPACKERS[Packing.BZ2],
    93: _unpack_zstd,
}


def _without_bombs(chunks: Iterator[bytes], packed: _Packed) -> Iterator[bytes]:
    num_out = 0
    for chunk in chunks:
        num_out += len(chunk)
        if num_out > max(_BOMB_GRACE, _BOMB_RATIO * packed.num_read):
            raise packed.damaged(0, f"or a decompression bomb: they unpack to more than {num_out:,} bytes")
        if chunk:
            yield chunk


def _directory(uri: str, stream: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # ValueError: invalid offsets and names.
        raise SourceError(
            f"{uri}: not a complete ZIP archive ({error}); its directory is at its end, so it may be truncated: download it again,"
            f" or recover the intact part: {_RESCUES[Packing.ZIP]}"
        ) from None


def _read_member(file: SourceFile, stream: BinaryIO, gauge: Gauge) -> Iterator[bytes]:
    # zipfile only locates the member: it would decompress 4 kB of bzip2 to gigabytes in one piece.
    try:
        member = _directory(file.uri, stream).getinfo(file.member)
    except KeyError:
        raise SourceError(f"{file.uri}: the archive has no member {file.member} any more; start the run again") from None
    if member.flag_bits & 1:
        raise SourceError(f"{file.uri}: its member {file.member} is encrypted; unpack it with its password, and give the unpacked file")
    if member.compress_type not in _MEMBER_UNPACKERS:
        raise SourceError(
            f"{file.uri}: its member {file.member} is compressed by an unsupported method (number {member.compress_type});"
            " unpack it, and give the unpacked file"
        )
    stream.seek(member.header_offset)
    header = _Packed(file, stream)
    magic, name_size, extra_size = struct.unpack("<4s22x2H", header.exactly(30))
    if magic != b"PK\3\4":
        raise header.damaged(0, "not a member's header")
    header.exactly(name_size + extra_size)
    gauge.size = member.compress_size
    packed = _Packed(file, stream, member.compress_size, gauge=gauge)
    checksum = num_out = 0
    for chunk in _without_bombs(_MEMBER_UNPACKERS[member.compress_type](packed), packed):
        checksum = zlib.crc32(chunk, checksum)
        num_out += len(chunk)
        yield chunk
    if (checksum, num_out) != (member.CRC, member.file_size):
        raise packed.damaged(0, f"{num_out:,} bytes with checksum {checksum:08x}, not {member.file_size:,} with {member.CRC:08x}")

"""The bytes of a file, wherever it lies and however it is packed, and nothing cut short unnoticed."""

import bz2
import glob
import io
import os
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
from grpo.reading.s3 import S3_SCHEME, S3Object, list_objects

CHUNK_SIZE: Final = 2**20
"""Bytes; no chunk of `read_chunks` is longer."""

_PIECE_SIZE: Final = 2**16  # Packed bytes handed to zlib and bz2 at a time, hence how exactly they can say where a file is damaged.
_MAX_ZSTD_WINDOW: Final = 2**27  # 128 MiB, as `zstd -d` allows; more needs `zstd --long=31`, and that much memory.
# A decompression bomb: game files shrink to a fifth or a tenth, deflate can at most shrink to 1/1,032. Small files may do as they like.
_BOMB_GRACE: Final = 2**26
_BOMB_RATIO: Final = 1_000


class FileKind(StrEnum):
    """What a file lists."""

    GAMES = "games"
    POSITIONS = "positions"
    PUZZLES = "puzzles"


class Packing(StrEnum):
    """How a file's bytes are packed."""

    NONE = "none"
    ZST = "zst"
    GZ = "gz"
    BZ2 = "bz2"
    ZIP = "zip"


_KINDS: Final = {".pgn": FileKind.GAMES, ".epd": FileKind.POSITIONS, ".fen": FileKind.POSITIONS, ".csv": FileKind.PUZZLES}
_PACKINGS: Final = {".zst": Packing.ZST, ".gz": Packing.GZ, ".bz2": Packing.BZ2, ".zip": Packing.ZIP}
_SUFFIXES: Final = f"{', '.join(_KINDS)}, plain or followed by {', '.join(_PACKINGS)}"
_RESCUES: Final = {
    Packing.ZST: "zstd -dc FILE > WHOLE",
    Packing.GZ: "gzip -dc FILE > WHOLE",
    Packing.BZ2: "bzip2 -dc FILE > WHOLE",
    Packing.ZIP: "zip -FF FILE --out WHOLE.zip",
}


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class SourceFile:
    """A file of games, positions or puzzles; files are ordered by name, which is the same on every machine."""

    name: str
    """As boards state it: without folder; for a member of an archive `ARCHIVE.zip/MEMBER`."""
    uri: str
    """Absolute path, or `s3://bucket/key`."""
    kind: FileKind
    packing: Packing
    member: str = ""
    """Path inside of the archive, for `Packing.ZIP`."""


def find_files(patterns: Sequence[str]) -> list[SourceFile]:
    """Return the files that paths, folders (whole), globs, and S3 keys, prefixes (`.../`) or globs stand for; by name, each once.

    Of folders, prefixes and globs only what has a known suffix counts, and nothing hidden. Names are unique, so that neither the order
    of the patterns nor the folder in which a file lies has a bearing on the order.

    Raises SourceError when a pattern stands for nothing, a named file has an unknown suffix, an archive cannot be read, or two
    different files have one name.
    """
    found = {file for pattern in patterns for uri, name in _addresses(pattern) for file in _files_of(uri, name)}
    files = sorted(found)
    name, count = max(Counter(file.name for file in files).items(), key=lambda item: item[1], default=("", 0))
    if count > 1:
        places = " and ".join(sorted({file.uri for file in files if file.name == name}))
        raise SourceError(f"{count} different files are called {name} ({places}); a board states only the name: rename one of them")
    return files


def read_chunks(file: SourceFile) -> Iterator[bytes]:
    """Yield the unpacked bytes, in chunks of at most 1 MiB and as they come: memory is bounded whatever the file is.

    Raises SourceError when the file cannot be read, is cut short, is damaged, goes on after its end, or is a decompression bomb. A plain
    file cannot be checked.
    """
    with _opened(file.uri) as stream:
        if file.packing == Packing.ZIP:
            yield from _read_member(file, stream)
        elif file.packing == Packing.NONE:
            yield from iter(partial(stream.read, CHUNK_SIZE), b"")
        else:
            packed = _Packed(file, stream)
            yield from _without_bombs(_UNPACKERS[file.packing](packed), packed)


def fingerprint(file: SourceFile) -> str:
    """Return a hash, in hex, of the packed bytes; of an S3 object, which is far away, of its ETag and size. A member adds its name.

    Raises SourceError when the file cannot be read.
    """
    if file.uri.startswith(S3_SCHEME):
        with S3Object(file.uri) as remote:
            whole = sha256_text(f"{remote.etag}:{remote.size}")
    else:
        with _opened(file.uri):  # For its words when it cannot be read.
            whole = sha256_file(Path(file.uri))
    return sha256_text(f"{whole}/{file.member}") if file.member else whole


def fingerprint_of_all(files: Iterable[SourceFile]) -> str:
    """Return a hash, in hex, of the contents of several files, whatever their order and their names."""
    return sha256_text("\n".join(sorted(map(fingerprint, files))))


def _addresses(pattern: str) -> list[tuple[str, str]]:
    """Return address and base name of each file that one pattern stands for."""
    if pattern.startswith(S3_SCHEME):
        is_named, uris = list_objects(pattern)
        found = [(uri, uri.rpartition("/")[2]) for uri in uris]
    else:
        path = Path(os.path.expanduser(pattern))  # noqa: PTH111 (Path.expanduser fails for users that are not known.)
        try:
            is_named = path.is_file()
            # The name is the one given, the address the real one: a file met twice, once by a link of the same name, is one file.
            found = [(os.path.realpath(match), match.name) for match in _local_files(pattern, path)]
        except OSError as error:
            raise _unreadable(pattern, error) from error
    if not is_named:
        found = [(uri, name) for uri, name in found if not name.startswith(".") and _is_known(name)]
    elif not _is_known(found[0][1]):
        raise SourceError(f"{pattern}: cannot tell by its suffix what it is; known are {_SUFFIXES}: rename or convert it")
    if not found:
        raise SourceError(f"{pattern}: no file found; give a file, a folder, a glob or s3://bucket/prefix/ with files in {_SUFFIXES}")
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
    """Yield the file itself, or the members of an archive of which the suffix is known."""
    kind, packing = _suffixes(name)
    if packing != Packing.ZIP:
        assert kind is not None
        yield SourceFile(name=_storable(name), uri=uri, kind=kind, packing=packing)
        return
    with _opened(uri) as stream:
        members = Counter(member.filename for member in _directory(uri, stream).infolist())
    # Neither hidden files nor macOS's shadows of them (`__MACOSX/._games.pgn`).
    known = {member: _suffixes(member) for member in members if not member.rpartition("/")[2].startswith(".")}
    if nested := [member for member, (kind, packing) in known.items() if packing != Packing.NONE and (kind or packing == Packing.ZIP)]:
        raise SourceError(f"{uri}: its member {nested[0]} is packed once more; unpack the archive, and give what was in it")
    usable = {member: kind for member, (kind, _) in known.items() if kind is not None}
    if not usable:
        raise SourceError(f"{uri}: the archive has no member in {', '.join(_KINDS)} (but {len(members)} others); give another file")
    for member, kind in usable.items():
        if members[member] > 1:
            raise SourceError(f"{uri}: {members[member]} members are called {member}; pack the archive anew")
        yield SourceFile(name=_storable(f"{name}/{member}"), uri=uri, kind=kind, packing=packing, member=member)


def _storable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{name!r}: the name is not UTF-8, and boards state it; rename the file") from None
    return name


def _unreadable(uri: str, error: OSError) -> SourceError:
    return SourceError(f"{uri}: cannot be read ({error.strerror or error}); correct the path, the rights or the disk, and start again")


@contextmanager
def _opened(uri: str) -> Iterator[BinaryIO]:
    """Open a file or object for reading; an OSError of the block, too, becomes a SourceError."""
    try:
        if uri.startswith(S3_SCHEME):
            with io.BufferedReader(S3Object(uri), CHUNK_SIZE) as stream:
                yield stream
        else:
            path = Path(uri)
            if path.exists() and not path.is_file():  # To open a pipe would wait for ever.
                raise SourceError(f"{uri}: cannot be read (it is no file); give a file, or a folder of files")
            with path.open("rb", CHUNK_SIZE) as stream:
                yield stream
    except OSError as error:
        raise _unreadable(uri, error) from error


class _Packed:
    """The packed bytes of one file, or of one member of an archive, in order and counted."""

    def __init__(self, file: SourceFile, stream: BinaryIO, num_left: int | None = None) -> None:
        self._file = file
        self._stream = stream
        self._num_left = num_left
        """Bytes of the member that are still to come; a file ends where it ends."""
        self.num_taken = 0

    def read_up_to(self, count: int) -> bytes:
        """Return the next bytes: so many, or fewer if the file ends."""
        piece = self._stream.read(count if self._num_left is None else min(count, self._num_left))
        self.num_taken += len(piece)
        if self._num_left is not None:
            self._num_left -= len(piece)
        return piece

    def exactly(self, count: int) -> bytes:
        """Return the next bytes: so many, or raise SourceError."""
        piece = self.read_up_to(count)
        if len(piece) < count:
            raise self.cut_short()
        return piece

    def cut_short(self) -> SourceError:
        return self._bad(f"cut short: it ends at byte {self._stream.tell():,}, and more must follow")

    def damaged(self, start: int, what: str) -> SourceError:
        """Return an error for the bytes that were taken since `num_taken` was `start`."""
        end = self._stream.tell()
        return self._bad(f"damaged between bytes {end - (self.num_taken - start):,} and {end:,} ({what})")

    def _bad(self, what: str) -> SourceError:
        member = f" (member {self._file.member})" if self._file.member else ""
        rescue = _RESCUES[self._file.packing]
        return SourceError(f"{self._file.uri}{member}: {what}; download it again, or unpack what is whole: {rescue}")


def _unpack_zstd(packed: _Packed) -> Iterator[bytes]:
    """Walk the blocks of each frame (RFC 8878, 3.1): zstandard takes a file that ends in mid-frame for a whole one.

    A block unpacks to at most 128 KiB, so that memory is bounded, and errors are exact to one block.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    is_first = True
    while (magic := packed.read_up_to(4)) or is_first:
        is_first = False
        start = packed.num_taken - len(magic)
        if len(magic) == 4 and magic[0] & 0xF0 == 0x50 and magic[1:] == b"\x2a\x4d\x18":  # A skippable frame: its size, and anything.
            left = int.from_bytes(packed.exactly(4), "little")
            while left:
                left -= len(packed.exactly(min(left, _PIECE_SIZE)))
            continue
        header = magic + packed.exactly(5 - len(magic))
        try:
            header += packed.exactly(zstandard.frame_header_size(header) - len(header))
            frame = zstandard.get_frame_parameters(header)
            if frame.window_size > _MAX_ZSTD_WINDOW:
                raise packed.damaged(start, f"or it needs {frame.window_size:,} bytes to unpack: pack it anew without --long or --ultra")
            stream = decompressor.decompressobj()
            stream.decompress(header)
            is_last = False
            while not is_last:
                start = packed.num_taken
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
    """What zlib and bz2 have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def _unpack_streams(new_stream: Callable[[], _Stream], packed: _Packed) -> Iterator[bytes]:
    """Unpack one stream after another (members of a gzip file, streams of a bzip2 file), until nothing is left."""
    piece = packed.exactly(1)
    while piece:
        stream = new_stream()
        has_more = True  # Whether more may come out without anything going in.
        while not stream.eof:
            if not piece and not has_more and not (piece := packed.read_up_to(_PIECE_SIZE)):
                raise packed.cut_short()
            try:
                chunk = stream.decompress(piece, CHUNK_SIZE)
            except (zlib.error, OSError) as error:
                raise packed.damaged(max(packed.num_taken - _PIECE_SIZE, 0), str(error)) from None
            yield chunk
            has_more = len(chunk) == CHUNK_SIZE
            piece = getattr(stream, "unconsumed_tail", b"")  # bz2 keeps what it did not get to.
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
        if num_out > max(_BOMB_GRACE, _BOMB_RATIO * packed.num_taken):
            raise packed.damaged(0, f"or a decompression bomb: they unpack to more than {num_out:,} bytes")
        if chunk:
            yield chunk


def _directory(uri: str, stream: BinaryIO) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(stream)
    except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:  # ValueError: offsets and names that cannot be.
        raise SourceError(
            f"{uri}: no whole ZIP archive ({error}); its directory is at its end, so it may be cut short: download it again,"
            f" or save what is whole: {_RESCUES[Packing.ZIP]}"
        ) from None


def _read_member(file: SourceFile, stream: BinaryIO) -> Iterator[bytes]:
    # zipfile finds the member but does not unpack it: 4 kB of bzip2 would become gigabytes in one piece.
    try:
        member = _directory(file.uri, stream).getinfo(file.member)
    except KeyError:
        raise SourceError(f"{file.uri}: the archive has no member {file.member} any more; start the run anew") from None
    if member.flag_bits & 1:
        raise SourceError(f"{file.uri}: its member {file.member} is encrypted; unpack it with its password, and give the unpacked file")
    if member.compress_type not in _MEMBER_UNPACKERS:
        raise SourceError(
            f"{file.uri}: its member {file.member} is packed by a rare method (number {member.compress_type});"
            " unpack it, and give the unpacked file"
        )
    stream.seek(member.header_offset)
    header = _Packed(file, stream)
    magic, name_size, extra_size = struct.unpack("<4s22x2H", header.exactly(30))
    if magic != b"PK\3\4":
        raise header.damaged(0, "no header of a member")
    header.exactly(name_size + extra_size)
    packed = _Packed(file, stream, member.compress_size)
    checksum = num_out = 0
    for chunk in _without_bombs(_MEMBER_UNPACKERS[member.compress_type](packed), packed):
        checksum = zlib.crc32(chunk, checksum)
        num_out += len(chunk)
        yield chunk
    if (checksum, num_out) != (member.CRC, member.file_size):
        raise packed.damaged(0, f"{num_out:,} bytes with checksum {checksum:08x}, not {member.file_size:,} with {member.CRC:08x}")

import bz2
import gzip
import hashlib
import io
import os
import random
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import urllib3.exceptions
import zstandard
from moto import mock_aws

from grpo.reading import remote, s3
from grpo.reading.games import SourceError
from grpo.reading.streams import CHUNK_SIZE, FileKind, Packing, SourceFile, find_files, fingerprint, read_chunks

SAMPLE_DATA = os.environ.get("CHESS_GRPO_SAMPLE_DATA", "")
TEXT = "".join(f"{number}. e4 e5 {random.Random(number).random()}\n" for number in range(8_000)).encode()  # 260 kB, packs to a third.


def pack_zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def pack_zip(data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        archive.writestr("games.pgn", data)
    return packed.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "zst": pack_zst,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zip": pack_zip,
}
packings = pytest.mark.parametrize("packing", PACKERS)


def read(path: Path) -> bytes:
    return b"".join(chunk for file in find_files([str(path)]) for chunk in read_chunks(file))


def num_bytes_before_error(file: SourceFile, message: str) -> int:
    sizes: list[int] = []
    with pytest.raises(SourceError, match=message):
        sizes.extend(len(chunk) for chunk in read_chunks(file))
    assert 0 < max(sizes) <= CHUNK_SIZE
    return sum(sizes)


def unpacked(tmp_path: Path, name: str, packed: bytes) -> bytes:
    path = tmp_path / name
    path.write_bytes(packed)
    return read(path)


@pytest.mark.parametrize("size", [0, CHUNK_SIZE])
@packings
def test_what_is_packed_is_unpacked(tmp_path: Path, packing: str, size: int) -> None:
    data = (5 * TEXT)[:size]
    assert unpacked(tmp_path, f"x.pgn.{packing}", PACKERS[packing](data)) == data
    assert unpacked(tmp_path, "x.pgn", data) == data


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_member_is_unpacked_by_any_usual_method(tmp_path: Path, method: int) -> None:
    assert unpacked(tmp_path, "x.zip", pack_zip(TEXT, method)) == TEXT


def test_a_member_whose_header_is_longer_than_the_directory_says_is_read(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as made, made.open("games.pgn", "w", force_zip64=True) as member:
        member.write(TEXT)
    assert unpacked(tmp_path, "x.zip", packed.getvalue()) == TEXT


def test_a_member_packed_by_a_rare_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="unsupported method \\(number 14\\); unpack it"):
        unpacked(tmp_path, "x.zip", pack_zip(TEXT, zipfile.ZIP_LZMA))


def test_an_archive_behind_other_bytes_is_read_as_unzip_reads_it(tmp_path: Path) -> None:
    assert unpacked(tmp_path, "x.zip", b"#!/bin/sh\n" * 50 + pack_zip(TEXT)) == TEXT


@pytest.mark.parametrize("packing", ["zst", "gz", "bz2"])
def test_files_put_one_behind_the_other_are_all_read(tmp_path: Path, packing: str) -> None:
    pack = PACKERS[packing]
    # An empty part, and one that ends exactly where a piece of 64 KiB does, are where a reader may lose its place.
    parts = [TEXT, b"", TEXT[:1_000], random.Random(1).randbytes(70_000), b"", TEXT]
    assert unpacked(tmp_path, f"x.pgn.{packing}", b"".join(map(pack, parts))) == b"".join(parts)


@pytest.mark.parametrize("packing", ["zst", "gz", "bz2"])
def test_parts_may_end_wherever_a_piece_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    part = PACKERS[packing](TEXT[:100])
    for size in range(1, len(part) + 2):
        monkeypatch.setattr("grpo.reading.streams._PIECE_SIZE", size)
        assert unpacked(tmp_path, f"x.pgn.{packing}", 3 * part) == 3 * TEXT[:100]


def test_skippable_frames_are_skipped_wherever_they_stand(tmp_path: Path) -> None:
    def skippable(kind: int, size: int) -> bytes:
        return struct.pack("<II", 0x184D2A50 + kind, size) + b"\x28\xb5\x2f\xfd"[:size] + b"x" * max(0, size - 4)

    packed = skippable(0, 3) + pack_zst(TEXT) + skippable(15, 200_000) + pack_zst(b"more") + skippable(7, 0)
    assert unpacked(tmp_path, "x.pgn.zst", packed) == TEXT + b"more"
    with pytest.raises(SourceError, match="truncated: it ends at byte 107,"):
        unpacked(tmp_path, "x.pgn.zst", skippable(1, 100)[:-1])


@pytest.mark.parametrize(
    "options",
    [{"write_content_size": False}, {"write_checksum": True}, {"threads": 2}, {"level": -5, "write_checksum": False}],
)
def test_frames_of_any_make_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    data = TEXT + bytes(300_000) + random.Random(2).randbytes(300_000)  # Blocks of all three kinds: packed, a run, raw.
    made = zstandard.ZstdCompressor(**options)
    assert unpacked(tmp_path, "x.pgn.zst", made.compress(data)) == data
    stream = made.compressobj()
    pieces = [stream.compress(data[:5]), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), stream.compress(data[5:]), stream.flush()]
    assert unpacked(tmp_path, "x.pgn.zst", b"".join(pieces)) == data


@packings
def test_a_file_cut_short_anywhere_is_noticed(tmp_path: Path, packing: str) -> None:
    whole = PACKERS[packing](TEXT)
    rng = random.Random(3)
    for cut in {0, 1, 2, 3, 4, 5, 9, len(whole) - 1, len(whole) - 4, len(whole) - 22, *(rng.randrange(len(whole)) for _ in range(12))}:
        with pytest.raises(SourceError, match=f"x.pgn.{packing}.*truncated.*download it again") as error:
            unpacked(tmp_path, f"x.pgn.{packing}", whole[:cut])
        if packing != "zip":
            assert f"ends at byte {cut:,}," in str(error.value)


@pytest.mark.parametrize("packing", ["zst", "gz", "bz2"])
def test_a_second_part_cut_short_anywhere_is_noticed(tmp_path: Path, packing: str) -> None:
    part = PACKERS[packing](TEXT[:500])
    for cut in range(1, len(part)):
        with pytest.raises(SourceError, match="truncated"):
            unpacked(tmp_path, f"x.pgn.{packing}", part + part[:cut])
    assert unpacked(tmp_path, f"x.pgn.{packing}", part + part) == 2 * TEXT[:500]


@pytest.mark.parametrize("packing", ["zst", "gz", "bz2"])
def test_bytes_after_the_end_are_refused(tmp_path: Path, packing: str) -> None:
    whole = PACKERS[packing](TEXT)
    for rubbish in (b"\0", b"rubbish after the end", bytes(100_000), TEXT):
        with pytest.raises(SourceError, match=r"truncated|damaged between bytes"):
            unpacked(tmp_path, f"x.pgn.{packing}", whole + rubbish)


@packings
def test_a_changed_byte_gives_an_error_or_the_same_text(tmp_path: Path, packing: str) -> None:
    whole = PACKERS[packing](TEXT[:20_000])
    rng = random.Random(4)
    num_noticed = 0
    for _ in range(200):
        place = rng.randrange(len(whole))
        damaged = whole[:place] + bytes([whole[place] ^ rng.randrange(1, 256)]) + whole[place + 1 :]
        try:
            # Header fields that do not bear on the text (a time, a name) may change.
            assert unpacked(tmp_path, f"x.pgn.{packing}", damaged) == TEXT[:20_000]
        except SourceError:
            num_noticed += 1
    assert num_noticed > 180


@pytest.mark.parametrize("packing", ["zst", "gz", "bz2"])
def test_an_error_says_between_which_bytes_the_damage_is(tmp_path: Path, packing: str) -> None:
    data = random.Random(5).randbytes(3_000_000)
    whole = bytearray(PACKERS[packing](data))
    place = 2_000_000
    whole[place : place + 40] = bytes(40)
    with pytest.raises(SourceError, match=r"x.pgn.*damaged between bytes .*download it again, or unpack the intact part: ") as error:
        unpacked(tmp_path, f"x.pgn.{packing}", bytes(whole))
    start, end = (int(word.replace(",", "")) for word in str(error.value).split("between bytes ")[1].split(" (")[0].split(" and "))
    assert start < end <= start + 2**18, "no more than what was read last"
    if packing == "bz2":  # Blocks of 900 kB; all of one is read before its checksum.
        assert start - 1_000_000 <= place < end
    else:  # Random bytes are stored, not packed: the checksum at the end tells.
        assert place < end == len(whole)


def test_a_damaged_block_of_a_frame_is_named_to_the_byte(tmp_path: Path) -> None:
    whole = bytearray(pack_zst(random.Random(8).randbytes(400_000)))
    start = zstandard.frame_header_size(bytes(whole)) + 3 + 131_072  # The second of three blocks that are stored as they are.
    whole[start] |= 6  # No such kind of block.
    with pytest.raises(SourceError, match=f"damaged between bytes {start:,} and {start + 3 + 131_072:,} "):
        unpacked(tmp_path, "x.pgn.zst", bytes(whole))


BOMB_SIZE = 200_000_000


def zeros(compressor: Any) -> bytes:
    return b"".join([*(compressor.compress(bytes(10_000_000)) for _ in range(BOMB_SIZE // 10_000_000)), compressor.flush()])


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("x.pgn.zst", lambda: zstandard.ZstdCompressor().compressobj()),
        ("x.pgn.bz2", bz2.BZ2Compressor),
        ("x.pgn.gz", lambda: zlib.compressobj(9, zlib.DEFLATED, 31)),
    ],
)
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, name: str, make: Callable[[], Any]) -> None:
    path = tmp_path / name
    path.write_bytes(zeros(make()))
    (file,) = find_files([str(path)])
    tracemalloc.start()
    try:
        num_read = num_bytes_before_error(file, "decompression bomb")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_read >= 2**26
    assert num_read < BOMB_SIZE  # Deflate cannot shrink further than to 1/1,032, so that most of the bomb goes by.
    assert peak < 12 * 2**20


def test_a_bomb_in_an_archive_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive, archive.open("x.pgn", "w") as member:
        for _ in range(BOMB_SIZE // 10_000_000):
            member.write(bytes(10_000_000))
    (file,) = find_files([str(path)])
    tracemalloc.start()
    try:
        num_bytes_before_error(file, "decompression bomb")
        assert tracemalloc.get_traced_memory()[1] < 12 * 2**20
    finally:
        tracemalloc.stop()


def test_a_file_that_packs_well_is_no_bomb_below_64_mebibytes(tmp_path: Path) -> None:
    data = bytes(2**26)
    assert unpacked(tmp_path, "x.pgn.zst", pack_zst(data)) == data


def test_a_window_above_128_mebibytes_is_refused(tmp_path: Path) -> None:
    def packed(window_log: int) -> bytes:
        settings = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log, write_content_size=False)
        stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()
        return stream.compress(TEXT) + stream.flush()

    assert unpacked(tmp_path, "x.pgn.zst", packed(27)) == TEXT
    with pytest.raises(SourceError, match="needs 268,435,456 bytes to unpack: compress it without --long"):
        unpacked(tmp_path, "x.pgn.zst", packed(28))


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    packed = bytearray(pack_zip(TEXT))
    directory = packed.index(b"PK\1\2")
    packed[directory + 8] |= 1
    with pytest.raises(SourceError, match=r"member games.pgn is encrypted; unpack it with its password"):
        unpacked(tmp_path, "x.zip", bytes(packed))


@pytest.mark.parametrize(("field", "what"), [(16, "checksum"), (24, "bytes with")])
def test_a_member_unlike_the_archives_directory_is_damaged(tmp_path: Path, field: int, what: str) -> None:
    packed = bytearray(pack_zip(TEXT))
    packed[packed.index(b"PK\1\2") + field] ^= 1
    with pytest.raises(SourceError, match=f"member games.pgn.*damaged between bytes 39 and .*{what}"):
        unpacked(tmp_path, "x.zip", bytes(packed))


def test_a_member_whose_header_is_not_where_the_directory_says_is_damaged(tmp_path: Path) -> None:
    packed = bytearray(pack_zip(TEXT))
    packed[0] ^= 1
    with pytest.raises(SourceError, match="not a member's header"):
        unpacked(tmp_path, "x.zip", bytes(packed))


FEN_LINE = b"rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1\n"
GAME_TEXT = b'[Event "x"]\n\n1. e4 e5 *\n\n' * 9


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.pgn.zst", gzip.compress(GAME_TEXT), "is packed as gz, and its name says otherwise; rename it, to end in .pgn.gz"),
        ("x.pgn.gz", pack_zst(GAME_TEXT), "is packed as zst"),
        ("x.pgn", bz2.compress(GAME_TEXT), "is packed as bz2"),
        ("x.epd", pack_zip(FEN_LINE), "rename it, to end in .epd.zip"),
        ("x.pgn.bz2", GAME_TEXT, "is not packed, and its name says otherwise; rename it, to end in .pgn$"),
        ("x.pgn", GAME_TEXT.decode().encode("utf-16-le"), "is UTF-16"),
        ("x.pgn.gz", gzip.compress(GAME_TEXT.decode().encode("utf-16-be")), "is UTF-16"),
        ("x.epd", FEN_LINE.decode().encode("utf-16-le"), "is UTF-16"),
        ("x.pgn", FEN_LINE, "is a list of positions, and its name says games; rename it, to end in .epd"),
        ("x.epd.zst", pack_zst(GAME_TEXT), "is games, and its name says a list of positions; rename it, to end in .pgn"),
        ("x.epd", b"PuzzleId,FEN,Moves,Rating\n", "is a table of puzzles"),
        ("x.pgn", b"<!DOCTYPE html><title>404</title>", "is a web page"),
    ],
)
def test_content_of_another_kind_than_the_name_says_is_told(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    (file,) = find_files([str(tmp_path / name)])
    with pytest.raises(SourceError, match=message):
        list(read_chunks(file))


def test_a_file_that_vanishes_and_a_disk_that_fails_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.pgn"
    path.write_bytes(TEXT)
    (file,) = find_files([str(path)])
    path.unlink()
    for use in (fingerprint, lambda file: list(read_chunks(file))):
        with pytest.raises(SourceError, match=r"x.pgn: cannot be read .No such file or directory.; correct the path"):
            use(file)
    path.symlink_to("/proc/self/mem")  # Whose first byte cannot be read: the same error as a bad sector gives.
    with pytest.raises(SourceError, match=r"cannot be read .Input/output error."):
        list(read_chunks(SourceFile(name="x.pgn", uri=str(path), kind=FileKind.GAMES, packing=Packing.NONE)))
    path.unlink()
    path.mkdir()
    with pytest.raises(SourceError, match=r"cannot be read .it is not a regular file."):
        list(read_chunks(file))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_what_may_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    path = tmp_path / "closed" / "x.pgn"
    path.write_bytes(TEXT)
    path.chmod(0)
    with pytest.raises(SourceError, match="Permission denied"):
        read(path)
    path.parent.chmod(0)
    try:
        for pattern in (path, path.parent, tmp_path):
            with pytest.raises(SourceError, match="Permission denied"):
                find_files([str(pattern)])
    finally:
        path.parent.chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.pgn").write_bytes(TEXT)

    def fail(path: str) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(SourceError, match=f"{tmp_path}: cannot be read .Permission denied."):
        find_files([str(tmp_path)])


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path, within: Callable[[float], Any]) -> None:
    os.mkfifo(tmp_path / "x.pgn")
    with within(60):
        with pytest.raises(SourceError, match="neither a file nor a folder"):
            find_files([str(tmp_path / "x.pgn")])
        with pytest.raises(SourceError, match="it is not a regular file"):
            read(tmp_path)


def names(*patterns: object) -> list[str]:
    return [file.name for file in find_files([str(pattern) for pattern in patterns])]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.pgn", "a.pgn.zst", "deep/er/c.EPD", "deep/d.fen.BZ2", "deep/p.csv.gz", "z/[1].pgn"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(TEXT[:100])
    for name in ("readme.txt", ".hidden.pgn", "deep/._d.fen", "table.csv.txt", "pgn", "x.zst", "b.pgn.part", ".git/e.pgn"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path


def test_a_folder_stands_for_all_files_of_known_suffixes_below(folder: Path) -> None:
    assert [(file.name, file.kind, file.packing) for file in find_files([str(folder)])] == [
        ("[1].pgn", FileKind.GAMES, Packing.NONE),
        ("a.pgn.zst", FileKind.GAMES, Packing.ZST),
        ("b.pgn", FileKind.GAMES, Packing.NONE),
        ("c.EPD", FileKind.POSITIONS, Packing.NONE),
        ("d.fen.BZ2", FileKind.POSITIONS, Packing.BZ2),
        ("p.csv.gz", FileKind.PUZZLES, Packing.GZ),
    ]


def test_globs_files_and_folders_are_found_once_each_in_one_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(folder / "*.pgn*") == ["a.pgn.zst", "b.pgn"]
    assert names(folder / "**" / "*.[eE][pP][dD]") == ["c.EPD"]
    assert names(folder / "**") == names(folder / "*", folder / "b.pgn") == names(folder)
    assert names(folder / "d??p") == names(folder / "deep") == ["c.EPD", "d.fen.BZ2", "p.csv.gz"]
    assert names(folder / "z" / "[1].pgn") == ["[1].pgn"]  # A file of this name goes before what the glob would match.
    patterns = [folder / "z", folder / "b.pgn", folder / "deep", folder / "*.zst", folder / "deep" / "**"]
    assert find_files([str(pattern) for pattern in patterns]) == find_files([str(pattern) for pattern in reversed(patterns)])
    monkeypatch.chdir(folder / "deep")
    assert find_files(["../b.pgn"]) == find_files([str(folder / "b.pgn")])
    monkeypatch.setenv("HOME", str(folder))
    assert names("~/b.pgn") == ["b.pgn"]
    assert find_files([]) == []


def test_the_order_of_files_does_not_depend_on_where_they_lie(tmp_path: Path) -> None:
    for places in (("1", "2"), ("2", "1")):
        root = tmp_path / "".join(places)
        for place, name in zip(places, ("a.pgn", "b.pgn"), strict=True):
            (root / place).mkdir(parents=True)
            (root / place / name).write_bytes(b"")
        assert names(root) == ["a.pgn", "b.pgn"]


def test_two_files_of_one_name_are_refused_and_a_link_to_one_is_not(tmp_path: Path) -> None:
    for place in ("1", "2"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.pgn").write_bytes(b"")
    with pytest.raises(SourceError, match=f"2 different files are called x.pgn .{tmp_path}/1/x.pgn and {tmp_path}/2/x.pgn.*rename one"):
        find_files([str(tmp_path)])
    (tmp_path / "2" / "x.pgn").unlink()
    (tmp_path / "2" / "x.pgn").symlink_to(tmp_path / "1" / "x.pgn")
    assert names(tmp_path) == ["x.pgn"]


@pytest.mark.parametrize(
    "pattern", ["", " ", "missing.pgn", "missing/", "*.nothing", "a\0b.pgn", "~nobody-at-all/x.pgn", "x" * 5_000, "/dev/null"]
)
def test_a_pattern_that_stands_for_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=r"no file found; give|neither a file nor a folder|cannot be read"):
        find_files([pattern])


@pytest.mark.parametrize("address", ["gs://bucket/games.pgn", "az://container/2026/", "ftp://me:hunter2@host/x.pgn"])
def test_an_address_that_nothing_reads_is_told_and_not_repeated(address: str) -> None:
    with pytest.raises(SourceError, match=r"^\w+://: there is no reader for such addresses; copy the files to .*s3://") as told:
        find_files([address])
    assert "hunter2" not in str(told.value)


def test_a_polyglot_book_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "book.bin").write_bytes(bytes(16))
    with pytest.raises(SourceError, match=r"is a Polyglot book, .* as \.pgn or \.epd"):
        find_files([str(tmp_path / "book.bin")])


@pytest.mark.parametrize("name", ["x.txt", "x", "x.pgn.txt", "x.zst", "x.pgn.xz", "x.gz.pgn.gz.zst", "x.pgn.gz.zst"])
def test_a_named_file_of_unknown_suffix_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(SourceError, match=r"cannot tell by its suffix.*known are \.pgn, \.epd, .*: rename or convert"):
        find_files([str(tmp_path / name)])
    with pytest.raises(SourceError, match="no file found"):
        find_files([str(tmp_path)])


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.pgn")).write_bytes(b"")
    with pytest.raises(SourceError, match="not UTF-8"):
        find_files([str(tmp_path)])


def archive(path: Path, *members: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for member in members:
            made.writestr(member, member)
    return path


def test_an_archives_members_are_files(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.epd.zip", "read.me", "b.PGN", "deep/a.epd", "__MACOSX/._b.pgn", "deep/p.csv", "deep/")
    files = find_files([str(path)])
    assert [(file.name, file.member, file.kind) for file in files] == [
        ("x.epd.zip/b.PGN", "b.PGN", FileKind.GAMES),
        ("x.epd.zip/deep/a.epd", "deep/a.epd", FileKind.POSITIONS),
        ("x.epd.zip/deep/p.csv", "deep/p.csv", FileKind.PUZZLES),
    ]
    assert [b"".join(read_chunks(file)).decode() for file in files] == ["b.PGN", "deep/a.epd", "deep/p.csv"]


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["a.txt", "b.md"], r"no member in \.pgn, .*but 2 others"),
        ([], "but 0 others"),
        (["a.pgn", "b.pgn.gz"], r"its member b\.pgn\.gz is compressed again; unpack"),
        (["a.pgn", "b.zip"], r"its member b\.zip is compressed again"),
        (["a.pgn", "a.pgn"], r"2 members are called a\.pgn"),
    ],
)
def test_an_archive_of_which_something_would_be_lost_is_told(tmp_path: Path, members: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        find_files([str(archive(tmp_path / "x.zip", *members))])


def test_a_member_that_is_gone_is_told(tmp_path: Path) -> None:
    (file,) = find_files([str(archive(tmp_path / "x.zip", "a.pgn"))])
    archive(tmp_path / "x.zip", "b.pgn")
    with pytest.raises(SourceError, match=r"no member a\.pgn any more"):
        list(read_chunks(file))


def test_a_fingerprint_is_of_the_content_alone(tmp_path: Path) -> None:
    for name in ("a.pgn", "b.pgn", "c.pgn"):
        (tmp_path / name).write_bytes(TEXT[:10] if name < "c" else TEXT[:11])
    first, second, third = map(fingerprint, find_files([str(tmp_path)]))
    assert first == second != third
    assert first == hashlib.sha256(TEXT[:10]).hexdigest()
    members = find_files([str(archive(tmp_path / "x.zip", "a.pgn", "b.pgn"))])
    assert len({*map(fingerprint, members), first}) == 3


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(remote, "_BACK_OFF_SECONDS", 0.0)
    with mock_aws():
        made = boto3.resource("s3").Bucket("chess")
        made.create()
        yield made


def test_objects_are_found_by_key_prefix_and_glob(bucket: Any) -> None:
    for key in ("a.pgn.zst", "2024/b.pgn", "2024/deep/c.epd", "2025/d.pgn", "2024/readme.txt", "2024/.e.pgn", "2024/folder.pgn/"):
        bucket.put_object(Key=key, Body=TEXT[:100])
    assert names("s3://chess/a.pgn.zst") == ["a.pgn.zst"]
    assert names("s3://chess/2024/") == ["b.pgn", "c.epd"]
    assert names("s3://chess") == names("s3://chess/") == ["a.pgn.zst", "b.pgn", "c.epd", "d.pgn"]
    assert names("s3://chess/20*/*.pgn", "s3://chess/2024/b.pgn") == ["b.pgn", "d.pgn"]
    assert names("s3://chess/202[5]/?.pgn") == ["d.pgn"]
    (file,) = find_files(["s3://chess/2025/"])
    assert (file.uri, file.kind, file.packing) == ("s3://chess/2025/d.pgn", FileKind.GAMES, Packing.NONE)
    with pytest.raises(SourceError, match=r"s3://chess/2026/: no file found"):
        find_files(["s3://chess/2026/"])
    with pytest.raises(SourceError, match="cannot tell by its suffix"):
        find_files(["s3://chess/2024/readme.txt"])


@pytest.mark.prove
def test_more_objects_than_one_listing_holds_are_all_found(bucket: Any) -> None:
    for number in range(1_001):
        bucket.put_object(Key=f"{number}.pgn", Body=b"")
    assert len(find_files(["s3://chess/"])) == 1_001


@pytest.mark.parametrize("packing", ["zst", "zip"])  # From its beginning to its end; by its directory.
def test_an_object_is_read_as_a_file_is(bucket: Any, tmp_path: Path, packing: str) -> None:
    whole = PACKERS[packing](TEXT)
    bucket.put_object(Key=f"x.pgn.{packing}", Body=whole)
    (file,) = find_files([f"s3://chess/x.pgn.{packing}"])
    assert b"".join(read_chunks(file)) == TEXT == unpacked(tmp_path, f"x.pgn.{packing}", whole)
    before = fingerprint(file)
    assert before == fingerprint(file)
    bucket.put_object(Key=f"x.pgn.{packing}", Body=whole[:-30])
    assert before != fingerprint(file)
    with pytest.raises(SourceError, match="truncated"):
        list(read_chunks(file))


class Breaking:
    """A body that gives so many bytes and breaks, as connections do: by an error, or by an end that comes too early."""

    def __init__(self, body: Any, num_bytes: int, error: Exception | None) -> None:
        self._body = body
        self._left = num_bytes
        self._error = error

    def read(self, count: int) -> bytes:
        piece: bytes = self._body.read(min(count, self._left)) if self._left else b""
        self._left -= len(piece)
        if not piece and self._error is not None:
            raise self._error
        return piece

    def close(self) -> None:
        self._body.close()


ERRORS = [
    urllib3.exceptions.ProtocolError("Connection broken"),
    urllib3.exceptions.ReadTimeoutError(None, "url", "timed out"),  # type: ignore[arg-type]
    ConnectionResetError(104, "Connection reset by peer"),
    None,
]


@pytest.fixture
def break_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], int | None], Exception | None], list[dict[str, Any]]]:
    """Return what makes the n-th body break after so many bytes (None: never), and gives the requests made."""

    def install(num_bytes: Callable[[int], int | None], error: Exception | None) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = []
        new_client = s3.new_client

        def breaking_client() -> Any:
            client = new_client()
            get_object = client.get_object

            def get(**request: Any) -> Any:
                answer = get_object(**request)
                limit = num_bytes(len(requests))
                requests.append(request)
                return answer if limit is None else {**answer, "Body": Breaking(answer["Body"], limit, error)}

            client.get_object = get
            return client

        monkeypatch.setattr(s3, "new_client", breaking_client)
        return requests

    return install


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_a_connection_that_breaks_is_taken_up_where_it_broke(bucket: Any, break_after: Any, error: Exception | None) -> None:
    whole = pack_zst(TEXT)
    bucket.put_object(Key="x.pgn.zst", Body=whole)
    (file,) = find_files(["s3://chess/x.pgn.zst"])
    requests = break_after(lambda number: 20_000, error)
    assert b"".join(read_chunks(file)) == TEXT
    etag = bucket.Object("x.pgn.zst").e_tag
    assert requests == [
        {"Bucket": "chess", "Key": "x.pgn.zst", **({"Range": f"bytes={start}-", "IfMatch": etag} if start else {})}
        for start in range(0, len(whole), 20_000)
    ]


def test_breaks_with_progress_between_them_are_borne_however_many(bucket: Any, break_after: Any) -> None:
    bucket.put_object(Key="x.pgn", Body=TEXT[:40_000])
    (file,) = find_files(["s3://chess/x.pgn"])
    # Five breaks without a byte, one with: never six in a row.
    requests = break_after(lambda number: 10_000 if number % 5 == 0 else 0, ERRORS[0])
    assert b"".join(read_chunks(file)) == TEXT[:40_000]
    assert len(requests) == 16


def test_the_pauses_between_breaks_grow(bucket: Any, break_after: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.put_object(Key="x.pgn", Body=TEXT)
    (file,) = find_files(["s3://chess/x.pgn"])
    break_after(lambda number: 0, ERRORS[0])
    pauses: list[float] = []
    monkeypatch.setattr(remote, "_BACK_OFF_SECONDS", 0.5)
    monkeypatch.setattr("grpo.reading.remote.time.sleep", pauses.append)
    with pytest.raises(SourceError):
        list(read_chunks(file))
    assert pauses == [0.5, 1, 2, 4, 8]


def test_an_object_that_is_replaced_while_it_is_read_is_told(bucket: Any, break_after: Any) -> None:
    bucket.put_object(Key="x.pgn", Body=TEXT)
    (file,) = find_files(["s3://chess/x.pgn"])
    break_after(lambda number: 100_000, ERRORS[0])
    chunks = s3.S3Object(file.uri)
    assert len(chunks.read(1_000)) == 1_000
    bucket.put_object(Key="x.pgn", Body=TEXT[::-1])
    with pytest.raises(SourceError, match="replaced while it was read"):
        chunks.readall()
    chunks.close()


def test_an_object_can_be_sought_as_a_file(bucket: Any) -> None:
    bucket.put_object(Key="x.pgn", Body=TEXT)
    with s3.S3Object("s3://chess/x.pgn") as found:
        local = io.BytesIO(TEXT)
        for offset, whence in ((0, 2), (-100, 2), (50, 0), (10, 1), (-20, 1), (len(TEXT) + 5, 0), (7, 0)):
            assert found.seek(offset, whence) == local.seek(offset, whence)
            assert found.read(30) == local.read(30)
            assert found.tell() == local.tell()
        with pytest.raises(ValueError, match="negative"):
            found.seek(-1)


def test_what_s3_refuses_is_told_with_what_to_do(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for address, remedy in (
        ("s3://chess/x.pgn", "NoSuchKey.*correct the key; a folder's address ends in /"),
        ("s3://nobody-has-this/x.pgn", "NoSuchBucket.*correct the bucket's name"),
        ("s3://nobody-has-this/", "NoSuchBucket.*correct the bucket's name"),
        ("s3://not a name/x.pgn", "correct the address: s3://bucket/key"),
        ("s3://", "correct the address: s3://bucket/key"),
    ):
        with pytest.raises(SourceError, match=f"(?s)^{address}: .*{remedy}"):
            find_files([address])
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(SourceError, match="correct AWS_PROFILE"):
        find_files(["s3://chess/x.pgn"])


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match="there are no credentials: log in"):
        find_files(["s3://chess/x.pgn"])


@pytest.mark.skipif(not SAMPLE_DATA, reason="CHESS_GRPO_SAMPLE_DATA is not set")
def test_the_sample_archives_are_read_whole() -> None:
    files = find_files([f"{SAMPLE_DATA}/*.zip"])
    assert {file.name: sum(map(len, read_chunks(file))) for file in files} == {
        "8moves_v3.pgn.zip/8moves_v3.pgn": 8_037_438,
        "endgames.epd.zip/endgames.epd": 7_977_081,
        "popularpos_lichess_v3.epd.zip/popularpos_lichess_v3.epd": 12_953_047,
    }

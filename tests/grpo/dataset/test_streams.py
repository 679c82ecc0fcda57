"""Files are found and read wherever they lie and however they are packed; an error about damage names the file."""

import bz2
import gzip
import io
import os
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from unittest.mock import patch

import boto3
import pytest
import zstandard
from local_server import served
from s3_server import s3_server

from grpo.dataset.games import SourceError
from grpo.dataset.streams import FileKind, find_files, fingerprint, opened

TEXT = "".join(f"{number}. e4 e5 {number**9}\n" for number in range(8_000)).encode()


def zipped(data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("games.pgn", data)
        archive.writestr("__MACOSX/._games.pgn", b"")
        archive.writestr("readme.txt", b"")
    return packed.getvalue()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zip": zipped,
}


def read(*patterns: object) -> bytes:
    content = b""
    for file in find_files([str(each) for each in patterns]):
        with opened(file) as stream:
            content += stream.read()
    return content


def names(*patterns: object) -> list[str]:
    return [file.name for file in find_files([str(each) for each in patterns])]


@pytest.mark.parametrize("packing", PACKERS)
def test_what_is_packed_is_unpacked_and_what_is_cut_short_or_damaged_is_told(packing: str, tmp_path: Path) -> None:
    path, whole = tmp_path / f"x.pgn.{packing}", PACKERS[packing](TEXT)
    path.write_bytes(whole)
    assert read(path) == TEXT
    for size in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=f"{path}.*: damaged or cut short"):
            read(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(byte ^ 255 for byte in whole[middle : middle + 8]) + whole[middle + 8 :])
    with pytest.raises(SourceError, match=f"{path}.*: damaged or cut short"):
        read(path)


@pytest.mark.parametrize("packing", ["zst", "gz"])
def test_files_put_one_behind_the_other_are_all_read(packing: str, tmp_path: Path) -> None:
    (tmp_path / f"x.pgn.{packing}").write_bytes(PACKERS[packing](TEXT) + PACKERS[packing](TEXT[:100]))
    assert read(tmp_path) == TEXT + TEXT[:100]


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        ("x.pgn", b"<!DOCTYPE html>\n<p>log in</p>", "a web page"),
        ("x.pgn", '[Event "e"]\n'.encode("utf-16"), "no UTF-8 text"),
        ("x.pgn", b"4k3/8/8/8/8/8/8/R3K3 w - - 0 1\n", "positions"),
        ("x.epd", b'\xef\xbb\xbf[Event "e"]\n', "games"),
    ],
)
def test_content_of_another_kind_than_the_name_says_is_told(name: str, content: bytes, what: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=f"{name}: the content is {what}, but the name says"):
        read(tmp_path)


def test_folders_globs_and_archives_stand_for_files_of_known_suffixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.pgn", "a.pgn.zst", "deep/er/c.EPD", "deep/p.csv.gz", "readme.txt", ".hidden.pgn", "x.zst"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "z.zip").write_bytes(zipped(TEXT))
    first, second, archive = (fingerprint(find_files([str(tmp_path / name)])[0]) for name in ("a.pgn.zst", "b.pgn", "z.zip"))
    assert first == second != archive, "a fingerprint is of the content alone"
    assert [(file.name, file.kind) for file in find_files([str(tmp_path)])] == [
        ("a.pgn.zst", FileKind.GAMES),
        ("b.pgn", FileKind.GAMES),
        ("c.EPD", FileKind.POSITIONS),
        ("p.csv.gz", FileKind.PUZZLES),
        ("z.zip/games.pgn", FileKind.GAMES),
    ]
    assert names(tmp_path / "*.pgn*", tmp_path / "b.pgn") == ["a.pgn.zst", "b.pgn"]
    assert names(tmp_path / "**" / "*.csv*") == ["p.csv.gz"]
    monkeypatch.chdir(tmp_path / "deep")
    assert find_files(["../b.pgn"]) == find_files([str(tmp_path / "b.pgn")])


def archive(*members: tuple[str, bytes]) -> bytearray:
    packed = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(packed, "w") as written:
        warnings.simplefilter("ignore")  # Of two members of one name.
        for name, data in members:
            written.writestr(name, data)
    return bytearray(packed.getvalue())


@pytest.mark.parametrize(
    ("offsets", "value", "message"),
    [
        ((6, 8), 1, "is encrypted"),  # Where a member's header and its entry of the directory have the flags, and the method.
        ((8, 10), 9, "compression method is not supported"),
    ],
)
def test_a_zip_that_cannot_be_unpacked_here_is_told(offsets: tuple[int, int], value: int, message: str, tmp_path: Path) -> None:
    data = archive(("games.pgn", TEXT[:100]))
    for signature, offset in zip((b"PK\3\4", b"PK\1\2"), offsets, strict=True):
        data[data.index(signature) + offset] = value
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(SourceError, match=rf"x\.zip \(member games\.pgn\): cannot be unpacked here \(.*{message}.*unpack it, and give"):
        read(tmp_path)


def test_members_of_one_name_are_refused_and_a_member_whose_name_leads_outside_is_only_read(tmp_path: Path) -> None:
    (folder := tmp_path / "deep" / "er").mkdir(parents=True)
    (folder / "x.zip").write_bytes(archive(("../a.pgn", TEXT[:10]), (f"{tmp_path}/b.pgn", TEXT[10:20])))
    assert read(folder) == TEXT[:20]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["x.zip"]
    (folder / "x.zip").write_bytes(archive(("a.pgn", TEXT), ("b.txt", b""), ("a.pgn", b"")))
    with pytest.raises(SourceError, match=r"x\.zip: 2 members are called a\.pgn; unpack the archive"):
        read(folder)


def test_a_zstd_window_that_is_too_large_here_is_no_damage(tmp_path: Path) -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=wide).compressobj()  # Of unknown size, so the window stays as wide.
    (tmp_path / "x.pgn.zst").write_bytes(compressor.compress(TEXT) + compressor.flush())
    with pytest.raises(SourceError, match=r"x\.pgn\.zst: has a zstd window above 128 MiB; unpack it with `zstd -d --long=31`"):
        read(tmp_path)


@pytest.mark.parametrize("packed", ["deep/b.pgn.gz", "b.EPD.zst", "more.zip"])
def test_an_archive_with_a_packed_member_is_refused_instead_of_read_in_part(packed: str, tmp_path: Path) -> None:
    members = ("a.pgn", TEXT), ("folder.zip/", b""), ("notes.gz", b""), ("__MACOSX/._b.pgn.gz", b"")
    (tmp_path / "x.zip").write_bytes(archive(*members))
    assert read(tmp_path) == TEXT
    (tmp_path / "x.zip").write_bytes(archive(*members, (packed, b"")))
    with pytest.raises(SourceError, match=rf"x\.zip: its member {packed} is packed, too; unpack the archive"):
        read(tmp_path)


@pytest.mark.parametrize("path", [b"M\xfcnchen.pgn", b"M\xfcnchen/x.zip", b"M\xfcnchen.epd.gz"])
def test_a_name_that_is_no_utf_8_is_refused(path: bytes, tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(path)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(zipped(TEXT))
    with pytest.raises(SourceError, match=r"/M\\xfcnchen.*: the path is not UTF-8; rename it") as refusal:
        read(tmp_path)
    str(refusal.value).encode()


@pytest.mark.parametrize("name", ["x.pgn", "x.pgn.gz", "x.zip", ""])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / (name or "y.epd")).symlink_to(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is a pipe, socket, device or broken link"):
        read(tmp_path / name)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    for place in ("1", "2"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.pgn").write_bytes(b"")
    with pytest.raises(SourceError, match=f"2 different files are called x.pgn .{tmp_path}/1/x.pgn and {tmp_path}/2/x.pgn.*rename one"):
        find_files([str(tmp_path)])


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*.pgn", "no file found"),
        ("notes.txt", "the suffix is unknown"),
        ("ftp://me:hunter2@host/x.pgn", r"^ftp://host/x\.pgn: give this address without a user or a query"),
        ("https://host/x.pgn?token=hunter2", r"^https://host/x\.pgn: give this address without a user or a query"),
        ("odd://bucket/x.pgn", "Protocol not known: odd"),
    ],
)
def test_a_pattern_that_stands_for_nothing_that_is_read_is_told(
    pattern: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("")
    with pytest.raises(SourceError, match=message) as refusal:
        find_files([pattern])
    assert "hunter2" not in str(refusal.value)


def test_a_file_of_a_web_server_is_read_as_it_arrives(tmp_path: Path) -> None:
    (tmp_path / "x.pgn.zst").write_bytes(PACKERS["zst"](TEXT))

    with served(partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as address:
        [file] = find_files([f"{address}/x.pgn.zst"])
        with opened(file) as stream:
            assert stream.read() == TEXT
        assert fingerprint(file) == fingerprint(file)
        with pytest.raises(SourceError, match=r"y\.pgn: no file found"):
            read(f"{address}/y.pgn")


def test_objects_are_found_by_key_prefix_and_glob_and_read_as_files_are() -> None:
    with s3_server() as variables, patch.dict("os.environ", variables):
        bucket = boto3.session.Session().resource("s3").Bucket("shop")
        for key in ("2024/b.pgn", "2024/deep/c.epd", "2025/d.pgn", "2024/readme.txt"):
            bucket.put_object(Key=key, Body=TEXT[:100])
        bucket.put_object(Key="a.pgn.zip", Body=zipped(TEXT))
        assert names("s3://shop/2024/") == ["b.pgn", "c.epd"]
        assert names("s3://shop/20*/*.pgn", "s3://shop/2024/b.pgn") == ["b.pgn", "d.pgn"]
        assert read("s3://shop/a.pgn.zip") == TEXT
        [file] = find_files(["s3://shop/2025/"])
        before = fingerprint(file)
        bucket.put_object(Key="2025/d.pgn", Body=TEXT)
        assert fingerprint(file) != before
        for address in ("s3://shop/x.pgn", "s3://nobody-has-this/"):
            with pytest.raises(SourceError, match=f"^{address}: no file found"):
                find_files([address])


@pytest.mark.parametrize(("num_cut", "is_read"), [(1, True), (1_000, False)])
def test_an_object_whose_transfer_is_cut_is_asked_for_again_and_in_the_end_told(num_cut: int, is_read: bool) -> None:
    cut: list[str] = []

    class Cutting(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in {"Content-Length": f"{len(TEXT)}", "ETag": '"e"', "Last-Modified": "Sat, 28 Nov 2020 09:45:46 GMT"}.items():
                self.send_header(name, value)
            self.end_headers()
            is_cut = self.command == "GET" and len(cut) < num_cut
            cut.extend([self.path] * is_cut)
            self.wfile.write(b"" if self.command == "HEAD" else TEXT[: len(TEXT) // (1 + is_cut)])
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    variables = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "a") | {"AWS_DEFAULT_REGION": "us-east-1"}
    with served(Cutting) as address, patch.dict("os.environ", variables | {"AWS_ENDPOINT_URL": address}):
        if is_read:
            assert read("s3://shop/x.pgn") == TEXT
        else:
            with pytest.raises(SourceError, match=r"^s3://shop/x\.pgn: cannot be read .*check the address, the network"):
                read("s3://shop/x.pgn")
        assert 1 <= len(cut) <= 10

"""Files of web servers and of the hub are read as local files are, and go on where a connection broke."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import zstandard
from local_server import served

from grpo.reading import remote
from grpo.reading.games import SourceError
from grpo.reading.streams import find_files, fingerprint, read_chunks
from grpo.reading.web import WebFile

TEXT = "".join(f'[Event "e"]\n\n{number}. e4 e5 *\n\n' for number in range(20_000)).encode()
PACKED = zstandard.compress(TEXT)


@dataclass
class Site:
    """A web server of this machine."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    break_after: int | None = None
    """Bytes after which an answer breaks."""
    knows_ranges: bool = True
    refusals: list[int] = field(default_factory=list)
    """Statuses of the next answers."""
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    """Path, Range and Authorization."""
    etags: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        path = unquote(parts.path) + (f"?{parts.query}" if parts.query else "")
        self.requests.append((path, handler.headers["Range"], handler.headers["Authorization"]))
        if self.refusals:
            handler.send_error(self.refusals.pop(0))
            return
        if path in self.moved:
            handler.send_response(302)
            handler.send_header("Location", self.moved[path])
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        if path not in self.files:
            handler.send_error(404)
            return
        whole, start = self.files[path], 0
        wanted = re.fullmatch(r"bytes=(\d+)-", handler.headers["Range"] or "")
        handler.send_response(206 if wanted and self.knows_ranges else 200)
        if wanted and self.knows_ranges:
            start = int(wanted[1])
            handler.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        handler.send_header("Content-Length", str(len(whole) - start))
        handler.send_header("ETag", self.etags.get(path, f'"{hash(whole)}"'))
        if path in self.links:
            handler.send_header("Link", self.links[path])
        handler.end_headers()
        body = whole[start:]
        breaks = self.break_after is not None and self.break_after < len(body) and (self.knows_ranges or not wanted)
        handler.wfile.write(body[: self.break_after] if breaks else body)
        handler.close_connection = True


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    found = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.answer(self)

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(remote, "_BACK_OFF_SECONDS", 0.0)
    monkeypatch.setattr("urllib3.Retry.get_backoff_time", lambda self: 0.0)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with served(Handler) as found.address:
        monkeypatch.setenv("HF_ENDPOINT", found.address)
        yield found


@pytest.mark.parametrize("knows_ranges", [True, False])
@pytest.mark.parametrize(("name", "content"), [("games.pgn.zst", PACKED), ("games.pgn", TEXT)])
def test_a_file_is_read_whole_though_the_connection_breaks_again_and_again(
    site: Site, name: str, content: bytes, knows_ranges: bool
) -> None:
    site.files[f"/{name}"] = content
    (file,) = find_files([f"{site.address}/{name}"])
    site.requests.clear()
    if knows_ranges:
        site.break_after = len(content) // 6
    else:
        site.knows_ranges, site.break_after = False, len(content) - 5
    assert b"".join(read_chunks(file)) == TEXT
    ranges = [wanted for _, wanted, _ in site.requests if wanted is not None]
    assert len(ranges) >= (5 if knows_ranges else 1)
    assert len(set(ranges)) == len(ranges), "each goes on from another byte"


def test_a_range_answers_from_where_it_broke(site: Site) -> None:
    site.files["/x.pgn"] = TEXT
    site.break_after = 100_000
    (file,) = find_files([f"{site.address}/x.pgn"])
    site.requests.clear()
    assert b"".join(read_chunks(file)) == TEXT
    assert [wanted for _, wanted, _ in site.requests if wanted] == [f"bytes={start}-" for start in range(100_000, len(TEXT), 100_000)]


def test_a_file_that_is_replaced_while_it_is_read_is_told(site: Site) -> None:
    site.files["/x.pgn"] = TEXT
    site.break_after = 100_000
    with WebFile(f"{site.address}/x.pgn") as found:
        assert found.read(1_000) == TEXT[:1_000]
        site.files["/x.pgn"] = TEXT[::-1]
        with pytest.raises(SourceError, match="replaced while it was read"):
            found.readall()


@pytest.mark.parametrize(
    ("refusals", "message"),
    [([404], "the server answers 404 .*correct the address"), ([401], "needs a login"), ([403], "access is refused")],
)
def test_what_a_server_refuses_is_told_with_what_to_do(site: Site, refusals: list[int], message: str) -> None:
    site.files["/x.pgn"] = TEXT
    site.refusals = refusals
    with pytest.raises(SourceError, match=f"/x.pgn: .*{message}"):
        find_files([f"{site.address}/x.pgn"])


def test_a_server_that_is_busy_is_asked_again(site: Site) -> None:
    site.files["/x.pgn"] = TEXT
    site.refusals = [503, 429]
    assert [file.name for file in find_files([f"{site.address}/x.pgn"])] == ["x.pgn"]


def test_a_server_that_is_not_there_and_one_that_always_breaks_are_told(site: Site) -> None:
    site.files["/x.pgn"] = TEXT
    (file,) = find_files([f"{site.address}/x.pgn"])
    site.break_after = 0
    with pytest.raises(SourceError, match="the connection broke 6 times in a row at byte 0 of"):
        list(read_chunks(file))
    with pytest.raises(SourceError, match=r"cannot be read .*check the network"):
        find_files(["http://127.0.0.1:9/x.pgn"])


def test_a_password_in_an_address_is_refused_and_not_repeated(site: Site) -> None:
    with pytest.raises(SourceError, match="password") as refusal:
        find_files(["https://me:S3cret@example.org/x.pgn"])
    assert "S3cret" not in str(refusal.value)


def test_a_fingerprint_changes_with_the_file(site: Site) -> None:
    site.files["/x.pgn"] = TEXT
    (file,) = find_files([f"{site.address}/x.pgn"])
    first = fingerprint(file)
    assert fingerprint(file) == first
    site.files["/x.pgn"] = TEXT + b"\n"
    assert fingerprint(file) != first


def test_a_hubs_file_is_found_by_name_folder_and_glob_and_its_token_goes_to_the_hub_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    tree = "/api/datasets/anna/games/tree/main?recursive=true"
    entries = [{"type": "file", "path": f"data/{name}", "size": 1} for name in ("a b.pgn.zst", "b.pgn", "README.md")]
    site.files[tree] = json.dumps([{"type": "directory", "path": "data"}, *entries[:1]]).encode()
    site.links[tree] = f'<{site.address}/api/more?cursor=x>; rel="next"'
    site.files["/api/more?cursor=x"] = json.dumps(entries[1:]).encode()
    elsewhere = site.address.replace("127.0.0.1", "localhost")
    for name, content in (("a b.pgn.zst", PACKED), ("b.pgn", TEXT)):
        site.moved[f"/datasets/anna/games/resolve/main/data/{name}"] = f"{elsewhere}/cdn/{name.replace(' ', '%20')}"
        site.files[f"/cdn/{name}"] = content
    for pattern, names in (
        ("hf://datasets/anna/games/data/", ["a b.pgn.zst", "b.pgn"]),
        ("hf://datasets/anna/games@main/data/*.zst", ["a b.pgn.zst"]),
        ("hf://datasets/anna/games/data/b.pgn", ["b.pgn"]),
    ):
        files = find_files([pattern])
        assert [file.name for file in files] == names
        assert all(b"".join(read_chunks(file)) == TEXT for file in files)
    assert {token for path, _, token in site.requests if not path.startswith("/cdn/")} == {"Bearer hf_secret"}
    assert {token for path, _, token in site.requests if path.startswith("/cdn/")} == {None}
    with pytest.raises(SourceError, match="not a hub's address"):
        find_files(["hf://games.pgn"])

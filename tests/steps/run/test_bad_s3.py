"""What S3 does on a bad day, said by a real server over real connections: borne where waiting helps, and told with the remedy where not."""

import contextlib
import hashlib
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from local_server import served

from grpo.dataset.games import SourceError
from grpo.dataset.streams import find_files, opened
from steps.run.objects import S3Objects, StoreError

CONTENT = bytes(range(1, 256)) * 1_000
Use = Callable[[Path], bytes]


def read_as_a_source(folder: Path) -> bytes:
    [file] = find_files(["s3://chess/games.pgn"])
    with opened(file) as stream:
        return stream.read()


def get(folder: Path) -> bytes:
    found = S3Objects("s3://chess").get("games.pgn")
    assert found is not None
    return found


def download(folder: Path) -> bytes:
    S3Objects("s3://chess").download({folder / "games.pgn": "games.pgn"})
    return (folder / "games.pgn").read_bytes()


READERS = pytest.mark.parametrize("read", [read_as_a_source, download])


@dataclass
class BadDays:
    """What the server does with the next requests, in order; later ones are answered well."""

    faults: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)


class Handler(BaseHTTPRequestHandler):
    """S3, as far as it is asked here."""

    protocol_version = "HTTP/1.1"
    days: BadDays

    def do_GET(self) -> None:
        """Give the object, or what is left of it, unless something is to go wrong."""
        content = self.days.stored.get(self.path)
        if content is None:
            self._refuse(404, "NoSuchKey")
        elif not (fault := self._next_fault()) or fault.startswith("cut"):
            self._give(content, num_bytes=int(fault.partition(" ")[2] or len(content)))

    def do_HEAD(self) -> None:
        """Say how long the object is."""
        self.do_GET()

    def do_PUT(self) -> None:
        """Take an object, unless there must be none yet."""
        content = self._body()
        fault = self._next_fault()
        if fault not in ("", "deaf"):
            return
        if self.headers.get("If-None-Match") == "*" and self.path in self.days.stored:
            self._refuse(412, "PreconditionFailed")
            return
        self.days.stored[self.path] = content
        if fault == "deaf":  # It is done, and nobody is told.
            self._hang_up()
        else:
            self._answer(200, b"", ETag=f'"{hashlib.md5(content).hexdigest()}"')

    def _body(self) -> bytes:
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        content = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return content

    def _next_fault(self) -> str:
        """Return what goes wrong with this request; an error that S3 answers with is answered here."""
        self.days.seen.append(f"{self.command} {self.headers.get('Range', '')}".strip())
        fault = self.days.faults.pop(0) if self.days.faults else ""
        if fault.split()[0:1] and fault.split()[0].isdigit():
            status, code = fault.split()
            self._refuse(int(status), code)
        elif fault == "hangs up":
            self._hang_up()
        return fault

    def _give(self, content: bytes, *, num_bytes: int) -> None:
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        start = 0
        headers = {"ETag": tag, "Accept-Ranges": "bytes"}
        if wanted := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        whole = content[start:]
        self._answer(206 if start else 200, whole[:num_bytes], size=len(whole), **headers)
        if num_bytes < len(whole) and self.command == "GET":
            self._hang_up()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
        self._answer(status, text.encode())

    def _answer(self, status: int, body: bytes, *, size: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[BadDays]:
    """Start the server, with one object, and let all pauses between tries be short."""
    days = BadDays(stored={"/chess/games.pgn": CONTENT})
    with served(type("Bound", (Handler,), {"days": days})) as address:
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "eu-central-1",
            "AWS_CONFIG_FILE": str(tmp_path / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        yield days


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Keep how long each pause between two tries would be, and do not pause."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    return pauses


@READERS
def test_a_service_that_is_busy_is_asked_again(read: Use, days: BadDays, pauses: list[float], tmp_path: Path) -> None:
    days.faults = ["503 SlowDown", "hangs up"]
    assert read(tmp_path) == CONTENT
    assert len(days.seen) >= 3


@READERS
def test_an_answer_that_breaks_off_is_not_taken_for_the_whole(read: Use, days: BadDays, pauses: list[float], tmp_path: Path) -> None:
    days.faults = (
        ["", "", "cut 1000", "cut 70000"] if read is read_as_a_source else ["cut 1000", "cut 70000"]
    )  # A source is asked about first.
    assert read(tmp_path) == CONTENT
    if read is download:
        assert days.seen[1:] == [f"GET bytes={start}-" for start in (1_000, 71_000)], "only what was missing is asked for again"


@pytest.mark.parametrize(
    ("fault", "remedy", "read"),
    [
        ("400 ExpiredToken", "aws sso login", read_as_a_source),
        ("403 AccessDenied", "ask the bucket's owner", get),
        ("404 NoSuchBucket", "correct the bucket's name", download),
    ],
)
def test_what_waiting_does_not_mend_is_told_at_once_with_its_remedy(
    fault: str, remedy: str, read: Use, days: BadDays, pauses: list[float], tmp_path: Path
) -> None:
    days.faults = [fault] * 100
    with pytest.raises((SourceError, StoreError), match=rf"(?s)^s3://chess/games\.pgn: .*{remedy}"):
        read(tmp_path)
    assert pauses == []


def test_an_object_is_written_to_a_busy_service_too(days: BadDays, pauses: list[float]) -> None:
    days.faults = ["503 SlowDown", "hangs up"]
    S3Objects("s3://chess").put("new", b"content")
    assert days.stored["/chess/new"] == b"content"
    assert len(pauses) == 2


def test_who_was_first_but_was_not_told_so_is_first(days: BadDays, pauses: list[float]) -> None:
    # The object was written, the answer was lost, and the second try met its own object.
    days.faults = ["deaf"]
    assert S3Objects("s3://chess").create("manifest", b"mine")
    assert S3Objects("s3://chess").create("manifest", b"theirs") is False

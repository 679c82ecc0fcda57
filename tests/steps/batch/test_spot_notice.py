"""A notice that the machine is taken back, by a file or by the instance's metadata, ends the task as SIGTERM does, once."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from local_server import served
from ports import free_port

from steps.batch import spot_notice
from steps.batch.spot_notice import sigterm_on_spot_notice

ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
NOTICE = json.dumps({"action": "terminate", "time": "2026-05-01T12:00:00Z"})


class Told(BaseException):
    """SIGTERM came."""


@pytest.fixture
def told() -> Iterator[list[float]]:
    """Have SIGTERM raise Told, and give the times at which it came."""
    times: list[float] = []

    def tell(number: int, frame: FrameType | None) -> None:
        times.append(time.monotonic())
        raise Told

    before = signal.signal(signal.SIGTERM, tell)
    yield times
    signal.signal(signal.SIGTERM, before)


class Metadata:
    """An instance metadata service that answers only with a token of its own, and says what a test wants."""

    def __init__(self) -> None:
        self.notice: str | None = None
        self.token_status = 200
        self.tokens: list[str] = []
        self.asked: list[str] = []
        self.delay_seconds = 0.0
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                time.sleep(stub.delay_seconds)
                stub.asked.append("token")
                if self.path != "/latest/api/token" or not self.headers["X-aws-ec2-metadata-token-ttl-seconds"]:
                    self._say(400, "")
                    return
                stub.tokens.append(f"token-{len(stub.tokens)}")
                self._say(stub.token_status, stub.tokens[-1])

            def do_GET(self) -> None:
                stub.asked.append(self.path)
                if self.headers["X-aws-ec2-metadata-token"] != stub.tokens[-1]:
                    self._say(401, "")
                elif self.path != "/latest/meta-data/spot/instance-action" or stub.notice is None:
                    self._say(404, "")
                else:
                    self._say(200, stub.notice)

            def _say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.handler = Handler


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    """Give this machine a metadata service."""
    stub = Metadata()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    with served(stub.handler) as address:
        monkeypatch.setenv(ENDPOINT, address)
        yield stub


@pytest.fixture
def no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody listen where the metadata service would be."""
    monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{free_port()}")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.usefixtures("no_metadata")
def test_the_file_brings_one_sigterm_and_a_line(told: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notice = tmp_path / "notice"

    def work() -> None:
        with sigterm_on_spot_notice(notice, seconds=0.01):
            time.sleep(0.1)
            assert not told
            notice.touch()
            time.sleep(30)

    with pytest.raises(Told):
        work()
    time.sleep(0.1)
    assert len(told) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert line == f"spot interruption notice ({notice} exists): sending SIGTERM, so that the step saves its progress"


@pytest.mark.usefixtures("no_metadata")
def test_after_the_block_nobody_is_told(told: list[float], tmp_path: Path) -> None:
    with sigterm_on_spot_notice(tmp_path / "notice", seconds=0.01):
        pass
    (tmp_path / "notice").touch()
    time.sleep(0.1)
    assert not told


def test_without_a_file_to_watch_nobody_is_asked(metadata: Metadata, told: list[float]) -> None:
    metadata.notice = NOTICE
    threads = threading.active_count()
    with sigterm_on_spot_notice(None, seconds=0.01):
        assert threading.active_count() == threads
        time.sleep(0.1)
    assert (metadata.asked, told) == ([], [])


def test_the_metadata_are_asked_with_a_token(
    metadata: Metadata, told: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # Nothing for it.

    def work() -> None:
        with sigterm_on_spot_notice(str(tmp_path / "notice"), seconds=0.01):
            wait_until(lambda: len(metadata.asked) > 3)
            assert not told
            metadata.notice = NOTICE
            time.sleep(30)

    with pytest.raises(Told):
        work()
    assert metadata.asked.count("token") == 1
    assert "spot interruption notice (to terminate at 2026-05-01T12:00:00Z): sending SIGTERM" in capsys.readouterr().out


@pytest.mark.parametrize("notice", ["", "2026-05-01T12:00:00Z", "{}", "[]", "\0"])
def test_a_notice_in_other_words_counts_too(notice: str, metadata: Metadata, told: list[float], tmp_path: Path) -> None:
    metadata.notice = notice
    with pytest.raises(Told), sigterm_on_spot_notice(tmp_path / "notice", seconds=0.01):
        time.sleep(30)


def test_a_token_that_has_run_out_is_renewed(metadata: Metadata, told: list[float], tmp_path: Path) -> None:
    def work() -> None:
        with sigterm_on_spot_notice(tmp_path / "notice", seconds=0.01):
            wait_until(lambda: len(metadata.asked) > 2)
            metadata.tokens.append("another")
            wait_until(lambda: metadata.asked.count("token") == 2)
            metadata.notice = NOTICE
            time.sleep(30)

    with pytest.raises(Told):
        work()


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_service_that_gives_no_token_is_asked_once(status: int, metadata: Metadata, told: list[float], tmp_path: Path) -> None:
    metadata.token_status, metadata.notice = status, NOTICE
    with sigterm_on_spot_notice(tmp_path / "notice", seconds=0.001):
        wait_until(lambda: bool(metadata.asked))
        time.sleep(0.2)
    assert (metadata.asked, told) == (["token"], [])


def test_who_switches_the_metadata_off_is_heard(
    metadata: Metadata, told: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    metadata.notice = NOTICE
    with sigterm_on_spot_notice(tmp_path / "notice", seconds=0.001):
        time.sleep(0.2)
    assert (metadata.asked, told) == ([], [])


def test_behind_a_service_that_does_not_answer_the_file_is_still_seen(
    metadata: Metadata, told: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spot_notice, "_ANSWER_SECONDS", 0.05)
    metadata.delay_seconds = 0.5
    (tmp_path / "notice").touch()
    with pytest.raises(Told), sigterm_on_spot_notice(tmp_path / "notice", seconds=0.01):
        time.sleep(30)


@pytest.mark.usefixtures("no_metadata")
def test_without_a_service_all_is_silent(told: list[float], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sigterm_on_spot_notice(tmp_path / "notice", seconds=0.001):
        time.sleep(0.2)
    assert not told
    assert capfd.readouterr() == ("", "")
